"""Uniform scalar quantisers: levels of a step, and the points that they stand for.

A symbol is twice the level's magnitude, plus 1 where it is negative and not 0; `ESCAPE` stands for
magnitudes from 127 on, which are told beside. Plain levels only tell how large levels are where:
with y = f32(|x|·f32(1/step)), 0 where y < 0.6, else floor(f32(y + 0.4)). `rated_levels` has those
that are sent.

Errors are added up in integers, so that the sums have no order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gcodec.kernels.numeric.magnitudes import add_magnitudes
from gcodec.kernels.numeric.reduce import fold, tile_sums
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel, subroutine

ESCAPE = 254  # the symbol of magnitudes that have none of their own
MOST = 126  # the largest magnitude that has one
FINE = 1 << 10  # errors are multiples of a 1024th of a step

_DEAD, _UP = np.float32(0.6), np.float32(0.4)
_PAST = 2.0**128 - 2.0**103  # what float32 rounds to infinity, as all above
_TILE = 512  # elements, of which squares of errors, up to 2^22 each, fit 32 bits
_CHUNK = 1 << 16  # elements whose classes stay in a cache
_ZERO = np.int32(0)
_FACTOR, _MANY = np.float32(FINE), np.float32(MOST)


@dispatched("gcodec.kernels.quantize.scalar_quantize_cuda")
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


@dispatched("gcodec.kernels.quantize.scalar_quantize_cuda")
def plain_sums(
    x: np.ndarray, step: np.float32, width: int, has_columns: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Add up the magnitudes of plain levels of each row and of each column.

    Parameters
    ----------
    x, step
        See `plain_levels`.
    width, has_columns
        See `class_map.magnitude_sums`, for what is returned too.
    """
    factor, height = inverse(step), width if has_columns else 0
    rows = np.empty(-(-x.size // width), np.int64)

    def task(start: int, stop: int) -> np.ndarray:
        columns, narrow = np.zeros(height, np.int64), np.zeros(height, np.int32)
        here, room = rows[start // width :], np.empty(stop - start, np.uint8)
        _plain_sums(x[start:stop], factor, room, width, narrow, here, columns)
        return columns

    columns, *others = pool.run(task, x.size, width)
    for more in others:
        columns += more
    return rows, columns


@dispatched("gcodec.kernels.quantize.scalar_quantize_cuda")
def random_squares(x: np.ndarray, step: np.float32) -> int:
    """Return the sum of f·(1 − f) of (n,) values, f being what floor(y) leaves, times FINE^2.

    It is the expectation of ‖x − x̂‖² in squares of the step, if levels are at random.
    """
    factor = inverse(step)
    return sum(pool.run(lambda i, j: int(_random_squares(x[i:j], factor)), x.size))


def inverse(step: np.float32) -> np.float32:
    """Return f32(1/step), infinite where that passes float32."""
    found = 1 / float(step)
    return np.float32(found if found < _PAST else math.inf)


@dispatched("gcodec.kernels.quantize.scalar_quantize_cuda")
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


@dispatched("gcodec.kernels.quantize.scalar_quantize_cuda")
def put_points(symbols: np.ndarray, points: np.ndarray, out: np.ndarray) -> None:
    """Write the points that symbols stand for, on the calling thread.

    Parameters
    ----------
    symbols : (n,) uint8 array
    points : (256,) float32 array
    out : (n,) float32 array
    """
    _put_points(symbols, points, out)


@dispatched("gcodec.kernels.quantize.scalar_quantize_cuda")
def add_points(symbols: np.ndarray, points: np.ndarray, out: np.ndarray) -> None:
    """Add the points that symbols stand for, on the calling thread; see `put_points`."""
    _add_points(symbols, points, out)


def points_of(unit: float, moves: Sequence[int]) -> np.ndarray:
    """Return the points of all symbols: (256·k + move)·unit, with the sign, rounded to float32.

    Parameters
    ----------
    unit : float
    moves : (int, int, int)
        Of the magnitudes 1, 2, and those above; 0 stands for 0.

    Returns
    -------
    (256,) float32 array
    """
    found = np.zeros(256, np.float32)
    _fill_points(unit, *moves, found)
    return found


@subroutine(variant="")
def quantize_plainly(x, factor, out):
    """Write plain levels; out.size == x.size."""
    for i in range(out.size):
        y = np.float32(min(np.float32(abs(x[i]) * factor), _MANY))
        level = np.int32(np.float32(y + _UP))
        level = level if y >= _DEAD else _ZERO
        out[i] = np.uint8(np.uint32(level) << np.uint32(1))


@kernel("in float32[], float32, out uint8[]")
def _plain_levels(x, factor, out):
    quantize_plainly(x, factor, out)


@kernel("in float32[], float32, out uint8[], int64, out int32[], out int64[], out int64[]")
def _plain_sums(x, factor, room, width, narrow, rows, columns):
    # room.size == x.size; for the others see `add_magnitudes`.
    quantize_plainly(x, factor, room)
    add_magnitudes(room, width, narrow, rows, columns)


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


@kernel("float64, int64, int64, int64, out float32[]")
def _fill_points(unit, one, two, more, out):
    # out.size == 256, of zeros.
    for k in range(1, 128):
        move = one if k == 1 else two if k == 2 else more
        point = np.float32(np.float64(256 * k + move) * unit)
        out[2 * k], out[2 * k + 1] = point, -point


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
