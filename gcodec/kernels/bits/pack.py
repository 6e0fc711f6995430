"""Packing of codes into fixed-width fields of 1 to 8 bits, in any bit order that a codec uses.

A `FieldLayout` defines the positions of the bits of each field. `pack_fields` and `unpack_fields`
convert between codes, one per byte, and fields. Quantizers with a packing loop of their own use
the same layouts.
"""

from __future__ import annotations

import itertools
from typing import Literal, NamedTuple

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.numeric.words import words_of
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, inline, kernel, subroutine
from gcodec.runtime.memory import empty_beside

_GROUP = 8  # codes of any width whose fields fill whole bytes


class FieldLayout(NamedTuple):
    """Positions of the bits of fields.

    Attributes
    ----------
    width : int
        Number of bits of a field, 1 to 8.
    order : "msb" or "lsb"
        Position of the first field of a byte: its most or its least significant bits.
    strided : bool
        False if field i follows field i - 1, and zero bits pad the last byte. True for TernGrad's
        layout, which only its quantizer packs: with Q bytes in all, byte i contains fields i,
        i + Q, i + 2Q, …, and one to 8/width pad codes 0, 1, 2, … follow the others; `width` must
        divide 8.
    align : int
        Zero bytes pad the result to a multiple of 1 or 4 bytes.
    """

    width: int
    order: Literal["msb", "lsb"] = "msb"
    strided: bool = False
    align: Literal[1, 4] = 1

    def nbytes(self, n: int) -> int:
        """Return the number of bytes of n fields, including padding."""
        bits = n * self.width
        size = bits // 8 + 1 if self.strided else -(-bits // 8)
        return -(-size // self.align) * self.align


def pack_fields(codes: np.ndarray, layout: FieldLayout) -> np.ndarray:
    """Pack codes into bytes.

    Parameters
    ----------
    codes : (n,) uint8 array
        Codes below ``2**layout.width``.
    layout : FieldLayout
        Not strided.

    Returns
    -------
    (layout.nbytes(n),) uint8 array
    """
    out = empty_beside(layout.nbytes(codes.size), np.uint8, codes)
    pack_to(codes, layout, out)
    return out


@dispatched("gcodec.kernels.bits.pack_cuda")
def pack_to(codes: np.ndarray, layout: FieldLayout, out: np.ndarray) -> None:
    """Pack codes into an array of exactly their bytes; see `pack_fields`."""
    codes, n = np.require(codes, np.uint8, ["C", "A"]), codes.size
    pack, width = packer(layout.width, layout.order == "msb"), layout.width
    out[-(-n * width // 8) :] = 0

    def task(start: int, stop: int) -> None:
        pack(codes[start:stop], out[start * width // 8 : -(-stop * width // 8)])

    pool.run(task, n, _GROUP)


@dispatched("gcodec.kernels.bits.pack_cuda")
def unpack_fields(data: np.ndarray, n: int, layout: FieldLayout) -> np.ndarray:
    """Unpack n codes; the inverse of `pack_fields`.

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
        `data` is too short or too long, or its padding differs from that of the layout.
    """
    check_length(8 * data.size, 8 * layout.nbytes(n))
    data, width = np.ascontiguousarray(data), layout.width
    check_padding(data, n * width, layout.order)
    codes, unpack = empty_beside(n, np.uint8, None), unpacker(width, layout.order == "msb")

    def task(start: int, stop: int) -> None:
        unpack(data[start * width // 8 : -(-stop * width // 8)], codes[start:stop])

    pool.run(task, n, _GROUP)
    return codes


def unpack_range(data: np.ndarray, width: int, start: int, out: np.ndarray) -> None:
    """Unpack contiguous fields from field `start` on, on the calling thread.

    Parameters
    ----------
    data : uint8 array
        Bytes of all fields, each of which begins with its most significant bit.
    width : int
    start : int
    out : (k,) uint8 array
        Receives the fields, which lie in `data`.
    """
    unpack, (group, skipped) = unpacker(width, True), divmod(start, _GROUP)
    rest = data[group * width :]
    if skipped:
        first = np.empty(min(skipped + out.size, _GROUP), np.uint8)
        unpack(rest, first)
        out[: first.size - skipped] = first[skipped:]
        out, rest = out[first.size - skipped :], rest[width:]
    unpack(rest, out)


def check_length(nbits: int, expected: int) -> None:
    """Raise `Truncated` or `Corrupt` unless a payload has exactly the expected number of bits."""
    if -(-nbits // 8) < -(-expected // 8):
        raise Truncated(f"the payload has {nbits} of the {expected} bits that its elements take")
    if nbits != expected:
        raise Corrupt(f"the payload has {nbits} bits where its elements take {expected}")


@dispatched("gcodec.kernels.bits.pack_cuda")
def check_padding(data: np.ndarray, nbits: int, order: str = "msb") -> None:
    """Raise `Corrupt` unless all bits of `data` after the first `nbits` are zero."""
    at, used = divmod(nbits, 8)
    if used:
        spare = 0xFF >> used if order == "msb" else 0xFF << used & 0xFF
        if int(data[at]) & spare:
            raise Corrupt("a padding bit is not zero", at)
        at += 1
    if at < data.size and (wrong := np.flatnonzero(data[at:])).size:
        raise Corrupt("a padding byte is not zero", at + int(wrong[0]))


def pad_error(at: int) -> Corrupt:
    """Return the error of a wrong pad code in byte `at`."""
    return Corrupt("a pad code differs from what the format fills in", at)


def _moves(width: int, msb: bool, *, join: bool) -> tuple[np.uint64, ...]:
    """Return the constants of three calls of `moved`.

    The calls join eight fields of a byte each to a string of 8·width bits, or split it again. Each
    call joins or splits pairs of fields.
    """
    constants = []
    for step in (0, 1, 2) if join else (2, 1, 0):
        bits, lane = width << step, 8 << step
        first = sum(((1 << bits) - 1) << at for at in range(0, 64, 2 * lane))  # of each pair
        source, target = (lane, bits) if join else (bits, lane)
        if msb:
            constants += [target, first << target, source, first]
        elif join:
            constants += [0, first, lane - bits, first << bits]
        else:
            constants += [lane - bits, first << lane, 0, first]
    return tuple(map(np.uint64, constants))


@inline
def moved(x, left, kept_left, right, kept_right):
    """Return the masked bits of two shifts, to the left and to the right."""
    return ((x << left) & kept_left) | ((x >> right) & kept_right)


@factory(lambda: itertools.product(range(1, 9), (True, False)))
def packer(width: int, msb: bool) -> Kernel:
    """Make the kernel that packs codes from a whole byte on; LLVM vectorizes it for one layout."""
    a1, a2, a3, a4, b1, b2, b3, b4, c1, c2, c3, c4 = _moves(width, msb, join=True)

    @kernel("in uint8[], out uint8[]", variant=f"{width} {msb}")
    def pack(codes, out):
        # Eight codes take `width` bytes. out.size == ceil(width * codes.size / 8).
        groups = codes.size // 8
        lanes = words_of(codes[: groups * 8])
        for g in range(groups):  # (g + 1) * width <= out.size
            x = moved(moved(moved(lanes[g], a1, a2, a3, a4), b1, b2, b3, b4), c1, c2, c3, c4)
            for b in range(width):
                shift = 8 * (width - 1 - b) if msb else 8 * b
                out[g * width + b] = np.uint8(x >> np.uint64(shift))
        _pack_last(codes[groups * 8 :], out[groups * width :], width, msb)

    return pack


@subroutine
def _pack_last(codes, out, width, msb):
    """Pack fewer than eight codes into at most `width` bytes."""
    x, last, lowest = np.uint64(0), 7 if msb else 0, np.uint64((1 << width) - 1)
    for k in range(8):
        if k < codes.size:
            x |= (np.uint64(codes[k]) & lowest) << np.uint64(width * abs(last - k))
    last = width - 1 if msb else 0
    for b in range(out.size):
        out[b] = np.uint8(x >> np.uint64(8 * abs(last - b)))


@factory(lambda: itertools.product(range(1, 9), (True, False)))
def unpacker(width: int, msb: bool) -> Kernel:
    """Make the kernel that unpacks codes from a whole byte on."""
    a1, a2, a3, a4, b1, b2, b3, b4, c1, c2, c3, c4 = _moves(width, msb, join=False)

    @kernel("in uint8[], out uint8[]", variant=f"{width} {msb}")
    def unpack(data, codes):
        # data.size >= ceil(codes.size * width / 8)
        groups = codes.size // 8
        lanes = words_of(codes[: groups * 8])
        for g in range(groups):  # (g + 1) * width <= data.size
            x = np.uint64(0)
            for b in range(width):
                shift = 8 * (width - 1 - b) if msb else 8 * b
                x |= np.uint64(data[g * width + b]) << np.uint64(shift)
            x = moved(moved(x, a1, a2, a3, a4), b1, b2, b3, b4)
            lanes[g] = moved(x, c1, c2, c3, c4)
        _unpack_last(data[groups * width :], codes[groups * 8 :], width, msb)

    return unpack


@subroutine
def _unpack_last(data, codes, width, msb):
    """Unpack fewer than eight codes."""
    x, last, lowest = np.uint64(0), width - 1 if msb else 0, np.uint64((1 << width) - 1)
    for b in range(min(width, data.size)):
        x |= np.uint64(data[b]) << np.uint64(8 * abs(last - b))
    last = 7 if msb else 0
    for k in range(codes.size):
        codes[k] = np.uint8(x >> np.uint64(width * abs(last - k)) & lowest)
