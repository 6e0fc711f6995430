"""The message: a head, all planes but the first one, and the first plane.

    zeros u8 · escape u8, if zeros is 1
    for each plane: method u8 · byte u8, if constant · length LEB128, if coded and not the first
    numbers of elements that are not zeros, u16 each, if zeros is 1
    the other planes · the first plane

If zeros is 1, the elements whose bits are all 0 are left out of all planes but the first; see
`planes`. A plane is stored as it is, constant, or coded by Huffman words or rANS, after the least
and the largest byte and a table of 0 and of these bytes; or, if it is the first one, by the
context coder of bytes. The length of a coded plane is that of its string in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gcodec.codecs.lossless.planes import (
    GROUP,
    TILE,
    PlaneLayout,
    Zeros,
    mark_escapes,
)
from gcodec.entropy import tabled
from gcodec.entropy.coder import BitSpan, EmptyString, RansString, WordString, Written, into
from gcodec.entropy.context import byte_coder
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits import byte_planes
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.pack import check_padding
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_table import write_tables
from gcodec.payload import Payload
from gcodec.runtime import pool
from gcodec.runtime.memory import Drainable
from gcodec.wire.primitives import Reader, leb128
from gcodec.wire.seek import LOG2_STATES, SeekTable, refuse_table

STORED, CONSTANT, HUFFMAN, RANS, CLASSES = range(5)
METHODS = ("stored", "constant", "huffman", "rans", "classes")
KINDS: dict[int, tabled.Kind] = {HUFFMAN: "huffman", RANS: "rans"}
FIRST_METHODS = {"fast": (STORED, CONSTANT, HUFFMAN), "small": (STORED, CONSTANT, RANS, CLASSES)}
OTHER_METHODS = (STORED, CONSTANT, HUFFMAN, RANS)

_RANGE_NBITS = 16  # of the least and the largest byte before a table
_SAMPLE = 1 << 18  # elements by which the other planes are judged
_SHARE = 50  # a plane is coded if that saves a fiftieth of it


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
    """What the encoder knows of a tensor before it writes.

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
        The mode of the shortest message among those that the argument allows.
    Written
    """
    writer = _Writer(bits, layout, shape, _statistics(bits, layout))
    stored = 8 * bits.nbytes
    if mode == "fast":
        nbits = writer.fast_nbits()
        return ("fast", writer.fast()) if nbits < stored else ("stored", _stored(bits))
    limit = min(stored, writer.fast_nbits()) if mode == "auto" else stored
    small = writer.small(limit)
    if small is not None:
        return "small", small
    return ("stored", _stored(bits)) if limit == stored else ("fast", writer.fast())


def _stored(bits: np.ndarray) -> Written:
    return Written(bits.view(np.uint8), 8 * bits.nbytes)


def _statistics(bits: np.ndarray, layout: PlaneLayout) -> _Statistics:
    n = bits.size

    def task(start: int, stop: int) -> np.ndarray:
        room = np.empty(min(4 * TILE, stop - start), np.uint8)
        counts = np.zeros(256, np.int64)
        for at in range(start, stop, room.size):
            part = room[: min(room.size, stop - at)]
            layout.take_first(bits[at : at + part.size], part)
            counts += byte_counts(part)
        return counts

    counts: np.ndarray = np.sum(pool.run(task, n, 4 * TILE), axis=0)
    others = [_judged(bits, layout, k) for k in range(1, layout.itemsize)]
    zeros = None
    if layout.is_float and counts[0]:
        zeros = _zeros_of(bits, counts, sum(method == STORED for method, _ in others))
    planes = tuple(_other_plane(bits, layout, k, *others[k - 1], zeros) for k in range(1, layout.itemsize))
    return _Statistics(counts, zeros, planes)


def _zeros_of(bits: np.ndarray, counts: np.ndarray, planes: int) -> Zeros | None:
    """Return how zeros are left out, or None if that does not pay; adapt the counts."""
    groups = -(-bits.size // GROUP)
    if 8 * int(counts[0]) * planes <= 16 * groups:
        return None
    coded = np.empty(groups, np.uint16)

    def task(start: int, stop: int) -> None:
        for at in range(start, stop, GROUP):
            coded[at // GROUP] = np.count_nonzero(bits[at : min(at + GROUP, stop)])

    pool.run(task, bits.size, GROUP)
    count = bits.size - int(coded.sum(dtype=np.int64))
    if 8 * count * planes <= 16 * groups:
        return None
    escape, others = 0, int(counts[0]) - count
    if others:
        free = np.flatnonzero(counts == 0)
        if not free.size:
            return None
        used = np.flatnonzero(counts[1:]) + 1
        low = int(used[0]) if used.size else 1
        above = free[free >= low]
        escape = int(above[0]) if above.size else int(free[-1])
        counts[escape], counts[0] = others, count
    return Zeros(escape, coded)


def _tiles(n: int, most: int) -> Iterator[tuple[int, int]]:
    """Return the ranges of tiles, of about `most` elements together."""
    step = TILE * max(-(-n // most), 1)
    return ((at, min(at + TILE, n)) for at in range(0, n, step))


def _judged(bits: np.ndarray, layout: PlaneLayout, k: int) -> tuple[int, int]:
    """Return the method that a sample suggests for a plane, and a byte of the sample."""
    counts = np.zeros(256, np.int64)
    for start, stop in _tiles(bits.size, _SAMPLE):
        counts += byte_counts(_plane(bits[start:stop], layout, k))
    used = np.flatnonzero(counts)
    if used.size == 1:
        return CONSTANT, int(used[0])
    return (HUFFMAN if _is_worthwhile(counts) else STORED), 0


def _is_worthwhile(counts: np.ndarray) -> bool:
    used, stored = np.flatnonzero(counts), 8 * int(counts.sum())
    numbers = alphabet(max(int(used[0]), 1), int(used[-1]))
    return tabled.Table.own("huffman", counts, numbers).nbits(counts) < stored - stored // _SHARE


def _plane(bits: np.ndarray, layout: PlaneLayout, k: int) -> np.ndarray:
    """Return plane k > 0 of a tile."""
    others = np.empty((layout.itemsize - 1) * bits.size, np.uint8)
    layout.take_others(bits, others, bits.size)
    return others[(k - 1) * bits.size : k * bits.size]


def _other_plane(
    bits: np.ndarray, layout: PlaneLayout, k: int, method: int, byte: int, zeros: Zeros | None
) -> tuple[Plane, np.ndarray | None]:
    """Return a plane, and its string if it is coded."""
    if method == STORED:
        return Plane(STORED), None
    plane = np.empty(bits.size, np.uint8)
    for start, stop in _tiles(bits.size, bits.size):
        plane[start:stop] = _plane(bits[start:stop], layout, k)
    if zeros is not None:
        plane = plane[bits != 0]
    counts = byte_counts(plane)
    used = np.flatnonzero(counts)
    if used.size <= 1:
        return Plane(CONSTANT, int(used[0]) if used.size else 0), None
    if not _is_worthwhile(counts):
        return Plane(STORED), None
    low, high = max(int(used[0]), 1), int(used[-1])
    front = BitString()
    front.extend(np.array([low, high], np.uint8), _RANGE_NBITS)
    table = tabled.Table.own("huffman", counts, alphabet(low, high))
    data = tabled.write(table, plane, CodedMask.all(plane.size), front, 0).data
    return Plane(HUFFMAN, 0, data.size), data


class _Writer(NamedTuple):
    """Writes the message of a tensor in either mode."""

    bits: np.ndarray
    layout: PlaneLayout
    shape: tuple[int, ...]
    known: _Statistics

    @property
    def _range(self) -> tuple[int, int]:
        """The least byte of the first plane but 0, and the largest."""
        used = np.flatnonzero(self.known.counts)
        return max(int(used[0 if used[0] or used.size == 1 else 1]), 1), int(used[-1])

    def _head(self, method: int) -> Head:
        byte = int(self.known.counts.argmax()) if method == CONSTANT else 0
        first = Plane(method, byte)
        return Head(self.known.zeros, (first, *(plane for plane, _ in self.known.others)))

    def _lead(self, method: int) -> int:
        """Return the number of bytes before the first plane."""
        head = self._head(method)
        others = sum(head.nbytes_of(k, self.bits.size) for k in range(1, self.layout.itemsize))
        return len(head.to_bytes()) + others

    def _table(self, method: int) -> tabled.Table:
        return tabled.Table.own(KINDS[method], self.known.counts, alphabet(*self._range))

    def _plain(self) -> int:
        """Return the method of a first plane without an entropy code."""
        return CONSTANT if np.count_nonzero(self.known.counts) == 1 else STORED

    def fast_nbits(self) -> int:
        """Return the exact number of bits of `fast`."""
        method, nbits = self._fast_method()
        return 8 * self._lead(method) + nbits

    def _fast_method(self) -> tuple[int, int]:
        method, n = self._plain(), self.bits.size
        if method == CONSTANT:
            return CONSTANT, 0
        nbits = _RANGE_NBITS + self._table(HUFFMAN).nbits(self.known.counts)
        return (HUFFMAN, nbits) if nbits < 8 * n else (STORED, 8 * n)

    def fast(self) -> Written:
        """Write the message with Huffman words."""
        method, _ = self._fast_method()
        if method != HUFFMAN:
            return self._without_string(method)
        n, lead = self.bits.size, self._lead(HUFFMAN)
        front = BitString()
        front.extend(np.array(self._range, np.uint8), _RANGE_NBITS)
        written = tabled.write(
            self._table(HUFFMAN), self._first_of, CodedMask.all(n), front, n, lead
        )
        self._fill(written.data, HUFFMAN)
        return written

    def small(self, limit: int) -> Written | None:
        """Write the message with rANS if it has fewer bits than `limit`; else return None."""
        method, n = self._plain(), self.bits.size
        if method == CONSTANT:
            return self._without_string(method) if 8 * self._lead(method) < limit else None
        symbols = np.empty(n, np.uint8)
        pool.run(lambda start, stop: self._first_of(start, stop, symbols[start:stop]), n, TILE)
        table, plan = self._table(RANS), byte_coder.plan(symbols, self.shape)
        tabled_nbits = _RANGE_NBITS + table.nbits(self.known.counts)
        method = RANS if tabled_nbits <= plan.nbits else CLASSES
        lead = self._lead(method)
        nbits = 8 * lead + min(tabled_nbits, plan.nbits)
        if nbits >= limit + limit // 64:
            return None
        front = BitString()

        def before(head: np.ndarray) -> np.ndarray:
            room = np.empty(lead + head.size, np.uint8)
            room[lead:] = head
            return room

        if method == CLASSES:
            written = byte_coder.write(plan, Drainable(symbols), front, before)
        else:
            front.extend(np.array(self._range, np.uint8), _RANGE_NBITS)
            head, _ = tabled.front(front, *table)
            data, nbits, runs = rans_string.write(
                write_tables(table.numbers, table.log2_total),
                Drainable(symbols),
                n,
                before(head),
                LOG2_STATES,
            )
            written = Written(data, nbits, tabled.seek_of_runs(n, nbits, runs))
        if written.nbits >= limit:
            return None
        self._fill(written.data, method)
        return written

    def _first_of(self, start: int, stop: int, room: np.ndarray) -> np.ndarray:
        """Write a range of the first plane to an array; return it."""
        zeros = self.known.zeros
        for at in range(start, stop, TILE):
            end = min(at + TILE, stop)
            tile = room[at - start : end - start]
            self.layout.take_first(self.bits[at:end], tile)
            if zeros is not None and zeros.escape:
                mark_escapes(self.bits[at:end], tile, zeros.escape)
        return room

    def _without_string(self, method: int) -> Written:
        n, lead = self.bits.size, self._lead(method)
        data = np.empty(lead + (n if method == STORED else 0), np.uint8)
        if method == STORED:
            pool.run(lambda start, stop: self._first_of(start, stop, data[lead + start : lead + stop]), n)
        self._fill(data, method)
        return Written(data, 8 * data.size)

    def _fill(self, data: np.ndarray, method: int) -> None:
        """Write the head and all planes but the first to the start of the message."""
        bits, layout, n = self.bits, self.layout, self.bits.size
        head, zeros = self._head(method), self.known.zeros
        text = head.to_bytes()
        data[: len(text)] = np.frombuffer(text, np.uint8)
        at, stored = len(text), dict[int, int]()
        for k, (plane, string) in enumerate(self.known.others, 1):
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
            room = np.empty(count * TILE, np.uint8)
            for at in range(start, stop, TILE):
                tile = bits[at : min(at + TILE, stop)]
                if starts is None and len(stored) == count:
                    layout.take_others(tile, data[first + at :], n)
                    continue
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


def read_head(data: np.ndarray, end: int, n: int, itemsize: int, mode: str) -> tuple[Head, int]:
    """Read the head of a message of n > 0 elements; return it and its number of bytes.

    Raises
    ------
    FormatError
    """
    reader = Reader(data[: end // 8].data)
    flag = reader.uint(1)
    if flag > 1:
        raise Corrupt(f"zeros are left out in the way {flag}", 0)
    escape, planes = reader.uint(1) if flag else 0, list[Plane]()
    for k in range(itemsize):
        method = reader.uint(1)
        if method not in (OTHER_METHODS if k else FIRST_METHODS[mode]):
            raise Corrupt(f"plane {k} is coded by method {method}", reader.at - 1)
        byte = reader.uint(1) if method == CONSTANT else 0
        nbytes = reader.leb128() if k and method in KINDS else 0
        planes.append(Plane(method, byte, nbytes))
    zeros = None
    if flag:
        start, groups = reader.at, -(-n // GROUP)
        counts = np.frombuffer(reader.take(2 * groups), "<u2")
        sizes = np.full(groups, GROUP)
        sizes[-1] = n - (groups - 1) * GROUP
        if (counts > sizes).any():
            wrong = int(np.argmax(counts > sizes))
            raise Corrupt(f"{counts[wrong]} of {sizes[wrong]} elements", start + 2 * wrong)
        zeros = Zeros(escape, counts)
    return Head(zeros, tuple(planes)), reader.at


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
    """

    layout: PlaneLayout
    n: int
    head: Head
    spans: tuple[BitSpan, ...]
    first: WordString | RansString | None

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
        first = None
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
        return cls(layout, n, head, (span, *others), first)

    def read(self, out: np.ndarray) -> None:
        """Decode all elements to (n,) bit patterns.

        Raises
        ------
        FormatError
        """
        others = self._others()
        if self.first is None:
            pool.run(lambda start, stop: self._join(start, self._plain(start, stop), others, out[start:stop]), self.n, TILE)
            return
        seek = self.spans[0].seek
        if self.head.zeros is None or seek is None or (1 << seek.log2_block) % GROUP == 0 or isinstance(self.first, RansString):
            self.first.read(lambda at, symbols: self._join(at, symbols, others, out[at : at + symbols.size]))
            return
        symbols = np.empty(self.n, np.uint8)  # as ranges of the string might not begin with a group
        self.first.read(into(symbols))
        pool.run(lambda start, stop: self._join(start, symbols[start:stop], others, out[start:stop]), self.n, TILE)

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

            self.first.read_range(first, last, take)
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


def open_string(span: BitSpan, method: int, count: int) -> WordString | RansString:
    """Open the string of a plane of `count` > 0 bytes, which begins with their range.

    Raises
    ------
    FormatError
    """
    at = span.first // 8
    if span.nbits < _RANGE_NBITS:
        raise Truncated(f"a plane has {span.nbits} bits")
    low, high = span.data[at : at + 2].tolist()
    if not 1 <= low <= high:
        raise Corrupt(f"a table of the bytes {low} to {high}", at)
    opened = tabled.open(
        KINDS[method], span.after(span.first + _RANGE_NBITS), alphabet(low, high), CodedMask.all(count)
    )
    assert isinstance(opened, (WordString, RansString))
    return opened
