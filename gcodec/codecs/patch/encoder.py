"""The encoder: it selects classes, and codes for the changes of each class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.codecs.patch import message
from gcodec.codecs.patch.digest import digest_of
from gcodec.codecs.patch.message import Changes, ClassHead, Head, PatchSymbols
from gcodec.entropy import positions as position_coding
from gcodec.entropy import rans, tabled
from gcodec.entropy.coder import Written
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.numeric import class_changes
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.class_changes import MOST_CLASSES, Tally
from gcodec.kernels.numeric.scan import starts_of
from gcodec.kernels.prefix.value_classes import VALUES
from gcodec.runtime.deferred import prefetch, resolved

_CLASS_NBITS = 320  # approximate bits of the head and the tables of a class
_EMPTY_NBITS = 32  # bits of the head of a class that does not change
_MOST_NBITS = 32  # bits of numbers whose products with logarithms do not overflow
_POINT = 16  # fractional bits of the prices of classes


class _Class(NamedTuple):
    """A class of the message.

    Attributes
    ----------
    head : ClassHead
    places : uint8 array
        String of the positions.
    values : uint8 array
        Symbols and raw bits of the values.
    """

    head: ClassHead
    places: np.ndarray
    values: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of the class with its head."""
        return len(self.head.to_bytes()) + self.places.size + self.values.size


_NO_BYTES = np.empty(0, np.uint8)


def symbols_of(new: np.ndarray, old: np.ndarray, dtype: str) -> PatchSymbols:
    """Return the symbols that turn (n,) old bit patterns into new ones."""
    digest, contexts = digest_of(old), message.contexts_of(dtype)
    prefetch(digest)  # with the counts
    known = class_changes.tally(old, new, contexts) if old.size else None
    if known is None or not known.changed.any():
        return resolved(PatchSymbols(digest))
    bounds = _bounds(known) if contexts.is_float else ()
    count = len(bounds) + 1
    places, differences = class_changes.split(old, new, contexts, bounds, known)
    sizes, changed = (
        class_changes.by_class(counts, bounds).sum(axis=0)[:count] for counts in known
    )
    ends = np.cumsum(changed)[:-1]
    parts = zip(np.split(places, ends), np.split(differences, ends), strict=True)
    changes = tuple(Changes(*part) for part in parts)
    return resolved(PatchSymbols(digest, bounds, tuple(sizes.tolist()), changes))


def write(symbols: PatchSymbols) -> Written:
    """Write the message of symbols."""
    if symbols.stored is not None:
        return _joined([symbols.digest, bytes([message.STORED]), symbols.stored])
    if not symbols.changes:
        return _joined([symbols.digest, bytes([message.UNCHANGED])])
    pairs = zip(symbols.changes, symbols.sizes, strict=True)
    classes = [_class(*changes, size) for changes, size in pairs]
    head = Head(symbols.bounds, tuple(each.head for each in classes)).to_bytes()
    parts: list[bytes | np.ndarray] = [symbols.digest, bytes([message.CHANGES]), head]
    for each in classes:
        parts += [each.places, each.values]
    return _joined(parts)


def _joined(parts: list[bytes | np.ndarray]) -> Written:
    joined = b"".join(
        part if isinstance(part, bytes) else part.view(np.uint8).data for part in parts
    )
    data = np.frombuffer(joined, np.uint8)
    return Written(data, 8 * data.size)


def _bounds(known: Tally) -> tuple[int, ...]:
    """Return the bounds of the classes whose positions take the fewest bits, by their entropy.

    The computation is exact in integers, so it is the same on every machine.
    """
    elements, changed = (counts.sum(axis=0) for counts in known)
    used = np.flatnonzero(elements)
    shift = max(int(elements.sum()).bit_length() - _MOST_NBITS, 0)
    sums = [starts_of(counts[used]) for counts in (elements, changed)]
    sizes, changes = (np.maximum(part[None, :] - part[:, None], 0) >> shift for part in sums)
    prices = _weighted(sizes) - _weighted(changes) - _weighted(np.maximum(sizes - changes, 0))
    has_changes = sums[1][None, :] > sums[1][:, None]
    more = np.where(has_changes, _CLASS_NBITS << _POINT, _EMPTY_NBITS << _POINT) >> shift
    prices = np.where(has_changes, prices, 0) + more
    count = used.size
    best = np.full((MOST_CLASSES + 1, count + 1), 1 << 62)
    start = np.zeros((MOST_CLASSES + 1, count + 1), np.int64)
    best[0, 0] = 0
    for classes in range(1, MOST_CLASSES + 1):
        for end in range(1, count + 1):
            totals = best[classes - 1, :end] + prices[:end, end]
            start[classes, end] = totals.argmin()
            best[classes, end] = totals.min()
    classes, end = int(best[1:, count].argmin()) + 1, count
    bounds = list[int]()
    for kind in range(classes, 1, -1):
        end = int(start[kind, end])
        bounds.append(int(used[end]))
    return tuple(reversed(bounds))


def _weighted(numbers: np.ndarray) -> np.ndarray:
    """Return x·log2(x) of numbers below 2^33, with `_POINT` fractional bits."""
    shifts = np.maximum(np.frexp(numbers)[1] - 15, 0)
    logs = rans.log2_table()[numbers >> shifts] >> rans.POINT - _POINT
    return numbers * (logs + (shifts.astype(np.int64) << _POINT))


def _class(places: np.ndarray, differences: np.ndarray, size: int) -> _Class:
    """Write the changes of a class of `size` elements."""
    if not places.size:
        return _Class(ClassHead(size), _NO_BYTES, _NO_BYTES)
    symbols = VALUES.classes(differences)
    counts = byte_counts(symbols)
    raw = VALUES.raw_nbits(counts)
    candidates = list[_Class]()
    if places.size < size:
        front = np.empty(0, np.uint8), 0
        code, written = position_coding.write(places, size, "auto", front)
        head = ClassHead(
            size, message.METHODS.index(code), changes=places.size, index_nbits=written.nbits
        )
        candidates.append(_with_values(head, written.data, symbols, counts, differences, raw))
    if 2 * places.size >= size:
        listed = np.zeros(size, np.uint8)
        listed[places] = symbols
        counts[0] = size - places.size
        head = ClassHead(size, message.ALL)
        candidates.append(_with_values(head, _NO_BYTES, listed, counts, differences, raw))
    return min(candidates, key=lambda each: each.nbytes)


def _with_values(
    head: ClassHead,
    index: np.ndarray,
    symbols: np.ndarray,
    counts: np.ndarray,
    differences: np.ndarray,
    raw: int,
) -> _Class:
    """Write the values of a class with the shorter code for their symbols."""
    used = np.flatnonzero(counts)
    low, high = int(used[0]), int(used[-1])
    head = head._replace(low=low, high=high)
    if low == high:
        written, kind = Written(_NO_BYTES, 0), message.CONSTANT
    else:
        alphabet, coded = head.alphabet, CodedMask.all(symbols.size)
        tables = [tabled.Table.own(each, counts, alphabet) for each in message.KINDS]
        prices = [table.nbits(counts) for table in tables]
        kind = 1 + int(prices[1] < prices[0])
        written = tabled.write(tables[kind - 1], symbols, coded, BitString(), 0)
        if written.nbits > prices[0]:  # the length of rANS was an estimate
            kind = 1
            written = tabled.write(tables[0], symbols, coded, BitString(), 0)
    string = BitString(0, written.data.size + raw // 8)
    string.extend(written.data, written.nbits)
    VALUES.write_raw(differences, raw, string)
    head = head._replace(kind=kind, values_nbits=string.nbits)
    return _Class(head, index, string.trimmed())
