"""Values of sparse messages, in their five kinds, as strings of 0 and 1.

Source: ``docs/wire-format.md``, values of sparse messages. All arithmetic is float32, one
operation at a time, except the sums, which are those of ``sums``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import halves, sums
from .universal import Bits, Corrupt, Truncated, fixed

Floats = NDArray[np.float32]

VALUES = ("float32", "float16", "bfloat16", "int8", "sign")
BLOCK = 256  # values with one scale
TOP = 127
INFINITIES = {"float16": 0x7C00, "bfloat16": 0x7F80}


def nbits(k: int, kind: str) -> int:
    """Return the number of bits of k values."""
    if kind == "int8":
        return 32 * -(-k // BLOCK) + 8 * k
    if kind == "sign":
        return 32 + k if k else 0
    return k * (32 if kind == "float32" else 16)


def _single(pattern: int) -> np.float32:
    return np.array([pattern], np.uint32).view(np.float32)[0]


def _pattern(value: np.float32) -> str:
    return fixed(int(np.float32(value).view(np.uint32)), 32)


def _scale_fits(scale: np.float32, top: int) -> bool:
    """Return whether a number is finite and nonnegative, and its product with `top` is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.float32(scale) * np.float32(top)
    return bool(np.isfinite(largest) and not np.signbit(scale))


# --- write --------------------------------------------------------------------------------------


def _finite(pattern: int, kind: str) -> int:
    """Return a pattern; for an infinity, the largest finite number of the same sign."""
    infinity = INFINITIES[kind]
    return pattern - 1 if pattern & 0x7FFF == infinity else pattern


def _int8_scale(part: Floats) -> np.float32:
    with np.errstate(under="ignore"):
        scale = np.float32(np.abs(part).max() / np.float32(TOP))
    while not _scale_fits(scale, TOP):  # the largest values: one step down, or a few
        scale = np.nextafter(scale, np.float32(0))
    return scale


def _int8_code(value: np.float32, scale: np.float32) -> int:
    if scale == 0:
        return 0
    with np.errstate(over="ignore", under="ignore"):
        ratio = float(value / scale)
    return max(-TOP, min(TOP, round(max(-1e6, min(1e6, ratio)))))  # halves to even


def write(values: Sequence[np.float32] | Floats, kind: str) -> str:
    """Return the bits of values, in the order of their positions."""
    x = np.asarray(values, np.float32)
    if kind == "float32":
        return "".join(_pattern(v) for v in x)
    if kind in halves.NARROW:
        patterns = [_finite(int(p), kind) for p in halves.narrow(x, kind)]
        return "".join(fixed(p, 16) for p in patterns)
    if not len(x):
        return ""
    if kind == "int8":
        parts = [x[at : at + BLOCK] for at in range(0, len(x), BLOCK)]
        scales = [_int8_scale(part) for part in parts]
        text = "".join(_pattern(scale) for scale in scales)
        for part, scale in zip(parts, scales, strict=True):
            text += "".join(fixed(_int8_code(v, scale) % 256, 8) for v in part)
        return text
    assert kind == "sign"
    mean = np.float32(sums.sum_abs(x) / len(x))
    return _pattern(mean) + "".join("1" if v < 0 else "0" for v in x)


# --- read ---------------------------------------------------------------------------------------


def _checked_scale(pattern: int, top: int) -> np.float32:
    scale = _single(pattern)
    if not _scale_fits(scale, top):
        raise Corrupt(f"the scale {scale}")
    return scale


def read(bits: Bits, k: int, kind: str) -> Floats:
    """Read k values from the front, or raise `Truncated` or `Corrupt`."""
    if nbits(k, kind) > len(bits.text) - bits.at:
        raise Truncated("fewer bits than the values have")
    out = np.zeros(k, np.float32)
    if kind == "int8":
        scales = [_checked_scale(bits.number(32), TOP) for _ in range(-(-k // BLOCK))]
        for i in range(k):
            q = bits.number(8)
            q -= 256 if q >= 128 else 0
            if q < -TOP:
                raise Corrupt(f"the code {q}")
            with np.errstate(under="ignore"):
                out[i] = np.float32(q) * scales[i // BLOCK]
        return out
    if kind == "sign":
        if k:
            mean = _checked_scale(bits.number(32), 1)
            for i in range(k):
                out[i] = -mean if bits.take(1) == "1" else mean
        return out
    if kind == "float32":
        for i in range(k):
            out[i] = _single(bits.number(32))
    else:
        out[:] = halves.widen(np.array([bits.number(16) for _ in range(k)], np.uint16), kind)
    if not np.isfinite(out).all():
        raise Corrupt("a value that is not finite")
    return out
