"""Levels of 8 bits: a sign and a magnitude of 7 bits, relative to the scale of a row."""

from __future__ import annotations

import numpy as np

from gcodec.runtime.jit import kernel

SIGN = 0x80  # added to the magnitude of a negative value

_MOST = 127  # largest magnitude


def quantize(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the levels of the rows whose scale is not 0, as (coded, k) uint8.

    The magnitude of a value v is |v|·127/scale, computed in float64, rounded to nearest, ties to
    even, and at most 127. A level whose magnitude is 0 has no sign. A row of one value has the
    magnitude 127, also if its scale is inaccurate.

    Parameters
    ----------
    values : (count, k) float32 array
        Finite values.
    scales : (count, 1) float32 array
        Nonnegative scales.
    """
    codes = np.empty((np.count_nonzero(scales), values.shape[1]), np.uint8)
    _quantize(values.reshape(-1), values.shape[1], scales.reshape(-1), codes.reshape(-1))
    return codes


def dequantize(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return magnitude·scale/127 with the sign of each level, computed in float64, as float32.

    Parameters
    ----------
    codes : (m, k) uint8 array
    scales : (m, 1) float32 array
    """
    values = np.empty(codes.shape, np.float32)
    _dequantize(codes.reshape(-1), codes.shape[1], scales.reshape(-1), values.reshape(-1))
    return values


@kernel("in float32[], int64, in float32[], out uint8[]")
def _quantize(values, k, scales, codes):
    # values.size == scales.size * k; codes.size == k * the number of scales that are not 0.
    at = 0
    for row in range(scales.size):
        scale = np.float64(scales[row])
        if scale == 0:
            continue
        first = row * k
        for i in range(k):
            value = values[first + i]
            magnitude = np.rint(np.abs(np.float64(value)) * _MOST / scale)
            magnitude = np.float64(_MOST) if k == 1 else min(magnitude, np.float64(_MOST))
            sign = np.uint8(SIGN) if value < 0 and magnitude > 0 else np.uint8(0)
            codes[at + i] = np.uint8(magnitude) | sign
        at += k


@kernel("in uint8[], int64, in float32[], out float32[]")
def _dequantize(codes, k, scales, values):
    # codes.size == values.size == scales.size * k
    for row in range(scales.size):
        scale, first = np.float64(scales[row]), row * k
        for i in range(first, first + k):
            value = np.float32(np.float64(codes[i] & _MOST) * scale / _MOST)
            values[i] = -value if codes[i] & SIGN else value
