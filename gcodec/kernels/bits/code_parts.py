"""Parts of minifloat codes, one byte each, which bit strings encode in place of the codes.

A code consists of sign, exponent and mantissa, from the highest bit down. Two codes of up to four
bits share a byte; the first one takes the high half.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from gcodec.kernels.bits.pack import unpacker
from gcodec.kernels.quantize.block_format import BlockFormat
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.minifloat import per_byte
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel

# Move the sign to the lowest bit, or back; extract the exponent, or the sign and the mantissa.
Change = Literal["signs last", "signs first", "exponents", "planes"]

_CHUNK = 1 << 18  # codes that fit into a cache


@dispatched("gcodec.kernels.bits.code_parts_cuda")
def parts_of(codes: np.ndarray, n: int, fmt: MiniFloat, change: Change) -> np.ndarray:
    """Return parts of n codes, which are packed as in memory, as (n,) uint8."""
    out, pair = np.empty(n, np.uint8), per_byte(fmt)

    def task(start: int, stop: int) -> None:
        for at in range(start, stop, _CHUNK):
            take_parts(codes[at // pair :], fmt, change, out[at : min(at + _CHUNK, stop)])

    pool.run(task, n, _CHUNK)
    return out


def take_parts(codes: np.ndarray, fmt: MiniFloat, change: Change, out: np.ndarray) -> None:
    """Write parts of the first n packed codes to (n,) `out`, on the calling thread."""
    packed = codes[: -(-out.size // per_byte(fmt))]
    if per_byte(fmt) == 2:
        unpacker(4, True)(packed, out)
    else:
        out[:] = packed
    changed(out, fmt, change)


def pack_signs_first(symbols: np.ndarray, fmt: MiniFloat) -> np.ndarray:
    """Return the codes of (n,) symbols with the sign last, two to a byte."""
    whole, codes = symbols.size // 2, np.empty(-(-symbols.size // 2), np.uint8)
    _pack_signs_first(symbols[: 2 * whole].view(np.uint16), fmt.width - 1, codes)
    if symbols.size % 2:
        codes[-1] = changed(symbols[-1:].copy(), fmt, "signs first")[0] << 4
    return codes


@dispatched("gcodec.kernels.bits.code_parts_cuda")
def changed(codes: np.ndarray, fmt: MiniFloat | BlockFormat, change: Change) -> np.ndarray:
    """Replace (n,) codes, one byte each, by parts of them, on the calling thread."""
    sign, mantissa = fmt.width - 1, fmt.mantissa
    # Of each change: the left shift, the right shift and the mask of the code, and then the same
    # for its sign bit, which is shifted to the right first.
    moves = {
        "exponents": (0, mantissa, (1 << fmt.exponent) - 1, 0, 0, 0),
        "planes": (0, 0, (1 << mantissa) - 1, mantissa, sign, 1 << mantissa),
        "signs last": (1, 0, (2 << sign) - 2, 0, sign, 1),
        "signs first": (0, 1, (1 << sign) - 1, sign, 0, 1 << sign),
    }
    _move_parts(codes, *moves[change])
    return codes


@dispatched("gcodec.kernels.bits.code_parts_cuda")
def joined(exponents: np.ndarray, data: np.ndarray, fmt: MiniFloat) -> np.ndarray:
    """Return the codes with (n,) exponents, on the calling thread.

    The first bytes of (k,) uint8 `data` contain the signs and mantissas as packed fields.
    """
    codes = np.empty(exponents.size, np.uint8)
    unpacker(1 + fmt.mantissa, True)(data, codes)
    _join_parts(exponents, fmt.mantissa, fmt.width - 1, codes)
    return codes


@kernel("out uint8[], uint8, uint8, uint8, uint8, uint8, uint8")
def _move_parts(codes, left, right, kept, sign_left, sign_right, sign):
    # As no distance exceeds 7, LLVM shifts vectors of bytes.
    left, right = np.uint8(left & 7), np.uint8(right & 7)
    sign_left, sign_right = np.uint8(sign_left & 7), np.uint8(sign_right & 7)
    for i in range(codes.size):
        part = np.uint8(np.uint8(codes[i] << left) >> right) & kept
        codes[i] = part | np.uint8(np.uint8(codes[i] >> sign_right) << sign_left) & sign


@kernel("in uint8[], uint8, uint8, out uint8[]")
def _join_parts(exponents, mantissa, sign, codes):
    # codes.size == exponents.size; at first, codes contain signs and mantissas.
    mantissa, distance = np.uint8(mantissa & 7), np.uint8(sign - mantissa & 7)
    low = np.uint8((1 << mantissa) - 1)
    for i in range(exponents.size):
        sign_only = np.uint8(codes[i] & ~low)
        part = np.uint8(exponents[i] << mantissa) | codes[i] & low
        codes[i] = part | np.uint8(sign_only << distance)


@kernel("in uint16[], uint16, out uint8[]")
def _pack_signs_first(symbols, sign, codes):
    # symbols.size <= codes.size. An element of `symbols` holds two of them, below 2 << sign.
    ones = np.uint16(0x101)
    for i in range(symbols.size):
        both = np.uint16(np.uint16(symbols[i] & ones) << sign)
        both = np.uint16(both | np.uint16(symbols[i] & ~ones) >> 1)
        codes[i] = np.uint8(both << 4 | both >> 8)
