"""The message: a head, all planes but the first one, and the first plane.

    zeros u8 · escape u8, if zeros is 1
    for each plane: method u8 · byte u8, if constant · length LEB128, if coded and not the first
    numbers of elements that are not zeros, u16 each, if zeros is 1
    the other planes · the first plane

If zeros is 1, the elements whose bits are all 0 are left out of all planes but the first; see
`planes`. A plane is stored as it is, constant, or coded by Huffman words or rANS, after the least
and the largest byte and a table of 0 and of these bytes. The length of a coded plane is that of
its string in bytes. The first plane may also be lowered by the scales of rows and columns, which
then precede it, or coded by the context coder of bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.codecs.lossless.planes import (
    GROUP,
    LOG2_GROUP,
    TILE,
    PlaneLayout,
    Zeros,
    mark_escapes,
)
from gcodec.entropy import tabled
from gcodec.entropy.coder import (
    BitSpan,
    EmptyString,
    RansString,
    Take,
    WordString,
    Written,
    into,
    seek_of_runs,
)
from gcodec.entropy.context import byte_coder, byte_scales
from gcodec.entropy.context.byte_scales import (
    PartsOf,
    Sample,
    entropy_nbits,
    scales_of_parts,
    scales_of_sums,
)
from gcodec.entropy.context.scale_model import Scales, row_layouts, sampled_rows
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.kernels.bits import byte_planes
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.pack import check_padding
from gcodec.kernels.context.byte_scales import LineSums, lower, raise_again
from gcodec.kernels.numeric.byte_counts import byte_counts, counts_of_parts
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_table import write_tables
from gcodec.payload import Payload
from gcodec.runtime import pool
from gcodec.wire.primitives import Reader, leb128
from gcodec.wire.seek import LOG2_STATES, SeekTable, refuse_table

METHODS = (
    *("stored", "constant", "Huffman", "rANS"),
    *("lowered, Huffman", "lowered, rANS", "rANS by classes"),
)
STORED, CONSTANT, HUFFMAN, RANS, LOWERED_HUFFMAN, LOWERED_RANS, CLASSES = range(len(METHODS))
KINDS: dict[int, tabled.Kind] = {
    HUFFMAN: "huffman",
    RANS: "rans",
    LOWERED_HUFFMAN: "huffman",
    LOWERED_RANS: "rans",
}
LOWERED = LOWERED_HUFFMAN, LOWERED_RANS
FIRST_METHODS = {
    "fast": (STORED, CONSTANT, HUFFMAN, LOWERED_HUFFMAN),
    "small": (STORED, CONSTANT, RANS, LOWERED_RANS, CLASSES),
}
OTHER_METHODS = (STORED, CONSTANT, HUFFMAN)

_SCALES_NBITS = 32  # approximate bits of a layout
_TABLE_NBITS = 512  # approximate bits of a table
_RANGE_NBITS = 16  # of the least and the largest byte before a table
_SAMPLE = 1 << 16  # elements by which the other planes are judged
_SHARE = 50  # a plane is coded if that saves a fiftieth of it
_LEAST_ESTIMATED = 1 << 20  # bytes whose counts may be estimated by those of a sample
_TILES = 4  # tiles for each tile that is counted
_NEAR = 8  # how far a byte may be from those of a sample
_LEAST_LOWERED = 1 << 11  # elements of a tensor for which scales may pay
_PIECE = 1 << 12  # elements of each of four pieces by which other planes are judged
_ROW = 64  # sampled elements of a row, and least number of sampled rows


class Plane(NamedTuple):
    """A plane as the head describes it.

    Attributes
    ----------
    method : int
        Index into `METHODS`.
    byte : int
        The byte of a constant plane.
    nbytes : int
        Bytes of a coded plane, unless it is the first one.
    """

    method: int
    byte: int = 0
    nbytes: int = 0


class Head(NamedTuple):
    """The head of a message.

    Attributes
    ----------
    zeros : Zeros or None
        None if no element is left out.
    planes : tuple of Plane
    """

    zeros: Zeros | None
    planes: tuple[Plane, ...]

    def coded(self, n: int) -> int:
        """Return the number of elements that all planes contain, of n."""
        return n if self.zeros is None else self.zeros.coded

    def nbytes_of(self, k: int, n: int) -> int:
        """Return the number of bytes of plane k > 0."""
        plane = self.planes[k]
        return self.coded(n) if plane.method == STORED else plane.nbytes

    def to_bytes(self) -> bytes:
        """Return the bytes of the head."""
        zeros = self.zeros
        parts = [b"\0" if zeros is None else bytes([1, zeros.escape])]
        for k, plane in enumerate(self.planes):
            parts.append(bytes([plane.method]))
            if plane.method == CONSTANT:
                parts.append(bytes([plane.byte]))
            elif plane.method != STORED and k:
                parts.append(leb128(plane.nbytes))
        if zeros is not None:
            parts.append(zeros.counts.astype("<u2").tobytes())
        return b"".join(parts)


def alphabet(low: int, high: int) -> np.ndarray:
    """Return the bytes that a table contains: 0, and those from `low` to `high`."""
    return np.append(0, np.arange(low, high + 1)).astype(np.uint8)


# --- writing -------------------------------------------------------------------------------------


class _Statistics(NamedTuple):
    """What the encoder knows of a tensor before it selects a method for the first plane.

    Attributes
    ----------
    counts : (256,) int64 array
        Histogram of the first plane, with escapes.
    zeros : Zeros or None
    others : tuple of (Plane, bytes or None)
        The other planes, and the strings of those that are coded.
    """

    counts: np.ndarray
    zeros: Zeros | None
    others: tuple[tuple[Plane, np.ndarray | None], ...]

    @classmethod
    def of(cls, bits: np.ndarray, layout: PlaneLayout, is_exact: bool) -> _Statistics:
        """Return the statistics of bit patterns; see `_counts` for `is_exact`."""

        def parts(start: int, stop: int) -> np.ndarray:
            room = np.empty(stop - start, np.uint8)
            layout.take_first(bits[start:stop], room)
            return room

        counts, zeros = _counts(parts, bits.size, is_exact), None
        if not is_exact and (counts[0] or np.count_nonzero(counts) == 1):
            counts = _counts(parts, bits.size, True)
        if layout.is_float and counts[0]:
            zeros = _zeros_of(bits, counts, layout.itemsize - 1)
        others = (_other_plane(bits, layout, k, zeros) for k in range(1, layout.itemsize))
        return cls(counts, zeros, tuple(others))


def _counts(parts: PartsOf, n: int, is_exact: bool) -> np.ndarray:
    """Return the (256,) counts of n bytes.

    Unless they are to be exact, those of many bytes are estimated by a quarter of the tiles. Each
    byte that is little smaller or larger than those of the sample then counts once.
    """
    if is_exact or n < _LEAST_ESTIMATED:
        return counts_of_parts(parts, n, TILE)

    def tiles(start: int, stop: int) -> np.ndarray:
        at = start * _TILES
        return parts(at, at + stop - start)

    counts = counts_of_parts(tiles, n // (TILE * _TILES) * TILE, TILE) * _TILES
    if np.count_nonzero(counts) > 1:
        low, high = bytes_range(counts)
        near = counts[max(low - _NEAR, 1) : high + _NEAR + 1]
        near[near == 0] = 1
    return counts


class _Method(NamedTuple):
    """A method for the first plane, and its size.

    Attributes
    ----------
    method : int
        Index into `METHODS`.
    nbits : int
        Bits of the first plane; an estimate for rANS.
    table : Table or None
        Table of a string; None without one, and for classes.
    alphabet : (int, int)
        The least byte but 0, and the largest.
    scales : Scales or None
        Scales by which the plane is lowered.
    plan : byte_coder.Plan or None
        Plan of a string with classes.
    """

    method: int
    nbits: int
    table: tabled.Table | None = None
    alphabet: tuple[int, int] = (1, 1)
    scales: Scales | None = None
    plan: byte_coder.Plan | None = None

    @classmethod
    def tabled(cls, method: int, counts: np.ndarray, scales: Scales | None = None) -> _Method:
        low, high = bytes_range(counts)
        table = tabled.Table.own(KINDS[method], counts, alphabet(low, high))
        nbits = _RANGE_NBITS + table.nbits(counts)
        if scales is not None:
            nbits += _SCALES_NBITS + scales.nbits()
        return cls(method, nbits, table, (low, high), scales)


def write(
    bits: np.ndarray, layout: PlaneLayout, shape: tuple[int, ...], mode: str
) -> tuple[str, Written]:
    """Write the message of (n,) bit patterns, n > 0.

    Parameters
    ----------
    bits : (n,) unsigned array
    layout : PlaneLayout
    shape : tuple of int
    mode : {"auto", "fast", "small"}

    Returns
    -------
    mode : {"fast", "small", "stored"}
        The mode of the message: "stored" if nothing is saved, and for short tensors possibly
        "fast" in place of "small".
    Written
    """
    writer = _Writer(bits, layout, shape, is_exact=mode != "fast")
    best = Written(bits.view(np.uint8), 8 * bits.nbytes)
    name = "stored"
    for each in ("fast",) if mode == "fast" else ("small", "fast"):
        written = writer.write(each, best.nbits)
        if written is not None and written.nbits < best.nbits:
            name, best = each, written
    return name, best


def bytes_range(counts: np.ndarray) -> tuple[int, int]:
    """Return the least byte from 1 on that occurs, and the largest; 1 and 1 if there is none."""
    used = np.flatnonzero(counts[1:]) + 1
    return (int(used[0]), int(used[-1])) if used.size else (1, 1)


def _zeros_of(bits: np.ndarray, counts: np.ndarray, planes: int) -> Zeros | None:
    """Return how zeros are left out, or None if that does not pay; adapt the counts."""
    n, groups = bits.size, -(-bits.size // GROUP)
    if 8 * int(counts[0]) * planes <= 16 * groups:
        return None
    coded = np.empty(groups, np.uint16)

    def task(start: int, stop: int) -> None:
        for at in range(start, stop, GROUP):
            coded[at // GROUP] = np.count_nonzero(bits[at : min(at + GROUP, stop)])

    pool.run(task, n, GROUP)
    count = n - int(coded.sum(dtype=np.int64))
    if 8 * count * planes <= 16 * groups or count == n:
        return None
    escape, others = 0, int(counts[0]) - count
    if others:
        free = np.flatnonzero(counts == 0)
        if not free.size:
            return None
        low, _ = bytes_range(counts)
        above = free[free >= low]
        escape = int(above[0] if above.size else free[-1])
        counts[escape], counts[0] = others, count
    return Zeros(escape, coded)


def _other_plane(
    bits: np.ndarray, layout: PlaneLayout, k: int, zeros: Zeros | None
) -> tuple[Plane, np.ndarray | None]:
    """Return plane k > 0, and its string if it is coded."""
    step = _PIECE * max(-(-bits.size // (4 * _PIECE)), 1)
    pieces = (slice(at, at + _PIECE) for at in range(0, bits.size, step))
    sample = np.concatenate([_plane(bits[piece], layout, k, zeros) for piece in pieces])
    if _judged(byte_counts(sample)) == STORED:
        return Plane(STORED), None
    plane = sample
    if step > _PIECE:
        starts = range(0, bits.size, TILE)
        plane = np.concatenate([_plane(bits[a : a + TILE], layout, k, zeros) for a in starts])
    counts = byte_counts(plane)
    method = _judged(counts)
    if method == CONSTANT:
        return Plane(CONSTANT, int(counts.argmax())), None
    if method == STORED:
        return Plane(STORED), None
    low, high = bytes_range(counts)
    front = BitString()
    front.extend(np.array([low, high], np.uint8), _RANGE_NBITS)
    table = tabled.Table.own(KINDS[method], counts, alphabet(low, high))
    data = tabled.write(table, plane, CodedMask.all(plane.size), front, 0).data
    return Plane(method, 0, data.size), data


def _judged(counts: np.ndarray) -> int:
    """Return the method for a plane with these counts, other than the first one."""
    if np.count_nonzero(counts) <= 1:
        return CONSTANT
    stored = 8 * int(counts.sum())
    if entropy_nbits(counts) + _TABLE_NBITS > stored - stored // _SHARE:
        return STORED
    words = tabled.Table.own("huffman", counts, alphabet(*bytes_range(counts)))
    return HUFFMAN if words.nbits(counts) < stored - stored // _SHARE else STORED


def _plane(bits: np.ndarray, layout: PlaneLayout, k: int, zeros: Zeros | None) -> np.ndarray:
    """Return plane k > 0 of a tile."""
    others = np.empty((layout.itemsize - 1) * bits.size, np.uint8)
    layout.take_others(bits, others, bits.size)
    plane = others[(k - 1) * bits.size : k * bits.size]
    return plane if zeros is None else plane[bits != 0]


class _Writer:
    """Writes the message of a tensor in any mode."""

    def __init__(
        self, bits: np.ndarray, layout: PlaneLayout, shape: tuple[int, ...], is_exact: bool
    ) -> None:
        self._bits, self._layout, self._shape = bits, layout, shape
        self._is_exact = is_exact
        self._known = _Statistics.of(bits, layout, is_exact)

    def write(self, mode: str, limit: int) -> Written | None:
        """Write the message if it has fewer bits than `limit`, as far as is known; else None."""
        if np.count_nonzero(self._known.counts) == 1:
            return self._plain(CONSTANT)
        method = self._fast() if mode == "fast" else self._small()
        if 8 * self._lead(method.method) + method.nbits >= limit:
            return None
        if method.method == STORED:
            return self._plain(STORED)
        written = self._words(method) if mode == "fast" else self._states(method)
        self._fill(written.data, method.method)
        return written

    def _fast(self) -> _Method:
        n = self._bits.size
        methods = [_Method(STORED, 8 * n), _Method.tabled(HUFFMAN, self._known.counts)]
        if (scales := self._scales) is not None:
            methods.append(_Method.tabled(LOWERED_HUFFMAN, self._lowered_counts, scales))
        return min(methods, key=lambda method: method.nbits)

    def _small(self) -> _Method:
        n = self._bits.size
        methods = [_Method(STORED, 8 * n), _Method.tabled(RANS, self._known.counts)]
        if (scales := self._scales) is not None:
            methods.append(_Method.tabled(LOWERED_RANS, self._lowered_counts, scales))
        if self._layout.is_float and n >= _LEAST_LOWERED:
            plan = byte_coder.plan(self._symbols, self._shape, self._sample)
            methods.append(_Method(CLASSES, plan.nbits, plan=plan))
        return min(methods, key=lambda method: method.nbits)

    @functools.cached_property
    def _symbols(self) -> np.ndarray:
        """The first plane."""
        symbols = np.empty(self._bits.size, np.uint8)

        def task(start: int, stop: int) -> None:
            self._first(start, stop, symbols[start:stop])

        pool.run(task, symbols.size, TILE)
        return symbols

    @functools.cached_property
    def _sample(self) -> Sample:
        """The first plane of some rows."""
        bits = sampled_rows(self._bits, row_layouts(self._shape)[0].width, _SAMPLE)
        symbols = np.empty(bits.size, np.uint8)
        self._layout.take_first(bits, symbols)
        if self._known.zeros is not None and self._known.zeros.escape:
            mark_escapes(bits, symbols, self._known.zeros.escape)
        return Sample(symbols, self._bits.size / bits.size, self._layout.unit)

    @functools.cached_property
    def _scales(self) -> Scales | None:
        """The scales by which the first plane is lowered; None if that does not pay."""
        n, unit = self._bits.size, self._layout.unit
        if not self._layout.is_float or n < _LEAST_LOWERED:
            return None
        scales = self._sample.lowered_scales(self._shape)
        if scales is None or self._sample.symbols.size == n:
            return scales
        layout = scales.layout
        width, count = layout.width, n // layout.width
        if n <= 4 * _SAMPLE or n % width or width < 2 * _ROW:
            return scales_of_parts(self._parts, n, layout, unit)
        # Scales in octaves need only a sample of each row and of each column.
        matrix, middle = self._bits.reshape(count, width), width // 2
        part = np.ascontiguousarray(matrix[:, middle - _ROW // 2 : middle + _ROW // 2])
        rows, columns = LineSums(part.size, _ROW, False), LineSums(0, width, False)
        rows.run(self._parts_of(part), TILE)
        if layout.group:
            most = min(max(2 * _SAMPLE // width, 2 * _ROW), count)
            sampled = np.ascontiguousarray(matrix[:: count // most])
            columns = LineSums(sampled.size, width, True).run(self._parts_of(sampled), TILE)
        return scales_of_sums(layout, rows.rows, columns.columns, unit)

    def _parts_of(self, bits: np.ndarray) -> PartsOf:
        """Return a function of the first plane of bit patterns, without escapes."""
        flat = bits.reshape(-1)

        def parts(start: int, stop: int) -> np.ndarray:
            room = np.empty(stop - start, np.uint8)
            self._layout.take_first(flat[start:stop], room)
            return room

        return parts

    @functools.cached_property
    def _lowered_counts(self) -> np.ndarray:
        return _counts(self._lowered_parts, self._bits.size, self._is_exact)

    def _lowered_parts(self, start: int, stop: int) -> np.ndarray:
        return self._lowered(start, stop, np.empty(stop - start, np.uint8))

    def _parts(self, start: int, stop: int) -> np.ndarray:
        return self._first(start, stop, np.empty(stop - start, np.uint8))

    def _first(self, start: int, stop: int, room: np.ndarray) -> np.ndarray:
        """Write a range of the first plane to an array; return it."""
        zeros, bits = self._known.zeros, self._bits[start:stop]
        self._layout.take_first(bits, room)
        if zeros is not None and zeros.escape:
            mark_escapes(bits, room, zeros.escape)
        return room

    def _lowered(self, start: int, stop: int, room: np.ndarray) -> np.ndarray:
        """Write a range of the lowered first plane to an array; return it."""
        assert self._scales is not None
        for at in range(start, stop, TILE):
            end = min(at + TILE, stop)
            tile = self._first(at, end, room[at - start : end - start])
            lower(tile, self._scales.arrays, self._layout.unit, at)
        return room

    def _head(self, method: int) -> Head:
        byte = int(self._known.counts.argmax()) if method == CONSTANT else 0
        others = (plane for plane, _ in self._known.others)
        return Head(self._known.zeros, (Plane(method, byte), *others))

    def _lead(self, method: int) -> int:
        """Return the number of bytes before the first plane."""
        head = self._head(method)
        others = sum(head.nbytes_of(k, self._bits.size) for k in range(1, self._layout.itemsize))
        return len(head.to_bytes()) + others

    def _plain(self, method: int) -> Written:
        """Return the message with a stored or constant first plane."""
        n, lead = self._bits.size, self._lead(method)
        data = np.empty(lead + (n if method == STORED else 0), np.uint8)
        if method == STORED:
            data[lead:] = self._symbols
        self._fill(data, method)
        return Written(data, 8 * data.size)

    @staticmethod
    def _front(method: _Method) -> BitString:
        """Return the bits of a first plane before its table."""
        front = BitString()
        if method.scales is not None:
            byte_scales.put(method.scales, front)
            front.extend(np.zeros(1, np.uint8), -front.nbits % 8)
        front.extend(np.array(method.alphabet, np.uint8), _RANGE_NBITS)
        return front

    def _words(self, method: _Method) -> Written:
        """Write Huffman words after room for all that precedes the first plane."""
        n, lead, front = self._bits.size, self._lead(method.method), self._front(method)
        is_plain = method.scales is None
        symbols = self._first if is_plain else self._lowered
        try:
            return tabled.write(method.table, symbols, CodedMask.all(n), front, n, lead)
        except ParameterError:  # a byte that no sample contains has no word
            parts = self._parts if is_plain else self._lowered_parts
            counts = _counts(parts, n, True)
            return self._words(_Method.tabled(method.method, counts, method.scales))

    def _states(self, method: _Method) -> Written:
        """Write rANS after room for all that precedes the first plane."""
        lead, n = self._lead(method.method), self._bits.size

        def before(head: np.ndarray) -> np.ndarray:
            room = np.empty(lead + head.size, np.uint8)
            room[lead:] = head
            return room

        if method.plan is not None:
            return byte_coder.write(method.plan, self._first, n, BitString(), before)
        assert method.table is not None
        head, _ = tabled.front(self._front(method), *method.table)
        tables = write_tables(method.table.numbers, method.table.log2_total)
        symbols = self._first if method.scales is None else self._lowered
        data, nbits, runs = rans_string.write(tables, symbols, n, before(head), LOG2_STATES)
        return Written(data, nbits, seek_of_runs(n, nbits, runs))

    def _fill(self, data: np.ndarray, method: int) -> None:
        """Write the head and all planes but the first to the start of the message."""
        bits, layout, n = self._bits, self._layout, self._bits.size
        head, zeros = self._head(method), self._known.zeros
        text = head.to_bytes()
        data[: len(text)] = np.frombuffer(text, np.uint8)
        at, stored = len(text), dict[int, int]()
        for k, (plane, string) in enumerate(self._known.others, 1):
            if plane.method == STORED:
                stored[k] = at
            elif string is not None:
                data[at : at + string.size] = string
            at += head.nbytes_of(k, n)
        if not stored:
            return
        starts = None if zeros is None else zeros.starts()
        first, count = min(stored.values()), layout.itemsize - 1

        def task(start: int, stop: int) -> None:
            if starts is None and len(stored) == count:
                for at in range(start, stop, TILE):
                    layout.take_others(bits[at : min(at + TILE, stop)], data[first + at :], n)
                return
            room = np.empty(count * TILE, np.uint8)
            for at in range(start, stop, TILE):
                tile = bits[at : min(at + TILE, stop)]
                layout.take_others(tile, room, TILE)
                place, end = at, at + tile.size
                if starts is not None:
                    place, end = starts[[at // GROUP, -(-end // GROUP)]].tolist()
                    is_coded = (tile != 0).view(np.uint8)
                for k, begin in stored.items():
                    plane = room[(k - 1) * TILE : (k - 1) * TILE + tile.size]
                    target = data[begin + place : begin + end]
                    if starts is None:
                        target[:] = plane
                    else:
                        byte_planes.gather_coded(plane, is_coded, target)

        pool.run(task, n, TILE)


# --- reading -------------------------------------------------------------------------------------


def read_methods(
    reader: Reader, itemsize: int, mode: str, note: Callable[[str, int, str], None]
) -> tuple[bool, int, tuple[Plane, ...]]:
    """Read a head up to the numbers of elements.

    Parameters
    ----------
    reader : Reader
    itemsize : int
    mode : str
    note : callable
        Receives the name of each field, its value and its meaning.

    Returns
    -------
    has_zeros : bool
    escape : int
    planes : tuple of Plane

    Raises
    ------
    FormatError
    """
    flag = reader.uint(1)
    if flag > 1:
        raise Corrupt(f"zeros are left out in the way {flag}", reader.at - 1)
    note("zeros", flag, "left out" if flag else "as other elements")
    escape, planes = 0, list[Plane]()
    if flag:
        escape = reader.uint(1)
        note("escape", escape, "stands for 0 in elements that are not left out")
    for k in range(itemsize):
        method = reader.uint(1)
        if method not in (OTHER_METHODS if k else FIRST_METHODS[mode]):
            raise Corrupt(f"plane {k} is coded by method {method}", reader.at - 1)
        note(f"method of plane {k}", method, METHODS[method])
        byte = nbytes = 0
        if method == CONSTANT:
            byte = reader.uint(1)
            note(f"byte of plane {k}", byte, "of all elements")
        elif k and method != STORED:
            nbytes = reader.leb128()
            note(f"bytes of plane {k}", nbytes, "")
        planes.append(Plane(method, byte, nbytes))
    return bool(flag), escape, tuple(planes)


def read_counts(reader: Reader, n: int) -> np.ndarray:
    """Read the number of elements that are not zeros, of each group of n elements.

    Raises
    ------
    FormatError
    """
    start, groups = reader.at, -(-n // GROUP)
    counts = np.frombuffer(reader.take(2 * groups), "<u2")
    sizes = np.full(groups, GROUP)
    sizes[-1] = n - (groups - 1) * GROUP
    if (counts > sizes).any():
        wrong = int(np.argmax(counts > sizes))
        raise Corrupt(f"{counts[wrong]} of {sizes[wrong]} elements", start + 2 * wrong)
    return counts


def read_head(data: np.ndarray, end: int, n: int, itemsize: int, mode: str) -> tuple[Head, int]:
    """Read the head of a message of n > 0 elements; return it and its number of bytes.

    Raises
    ------
    FormatError
    """
    reader = Reader(data[: end // 8].data)
    has_zeros, escape, planes = read_methods(reader, itemsize, mode, _ignore)
    zeros = Zeros(escape, read_counts(reader, n)) if has_zeros else None
    return Head(zeros, planes), reader.at


def _ignore(name: str, value: int, meaning: str) -> None:
    """Ignore a field of a head."""


class Message(NamedTuple):
    """An opened message.

    Attributes
    ----------
    layout : PlaneLayout
    n : int
        Number of elements, above 0.
    head : Head
    spans : tuple of BitSpan
        Bits of each plane.
    first : CodedString or None
        String of the first plane; None if it is stored or constant.
    scales : Scales or None
        Scales by which the first plane was lowered.
    """

    layout: PlaneLayout
    n: int
    head: Head
    spans: tuple[BitSpan, ...]
    first: WordString | RansString | None
    scales: Scales | None

    @classmethod
    def open(cls, payload: Payload, layout: PlaneLayout, n: int, mode: str) -> Message:
        """Open a message: parse the head and the table of the first plane.

        Raises
        ------
        FormatError
        """
        data, nbits = payload.data, payload.nbits
        check_padding(data, nbits)
        head, at = read_head(data, nbits, n, layout.itemsize, mode)
        others = list[BitSpan]()
        for k in range(1, layout.itemsize):
            end = at + head.nbytes_of(k, n)
            if 8 * end > nbits:
                raise Truncated(f"the payload has {nbits} bits, plane {k} ends at {8 * end}")
            others.append(BitSpan(data, 8 * at, 8 * end))
            at = end
        span, method = BitSpan(data, 8 * at, nbits, payload.seek), head.planes[0].method
        first: WordString | RansString | None = None
        scales = None
        if method in LOWERED:
            scales, after = byte_scales.read(data, span.first, span.end, n)
            span = span.after(after).aligned("scales and table")
        if method in KINDS:
            first = open_string(span, method, n)
        elif method == CLASSES:
            first = byte_coder.open(span, n)
        else:
            refuse_table(payload.seek)
            size = 8 * n if method == STORED else 0
            if span.nbits != size:
                error = Truncated if span.nbits < size else Corrupt
                raise error(f"the first plane has {span.nbits} bits, not {size}")
        return cls(layout, n, head, (span, *others), first, scales)

    def read(self, out: np.ndarray) -> None:
        """Decode all elements to (n,) bit patterns.

        Raises
        ------
        FormatError
        """
        others = self._others()
        if self.first is None:

            def join(start: int, stop: int) -> None:
                self._join(start, self._plain(start, stop), others, out[start:stop])

            pool.run(join, self.n, TILE)
            return
        seek, is_aligned = self.spans[0].seek, True
        if self.head.zeros is not None and seek is not None:
            is_aligned = seek.log2_block >= LOG2_GROUP or isinstance(self.first, RansString)
        if is_aligned:
            self.first.read(self._raised(self._joining(others, out)))
            return
        symbols = np.empty(self.n, np.uint8)  # as a range might not begin with a group
        self.first.read(self._raised(into(symbols)))

        def join_part(start: int, stop: int) -> None:
            self._join(start, symbols[start:stop], others, out[start:stop])

        pool.run(join_part, self.n, TILE)

    def _raised(self, take: Take) -> Take:
        """Return a `Take` of the bytes of a string, which may have been lowered."""
        if self.scales is None:
            return take
        arrays, unit = self.scales.arrays, self.layout.unit

        def take_lowered(at: int, symbols: np.ndarray) -> None:
            raise_again(symbols, arrays, unit, at)
            take(at, symbols)

        return take_lowered

    def _joining(self, others: list[np.ndarray | int], out: np.ndarray) -> Take:
        def take(at: int, symbols: np.ndarray) -> None:
            self._join(at, symbols, others, out[at : at + symbols.size])

        return take

    def read_range(self, start: int, stop: int) -> np.ndarray:
        """Decode the elements start to stop - 1, and neighbors; return their bit patterns.

        Raises
        ------
        FormatError
        """
        first = start - start % GROUP
        last = min(-(-stop // GROUP) * GROUP, self.n)
        if start >= stop:
            return np.empty(0, self.layout.bits_dtype)
        symbols = np.empty(last - first, np.uint8)
        if self.first is None:
            symbols[:] = self._plain(first, last)
        else:

            def take(at: int, part: np.ndarray) -> None:
                low, high = max(at, first), min(at + part.size, last)
                if low < high:
                    symbols[low - first : high - first] = part[low - at : high - at]

            self.first.read_range(first, last, self._raised(take))
        out = np.empty(symbols.size, self.layout.bits_dtype)
        self._join(first, symbols, self._others(), out)
        return out[start - first : stop - first]

    def blocks(self, log2_block: int) -> SeekTable:
        """Return a seek table of the first plane."""
        if self.first is None:
            return EmptyString(self.spans[0]).blocks(log2_block)
        return self.first.blocks(log2_block)

    def _plain(self, start: int, stop: int) -> np.ndarray:
        """Return a range of a first plane without an entropy code."""
        span, plane = self.spans[0], self.head.planes[0]
        if plane.method == CONSTANT:
            return np.full(stop - start, plane.byte, np.uint8)
        return span.data[span.first // 8 + start : span.first // 8 + stop]

    def _others(self) -> list[np.ndarray | int]:
        """Return the other planes: their bytes, or the byte of a constant one."""
        planes: list[np.ndarray | int] = []
        count = self.head.coded(self.n)
        for plane, span in zip(self.head.planes[1:], self.spans[1:], strict=True):
            if plane.method == CONSTANT:
                planes.append(plane.byte)
            elif plane.method == STORED:
                planes.append(span.data[span.first // 8 : span.end // 8])
            elif not count:
                span.refuse_bits()
                planes.append(0)
            else:
                decoded = np.empty(count, np.uint8)
                string = open_string(span, plane.method, count)
                after = string.read(into(decoded), bits_follow=True)
                if span.aligned("bytes").after(after).aligned("planes").first != span.end:
                    raise Corrupt("a plane does not end where its length says")
                planes.append(decoded)
        return planes

    def _join(
        self, at: int, first: np.ndarray, others: list[np.ndarray | int], out: np.ndarray
    ) -> None:
        """Write bit patterns of a range; with zeros left out, its start is that of a group."""
        layout, zeros, count = self.layout, self.head.zeros, self.layout.itemsize - 1
        if zeros is None and all(plane.method == STORED for plane in self.head.planes[1:]):
            span = self.spans[1 % layout.itemsize]
            layout.join(first, span.data[span.first // 8 + at :], self.n, out)
            return
        room = np.empty(count * TILE, np.uint8)
        starts = None if zeros is None else zeros.starts()
        for low in range(0, first.size, TILE):
            tile = first[low : low + TILE]
            place, end = at + low, at + low + tile.size
            if zeros is not None and starts is not None:
                self._check_counts(place, tile, zeros)
                place, end = starts[[place // GROUP, -(-end // GROUP)]].tolist()
            for k, plane in enumerate(others):
                target = room[k * TILE : k * TILE + tile.size]
                if isinstance(plane, int):
                    target[:] = plane
                    if zeros is not None:
                        target[tile == 0] = 0
                elif zeros is None:
                    target[:] = plane[place:end]
                else:
                    byte_planes.spread_coded(plane[place:end], tile, target)
            if zeros is not None and zeros.escape:
                tile = np.where(tile == zeros.escape, np.uint8(0), tile)
            layout.join(tile, room, TILE, out[low : low + tile.size])

    @staticmethod
    def _check_counts(at: int, tile: np.ndarray, zeros: Zeros) -> None:
        for low in range(0, tile.size, GROUP):
            group = (at + low) // GROUP
            if np.count_nonzero(tile[low : low + GROUP]) != zeros.counts[group]:
                raise Corrupt(f"group {group} does not have as many zeros as the head says")


def open_range(span: BitSpan) -> tuple[int, int]:
    """Read the least and the largest byte of a plane, at the start of a span.

    Raises
    ------
    FormatError
    """
    if span.nbits < _RANGE_NBITS:
        raise Truncated(f"{_RANGE_NBITS} bits wanted, {span.nbits} left of the plane")
    at = span.first // 8
    low, high = span.data[at : at + 2].tolist()
    if not 1 <= low <= high:
        raise Corrupt(f"a table of the bytes {low} to {high}", at)
    return low, high


def open_string(span: BitSpan, method: int, count: int) -> WordString | RansString:
    """Open the string of a plane of `count` > 0 bytes, which begins with their range.

    Raises
    ------
    FormatError
    """
    numbers = alphabet(*open_range(span))
    span = span.after(span.first + _RANGE_NBITS)
    opened = tabled.open(KINDS[method], span, numbers, CodedMask.all(count))
    assert isinstance(opened, (WordString, RansString))
    return opened
