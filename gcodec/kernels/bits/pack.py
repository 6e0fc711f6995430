"""Fixed-width fields of 1 to 8 bits: the one packer, for every bit order that is in use.

A `FieldLayout` says where the bits of field i lie; `pack_fields` and `unpack_fields` move codes
(one per byte) there and back. Quantisers that pack their codes themselves name the layout.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Literal, NamedTuple

import numpy as np

from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, inline, kernel, subroutine
from gcodec.runtime.memory import aligned_empty

_GROUP = 8  # codes that end on a whole byte, whatever their width


class FieldLayout(NamedTuple):
    """Where the bits of a field lie.

    Attributes
    ----------
    width : int
        Bits of a field, 1 to 8.
    order : "msb" or "lsb"
        Whether the first field takes the most or the least significant bits of its unit.
    word : int
        Bytes of a unit, 1 or 4; words are stored little-endian and padded to whole words.
    strided : bool
        Contiguous (field i follows field i - 1), or strided: with Q bytes in all, byte i holds
        fields i, i + Q, i + 2Q, …; `width` must then divide 8 and `word` must be 1.
    pad : "zero" or "count"
        What fills the last byte: zero bits as few as needed, or (TernGrad) always one to 8/width
        codes 0, 1, 2, …
    align : int
        The result is padded with zero bytes to a multiple of this many bytes: 1, 4 or 8.
    """

    width: int
    order: Literal["msb", "lsb"] = "msb"
    word: Literal[1, 4] = 1
    strided: bool = False
    pad: Literal["zero", "count"] = "zero"
    align: Literal[1, 4, 8] = 1

    def nbytes(self, n: int) -> int:
        """Bytes that n fields take, padding included."""
        unit = max(self.word, self.align)
        return -(-self._field_bytes(n) // unit) * unit

    def _codes(self, n: int) -> int:
        """Fields of n codes and the pad codes behind them."""
        if self.pad == "zero":
            return n
        per_byte = 8 // self.width
        return n + per_byte - n % per_byte

    def _field_bytes(self, n: int) -> int:
        return -(-self._codes(n) * self.width // 8)

    def _check(self) -> None:
        if not 1 <= self.width <= 8:
            raise ParameterError.of("width", self.width, "from 1 to 8")
        if self.word not in (1, 4) or (self.strided and self.word != 1):
            raise ParameterError.of("word", self.word, "1, or 4 where fields are contiguous")
        if (self.strided or self.pad == "count") and 8 % self.width:
            raise ParameterError.of("width", self.width, "1, 2, 4 or 8 for this layout")

    def _shift(self, field: int) -> int:
        """Lowest bit in its byte of the field-th field, where fields do not straddle bytes."""
        return field * self.width if self.order == "lsb" else 8 - self.width * (field + 1)


@dispatched("gcodec.kernels.bits.pack_cuda")
def pack_fields(codes: np.ndarray, layout: FieldLayout) -> np.ndarray:
    """Pack codes into bytes.

    Parameters
    ----------
    codes : (n,) uint8 array
        Each below ``2**layout.width``.
    layout : FieldLayout

    Returns
    -------
    (layout.nbytes(n),) uint8 array
    """
    layout._check()
    codes, n = np.require(codes, np.uint8, ["C", "A"]), codes.size
    out = aligned_empty(layout.nbytes(n), np.uint8)
    size = layout._field_bytes(n)
    out[size:] = 0
    count = layout.pad == "count"
    if layout.strided:
        for field in range(8 // layout.width):
            _pack_stride(codes, out[:size], field * size, layout._shift(field), count)
    else:
        msb, width = layout.order == "msb", layout.width

        def task(start: int, stop: int) -> None:
            total = layout._codes(n) if stop == n else stop
            part = out[start * width // 8 : -(-total * width // 8)]
            packer(width, msb)(codes[start:stop], part, count)

        pool.run(task, n, _GROUP)
        if layout.word == 4 and msb:
            out.view("<u4").byteswap(inplace=True)
    return out


@dispatched("gcodec.kernels.bits.pack_cuda")
def unpack_fields(data: np.ndarray, n: int, layout: FieldLayout) -> np.ndarray:
    """Unpack n codes from the bytes that `pack_fields` made of them.

    Parameters
    ----------
    data : (layout.nbytes(n),) uint8 array
    n : int
    layout : FieldLayout

    Returns
    -------
    (n,) uint8 array

    Raises
    ------
    Truncated, Corrupt
        `data` is too short, too long, or padded with anything but what the layout says.
    """
    layout._check()
    check_length(8 * data.size, 8 * layout.nbytes(n))
    size = layout._field_bytes(n)
    codes, data = aligned_empty(n, np.uint8), np.ascontiguousarray(data)
    if layout.strided:
        _check_zero(data, size)
        for field in range(8 // layout.width):
            part = codes[field * size : (field + 1) * size]
            _unpack_stride(data, part, layout._shift(field), layout.width)
        for index in range(n, size * (8 // layout.width)):
            field, at = divmod(index, size)
            code = (int(data[at]) >> layout._shift(field)) & ((1 << layout.width) - 1)
            if code != (index - n if layout.pad == "count" else 0):
                raise pad_error(at)
        return codes
    msb, width = layout.order == "msb", layout.width
    if layout.word == 4 and msb:
        data = np.frombuffer(data.tobytes(), "<u4").byteswap().view(np.uint8)
    if layout.pad == "count":
        last = data[n // 8 * width :]
        tail = codes[n // 8 * 8 :]
        unpacker(width, msb)(last, tail)
        expected = pack_fields(tail, layout._replace(align=1))
        if not np.array_equal(expected, last[: expected.size]):
            raise pad_error(size - 1)
        _check_zero(data, size)
    else:
        check_padding(data, n * width, layout.order)

    def task(start: int, stop: int) -> None:
        part = data[start * width // 8 : -(-stop * width // 8)]
        unpacker(width, msb)(part, codes[start:stop])

    pool.run(task, n, _GROUP)
    return codes


def check_length(nbits: int, expected: int) -> None:
    """Refuse a payload that has not exactly the bits that its elements take."""
    if -(-nbits // 8) < -(-expected // 8):
        raise Truncated(f"the payload has {nbits} of the {expected} bits that its elements take")
    if nbits != expected:
        raise Corrupt(f"the payload has {nbits} bits where its elements take {expected}")


@dispatched("gcodec.kernels.bits.pack_cuda")
def check_padding(data: np.ndarray, nbits: int, order: str = "msb") -> None:
    """Raise `Corrupt` unless all bits of `data` behind the first `nbits` are zero."""
    at, used = divmod(nbits, 8)
    if used:
        spare = 0xFF >> used if order == "msb" else 0xFF << used & 0xFF
        if int(data[at]) & spare:
            raise Corrupt("a padding bit is not zero", at)
        at += 1
    _check_zero(data, at)


def pad_error(at: int) -> Corrupt:
    """Say that a pad code is wrong."""
    return Corrupt("a pad code differs from what the format fills in", at)


def _check_zero(data: np.ndarray, start: int) -> None:
    wrong = np.flatnonzero(data[start:])
    if wrong.size:
        raise Corrupt("a padding byte is not zero", start + int(wrong[0]))


def _ones(bits: int, lane: int) -> int:
    """`bits` ones at the bottom of every `lane` bits of 64."""
    return sum(((1 << bits) - 1) << at for at in range(0, 64, lane))


def _joins(width: int, msb: bool) -> tuple[np.uint64, ...]:
    """Constants of three `moved` that turn eight fields, a byte each, into 8·width bits."""
    found = []
    for step in range(3):
        bits, lane = width << step, 8 << step
        first = _ones(bits, 2 * lane)
        if msb:
            found += [bits, first << bits, lane, first]
        else:
            found += [0, first, lane - bits, first << bits]
    return tuple(map(np.uint64, found))


def _splits(width: int, msb: bool) -> tuple[np.uint64, ...]:
    """Constants of three `moved` that undo `_joins`, in the order of use; see there."""
    found = []
    for step in (2, 1, 0):
        bits, lane = width << step, 8 << step
        first = _ones(bits, 2 * lane)
        if msb:
            found += [lane, first << lane, bits, first]
        else:
            found += [lane - bits, first << lane, 0, first]
    return tuple(map(np.uint64, found))


@inline
def moved(x, left, kept_left, right, kept_right):
    """Bits moved to the left and to the right, of each what a mask keeps."""
    return ((x << left) & kept_left) | ((x >> right) & kept_right)


@functools.cache
def packing(width: int, msb: bool) -> Any:
    """Make the packing loop of one layout: LLVM vectorises what it knows to be constant."""
    a1, a2, a3, a4, b1, b2, b3, b4, c1, c2, c3, c4 = _joins(width, msb)

    @subroutine(variant=f"{width} {msb}")
    def pack_groups(codes, out, count):
        # Eight codes make `width` bytes. out.size == ceil(width * (codes and pad codes) / 8).
        groups = codes.size // 8
        lanes = codes[: groups * 8].view(np.uint64)
        for g in range(groups):  # (g + 1) * width <= out.size
            x = moved(moved(moved(lanes[g], a1, a2, a3, a4), b1, b2, b3, b4), c1, c2, c3, c4)
            for b in range(width):
                shift = 8 * (width - 1 - b) if msb else 8 * b
                out[g * width + b] = np.uint8(x >> np.uint64(shift))
        # The bytes left: bit by bit, from the codes left and the pad codes.
        for at in range(groups * width, out.size):
            byte = 0
            for bit in range(8):
                index, within = divmod(at * 8 + bit, width)
                if index < codes.size:
                    code = np.int64(codes[index])
                else:
                    code = index - codes.size if count else 0
                place = width - 1 - within if msb else within
                byte |= ((code >> place) & 1) << (7 - bit if msb else bit)
            out[at] = np.uint8(byte)

    return pack_groups


@factory(lambda: itertools.product(range(1, 9), (True, False)))
def packer(width: int, msb: bool) -> Kernel:
    """Make the kernel (codes, out, count): a part from a whole byte on, on the calling thread."""
    loop = packing(width, msb)

    @kernel("in uint8[], out uint8[], boolean", variant=f"{width} {msb}")
    def pack(codes, out, count):
        loop(codes, out, count)

    return pack


@functools.cache
def unpacking(width: int, msb: bool) -> Any:
    """Make the unpacking loop of one layout."""
    a1, a2, a3, a4, b1, b2, b3, b4, c1, c2, c3, c4 = _splits(width, msb)

    @subroutine(variant=f"{width} {msb}")
    def unpack_groups(data, codes):
        # data.size >= ceil(codes.size * width / 8)
        groups = codes.size // 8
        lanes = codes[: groups * 8].view(np.uint64)
        for g in range(groups):  # (g + 1) * width <= data.size
            x = np.uint64(0)
            for b in range(width):
                shift = 8 * (width - 1 - b) if msb else 8 * b
                x |= np.uint64(data[g * width + b]) << np.uint64(shift)
            x = moved(moved(x, a1, a2, a3, a4), b1, b2, b3, b4)
            lanes[g] = moved(x, c1, c2, c3, c4)
        for i in range(groups * 8, codes.size):  # at most seven codes, bit by bit
            code = 0
            for within in range(width):
                at, bit = divmod(i * width + within, 8)
                place = width - 1 - within if msb else within
                code |= ((np.int64(data[at]) >> (7 - bit if msb else bit)) & 1) << place
            codes[i] = np.uint8(code)

    return unpack_groups


@factory(lambda: itertools.product(range(1, 9), (True, False)))
def unpacker(width: int, msb: bool) -> Kernel:
    """Make the kernel (data, codes): a part from a whole byte on, on the calling thread."""
    loop = unpacking(width, msb)

    @kernel("in uint8[], out uint8[]", variant=f"{width} {msb}")
    def unpack(data, codes):
        loop(data, codes)

    return unpack


@kernel("in uint8[], out uint8[], int64, int64, boolean")
def _pack_stride(codes, out, first, shift, count):
    # Field `first + i` goes to byte i; fields behind the codes are pad codes. The first call,
    # with first == 0, overwrites what was there.
    here = codes[min(first, codes.size) :][: out.size]
    scale = np.uint8(1 << shift)
    if first == 0:
        for i in range(out.size):
            out[i] = np.uint8(0)
    for i in range(here.size):  # here.size <= out.size
        out[i] |= np.uint8(here[i] * scale)
    if count:
        for i in range(here.size, out.size):
            out[i] |= np.uint8((first + i - codes.size) << shift)


@kernel("in uint8[], out uint8[], int64, int64")
def _unpack_stride(data, codes, shift, width):
    # codes.size <= data.size
    mask = np.uint8((1 << width) - 1)
    for i in range(codes.size):
        codes[i] = np.uint8(data[i] >> np.uint8(shift)) & mask
