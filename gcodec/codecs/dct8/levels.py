"""Coefficients as levels of 8 bits, with one or two scales for each chunk, or as float32.

A chunk whose scales are 0 has no levels, and decodes to zeros.

- ``sign7``: M is the largest magnitude as an unsigned float of 16 bits, bits 30 to 15 of a
  binary32. A level is a sign and m = |v|·127/M, rounded to nearest; v̂ = ±m·M/127, computed in
  binary64 and rounded to binary32. The largest magnitude therefore decodes to M. Below 2^-126 M is
  rounded up to a multiple of 2^-134; levels are then coarser, and all 0 in chunks whose values are
  below 2^-142.
- ``affine8``: the mapping of Panthalia, in binary32, with each operation rounded.
  s = (max − min)/255; a level is (v − min)/s, rounded to nearest, from 0 to 255;
  v̂ = level·s + min. A subnormal s is rounded up, so that 255·s is at least max − min.

- ``float32``: a level is the bit pattern of the coefficient. The scale of each chunk is 1 and is
  not sent, so every chunk has levels.

Ties are rounded to even.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.errors import Corrupt, ParameterError
from gcodec.kernels.numeric.norms import norms
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.quantize import sign_magnitude

VALUES = ("sign7", "affine8", "float32")

_HALF_NBITS = 15  # low bits of a binary32 that M lacks
_NORMAL_BITS = np.uint32(0x00800000)  # bits of 2**-126, the smallest normal number


class Levels(NamedTuple):
    """Quantized coefficients of chunks.

    Attributes
    ----------
    scales : (count, 1) or (count, 2) float32 array
        M; or s and the smallest value; or 1.
    codes : (coded, k) uint8 or uint32 array
        Levels of the chunks with a nonzero scale. For sign7: m, plus 128 if negative. For
        float32: bit patterns.
    """

    scales: np.ndarray
    codes: np.ndarray


def coded_chunks(scales: np.ndarray) -> np.ndarray:
    """Return the (count,) bool mask of the chunks that have levels."""
    return np.asarray(scales.any(axis=1))


def quantize(coefficients: np.ndarray, values: str) -> Levels:
    """Quantize (count, k) finite coefficients.

    Raises
    ------
    ParameterError
        If a scale exceeds float32.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        levels = _QUANTIZE[values](coefficients)
    if not np.isfinite(levels.scales).all():
        raise ParameterError("x: must not exceed float32 when it is transformed")
    return levels


def dequantize(levels: Levels, values: str) -> np.ndarray:
    """Return the (coded, k) float32 coefficients that levels decode to."""
    if values == "float32":
        return levels.codes.view(np.float32)
    scales = levels.scales[coded_chunks(levels.scales)]
    if values == "sign7":
        return sign_magnitude.dequantize(levels.codes, scales)
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(levels.codes * scales[:, :1] + scales[:, 1:], np.float32)


def most(levels: Levels, k: int, values: str) -> float:
    """Return an upper bound of decoded values; entries of a basis are at most 1."""
    if values == "float32":
        return k * float(np.abs(levels.codes.view(np.float32)).max(initial=0))
    wide = np.abs(levels.scales.astype(np.float64))
    largest = 255 * wide[:, 0] + wide[:, 1] if values == "affine8" else wide[:, 0]
    return float(k * largest.max(initial=0))


def write_scales(scales: np.ndarray, values: str) -> np.ndarray:
    """Return the bytes of scales."""
    if values == "float32":
        return np.empty(0, np.uint8)
    if values == "affine8":
        return scales.astype(">f4").view(np.uint8).reshape(-1)
    return (scales.view(np.uint32) >> _HALF_NBITS).astype(">u2").view(np.uint8).reshape(-1)


def scale_nbits(values: str) -> int:
    """Return the bits of the scales of a chunk."""
    return {"sign7": 16, "affine8": 64, "float32": 0}[values]


def read_scales(data: np.ndarray, count: int, values: str) -> np.ndarray:
    """Read the scales of `count` chunks from the front of a payload that is long enough.

    Raises
    ------
    Corrupt
        If a scale is NaN, infinite or −0, or a magnitude is negative.
    """
    if values == "float32":
        return np.ones((count, 1), np.float32)
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
        raise Corrupt(f"chunk {at} has an invalid scale", scale_nbits(values) // 8 * at)
    return scales


def _sign7(coefficients: np.ndarray) -> Levels:
    k = coefficients.shape[1]
    bits = norms(coefficients.reshape(-1), k, "max").view(np.uint32).reshape(-1, 1)
    half = np.uint32((1 << _HALF_NBITS - 1) - 1)
    odd = bits >> np.uint32(_HALF_NBITS) & np.uint32(1)
    # A subnormal M keeps few bits or none. It is rounded up, so that it is not 0 and no level
    # exceeds 127. With a single coefficient, no level could compensate for that.
    upwards = (bits < _NORMAL_BITS) & (k > 1)
    more = np.where(upwards, np.uint32((1 << _HALF_NBITS) - 1), half + odd)
    rounded = bits + more >> np.uint32(_HALF_NBITS) << np.uint32(_HALF_NBITS)
    scales = rounded.view(np.float32)
    # If even the largest level is 0, the chunk is not coded.
    scales[upwards & (bits * np.uint64(254) <= rounded)] = 0
    return Levels(scales, sign_magnitude.quantize(coefficients, scales))


def _affine8(coefficients: np.ndarray) -> Levels:
    least = coefficients.min(axis=1, keepdims=True) + np.float32(0)  # −0 becomes +0
    scale = (coefficients.max(axis=1, keepdims=True) - least) / np.float32(255) + np.float32(0)
    if coefficients.shape[1] > 2:  # with two, the levels are the ends of the range
        spread = coefficients.max(axis=1, keepdims=True) - least
        short = (scale.view(np.uint32) < _NORMAL_BITS) & (np.float32(255) * scale < spread)
        scale = np.where(short, np.nextafter(scale, np.float32(1)), scale)
    scales = np.hstack([scale, least])
    coded = coded_chunks(scales)
    above, scale = coefficients[coded] - least[coded], scale[coded]
    ratio = np.divide(above, scale, out=np.zeros_like(above), where=scale > 0)
    codes = np.clip(np.rint(ratio), 0, 255).astype(np.uint8)
    if coefficients.shape[1] <= 2:  # the ends of the range, also if it is subnormal
        codes[codes > 0] = 255
    return Levels(scales, codes)


def _float32(coefficients: np.ndarray) -> Levels:
    scales = np.ones((len(coefficients), 1), np.float32)
    return Levels(scales, np.ascontiguousarray(coefficients).view(np.uint32))


_QUANTIZE: dict[str, Callable[[np.ndarray], Levels]] = {
    "sign7": _sign7,
    "affine8": _affine8,
    "float32": _float32,
}
