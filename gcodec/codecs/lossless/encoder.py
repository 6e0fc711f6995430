"""The encoder of messages: it selects a method for each plane, and writes the planes."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from gcodec.codecs.lossless.message import (
    CLASSES,
    CONSTANT,
    HUFFMAN,
    KINDS,
    LOWERED_HUFFMAN,
    LOWERED_RANS,
    RANS,
    STORED,
    Head,
    Plane,
)
from gcodec.codecs.lossless.planes import (
    GROUP,
    LARGE_TILE,
    TILE,
    PlaneLayout,
    Zeros,
    coded_counts,
)
from gcodec.entropy import ranged, tabled
from gcodec.entropy.coder import (
    Written,
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
from gcodec.entropy.ranged import bytes_range
from gcodec.errors import ParameterError
from gcodec.kernels.bits import byte_planes
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.context.byte_scales import LineSums
from gcodec.kernels.numeric.byte_counts import byte_counts, counts_of_parts
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_table import write_tables
from gcodec.runtime import pool
from gcodec.runtime.reuse import scratch
from gcodec.wire.seek import LOG2_STATES

_SCALES_NBITS = 32  # approximate bits of a layout
_TABLE_NBITS = 512  # approximate bits of a table
_SAMPLE = 1 << 16  # elements from which the scales of rows and columns are estimated
_SHARE = 50  # a plane is coded if that saves a fiftieth of it
_LEAST_ESTIMATED = 1 << 20  # bytes whose counts may be estimated by those of a sample
_LEAST_COUNTED = 1 << 18  # bytes of such a sample
_MOST_TILES = 8  # tiles for each tile of such a sample
_COUNTED = 8 * TILE  # bytes that are counted at a time
_NEAR = 8  # how far a byte may be from those of a sample
_LEAST_LOWERED = 1 << 11  # elements of a tensor for which scales may pay
_PIECE = 1 << 12  # elements of each of four samples that tell whether coding a plane pays
_SPARE = 32  # bits of a string for each byte that it may exceed its estimated size by
_LEAST_ROOM = 1 << 12  # bytes of a string beyond its estimated size
_LOG2_ACCURATE = 12  # computed entropies err by at most a bit for 2^12 symbols
_ROW = 64  # sampled elements of a row, and least number of sampled rows


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
        """Return the statistics of bit patterns; see `_FirstPlane.counts` for `is_exact`."""
        plane, zeros = _FirstPlane(bits, layout), None
        counts = plane.counts(is_exact)
        if not is_exact and (counts[0] or np.count_nonzero(counts) == 1):
            counts = plane.counts(True)
        if layout.is_float and counts[0]:
            zeros = _zeros_of(bits, counts, layout.itemsize - 1)
        others = (_other_plane(bits, layout, k, zeros) for k in range(1, layout.itemsize))
        return cls(counts, zeros, tuple(others))


class _FirstPlane(NamedTuple):
    """The first plane of a tensor.

    Attributes
    ----------
    bits : (n,) unsigned array
        Bit patterns.
    layout : PlaneLayout
    escape : int
        See `Zeros`.
    scales : Scales or None
        Scales whose octaves are subtracted from the plane.
    """

    bits: np.ndarray
    layout: PlaneLayout
    escape: int = 0
    scales: Scales | None = None

    def take(self, start: int, stop: int, room: np.ndarray) -> np.ndarray:
        """Write a range of the plane to an array; return it."""
        self.layout.take_runs(self.bits, self.escape, self.scales, start, room)
        return room

    def counts(self, is_exact: bool) -> np.ndarray:
        """Return the (256,) counts of the bytes.

        Unless they are to be exact, those of many bytes are estimated by a fourth to an eighth of
        the tiles. Each byte that is little smaller or larger than those of the sample then counts
        once.
        """
        n = self.bits.size
        if is_exact or n < _LEAST_ESTIMATED:
            return counts_of_parts(self.take, n, _COUNTED)
        period = min(n // _LEAST_COUNTED, _MOST_TILES)

        def tiles(start: int, stop: int, room: np.ndarray) -> np.ndarray:
            at = start * period  # `start` is a multiple of TILE
            self.layout.take_runs(
                self.bits, self.escape, self.scales, at, room, TILE, TILE * period
            )
            return room

        sampled = n // (TILE * period) * TILE
        counts = counts_of_parts(tiles, sampled, _COUNTED) * period
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
    string : ranged.Plan or None
        Plan of a string of bytes; None without one, and for classes.
    scales : Scales or None
        Scales whose octaves are subtracted from the plane.
    plan : byte_coder.Plan or None
        Plan of a string with classes.
    """

    method: int
    nbits: int
    string: ranged.Plan | None = None
    scales: Scales | None = None
    plan: byte_coder.Plan | None = None

    @classmethod
    def tabled(cls, method: int, counts: np.ndarray, scales: Scales | None = None) -> _Method:
        string = ranged.Plan.of(KINDS[method], counts)
        nbits = string.nbits
        if scales is not None:
            nbits += _SCALES_NBITS + scales.nbits()
        return cls(method, nbits, string, scales)


class _Begun(NamedTuple):
    """A message whose other planes are written in part.

    Attributes
    ----------
    data : uint8 array
        Memory of the message.
    stop : int
        Number of elements whose bytes of the other planes it contains.
    """

    data: np.ndarray
    stop: int


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


def _zeros_of(bits: np.ndarray, counts: np.ndarray, planes: int) -> Zeros | None:
    """Return how zeros are left out, or None if that does not pay; adapt the counts."""
    n, groups = bits.size, -(-bits.size // GROUP)
    if 8 * int(counts[0]) * planes <= 16 * groups:
        return None
    coded = np.empty(groups, np.uint16)

    def task(start: int, stop: int) -> None:
        for at in range(start, stop, LARGE_TILE):
            end = min(at + LARGE_TILE, stop)
            coded[at // GROUP : -(-end // GROUP)] = coded_counts(bits[at:end] != 0)

    pool.run(task, n, LARGE_TILE)
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
    samples = [_plane(bits[piece], layout, k, zeros) for piece in pieces]
    sample = samples[0] if len(samples) == 1 else np.concatenate(samples)
    if _judged(byte_counts(sample)) == STORED:
        return Plane(STORED), None
    plane = sample
    if step > _PIECE:
        plane, at = np.empty(bits.size if zeros is None else zeros.coded, np.uint8), 0
        for start in range(0, bits.size, LARGE_TILE):
            part = _plane(bits[start : start + LARGE_TILE], layout, k, zeros)
            plane[at : at + part.size] = part
            at += part.size
    counts = byte_counts(plane)
    method = _judged(counts)
    if method == CONSTANT:
        return Plane(CONSTANT, int(counts.argmax())), None
    if method == STORED:
        return Plane(STORED), None
    data = ranged.Plan.of(KINDS[method], counts).write(plane, plane.size, BitString(), 0).data
    return Plane(method, 0, data.size), data


def _judged(counts: np.ndarray) -> int:
    """Return the method for a plane with these counts, other than the first one."""
    if np.count_nonzero(counts) <= 1:
        return CONSTANT
    stored = 8 * int(counts.sum())
    if entropy_nbits(counts) + _TABLE_NBITS > stored - stored // _SHARE:
        return STORED
    words = ranged.Plan.of("huffman", counts)
    nbits = words.nbits - ranged.RANGE_NBITS
    return HUFFMAN if nbits < stored - stored // _SHARE else STORED


def _plane(bits: np.ndarray, layout: PlaneLayout, k: int, zeros: Zeros | None) -> np.ndarray:
    """Return plane k > 0 of a tile."""
    others = np.empty((layout.itemsize - 1) * bits.size, np.uint8)
    layout.take_others(bits, others, bits.size)
    plane = others[(k - 1) * bits.size : k * bits.size]
    if zeros is None:
        return plane
    is_coded = (bits != 0).view(np.uint8)
    coded = np.empty(np.count_nonzero(bits), np.uint8)
    byte_planes.gather_coded(plane, is_coded, coded)
    return coded


class _Writer:
    """Writes the message of a tensor in any mode."""

    def __init__(
        self, bits: np.ndarray, layout: PlaneLayout, shape: tuple[int, ...], is_exact: bool
    ) -> None:
        self._bits, self._layout, self._shape = bits, layout, shape
        self._is_exact, self._texts = is_exact, dict[int, bytes]()
        self._known = _Statistics.of(bits, layout, is_exact)
        zeros = self._known.zeros
        self._plane = _FirstPlane(bits, layout, 0 if zeros is None else zeros.escape)

    def write(self, mode: str, limit: int) -> Written | None:
        """Write the message if it has fewer bits than `limit`, as far as is known; else None."""
        if np.count_nonzero(self._known.counts) == 1:
            return self._plain(CONSTANT)
        method = self._fast() if mode == "fast" else self._small()
        if 8 * self._lead(method.method) + method.nbits >= limit:
            return None
        if method.method == STORED:
            return self._plain(STORED)
        if mode == "fast" and self._is_split:
            return self._split_words(method)
        written = self._words(method) if mode == "fast" else self._states(method)
        self._fill(written.data, method.method)
        return written

    def _fast(self) -> _Method:
        counts, methods = self._known.counts, [_Method(STORED, 8 * self._bits.size)]
        if (scales := self._scales) is not None:
            lowered = _Method.tabled(LOWERED_HUFFMAN, self._lowered_counts, scales)
            inaccuracy = self._bits.size >> _LOG2_ACCURATE
            if entropy_nbits(counts) - inaccuracy > lowered.nbits:  # so no words are shorter
                return min(*methods, lowered, key=lambda method: method.nbits)
            methods.append(lowered)
        methods.insert(1, _Method.tabled(HUFFMAN, counts))
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
            self._plane.take(start, stop, symbols[start:stop])

        pool.run(task, symbols.size, TILE)
        return symbols

    @functools.cached_property
    def _sample(self) -> Sample:
        """The first plane of some rows."""
        bits = sampled_rows(self._bits, row_layouts(self._shape)[0].width, _SAMPLE)
        symbols = np.empty(bits.size, np.uint8)
        self._layout.take_first(bits, self._plane.escape, symbols)
        return Sample(symbols, self._bits.size / bits.size, self._layout.unit)

    @functools.cached_property
    def _scales(self) -> Scales | None:
        """The scales to subtract from the first plane; None if subtracting them does not pay."""
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
            self._layout.take_first(flat[start:stop], 0, room)
            return room

        return parts

    @functools.cached_property
    def _lowered_counts(self) -> np.ndarray:
        return self._lowered.counts(self._is_exact)

    @functools.cached_property
    def _lowered(self) -> _FirstPlane:
        """The lowered first plane."""
        return self._plane._replace(scales=self._scales)

    def _parts(self, start: int, stop: int) -> np.ndarray:
        return self._plane.take(start, stop, np.empty(stop - start, np.uint8))

    def _head(self, method: int) -> Head:
        byte = int(self._known.counts.argmax()) if method == CONSTANT else 0
        others = (plane for plane, _ in self._known.others)
        return Head(self._known.zeros, (Plane(method, byte), *others))

    def _lead(self, method: int) -> int:
        """Return the number of bytes before the first plane."""
        head = self._head(method)
        others = sum(head.nbytes_of(k, self._bits.size) for k in range(1, self._layout.itemsize))
        return len(self._text(method)) + others

    def _text(self, method: int) -> bytes:
        """Return the bytes of the head."""
        if method not in self._texts:
            self._texts[method] = self._head(method).to_bytes()
        return self._texts[method]

    def _plain(self, method: int) -> Written:
        """Return the message with a stored or constant first plane."""
        n, lead = self._bits.size, self._lead(method)
        data = np.empty(lead + (n if method == STORED else 0), np.uint8)
        if method == STORED:
            data[lead:] = self._symbols
        self._fill(data, method)
        return Written(data, 8 * data.size)

    def _front(self, method: _Method) -> BitString:
        """Return the bits of a first plane before its table."""
        front = BitString()
        if method.scales is not None:
            front.extend(self._scales_bytes, 8 * self._scales_bytes.size)
        if method.string is not None:
            method.string.put_range(front)
        return front

    @functools.cached_property
    def _scales_bytes(self) -> np.ndarray:
        """The scales as whole bytes; there must be scales."""
        assert self._scales is not None
        string = BitString()
        byte_scales.put(self._scales, string)
        return string.trimmed()

    def _words(self, method: _Method) -> Written:
        """Write Huffman words after room for all that precedes the first plane."""
        n, lead, front = self._bits.size, self._lead(method.method), self._front(method)
        plane = self._plane_of(method)
        assert method.string is not None
        try:
            return tabled.write(method.string.table, plane.take, CodedMask.all(n), front, n, lead)
        except ParameterError:  # a byte that no sample contains has no word
            return self._words(self._exact(method))

    def _plane_of(self, method: _Method) -> _FirstPlane:
        """Return the first plane as a method codes it."""
        return self._plane if method.scales is None else self._lowered

    def _exact(self, method: _Method) -> _Method:
        """Return a method with the exact counts of all bytes."""
        counts = self._plane_of(method).counts(True)
        return _Method.tabled(method.method, counts, method.scales)

    @property
    def _is_split(self) -> bool:
        """Whether `_split_words` can write the message."""
        others, layout = self._known.others, self._layout
        is_plain = layout.is_float and self._known.zeros is None and pool.is_one(self._bits.size)
        return is_plain and all(plane.method == STORED for plane, _ in others)

    def _split_words(self, method: _Method, begun: _Begun | None = None) -> Written:
        """Write the message with Huffman words in one pass over the elements, on this thread.

        With `begun`, the pass has already been begun with a table that lacks a byte.
        """
        n, lead = self._bits.size, self._lead(method.method)
        front, text = self._front(method), self._text(method.method)
        room = lead + method.nbits // 8 + method.nbits // _SPARE + _LEAST_ROOM
        string = BitString(memory=scratch(room) if begun is None else begun.data)
        string.skip(lead)
        string.data[: len(text)] = np.frombuffer(text, np.uint8)
        bits, layout, escape, scales = self._plane_of(method)
        done = 0 if begun is None else begun.stop

        def take(start: int, stop: int, room: np.ndarray) -> np.ndarray:
            nonlocal done
            others = None
            if stop > done:
                others = string.data[len(text) : lead]  # the string may have moved
            layout.take_runs(bits, escape, scales, start, room, others=others)
            done = max(done, stop)
            return room

        assert method.string is not None
        try:
            return tabled.write(method.string.table, take, CodedMask.all(n), front, n, string)
        except ParameterError:  # see `_words`
            return self._split_words(self._exact(method), _Begun(string.data, done))

    def _states(self, method: _Method) -> Written:
        """Write rANS after room for all that precedes the first plane."""
        lead, n = self._lead(method.method), self._bits.size

        def before(head: np.ndarray) -> np.ndarray:
            room = np.empty(lead + head.size, np.uint8)
            room[lead:] = head
            return room

        if method.plan is not None:
            return byte_coder.write(method.plan, self._plane.take, n, BitString(), before)
        assert method.string is not None
        table = method.string.table
        head, _ = tabled.front(self._front(method), *table)
        tables = write_tables(table.numbers, table.log2_total)
        plane = self._plane_of(method)
        data, nbits, runs = rans_string.write(tables, plane.take, n, before(head), LOG2_STATES)
        return Written(data, nbits, seek_of_runs(n, nbits, runs))

    def _fill(self, data: np.ndarray, method: int) -> None:
        """Write the head and all planes but the first to the start of the message."""
        bits, layout, n = self._bits, self._layout, self._bits.size
        head, zeros, text = self._head(method), self._known.zeros, self._text(method)
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
                layout.take_others(bits[start:stop], data[first + start :], n)
                return
            stride = min(LARGE_TILE, stop - start)
            room = np.empty(count * stride, np.uint8)
            for at in range(start, stop, stride):
                tile = bits[at : min(at + stride, stop)]
                layout.take_others(tile, room, stride)
                place, end = at, at + tile.size
                if starts is not None:
                    place, end = starts[[at // GROUP, -(-end // GROUP)]].tolist()
                    is_coded = (tile != 0).view(np.uint8)
                for k, begin in stored.items():
                    plane = room[(k - 1) * stride : (k - 1) * stride + tile.size]
                    target = data[begin + place : begin + end]
                    if starts is None:
                        target[:] = plane
                    else:
                        byte_planes.gather_coded(plane, is_coded, target)

        pool.run(task, n, LARGE_TILE)
