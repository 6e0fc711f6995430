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
from gcodec.runtime.memory import Drainable, contents, release

# Move the sign to the lowest bit, or back; extract the exponent, or the sign and the mantissa.
Change = Literal["signs last", "signs first", "exponents", "planes"]

_CHUNK = 1 << 18  # codes that fit into a cache


@dispatched("gcodec.kernels.bits.code_parts_cuda")
def parts_of(codes: np.ndarray | Drainable, n: int, fmt: MiniFloat, change: Change) -> np.ndarray:
    """Return parts of n codes, which are packed as in memory, as (n,) uint8.

    A `Drainable` of codes is released.
    """
    out, array, pair = np.empty(n, np.uint8), contents(codes), per_byte(fmt)

    def task(start: int, stop: int) -> None:
        for at in range(start, stop, _CHUNK):
            part = out[at : min(at + _CHUNK, stop)]
            take_parts(array[at // pair :], fmt, change, part)
            release(codes, at // pair, -(-(at + part.size) // pair))

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
    sign, mantissa = np.uint8(fmt.width - 1), np.uint8(fmt.mantissa)
    if change == "exponents":
        codes >>= mantissa
        codes &= np.uint8((1 << fmt.exponent) - 1)
    elif change == "planes":
        signs = codes >> sign
        signs <<= mantissa
        codes &= np.uint8((1 << fmt.mantissa) - 1)
        codes |= signs
    elif change == "signs last":
        # NumPy compares and adds bytes in vectors, which takes a quarter of the time of shifts.
        signs = (codes >= np.uint8(1 << fmt.width - 1)).view(np.uint8)
        codes += codes
        codes &= np.uint8((1 << fmt.width) - 1)
        codes |= signs
    else:
        signs = codes << sign
        signs &= np.uint8(1 << fmt.width - 1)
        codes >>= np.uint8(1)
        codes |= signs
    return codes


@dispatched("gcodec.kernels.bits.code_parts_cuda")
def joined(exponents: np.ndarray, data: np.ndarray, fmt: MiniFloat) -> np.ndarray:
    """Return the codes with (n,) exponents, on the calling thread.

    The first bytes of (k,) uint8 `data` contain the signs and mantissas as packed fields.
    """
    mantissa, plane = np.uint8(fmt.mantissa), np.empty(exponents.size, np.uint8)
    codes: np.ndarray = exponents << mantissa
    unpacker(1 + fmt.mantissa, True)(data, plane)
    codes |= plane & np.uint8((1 << fmt.mantissa) - 1)
    plane >>= mantissa
    plane <<= np.uint8(fmt.width - 1)
    codes |= plane
    return codes


@kernel("in uint16[], uint16, out uint8[]")
def _pack_signs_first(symbols, sign, codes):
    # symbols.size <= codes.size. An element of `symbols` holds two of them, below 2 << sign.
    ones = np.uint16(0x101)
    for i in range(symbols.size):
        both = np.uint16(np.uint16(symbols[i] & ones) << sign)
        both = np.uint16(both | np.uint16(symbols[i] & ~ones) >> 1)
        codes[i] = np.uint8(both << 4 | both >> 8)
