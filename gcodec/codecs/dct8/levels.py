"""Coefficients as levels of 8 bits, and a scale or two for each chunk.

A chunk whose scales are 0 has no levels: all of it is 0.

- ``sign7``: M is the largest magnitude, as a float of 16 bits without a sign, bits 30 to 15 of a
  binary32. A level is a sign and m, |v|·127/M to nearest; v̂ = ±m·M/127, in binary64 and then
  rounded to binary32. So the largest is M itself. Below 2^-126 M is rounded up, to a multiple of
  2^-134: levels are then coarser, and 0 in chunks that hold less than 2^-142.
- ``affine8``: the mapping of Panthalia, in binary32, each operation rounded. s = (max − min)/255;
  a level is (v − min)/s to nearest, from 0 to 255; v̂ = level·s + min. Where s is subnormal it is
  rounded up, so that 255·s is no less than max − min.

To nearest is to even where two are as near.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.errors import Corrupt, ParameterError
from gcodec.kernels.numeric.reduce import INFINITY_BITS

VALUES = ("sign7", "affine8")
SIGN = 0x80  # of a level of sign7

_HALF_NBITS = 15  # that M lacks of a binary32
_SAFE = 2.0**125  # a sum that is far from the end of binary32
_NORMAL_BITS = np.uint32(0x00800000)  # of 2**-126, the least number that is not subnormal


class Levels(NamedTuple):
    """Chunks of coefficients, quantised.

    Attributes
    ----------
    scales : (count, 1) or (count, 2) float32 array
        M; or s and the least value.
    codes : (live, k) uint8 array
        Of the chunks whose scales are not both 0. sign7: m, and `SIGN` where negative; affine8:
        the level.
    """

    scales: np.ndarray
    codes: np.ndarray


def live(scales: np.ndarray) -> np.ndarray:
    """Return which chunks have levels, as (count,) bool."""
    return np.asarray(scales.any(axis=1))


def quantize(coefficients: np.ndarray, values: str) -> Levels:
    """Quantise (count, k) finite coefficients.

    Raises
    ------
    ParameterError
        If a scale passes float32.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        levels = _QUANTIZE[values](coefficients)
    if not np.isfinite(levels.scales).all():
        raise ParameterError("x: must not pass float32 when it is transformed")
    return levels


def dequantize(levels: Levels, values: str) -> np.ndarray:
    """Return the (live, k) float32 coefficients that levels stand for."""
    scales = levels.scales[live(levels.scales)]
    with np.errstate(over="ignore", under="ignore"):
        if values == "affine8":
            found = levels.codes * scales[:, :1] + scales[:, 1:]
        else:
            sizes = (levels.codes & 0x7F) * scales.astype(np.float64) / 127
            found = np.where(levels.codes & SIGN, -sizes, sizes)
    return np.asarray(found, np.float32)


def surely_finite(scales: np.ndarray, k: int, values: str) -> bool:
    """Whether no sum of products of k coefficients with entries of a basis can pass float32."""
    return most(scales, k, values) < _SAFE


def most(scales: np.ndarray, k: int, values: str) -> float:
    """Return a bound of these sums: entries of a basis are at most 1."""
    wide = np.abs(scales.astype(np.float64))
    largest = 255 * wide[:, 0] + wide[:, 1] if values == "affine8" else wide[:, 0]
    return float(k * largest.max(initial=0))


def write_scales(scales: np.ndarray, values: str) -> np.ndarray:
    """Return the bytes of scales."""
    if values == "affine8":
        return scales.astype(">f4").view(np.uint8).reshape(-1)
    return (scales.view(np.uint32) >> _HALF_NBITS).astype(">u2").view(np.uint8).reshape(-1)


def scale_nbits(values: str) -> int:
    """Return the bits of the scales of a chunk."""
    return 64 if values == "affine8" else 16


def read_scales(data: np.ndarray, count: int, values: str) -> np.ndarray:
    """Read the scales of so many chunks from the front of a payload that has them.

    Raises
    ------
    Corrupt
        If one is NaN, infinite, negative where it is a size, or −0.
    """
    front = data[: scale_nbits(values) // 8 * count]
    if values == "affine8":
        scales = front.view(">f4").astype(np.float32).reshape(count, 2)
        wrong = ~np.isfinite(scales) | (np.signbit(scales) & ([[True, False]] | (scales == 0)))
        with np.errstate(over="ignore", invalid="ignore"):
            largest = np.float32(255) * scales[:, :1] + scales[:, 1:]
        wrong |= ~np.isfinite(largest)
    else:
        bits = front.view(">u2").astype(np.uint32) << _HALF_NBITS
        scales = bits.view(np.float32).reshape(count, 1)
        wrong = (bits >= INFINITY_BITS).reshape(count, 1)
    if wrong.any():
        at = int(np.argmax(wrong.any(axis=1)))
        raise Corrupt(f"chunk {at} has a scale that is none", scale_nbits(values) // 8 * at)
    return scales


def _sign7(coefficients: np.ndarray) -> Levels:
    magnitudes = np.abs(coefficients)
    bits = magnitudes.max(axis=1, keepdims=True).view(np.uint32)
    half = np.uint32((1 << _HALF_NBITS - 1) - 1)
    odd = bits >> np.uint32(_HALF_NBITS) & np.uint32(1)
    # Of subnormal numbers few bits are left, or none: M is rounded up there, so that it is not 0
    # and no level is beyond 127. A single coefficient has no level that could make up for that.
    upwards = (bits < _NORMAL_BITS) & (coefficients.shape[1] > 1)
    more = np.where(upwards, np.uint32((1 << _HALF_NBITS) - 1), half + odd)
    rounded = bits + more >> np.uint32(_HALF_NBITS) << np.uint32(_HALF_NBITS)
    scales = rounded.view(np.float32)
    # Where even the largest level is 0, nothing is sent.
    scales[upwards & (bits * np.uint64(254) <= rounded)] = 0
    here = live(scales)
    wide = magnitudes[here].astype(np.float64) * 127 / scales[here]
    codes = np.minimum(np.rint(wide), 127).astype(np.uint8)
    if codes.shape[1] == 1:  # is M, also where that is subnormal and far off
        codes[:] = 127
    codes[(coefficients[here] < 0) & (codes > 0)] |= SIGN
    return Levels(scales, codes)


def _affine8(coefficients: np.ndarray) -> Levels:
    least = coefficients.min(axis=1, keepdims=True) + np.float32(0)  # −0 becomes +0
    scale = (coefficients.max(axis=1, keepdims=True) - least) / np.float32(255) + np.float32(0)
    if coefficients.shape[1] > 2:  # else levels are the ends of the range, both met best so
        spread = coefficients.max(axis=1, keepdims=True) - least
        short = (scale.view(np.uint32) < _NORMAL_BITS) & (np.float32(255) * scale < spread)
        scale = np.where(short, np.nextafter(scale, np.float32(1)), scale)
    scales = np.hstack([scale, least])
    here = live(scales)
    above, scale = coefficients[here] - least[here], scale[here]
    ratio = np.divide(above, scale, out=np.zeros_like(above), where=scale > 0)
    codes = np.clip(np.rint(ratio), 0, 255).astype(np.uint8)
    if coefficients.shape[1] <= 2:  # the ends of a range, also where it is subnormal
        codes[codes > 0] = 255
    return Levels(scales, codes)


_QUANTIZE: dict[str, Callable[[np.ndarray], Levels]] = {"sign7": _sign7, "affine8": _affine8}
