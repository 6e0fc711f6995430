"""Bit patterns of floats whose sign lies below the first bit of the mantissa.

From the highest bit down, such a pattern contains the exponent, the first bit of the mantissa, the
sign, and the rest of the mantissa. A base may have been subtracted from the exponents of all
numbers but zeros, so that the highest bit of each exponent is 0. The byte below that bit then
contains the whole exponent and the first bit of the mantissa.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.byte_planes import FLOAT_SHIFTS
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, inline, kernel

ITEMSIZES = (2, 4)
"""Bytes of the floats that have such patterns: bfloat16 and float32."""


@dispatched("gcodec.kernels.bits.inner_signs_cuda")
def move_signs_in(bits: np.ndarray, base: int) -> None:
    """Replace the bit patterns of (n,) floats by those with inner signs.

    `base` is subtracted from exponents modulo 2^8; no mantissa may carry into another number's
    exponent, so each number except zeros exceeds the smallest one with the exponent `base`.
    """
    move = _moving(bits.itemsize, True)
    pool.run(lambda start, stop: move(base, bits[start:stop]), bits.size)


@dispatched("gcodec.kernels.bits.inner_signs_cuda")
def move_signs_out(bits: np.ndarray, base: int) -> None:
    """Replace (n,) patterns with inner signs by those of the floats; see `move_signs_in`."""
    move = _moving(bits.itemsize, False)
    pool.run(lambda start, stop: move(base, bits[start:stop]), bits.size)


@factory(lambda: ((itemsize, inward) for itemsize in ITEMSIZES for inward in (True, False)))
def _moving(itemsize: int, inward: bool) -> Kernel:
    word, mantissa, top = (
        np.dtype(f"uint{8 * itemsize}").type,
        FLOAT_SHIFTS[itemsize],
        8 * itemsize - 1,
    )
    low, magnitudes = word((1 << mantissa - 1) - 1), word((1 << top) - 1)
    one, inner, full, sign = word(1), word(mantissa - 1), word(mantissa), word(top)

    @inline
    def moved_in(bits, offset):
        magnitude = word(bits & magnitudes)
        rest = word(word(magnitude - offset) & magnitudes)
        rest = rest if magnitude != word(0) else word(0)
        upper = word(word(rest >> inner) << full)
        return word(upper | word(word(bits >> sign) << inner) | word(rest & low))

    @inline
    def moved_out(bits, offset):
        rest = word(word(word(bits >> full) << inner) | word(bits & low))
        magnitude = word(word(rest + offset) & magnitudes)
        magnitude = magnitude if rest != word(0) else word(0)
        return word(magnitude | word(word(word(bits >> inner) & one) << sign))

    moved = moved_in if inward else moved_out

    @kernel(f"int64, out uint{8 * itemsize}[]", variant=f"{itemsize} {'in' if inward else 'out'}")
    def move_signs(base, bits):
        offset = word(word(base) << full)
        for i in range(bits.size):
            bits[i] = moved(bits[i], offset)

    return move_signs
