"""Uniform scalar quantisers: levels of a step, and the points that they stand for.

A symbol is twice the level's magnitude, plus 1 where it is negative and not 0; `ESCAPE` stands for
magnitudes from 127 on, which are told beside. With y = f32(|x|·f32(1/step)) there are two ways:

- plain: 0 where y < 0.6, else floor(f32(y + 0.4)); these only tell how large levels are where;
- rated: by the class of an element. In a class that expects little, a level other than 0 costs
  many bits, and so does one more: with d = max(0, 44 - class), the level is 0 where
  y < min(0.5 + 29·2^-13·d², 1.65), else max(1, floor(y + 0.5 - min(0.08·d, 0.45))). That is the
  best trade of bits and error for what gradients have within a class, to some tenths of a percent
  of the bits. Each operation is rounded to float32.

Errors are added up in integers, so that the sums have no order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.kernels import pool
from gcodec.kernels.device import twinned
from gcodec.kernels.jit import kernel
from gcodec.kernels.reduce import fold, tile_sums

ESCAPE = 254  # the symbol of magnitudes that have none of their own
MOST = 126  # the largest magnitude that has one
FINE = 1 << 10  # errors are multiples of a 1024th of a step

_DEAD, _UP = np.float32(0.6), np.float32(0.4)
_KNEE = np.int32(44)  # the class from which on both sides of a level are worth the same
_SQUARE, _LEAST, _CEILING = np.float32(29 / 8192), np.float32(0.5), np.float32(1.65)
_SLOPE, _STEEPEST = np.float32(0.08), np.float32(0.45)
_PAST = 2.0**128 - 2.0**103  # what float32 rounds to infinity, as all above
_TILE = 512  # elements, of which squares of errors, up to 2^22 each, fit 32 bits
_CHUNK = 1 << 16  # elements whose classes stay in a cache
_ZERO, _ONE, _TWO, _TOP = np.int32(0), np.int32(1), np.int32(2), np.int32(MOST)
_FACTOR, _MANY = np.float32(FINE), np.float32(MOST)

ClassesOf = Callable[[int, int, np.ndarray], np.ndarray]


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


@twinned("scalar_quantize")
def plain_levels(x: np.ndarray, step: np.float32, out: np.ndarray) -> None:
    """Quantise without signs, and nothing to more than `MOST`.

    Parameters
    ----------
    x : (n,) float32 array
        Finite.
    step : float32
        Above 0.
    out : (n,) uint8 array
        The symbols.
    """
    factor = inverse(step)

    def task(start: int, stop: int) -> None:
        _plain_levels(x[start:stop], factor, out[start:stop])

    pool.run(task, x.size)


@twinned("scalar_quantize")
def rated_levels(
    x: np.ndarray, step: np.float32, classes_of: ClassesOf, out: np.ndarray
) -> Errors:
    """Quantise by the classes of elements.

    Parameters
    ----------
    x : (n,) float32 array
        Finite, and of magnitudes below 2^23 steps.
    step : float32
        Above 0.
    classes_of : callable
        Returns the classes of a range as a uint8 array, where it may use an array of as many for
        it.
    out : (n,) uint8 array
        The symbols.
    """
    factor = inverse(step)

    def task(start: int, stop: int) -> np.ndarray:
        room, wide = np.empty(min(_CHUNK, stop - start), np.uint8), np.empty(_TILE, np.int32)
        sums = np.zeros(8, np.int64)
        for at in range(start, stop, _CHUNK):
            end = min(at + _CHUNK, stop)
            classes = classes_of(at, end, room[: end - at])
            _rated_levels(x[at:end], factor, classes, wide, out[at:end], sums)
        return sums

    return Errors.of(*pool.run(task, x.size))


@twinned("scalar_quantize")
def random_squares(x: np.ndarray, step: np.float32) -> int:
    """Return the sum of f·(1 − f) of (n,) values, f being what floor(y) leaves, times FINE^2.

    It is the expectation of ‖x − x̂‖² in squares of the step, if levels are at random.
    """
    factor = inverse(step)
    return sum(pool.run(lambda i, j: int(_random_squares(x[i:j], factor)), x.size))


def rated_magnitudes(x: np.ndarray, step: np.float32, classes: np.ndarray) -> np.ndarray:
    """Return the rated levels, without signs, of few elements that are not 0, as int64."""
    d = np.maximum(_KNEE - classes.astype(np.int32), _ZERO).astype(np.float32)
    lower = np.minimum(d * _SLOPE, _STEEPEST)
    y = np.abs(x) * inverse(step)
    found: np.ndarray = np.maximum(y + (_LEAST - lower), np.float32(1)).astype(np.int64)
    return found


def inverse(step: np.float32) -> np.float32:
    """Return f32(1/step), infinite where that passes float32."""
    found = 1 / float(step)
    return np.float32(found if found < _PAST else math.inf)


@twinned("scalar_quantize")
def exact_random_squares(x: np.ndarray, step: float) -> float:
    """Return what `random_squares` does, in squares of the step, in float64 by the fixed order."""

    def task(start: int, stop: int) -> list[np.ndarray]:
        sums = []
        for at in range(start, stop, _CHUNK):
            rest = np.abs(x[at : min(at + _CHUNK, stop)], dtype=np.float64) / step % 1
            sums.append(tile_sums(rest * (1 - rest)))
        return sums

    every = [sums for found in pool.run(task, x.size, _CHUNK) for sums in found]
    return fold(np.concatenate(every))


@twinned("scalar_quantize")
def put_points(symbols: np.ndarray, points: np.ndarray, out: np.ndarray) -> None:
    """Write the points that symbols stand for, on the calling thread.

    Parameters
    ----------
    symbols : (n,) uint8 array
    points : (256,) float32 array
    out : (n,) float32 array
    """
    _put_points(symbols, points, out)


@twinned("scalar_quantize")
def add_points(symbols: np.ndarray, points: np.ndarray, out: np.ndarray) -> None:
    """Add the points that symbols stand for, on the calling thread; see `put_points`."""
    _add_points(symbols, points, out)


@kernel("in float32[], float32, out uint8[]")
def _plain_levels(x, factor, out):
    # out.size == x.size
    for i in range(out.size):
        y = np.float32(min(np.float32(abs(x[i]) * factor), _MANY))
        level = np.int32(np.float32(y + _UP))
        level = level if y >= _DEAD else _ZERO
        out[i] = np.uint8(np.uint32(level) << np.uint32(1))


@kernel("in float32[], float32, in uint8[], out int32[], out uint8[], out int64[]")
def _rated_levels(x, factor, classes, wide, out, sums):
    # x.size == classes.size == out.size; wide.size == _TILE; sums.size == 8.
    for first in range(0, out.size, _TILE):
        part, models = x[first : first + _TILE], classes[first : first + _TILE]
        here = out[first : first + _TILE]
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


@kernel("in float32[], float32")
def _random_squares(x, factor):
    total = np.int64(0)
    for first in range(0, x.size, _TILE):
        part, some = x[first : first + _TILE], np.uint32(0)
        for i in range(part.size):
            y = np.float32(abs(part[i]) * factor)
            rest = np.uint32(np.int32(np.float32(y - np.float32(np.int32(y))) * _FACTOR))
            some = np.uint32(some + np.uint32(rest * np.uint32(np.uint32(FINE) - rest)))
        total += some
    return total


@kernel("in uint8[], in float32[], out float32[]")
def _put_points(symbols, points, out):
    # symbols.size == out.size; points.size == 256.
    for i in range(out.size):
        out[i] = points[symbols[i]]


@kernel("in uint8[], in float32[], out float32[]")
def _add_points(symbols, points, out):
    # symbols.size == out.size; points.size == 256.
    for i in range(out.size):
        out[i] += points[symbols[i]]
