"""The message: the digest of the base, a head, and for each class positions and values.

    digest of the base, 16 bytes · form u8
    if the form is 2: classes u8 · bounds u8 each
    for each class: size LEB128 · method u8
        unless it is unchanged: kind u8 · least symbol u8 · largest symbol u8, unless constant ·
            bits of the values LEB128
        if it has positions: changes LEB128 · bits of the positions LEB128
    for each class: positions · values

A context is a byte of an old element, and a class is a range of contexts: the elements of class c
are those whose context is at least c of the bounds. The positions of the changed elements among
those of their class are a string of an index code (`gcodec.entropy.positions`). A class may also
have a symbol for each of its elements. The values are the symbols of the differences
(`gcodec.kernels.prefix.value_classes`) as Huffman words or rANS after a table of the symbols from
the least to the largest, or one symbol for all; and then the raw bits. Positions and values are
whole bytes, the last one completed with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.codecs.patch.digest import DIGEST_NBYTES
from gcodec.entropy import positions as position_coding
from gcodec.entropy import tabled
from gcodec.entropy.coder import BitSpan, into
from gcodec.entropy.positions import IndexString
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.pack import check_padding
from gcodec.kernels.numeric.class_changes import MOST_CLASSES, Contexts
from gcodec.kernels.prefix.value_classes import VALUES
from gcodec.payload import Payload
from gcodec.wire.primitives import INTEGERS, ITEMSIZE, Reader, leb128
from gcodec.wire.seek import refuse_table

FORMS = "unchanged", "stored", "changes"
UNCHANGED, STORED, CHANGES = range(len(FORMS))

METHODS = ("unchanged", *position_coding.CODES, "a symbol for each element")
NOTHING, ALL = 0, len(METHODS) - 1

KINDS: tuple[tabled.Kind, ...] = "huffman", "rans"
KIND_NAMES = ("one symbol", *KINDS)
CONSTANT = 0

_CONTEXT_SHIFTS = {"float32": 23, "float16": 7, "bfloat16": 7, "float64": 52}

Note = Callable[[str, int, str], int]
"""Receives the name, the value and the meaning of each field of a head; returns the value."""


def contexts_of(dtype: str) -> Contexts:
    """Return how elements of a dtype are ranked, and where their contexts lie."""
    return Contexts(_CONTEXT_SHIFTS.get(dtype, 0), dtype not in INTEGERS)


class ClassHead(NamedTuple):
    """The head of a class.

    Attributes
    ----------
    size : int
        Number of elements.
    method : int
        Index into `METHODS`.
    kind : int
        Index into `KIND_NAMES`.
    low, high : int
        The least and the largest symbol; equal if there is one for all.
    values_nbits : int
        Bits of the values.
    changes : int
        Number of positions.
    index_nbits : int
        Bits of the positions.
    """

    size: int
    method: int = NOTHING
    kind: int = CONSTANT
    low: int = 0
    high: int = 0
    values_nbits: int = 0
    changes: int = 0
    index_nbits: int = 0

    @property
    def has_index(self) -> bool:
        """Whether positions precede the values."""
        return self.method not in (NOTHING, ALL)

    @property
    def symbols(self) -> int:
        """Number of symbols."""
        return self.changes if self.has_index else self.size if self.method == ALL else 0

    @property
    def alphabet(self) -> np.ndarray:
        """The symbols of the table."""
        return np.arange(self.low, self.high + 1, dtype=np.uint8)

    def to_bytes(self) -> bytes:
        """Return the bytes of the head."""
        parts = [leb128(self.size), bytes([self.method])]
        if self.method != NOTHING:
            symbols = (self.low,) if self.kind == CONSTANT else (self.low, self.high)
            parts += [bytes([self.kind, *symbols]), leb128(self.values_nbits)]
        if self.has_index:
            parts += [leb128(self.changes), leb128(self.index_nbits)]
        return b"".join(parts)


class Head(NamedTuple):
    """The head of a message of changes.

    Attributes
    ----------
    bounds : tuple of int
        The least context of each class but the first.
    classes : tuple of ClassHead
    """

    bounds: tuple[int, ...]
    classes: tuple[ClassHead, ...]

    def to_bytes(self) -> bytes:
        """Return the bytes of the head, without the form."""
        classes = b"".join(each.to_bytes() for each in self.classes)
        return bytes([len(self.classes), *self.bounds]) + classes


def read_form(reader: Reader) -> tuple[bytes, int]:
    """Read the digest and the form.

    Raises
    ------
    FormatError
    """
    return bytes(reader.take(DIGEST_NBYTES)), _read_choice(reader, "form", FORMS)


def _read_choice(reader: Reader, name: str, choices: tuple[str, ...]) -> int:
    """Read an index into names; raise `Corrupt` if it has none."""
    index = reader.byte()
    if index >= len(choices):
        raise Corrupt(f"{name} {index}, known are 0 to {len(choices) - 1}", reader.at - 1)
    return index


def read_head(reader: Reader, n: int, dtype: str, note: Note) -> Head:
    """Read the head of changes of n > 0 elements.

    Raises
    ------
    FormatError
    """
    count = reader.byte()
    most = 1 if dtype in INTEGERS else MOST_CLASSES
    if not 1 <= count <= most:
        raise Corrupt(f"{count} classes, must be 1 to {most}", reader.at - 1)
    note("classes", count, "number of classes")
    bounds = list[int]()
    for kind in range(1, count):
        bound = reader.byte()
        if bound <= (bounds[-1] if bounds else 0):
            raise Corrupt(f"a bound of {bound} does not rise", reader.at - 1)
        note(f"bound of class {kind}", bound, "smallest context of the class")
        bounds.append(bound)
    classes = [_read_class(reader, kind, dtype, note) for kind in range(count)]
    if (total := sum(each.size for each in classes)) != n:
        raise Corrupt(f"the classes have {total} elements, the tensor has {n}", reader.at)
    return Head(tuple(bounds), tuple(classes))


def _read_class(reader: Reader, kind: int, dtype: str, note: Note) -> ClassHead:
    start, of = reader.at, f"of class {kind}"
    size = note(f"size {of}", reader.leb128(), "elements")
    method = _read_choice(reader, "method", METHODS)
    note(f"method {of}", method, METHODS[method])
    head = ClassHead(size, method)
    if method == NOTHING:
        return head
    coder = _read_choice(reader, "kind", KIND_NAMES)
    note(f"kind {of}", coder, KIND_NAMES[coder])
    low = high = note(f"least symbol {of}", reader.byte(), "smallest symbol in the table")
    if coder != CONSTANT:
        high = note(f"largest symbol {of}", reader.byte(), "largest symbol in the table")
    largest = VALUES.class_of((1 << 8 * ITEMSIZE[dtype]) - 1)
    if not (method != ALL or coder == CONSTANT) <= low <= high <= largest:
        raise Corrupt(f"symbols {low} to {high}", reader.at - 1)
    values_nbits = note(f"bits of the values {of}", reader.leb128(), "bits")
    changes = index_nbits = 0
    if head.has_index:
        changes = note(f"changes {of}", reader.leb128(), "elements that change")
        index_nbits = note(f"bits of the positions {of}", reader.leb128(), "bits")
    if head.has_index and not 1 <= changes <= size:
        raise Corrupt(f"{changes} of {size} elements of a class change", start)
    if not size:
        raise Corrupt("a class without elements changes", start)
    return ClassHead(size, method, coder, low, high, values_nbits, changes, index_nbits)


class Changes(NamedTuple):
    """The changes of a class.

    Attributes
    ----------
    places : (k,) int64 array
        Positions of the changed elements among those of their class, in increasing order.
    differences : (k,) uint64 array
        Differences of their bit patterns; see `gcodec.kernels.numeric.class_changes`.
    """

    places: np.ndarray
    differences: np.ndarray


class PatchSymbols(NamedTuple):
    """What turns a base into the new tensor.

    Attributes
    ----------
    digest : bytes
        Digest of the base.
    bounds : tuple of int
        The least context of each class but the first.
    sizes : tuple of int
        Number of elements of each class; empty if nothing changes, or all elements are stored.
    changes : tuple of Changes
        Changes of each class.
    stored : (n,) unsigned array or None
        Bit patterns of all new elements, in place of changes.
    """

    digest: bytes
    bounds: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    changes: tuple[Changes, ...] = ()
    stored: np.ndarray | None = None


class Message(NamedTuple):
    """An opened message.

    Attributes
    ----------
    digest : bytes
        Digest of the base.
    form : int
        Index into `FORMS`.
    head : Head or None
        None unless the form is `CHANGES`.
    at : int
        The byte after the head.
    payload : Payload
    """

    digest: bytes
    form: int
    head: Head | None
    at: int
    payload: Payload

    @classmethod
    def open(cls, payload: Payload, n: int, dtype: str) -> Message:
        """Parse the head, and check the length of the message.

        Raises
        ------
        FormatError
        """
        data, nbits = payload.data, payload.nbits
        check_padding(data, nbits)
        refuse_table(payload.seek)
        reader = Reader(data[: nbits // 8].data)
        digest, form = read_form(reader)
        head = None
        if form == CHANGES:
            if not n:
                raise Corrupt("a tensor without elements changes", reader.at - 1)
            head = read_head(reader, n, dtype, _ignore)
        at = reader.at
        end = 8 * (at + (n * ITEMSIZE[dtype] if form == STORED else 0))
        for each in head.classes if head is not None else ():
            end += 8 * (-(-each.index_nbits // 8) + -(-each.values_nbits // 8))
        if nbits != end:
            error = Truncated if nbits < end else Corrupt
            raise error(f"the payload has {nbits} bits, not {end}")
        return cls(digest, form, head, at, payload)

    def symbols(self, dtype: str) -> PatchSymbols:
        """Decode the symbols.

        Raises
        ------
        FormatError
        """
        if self.form == UNCHANGED:
            return PatchSymbols(self.digest)
        if self.head is None:
            data = self.payload.data[self.at :].copy()  # which is aligned
            return PatchSymbols(self.digest, stored=data.view(f"<u{ITEMSIZE[dtype]}"))
        changes = list[Changes]()
        span = BitSpan(self.payload.data, 8 * self.at, self.payload.nbits)
        for each in self.head.classes:
            index = span._replace(end=span.first + each.index_nbits)
            span = span.aligned("positions and values", index.end)
            values = span._replace(end=span.first + each.values_nbits)
            span = span.aligned("values and positions", values.end)
            changes.append(_read_changes(each, index, values))
        sizes = tuple(each.size for each in self.head.classes)
        return PatchSymbols(self.digest, self.head.bounds, sizes, tuple(changes))


def _read_changes(head: ClassHead, index: BitSpan, values: BitSpan) -> Changes:
    if head.method == NOTHING:
        return Changes(np.empty(0, np.int64), np.empty(0, np.uint64))
    places = None
    if head.has_index:
        places = IndexString(index, METHODS[head.method], head.changes, head.size).read()
    symbols, end = read_symbols(head, values)
    if places is None:
        places = np.flatnonzero(symbols)
        symbols = symbols[places]
    return Changes(places, VALUES.read(values.data, end, values.end, symbols))


def read_symbols(head: ClassHead, span: BitSpan) -> tuple[np.ndarray, int]:
    """Read the symbols of a class; return them and the first raw bit.

    Raises
    ------
    FormatError
    """
    if head.kind == CONSTANT:
        return np.full(head.symbols, head.low, np.uint8), span.first
    symbols = np.empty(head.symbols, np.uint8)
    kind, coded = KINDS[head.kind - 1], CodedMask.all(head.symbols)
    end = tabled.open(kind, span, head.alphabet, coded).read(into(symbols), bits_follow=True)
    return symbols, end


def _ignore(name: str, value: int, meaning: str) -> int:
    """Return the value of a field of a head, and ignore the others."""
    return value
