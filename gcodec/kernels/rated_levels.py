"""Levels of a step that are the best trade of bits and error, by the classes of elements.

In a class that expects little, a level other than 0 costs many bits, and so does one more. With
y = f32(|x|·f32(1/step)) and d = max(0, 44 - class), the level is 0 where
y < min(0.5 + 29·2^-13·d², 1.65), else max(1, floor(y + 0.5 - min(0.08·d, 0.45))). That is the best
trade for what gradients have within a class, to some tenths of a percent of the bits. Each
operation is rounded to float32. Symbols are those of `scalar_quantize`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.kernels import pool
from gcodec.kernels.class_fill import fill_classes
from gcodec.kernels.class_map import ScalesOf
from gcodec.kernels.device import twinned
from gcodec.kernels.jit import kernel
from gcodec.kernels.scalar_quantize import FINE, MOST, inverse

_KNEE = np.int32(44)  # the class from which on both sides of a level are worth the same
_SQUARE, _LEAST, _CEILING = np.float32(29 / 8192), np.float32(0.5), np.float32(1.65)
_SLOPE, _STEEPEST = np.float32(0.08), np.float32(0.45)
_TILE = 512  # elements, of which squares of errors, up to 2^22 each, fit 32 bits
_ZERO, _ONE, _TWO, _TOP = np.int32(0), np.int32(1), np.int32(2), np.int32(MOST)
_FACTOR = np.float32(FINE)


class Errors(NamedTuple):
    """What levels leave over.

    Attributes
    ----------
    counts : (int, int, int)
        Levels of magnitude 1, 2, and above.
    rests : (int, int, int)
        Of each of these, the sum of y less the level, in 1024ths of a step.
    squares : int
        Of all levels, the sum of the squares of that.
    escapes : int
        Levels above `MOST`.
    """

    counts: tuple[int, int, int]
    rests: tuple[int, int, int]
    squares: int
    escapes: int

    @classmethod
    def of(cls, sums: np.ndarray, *others: np.ndarray) -> Errors:
        """Make them of (8,) integers, as kernels add them up, of one or several parts."""
        for more in others:
            sums = sums + more
        a, b, c, of_a, of_b, of_c, squares, escapes = sums.tolist()
        return cls((a, b, c), (of_a, of_b, of_c), squares, escapes)


@twinned("rated_levels")
def rated_levels(x: np.ndarray, step: np.float32, of: ScalesOf, out: np.ndarray) -> Errors:
    """Quantise by the classes of elements.

    Parameters
    ----------
    x : (n,) float32 array
        Finite, and of magnitudes below 2^23 steps.
    step : float32
        Above 0.
    of : (rows, columns, width)
        Scales; see `class_map.map_classes`.
    out : (n,) uint8 array
        The symbols.
    """
    factor = inverse(step)

    def task(start: int, stop: int) -> np.ndarray:
        room, wide = np.empty(_TILE, np.uint8), np.empty(_TILE, np.int32)
        sums = np.zeros(8, np.int64)
        _rated_levels(x[start:stop], factor, *of, start, room, wide, out[start:stop], sums)
        return sums

    return Errors.of(*pool.run(task, x.size))


def rated_magnitudes(x: np.ndarray, step: np.float32, classes: np.ndarray) -> np.ndarray:
    """Return the rated levels, without signs, of few elements that are not 0, as int64."""
    d = np.maximum(_KNEE - classes.astype(np.int32), _ZERO).astype(np.float32)
    lower = np.minimum(d * _SLOPE, _STEEPEST)
    y = np.abs(x) * inverse(step)
    found: np.ndarray = np.maximum(y + (_LEAST - lower), np.float32(1)).astype(np.int64)
    return found


@kernel(
    "in float32[], float32, in uint8[], in uint8[], int64, int64, out uint8[], out int32[], "
    "out uint8[], out int64[]"
)
def _rated_levels(x, factor, rows, columns, width, start, room, wide, out, sums):
    # x.size == out.size elements, from `start` on; room and wide have _TILE; sums.size == 8.
    for first in range(0, out.size, _TILE):
        part, here = x[first : first + _TILE], out[first : first + _TILE]
        models = room[: part.size]
        fill_classes(rows, columns, width, start + first, models)
        one = two = more = rest_of_one = rest_of_two = rest_of_more = escapes = _ZERO
        squares = np.uint32(0)
        for i in range(here.size):
            value = part[i]
            d = np.float32(max(np.int32(_KNEE - np.int32(models[i])), _ZERO))
            bound = min(np.float32(_LEAST + np.float32(np.float32(d * d) * _SQUARE)), _CEILING)
            lower = min(np.float32(d * _SLOPE), _STEEPEST)
            y = np.float32(abs(value) * factor)
            level = max(np.int32(np.float32(y + np.float32(_LEAST - lower))), _ONE)
            level = level if y >= bound else _ZERO
            # Of magnitude below 2 steps, as y and the level are.
            rest = np.int32(np.float32(np.float32(y - np.float32(level)) * _FACTOR))
            squares = np.uint32(squares + np.uint32(np.uint32(rest) * np.uint32(rest)))
            one = np.int32(one + np.int32(level == _ONE))
            two = np.int32(two + np.int32(level == _TWO))
            more = np.int32(more + np.int32(level > _TWO))
            rest_of_one = np.int32(rest_of_one + (rest if level == _ONE else _ZERO))
            rest_of_two = np.int32(rest_of_two + (rest if level == _TWO else _ZERO))
            rest_of_more = np.int32(rest_of_more + (rest if level > _TWO else _ZERO))
            escapes = np.int32(escapes + np.int32(level > _TOP))
            small = min(level, np.int32(_TOP + _ONE))
            sign = np.int32((value < np.float32(0)) & (level > _ZERO) & (level <= _TOP))
            wide[i] = np.int32(np.int32(small + small) | sign)
        for i in range(here.size):
            here[i] = np.uint8(wide[i])
        sums[0] += one
        sums[1] += two
        sums[2] += more
        sums[3] += rest_of_one
        sums[4] += rest_of_two
        sums[5] += rest_of_more
        sums[6] += squares
        sums[7] += escapes
