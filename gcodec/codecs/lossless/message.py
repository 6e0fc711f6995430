"""The message: a head, all planes but the first one, and the first plane.

    flags u8 · escape u8, if flag 1 is set
    for each plane: method u8 · byte u8, if constant · width u8, if packed
        · row LEB128, if of differences · length LEB128, if coded and not the first
    numbers of elements that are not zeros, u16 each, if flag 1 is set
    the other planes · the first plane

With flag 1, the elements whose bits are all 0 are left out of all planes but the first; see
`planes`. With flag 2, the first plane contains a bit of the mantissa. A plane is stored as it is,
constant, or coded by Huffman words or rANS, after the least and the largest byte and a table of 0
and of these bytes. The length of a coded plane is that of its string in bytes. The first plane may
also be lowered by the scales of rows and columns, which then precede it, or coded by the context
coder of bytes. Other planes may be packed, in fields of 1 to 7 bits, or coded by Huffman words of
the differences from the bytes a row above; see `gcodec.kernels.bits.row_differences`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.codecs.lossless.planes import LARGE_TILE, TILE, PlaneLayout, Zeros, part_of
from gcodec.entropy import tabled
from gcodec.entropy.coder import (
    BitSpan,
    EmptyString,
    RansString,
    WordString,
    into,
)
from gcodec.entropy.context import byte_coder, byte_scales
from gcodec.entropy.context.scale_model import LEAST_WIDTH, Scales
from gcodec.entropy.ranged import open_string
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.byte_planes import GROUP
from gcodec.kernels.bits.pack import FieldLayout, check_padding, unpack_fields, unpack_range
from gcodec.kernels.bits.row_differences import add_above
from gcodec.kernels.context import plane_words
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.payload import Payload
from gcodec.runtime import pool
from gcodec.runtime.device import device_of, host
from gcodec.runtime.memory import empty_beside
from gcodec.wire.primitives import Reader, leb128
from gcodec.wire.seek import SeekTable, refuse_table

METHODS = (
    *("stored", "constant", "Huffman", "rANS"),
    *("lowered, Huffman", "lowered, rANS", "rANS by classes", "packed"),
    "differences, Huffman",
)
STORED, CONSTANT, HUFFMAN, RANS, LOWERED_HUFFMAN, LOWERED_RANS, CLASSES, PACKED, DIFFERENCES = (
    range(len(METHODS))
)
KINDS: dict[int, tabled.Kind] = {
    HUFFMAN: "huffman",
    RANS: "rans",
    LOWERED_HUFFMAN: "huffman",
    LOWERED_RANS: "rans",
    DIFFERENCES: "huffman",
}
LOWERED = LOWERED_HUFFMAN, LOWERED_RANS
FIRST_METHODS = {
    "fast": (STORED, CONSTANT, HUFFMAN, LOWERED_HUFFMAN),
    "small": (STORED, CONSTANT, RANS, LOWERED_RANS, CLASSES),
}
OTHER_METHODS = (STORED, CONSTANT, HUFFMAN, PACKED, DIFFERENCES)


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
    width : int
        Bits of each field of a packed plane.
    row : int
        Bytes of a row of a plane of differences.
    """

    method: int
    byte: int = 0
    nbytes: int = 0
    width: int = 0
    row: int = 0

    def nbytes_of(self, count: int) -> int:
        """Return the number of bytes of `count` elements in a plane that is not the first one."""
        if self.method in (STORED, PACKED):
            return -(-count * (self.width or 8) // 8)
        return self.nbytes


STORED_PLANE = Plane(STORED)
_ZEROS, _MANTISSAS = 1, 2  # flags
_STREAMING = 1 << 22  # bytes of a result that its planes, as large, would drive from a cache


class Head(NamedTuple):
    """The head of a message.

    Attributes
    ----------
    layout : PlaneLayout
    zeros : Zeros or None
        None if no element is left out.
    planes : tuple of Plane
    """

    layout: PlaneLayout
    zeros: Zeros | None
    planes: tuple[Plane, ...]

    def coded(self, n: int) -> int:
        """Return the number of elements in planes after the first: n, or fewer without zeros."""
        return n if self.zeros is None else self.zeros.coded

    @property
    def method_at(self) -> int:
        """Offset of the method of the first plane."""
        return 1 if self.zeros is None else 2

    def to_bytes(self) -> bytes:
        """Return the bytes of the head."""
        zeros, flags = self.zeros, _MANTISSAS if self.layout.has_mantissa_bit else 0
        parts = [bytes([flags]) if zeros is None else bytes([flags | _ZEROS, zeros.escape])]
        for k, plane in enumerate(self.planes):
            parts.append(bytes([plane.method]))
            if plane.method == CONSTANT:
                parts.append(bytes([plane.byte]))
            elif plane.method == PACKED:
                parts.append(bytes([plane.width]))
            elif plane.method != STORED and k:
                if plane.method == DIFFERENCES:
                    parts.append(leb128(plane.row))
                parts.append(leb128(plane.nbytes))
        if zeros is not None:
            parts.append(zeros.counts.astype("<u2").tobytes())
        return b"".join(parts)


def read_methods(
    reader: Reader,
    n: int,
    layout: PlaneLayout,
    mode: str,
    note: Callable[[str, int | None, int, str], None],
) -> tuple[PlaneLayout, bool, int, tuple[Plane, ...]]:
    """Read a head up to the numbers of elements.

    Parameters
    ----------
    reader : Reader
    n : int
        Number of elements.
    layout : PlaneLayout
        That of the dtype.
    mode : str
    note : callable
        Receives the name of each field, the plane that it belongs to, its value and its meaning.

    Returns
    -------
    layout : PlaneLayout
        That of the message.
    has_zeros : bool
    escape : int
    planes : tuple of Plane

    Raises
    ------
    FormatError
    """
    flags, allowed = reader.byte(), _ZEROS
    if mode == "small" and layout.may_have_mantissa_bit:
        allowed |= _MANTISSAS
    if flags > allowed:
        raise Corrupt(f"the flags {flags} of the planes are above {allowed}", reader.at - 1)
    has_zeros, has_bit = bool(flags & _ZEROS), bool(flags & _MANTISSAS)
    meanings = ["zeros left out"] * has_zeros + ["a bit of the mantissa in plane 0"] * has_bit
    note("flags", None, flags, ", ".join(meanings) or "none")
    planes: list[Plane] = []
    escape = 0
    if has_bit:
        layout = layout.with_mantissa_bit()
    if has_zeros:
        escape = reader.byte()
        note("escape", None, escape, "replacement for 0 in elements that are not left out")
    for k in range(layout.itemsize):
        method = reader.byte()
        if method not in (OTHER_METHODS if k else FIRST_METHODS[mode]):
            raise Corrupt(f"plane {k} is coded by method {method}", reader.at - 1)
        note("method", k, method, METHODS[method])
        plane = STORED_PLANE if method == STORED else Plane(method)
        if method == CONSTANT:
            plane = Plane(method, byte=reader.byte())
            note("byte", k, plane.byte, "the byte of all elements")
        elif method == PACKED:
            plane = Plane(method, width=reader.byte())
            if not 1 <= plane.width < 8:
                raise Corrupt(f"plane {k} has fields of {plane.width} bits", reader.at - 1)
            note("width", k, plane.width, "bits of each byte")
        elif k and method != STORED:
            if method == DIFFERENCES:
                plane = _with_row(plane, reader, n, has_zeros=has_zeros)
                note("row", k, plane.row, "elements of a row")
            plane = plane._replace(nbytes=reader.leb128())
            note("bytes", k, plane.nbytes, "bytes")
        planes.append(plane)
    return layout, has_zeros, escape, tuple(planes)


def _with_row(plane: Plane, reader: Reader, n: int, *, has_zeros: bool) -> Plane:
    """Read the length of a row of differences; return the plane with it."""
    start, row = reader.at, reader.leb128()
    if has_zeros:
        raise Corrupt("differences of a plane that leaves out zeros", start)
    if not min(LEAST_WIDTH, n) <= row <= n:
        raise Corrupt(f"differences in rows of {row} of {n} elements", start)
    return plane._replace(row=row)


def read_counts(reader: Reader, n: int) -> np.ndarray:
    """Read the number of elements that are not zeros, of each group of n elements.

    Raises
    ------
    FormatError
    """
    start, groups = reader.at, -(-n // GROUP)
    counts = np.frombuffer(reader.take(2 * groups), "<u2").astype(np.uint16)
    last = n - (groups - 1) * GROUP  # elements of the last group
    for k, size in (int(counts.argmax()), GROUP), (groups - 1, last):
        if counts[k] > size:
            raise Corrupt(f"{counts[k]} of {size} elements", start + 2 * k)
    return counts


def read_head(
    data: np.ndarray, end: int, n: int, layout: PlaneLayout, mode: str
) -> tuple[Head, int]:
    """Read the head of a message of n > 0 elements; return it and its number of bytes.

    Raises
    ------
    FormatError
    """
    reader = Reader(data[: end // 8].data)
    layout, has_zeros, escape, planes = read_methods(reader, n, layout, mode, _ignore)
    zeros = Zeros(escape, read_counts(reader, n)) if has_zeros else None
    return Head(layout, zeros, planes), reader.at


def _ignore(name: str, plane: int | None, value: int, meaning: str) -> None:
    """Ignore a field of a head."""


class Message(NamedTuple):
    """An opened message.

    Attributes
    ----------
    n : int
        Number of elements, above 0.
    head : Head
    spans : tuple of BitSpan
        Bits of each plane.
    first : CodedString or None
        String of the first plane; None if it is stored or constant.
    scales : Scales or None
        Scales whose octaves were subtracted from the first plane.
    data : uint8 array
        Bytes of the payload, where its elements are to be decoded. The spans have those on the
        host.
    """

    n: int
    head: Head
    spans: tuple[BitSpan, ...]
    first: WordString | RansString | None
    scales: Scales | None
    data: np.ndarray

    @classmethod
    def open(cls, payload: Payload, layout: PlaneLayout, n: int, mode: str) -> Message:
        """Open a message: parse the head and the table of the first plane.

        `layout` is that of the dtype.

        Raises
        ------
        FormatError
        """
        data, nbits = host(payload.data), payload.nbits
        if nbits % 8:
            check_padding(data, nbits)
        head, at = read_head(data, nbits, n, layout, mode)
        others: list[BitSpan] = []
        count = head.coded(n)
        for k, plane in enumerate(head.planes[1:], 1):
            end = at + plane.nbytes_of(count)
            if 8 * end > nbits:
                raise Truncated(f"the payload has {nbits} bits, plane {k} ends at {8 * end}")
            if plane.width:
                check_padding(data[:end], 8 * at + count * plane.width)
            others.append(BitSpan(data, 8 * at, 8 * end))
            at = end
        span, method = BitSpan(data, 8 * at, nbits, payload.seek), head.planes[0].method
        first: WordString | RansString | None = None
        scales = None
        if method in LOWERED:
            scales, after = byte_scales.read(data, span.first, span.end, n)
            span = span.aligned("scales and table", after)
        if method in KINDS:
            first = open_string(KINDS[method], span, n)
        elif method == CLASSES:
            first = byte_coder.open(span, n)
        else:
            refuse_table(payload.seek)
            size = 8 * n if method == STORED else 0
            if span.nbits != size:
                error = Truncated if span.nbits < size else Corrupt
                raise error(f"the first plane has {span.nbits} bits, not {size}")
        return cls(n, head, (span, *others), first, scales, payload.data)

    def read(self, out: np.ndarray) -> None:
        """Decode all elements to (n,) bit patterns.

        Raises
        ------
        FormatError
        """
        if device_of(self.data) is not None:
            self._read_on_device(out)
            return
        others, streaming = self._others(), out.nbytes >= _STREAMING
        if others is None and self._read_in_one_pass(out, streaming):
            return

        def take(at: int, symbols: np.ndarray) -> None:
            self._join(at, symbols, others, out[at : at + symbols.size], streaming=streaming)

        if self.first is None:
            pool.run(lambda start, stop: take(start, self._plain(start, stop)), self.n, TILE)
            return
        self.first.read(take)  # ranges begin with a group of `Zeros`; see `Take`

    def _read_in_one_pass(self, out: np.ndarray, streaming: bool) -> bool:
        """Decode all elements in one pass, given stored other planes; return whether it can."""
        first, (layout, zeros, _) = self.first, self.head
        if not isinstance(first, WordString) or not isinstance(first.code, TableCode):
            return False
        seek, form = first.span.must_cover(), layout.form(self.scales, zeros)
        if not plane_words.is_readable(layout.itemsize, form):
            return False
        if seek is None or 1 << seek.log2_block != GROUP:
            return False
        starts = first.span.first + seek.offsets
        others = self.data[self.spans[1].first // 8 : self.spans[-1].end // 8]
        string = first.code, self.data, starts, first.span.end
        coded = None if zeros is None else zeros.counts
        plane_words.read(*string, form, others, coded, out, streaming=streaming)
        first.span.refuse_more_words(int(starts[-1]))
        return True

    def _read_on_device(self, out: np.ndarray) -> None:
        """Decode all elements to an array on the device of the data."""
        layout, zeros, count = self.head.layout, self.head.zeros, self.head.coded(self.n)
        if self.first is None:
            first = self._plain(0, self.n)
        else:
            first = empty_beside(self.n, np.uint8, out)
            self._placed(self.first).read(into(first))
        planes = self._others()
        if planes is None:
            others = self.data[self.spans[1 % layout.itemsize].first // 8 :]
        else:
            others = empty_beside((layout.itemsize - 1) * count, np.uint8, out)
            for k, part in enumerate(planes):
                plane, target = self.head.planes[1 + k], others[k * count : (k + 1) * count]
                if plane.method == PACKED and not isinstance(part, int):
                    part = unpack_fields(part.copy(), count, FieldLayout(plane.width))
                target[:] = part
        layout.join(first, others, count, out, self.scales, 0, zeros)

    def _placed(self, string: WordString | RansString) -> WordString | RansString:
        """Return a string that is read where the data is."""
        return string._replace(span=string.span._replace(data=self.data))

    def read_range(self, start: int, stop: int) -> np.ndarray:
        """Decode the elements start to stop - 1, and neighbors; return their bit patterns.

        Raises
        ------
        FormatError
        """
        first = start - start % GROUP
        last = min(-(-stop // GROUP) * GROUP, self.n)
        if start >= stop:
            return np.empty(0, self.head.layout.bits_dtype)
        symbols = np.empty(last - first, np.uint8)
        if self.first is None:
            symbols[:] = self._plain(first, last)
        else:

            def take(at: int, part: np.ndarray) -> None:
                low, high = max(at, first), min(at + part.size, last)
                if low < high:
                    symbols[low - first : high - first] = part[low - at : high - at]

            self.first.read_range(first, last, take)
        out = np.empty(symbols.size, self.head.layout.bits_dtype)
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
        if plane.method == STORED:
            return self.data[span.first // 8 + start : span.first // 8 + stop]
        symbols = empty_beside(stop - start, np.uint8, self.data)
        symbols[:] = plane.byte
        return symbols

    def _others(self) -> list[np.ndarray | int] | None:
        """Return the other planes: their bytes or fields, or the byte of a constant one.

        The result is None if all are stored, one after the other from the second span on.
        """
        if all([plane.method == STORED for plane in self.head.planes[1:]]):
            return None
        planes: list[np.ndarray | int] = []
        count = self.head.coded(self.n)
        for plane, span in zip(self.head.planes[1:], self.spans[1:], strict=True):
            if plane.method == CONSTANT:
                planes.append(plane.byte)
            elif plane.method in (STORED, PACKED):
                planes.append(self.data[span.first // 8 : span.end // 8])
            elif not count:
                span.refuse_bits()
                planes.append(0)
            else:
                decoded = empty_beside(count, np.uint8, self.data)
                string = self._placed(open_string(KINDS[plane.method], span, count))
                after = string.read(into(decoded), bits_follow=True)
                if span.aligned("planes", after).first != span.end:
                    raise Corrupt("a plane does not end where its length says")
                if plane.method == DIFFERENCES:
                    add_above(decoded, plane.row)
                planes.append(decoded)
        return planes

    def _join(
        self,
        at: int,
        first: np.ndarray,
        others: list[np.ndarray | int] | None,
        out: np.ndarray,
        *,
        streaming: bool = False,
    ) -> None:
        """Write bit patterns of a range; with zeros left out, its start is that of a group.

        The bytes of the first plane are as their string contains them.
        """
        layout, zeros, stop = self.head.layout, self.head.zeros, at + first.size
        if others is None:
            span, (own, coded) = self.spans[1 % layout.itemsize], part_of(zeros, at, stop)
            rest, stride = span.data[span.first // 8 + coded.start :], self.head.coded(self.n)
            layout.join(first, rest, stride, out, self.scales, at, own, streaming=streaming)
            return
        stride = min(LARGE_TILE, first.size)
        room = np.empty((layout.itemsize - 1) * stride, np.uint8)
        for begin in range(at, stop, stride):
            end = min(begin + stride, stop)
            own, coded = part_of(zeros, begin, end)
            for k, (plane, data) in enumerate(zip(self.head.planes[1:], others, strict=True)):
                target = room[k * stride : k * stride + coded.stop - coded.start]
                if isinstance(data, int):
                    target[:] = data
                elif plane.method == PACKED:
                    unpack_range(data, plane.width, coded.start, target)
                else:
                    target[:] = data[coded]
            tile, target = first[begin - at : end - at], out[begin - at : end - at]
            layout.join(tile, room, stride, target, self.scales, begin, own, streaming=streaming)
