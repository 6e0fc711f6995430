"""Levels of a step by rate–distortion optimized rounding, by the classes of elements.

In a class whose levels are small, a level other than 0 costs many bits, and so does one more than
the nearest level. With y = f32(|x|·f32(1/step)) and d = max(0, 44 − class), the level is 0 for y <
min(0.5 + 29·2^-13·d², 1.65), else max(1, floor(y + 0.5 − min(0.08·d, 0.45))). For the
distributions of gradients within a class, this is the best trade of rate and distortion to a few
tenths of a percent of the bits. Each operation is rounded to float32. The symbols are those of
`scalar_quantize`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.kernels.context.class_map import SCALES, ScaleArrays, fill_classes, magnitude_sums
from gcodec.kernels.context.scale_logs import find_scales, scales_of_sums
from gcodec.kernels.numeric.arithmetic import fetch_block
from gcodec.kernels.numeric.convert import is_converted
from gcodec.kernels.numeric.magnitudes import add_magnitudes
from gcodec.kernels.quantize.scalar_quantize import (
    ESCAPE,
    FINE,
    MOST,
    inverse,
    plain_sums,
    quantize_plainly,
)
from gcodec.runtime import pool
from gcodec.runtime.device import device_of, dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import BLOCK

_KNEE = np.int32(44)  # the class from which on rounding is to the nearest level
_SQUARE, _LEAST, _CEILING = np.float32(29 / 8192), np.float32(0.5), np.float32(1.65)
_SLOPE, _STEEPEST = np.float32(0.08), np.float32(0.45)
_SUMS = 8  # integers of `Errors`
_TILE = 512  # elements whose squared errors, up to 2^22 each, fit 32 bits
_ZERO, _ONE, _TWO, _TOP = np.int32(0), np.int32(1), np.int32(2), np.int32(MOST)
_FACTOR, _NONE, _ESCAPE = np.float32(FINE), np.float32(0), np.int32(ESCAPE)
_COUNTED = np.int32(1 << 21)  # exceeds the sums of the residues of a tile, which are up to 2^20


class Errors(NamedTuple):
    """Statistics of the quantization errors of levels.

    Attributes
    ----------
    counts : (int, int, int)
        Number of levels of magnitude 1, of 2, and of larger ones.
    residues : (int, int, int)
        For each of these magnitudes, the sum of y minus the level, in 1024ths of a step.
    squares : int
        Sum of the squares of that difference over all levels, 0 included.
    escapes : int
        Number of levels above `MOST`.
    """

    counts: tuple[int, int, int]
    residues: tuple[int, int, int]
    squares: int
    escapes: int

    @classmethod
    def of(cls, sums: np.ndarray) -> Errors:
        """Unpack the (8,) sums that kernels compute."""
        a, b, c, of_a, of_b, of_c, squares, escapes = sums.tolist()
        return cls((a, b, c), (of_a, of_b, of_c), squares, escapes)


@dispatched("gcodec.kernels.quantize.scalar_quantize_cuda")
def rated_levels(x: np.ndarray, step: np.float32, scales: ScaleArrays, out: np.ndarray) -> Errors:
    """Quantize by the classes of elements.

    Parameters
    ----------
    x : (n,) float32 array
        Finite, with magnitudes below 2^23 steps.
    step : float32
        Positive.
    scales : (rows, columns, width)
        Scales; see `class_map.map_classes`.
    out : (n,) uint8 array
        Symbols.
    """
    return Errors.of(
        pool.run_added(
            lambda start, stop: rate_part(x, step, scales, start, out[start:stop]),
            x.size,
            beside=x,
        )
    )


def rate_part(
    x: np.ndarray, step: np.float32, scales: ScaleArrays, start: int, out: np.ndarray
) -> np.ndarray:
    """Quantize the elements from `start` on, as many as `out` has, on the calling thread.

    Returns the (8,) sums of `Errors`. See `rated_levels`.
    """
    wide, sums = np.empty(_TILE, np.int32), np.zeros(_SUMS, np.int64)
    _rate(x[start : start + out.size], inverse(step), *scales, start, wide, out, sums)
    return sums


def scaled_levels(
    x: np.ndarray,
    step: np.float32,
    matrix: tuple[int, int, int],
    ones: tuple[int, int],
    out: np.ndarray,
    *,
    is_plain: bool = False,
) -> tuple[np.ndarray, np.ndarray, Errors]:
    """Quantize by the classes that the plain levels of the same elements have.

    Parameters
    ----------
    x : (n,) float32 array
        n > 0; see `rated_levels`.
    step : float32
    matrix, ones
        See `scale_logs.scales_of_sums`.
    out : (n,) uint8 array
        Symbols.
    is_plain : bool
        Whether `out`, on the host, already has the plain levels.

    Returns
    -------
    rows, columns : uint8 array
        Scales.
    errors : Errors
    """
    width, group, _ = matrix
    if device_of(x) is not None or is_converted(x) or not pool.is_one(x.size):
        sums: tuple[np.ndarray, np.ndarray]
        if is_plain:
            (sums,) = magnitude_sums(out, [(width, group > 0)])
        else:
            sums = plain_sums(x, step, width, group > 0)
        rows, columns = scales_of_sums(x.size, matrix, ones, *sums)
        return rows, columns, rated_levels(x, step, (rows, columns, width), out)
    count, height = -(-x.size // width), width if group > 0 else 0
    scales = np.empty(count + height, np.uint8)
    wide, sums_64 = np.zeros(_TILE + height, np.int32), np.zeros(_SUMS + scales.size, np.int64)
    _scaled_levels(x, inverse(step), is_plain, *matrix, *ones, wide, sums_64, scales, out)
    return scales[:count], scales[count:], Errors.of(sums_64[:_SUMS])


def rated_magnitudes(x: np.ndarray, step: np.float32, classes: np.ndarray) -> np.ndarray:
    """Return the int64 magnitudes of a few elements whose levels are not 0."""
    d = np.maximum(_KNEE - classes.astype(np.int32), _ZERO).astype(np.float32)
    lower = np.minimum(d * _SLOPE, _STEEPEST)
    y = np.abs(x) * inverse(step)
    return np.maximum(y + (_LEAST - lower), np.float32(1)).astype(np.int64)


@kernel(
    "in float32[], float32, boolean, (int64, int64, int64), (int64, int64), out int32[], "
    "out int64[], out uint8[], out uint8[]"
)
def _scaled_levels(x, factor, is_plain, matrix, ones, wide, sums, scales, out):
    # x.size == out.size > 0, and `out` has the plain levels if `is_plain`. `scales` holds those of
    # rows, then those of columns; `sums` has _SUMS elements, then one for each scale; `wide` has
    # _TILE, then one for each column scale. All of sums and wide are 0.
    n, width = x.size, matrix[0]
    count = (n + width - 1) // width
    rows, columns = sums[_SUMS : _SUMS + count], sums[_SUMS + count :]
    down, across = scales[:count], scales[count:]
    if not is_plain:
        quantize_plainly(x, factor, out)
    add_magnitudes(out, width, wide[_TILE:], rows, columns)
    find_scales(rows, columns, n, matrix, ones, down, across)
    _rate(x, factor, (down, across, width), 0, wide[:_TILE], out, sums[:_SUMS])


@kernel(f"in float32[], float32, {SCALES}, int64, out int32[], out uint8[], out int64[]")
def _rate(x, factor, scales, start, wide, out, sums):
    # Writes the symbols of x.size == out.size elements from `start` on, and adds to the sums of
    # `Errors`. wide.size == _TILE, sums.size == _SUMS.
    for first in range(0, out.size, _TILE):
        part, target = x[first : first + _TILE], out[first : first + _TILE]
        fill_classes(scales, start + first, target)  # symbols replace the classes
        for i in range(first + _TILE, first + 2 * _TILE, BLOCK):
            fetch_block(x, i)
        one = two = nonzero = top = _ZERO
        squares = np.uint32(0)
        for i in range(target.size):
            value = part[i]
            d = np.float32(max(np.int32(_KNEE - np.int32(target[i])), _ZERO))
            bound = min(np.float32(_LEAST + np.float32(np.float32(d * d) * _SQUARE)), _CEILING)
            lower = min(np.float32(d * _SLOPE), _STEEPEST)
            y = np.float32(abs(value) * factor)
            level = max(np.int32(np.float32(y + np.float32(_LEAST - lower))), _ONE)
            level = level if y >= bound else _ZERO
            # |y − level| is below 2.
            residue = np.int32(np.float32(np.float32(y - np.float32(level)) * _FACTOR))
            squares = np.uint32(squares + np.uint32(np.uint32(residue) * np.uint32(residue)))
            # A count in the high bits, the sum of residues in the low bits.
            packed = np.int32(residue + _COUNTED)
            one = np.int32(one + (packed if level == _ONE else _ZERO))
            two = np.int32(two + (packed if level == _TWO else _ZERO))
            nonzero = np.int32(nonzero + (packed if level > _ZERO else _ZERO))
            top = max(top, level)
            symbol = min(np.int32(np.int32(level + level) + np.int32(value < _NONE)), _ESCAPE)
            wide[i] = symbol if level > _ZERO else _ZERO
        for i in range(target.size):
            target[i] = np.uint8(wide[i])
        more = np.int32(np.int32(nonzero - one) - two)
        for k in range(3):
            total = np.int64(one if k == 0 else two if k == 1 else more)
            count = (total + _COUNTED // 2) // _COUNTED
            sums[k] += count
            sums[3 + k] += total - count * _COUNTED
        sums[6] += squares
        for i in range(target.size if top > _TOP else 0):  # seldom
            sums[7] += target[i] == _ESCAPE
