"""Float32 to float16 and bfloat16 and back, by integer arithmetic on bit patterns.

Source: ``docs/wire-format.md``, dtypes of frames. Round to nearest, ties to even; overflow gives
infinity, and -0 and subnormals are preserved. A NaN keeps its sign and the top bits of its
mantissa; if these are all zero, the quiet bit is set. Widening is exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def _round_shift(value: int, shift: int) -> int:
    """Return ``value / 2**shift`` rounded to the nearest integer, ties to even."""
    quotient, rest = divmod(value, 1 << shift)
    twice = 2 * rest
    if twice > 1 << shift or (twice == 1 << shift and quotient % 2 == 1):
        quotient += 1
    return quotient


def _narrow(bits: int, mantissa_bits: int, bias: int) -> int:
    """Return the 16-bit pattern nearest to a float32 pattern."""
    sign = bits >> 31
    exponent = bits >> 23 & 0xFF
    mantissa = bits & 0x7FFFFF
    infinity = 0x7FFF >> mantissa_bits << mantissa_bits
    drop = 23 - mantissa_bits

    if exponent == 0xFF:
        magnitude = infinity
        if mantissa != 0:
            top = mantissa >> drop
            magnitude |= top if top != 0 else 1 << (mantissa_bits - 1)
    else:
        if exponent == 0:
            exponent = 1  # a subnormal has the smallest exponent and no leading one
        else:
            mantissa += 1 << 23
        wanted = exponent - 127 + bias
        field = max(wanted, 1)  # below 1 the exponent stays and the mantissa loses more bits
        rounded = _round_shift(mantissa, drop + field - wanted)
        # The leading one of ``rounded`` adds 1 to the exponent field, and so does a carry.
        magnitude = min(((field - 1) << mantissa_bits) + rounded, infinity)
    return sign << 15 | magnitude


def float32_to_float16(bits: int) -> int:
    """Return the float16 pattern nearest to a float32 pattern."""
    return _narrow(bits, mantissa_bits=10, bias=15)


def float32_to_bfloat16(bits: int) -> int:
    """Return the bfloat16 pattern nearest to a float32 pattern."""
    return _narrow(bits, mantissa_bits=7, bias=127)


def float16_to_float32(bits: int) -> int:
    """Return the float32 pattern equal to a float16 pattern."""
    sign = bits >> 15
    exponent = bits >> 10 & 0x1F
    mantissa = bits & 0x3FF
    if exponent == 0x1F:
        exponent = 0xFF
    elif exponent != 0:
        exponent += 127 - 15
    elif mantissa != 0:
        exponent = 127 - 15 + 1
        while mantissa < 1 << 10:  # shift until the leading one is in its implicit place
            mantissa <<= 1
            exponent -= 1
        mantissa -= 1 << 10
    return sign << 31 | exponent << 23 | mantissa << 13


def bfloat16_to_float32(bits: int) -> int:
    """Return the float32 pattern equal to a bfloat16 pattern."""
    return bits << 16


NARROW: dict[str, Callable[[int], int]] = {
    "float16": float32_to_float16,
    "bfloat16": float32_to_bfloat16,
}
WIDEN: dict[str, Callable[[int], int]] = {
    "float16": float16_to_float32,
    "bfloat16": bfloat16_to_float32,
}


def narrow(x: NDArray[np.float32], dtype: str) -> NDArray[np.uint16]:
    """Return the patterns of 1-d ``x`` in ``dtype``, ``"float16"`` or ``"bfloat16"``."""
    patterns = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return np.array([NARROW[dtype](int(p)) for p in patterns], np.uint16)


def widen(patterns: NDArray[np.uint16], dtype: str) -> NDArray[np.float32]:
    """Return the values of 1-d 16-bit ``patterns`` of ``dtype`` as float32."""
    return np.array([WIDEN[dtype](int(p)) for p in patterns], np.uint32).view(np.float32)
