"""Uniform scalar quantizers: levels of a step, and their reconstruction points.

A symbol is twice the magnitude of a level, plus 1 if the level is negative; `ESCAPE` stands for
magnitudes from 127 on, which are stored as outliers. Plain levels only estimate the scales of
rows and columns: with y = f32(|x|·f32(1/step)), the level is 0 for y < 0.6, else floor(f32(y +
0.4)). `rated_levels` computes the levels of a message.

Errors are sums of integers, so they do not depend on the order of the elements.
"""

from __future__ import annotations

import math

import numpy as np

from gcodec.kernels.numeric.arithmetic import TERMS, ResidualUpdate, add_tile, fetch_block
from gcodec.kernels.numeric.magnitudes import add_magnitudes
from gcodec.kernels.numeric.reduce import fold, tile_sums
from gcodec.runtime import pool
from gcodec.runtime.cover import store_of, streams
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, kernel, subroutine
from gcodec.runtime.lanes import (
    ADD,
    AHEAD,
    BLOCK,
    Emitter,
    block,
    fence,
    floats,
    floats_in_registers,
    lanes,
)
from gcodec.runtime.memory import aligned_empty, aligned_zeros, magnitude_bits

ESCAPE = 254  # the symbol of magnitudes that have none of their own
MOST = 126  # the largest magnitude that has a symbol of its own
FINE = 1 << 10  # errors are multiples of a 1024th of a step
CENTER = 128  # the centroid of magnitudes whose point is a multiple of the unit

_DEAD, _UP = np.float32(0.6), np.float32(0.4)
_PAST = 2.0**128 - 2.0**103  # float32 rounds this and all numbers above to infinity
_TILE = 512  # elements whose squared errors, up to 2^22 each, fit 32 bits
_CHUNK = 1 << 16  # elements whose float64 intermediates stay in a cache
_SUMMED = 1 << 18  # elements whose levels stay in a cache while they are summed
_ZERO = np.int32(0)
_FACTOR, _MANY = np.float32(FINE), np.float32(MOST)


@dispatched("gcodec.kernels.quantize.scalar_quantize_cuda")
def plain_levels(x: np.ndarray, step: np.float32, out: np.ndarray) -> None:
    """Quantize magnitudes without their signs, limited to `MOST`.

    Parameters
    ----------
    x : (n,) float32 array
        Finite.
    step : float32
        Positive.
    out : (n,) uint8 array
        Symbols.
    """
    factor = inverse(step)

    def task(start: int, stop: int) -> None:
        quantize_plainly(x[start:stop], factor, out[start:stop])

    pool.run(task, x.size, beside=x)


def plain_levels_and_top(x: np.ndarray, step: np.float32, out: np.ndarray) -> int:
    """Do what `plain_levels` does, on the host, for values that may be NaN or infinite.

    Returns
    -------
    int
        Bit pattern of the largest magnitude; NaN is larger than infinity. If it is that of one of
        these, the symbols are arbitrary.
    """
    factor = inverse(step)

    def task(start: int, stop: int) -> int:
        tops = aligned_zeros(BLOCK, np.uint32)
        return int(_quantize_and_find_top(x[start:stop], factor, tops, out[start:stop]))

    return max(pool.run(task, x.size, BLOCK, x))


def add_residual_plainly(
    x: np.ndarray, update: ResidualUpdate, step: np.float32, out: np.ndarray
) -> int:
    """Do what `arithmetic.add_residual` does, and what `plain_levels` does for the sum.

    Returns
    -------
    int
        See `ValueStatistics.top_bits`. For NaN and infinity, the symbols are arbitrary.
    """
    streaming, factor = streams(update.separate_output), inverse(step)

    def task(start: int, stop: int) -> int:
        own = update.part(start, stop)
        terms = *own.terms(x[start:stop]), streaming
        scratch = aligned_empty(BLOCK, np.float32), aligned_zeros(BLOCK, np.uint32)
        top = _sum_plainly(*terms, *scratch, factor, out[start:stop])
        own.mark_replaced()
        return int(top)

    return max(pool.run(task, x.size, BLOCK, x))


@dispatched("gcodec.kernels.quantize.scalar_quantize_cuda")
def plain_sums(
    x: np.ndarray, step: np.float32, width: int, has_columns: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Sum the magnitudes of plain levels by row and by column.

    Parameters
    ----------
    x, step
        See `plain_levels`.
    width : int
        Elements of a row.
    has_columns : bool
        Whether to sum columns too.

    Returns
    -------
    rows, columns : int64 array
        See `class_map.magnitude_sums`.
    """
    if _SUMMED < x.size <= width and not has_columns:
        rows, columns = plain_sums(x, step, _SUMMED, False)
        return rows.sum(keepdims=True), columns
    factor, height = inverse(step), width if has_columns else 0
    rows, length = np.empty(-(-x.size // width), np.int64), max(_SUMMED // width, 1) * width

    def task(start: int, stop: int) -> np.ndarray:
        columns, narrow = np.zeros(height, np.int64), np.zeros(height, np.int32)
        symbols = np.empty(min(length, stop - start), np.uint8)
        for at in range(start, stop, length):
            part, own_rows = x[at : min(at + length, stop)], rows[at // width :]
            _plain_sums(part, factor, symbols[: part.size], width, narrow, own_rows, columns)
        return columns

    return rows, pool.run_added(task, x.size, width)


@dispatched("gcodec.kernels.quantize.scalar_quantize_cuda")
def random_squares(x: np.ndarray, step: np.float32) -> int:
    """Return the sum of f·(1 − f) over (n,) values, times FINE^2; f is the fraction of y.

    In squares of the step, the sum is the expectation of ‖x − x̂‖² for stochastic rounding.
    """
    factor = inverse(step)
    return sum(pool.run(lambda i, j: int(_random_squares(x[i:j], factor)), x.size, 1, x))


def inverse(step: np.float32) -> np.float32:
    """Return f32(1/step), which is infinite if the quotient exceeds float32."""
    quotient = 1 / float(step)
    return np.float32(quotient if quotient < _PAST else math.inf)


@dispatched("gcodec.kernels.quantize.scalar_quantize_cuda")
def exact_random_squares(x: np.ndarray, step: float) -> float:
    """Return the sum of f·(1 − f) in float64, added up in a fixed order; see `random_squares`."""

    def task(start: int, stop: int) -> list[np.ndarray]:
        sums = []
        for at in range(start, stop, _CHUNK):
            fraction = np.abs(x[at : min(at + _CHUNK, stop)], dtype=np.float64) / step % 1
            sums.append(tile_sums(fraction * (1 - fraction)))
        return sums

    parts = pool.run(task, x.size, _CHUNK)
    return fold(np.concatenate([sums for part in parts for sums in part]))


@dispatched("gcodec.kernels.quantize.scalar_quantize_cuda")
def put_points(
    symbols: np.ndarray, points: np.ndarray, out: np.ndarray, add: np.float32 | None = None
) -> None:
    """Write the reconstruction points of symbols, or add a multiple, on the calling thread.

    Parameters
    ----------
    symbols : (n,) uint8 array
    points : (256,) float32 array
        Point of each symbol.
    out : (n,) float32 array
    add : float32, optional
        Factor of the points that are added, on the host; each product is rounded first.
    """
    _points_writer()(symbols, points, *store_of(add, False), out)


def points_of(symbols: np.ndarray, unit: float, centroids: np.ndarray) -> np.ndarray:
    """Return the points of symbols: ±(256·k + centroid − CENTER)·(unit/256), as float32.

    Parameters
    ----------
    symbols : (k,) int64 array
    unit : float
    centroids : (3,) uint8 array
        Centroid of the magnitude 1, of 2, and of all larger ones; the point of 0 is 0.

    Returns
    -------
    (k,) float32 array
    """
    points = aligned_empty(symbols.size, np.float32)
    _fill_points(symbols, unit / 256, centroids, points)
    return points


@kernel("in float32[], float32, out uint8[]")
def quantize_plainly(x, factor, out):
    """Write plain levels; out.size == x.size."""
    for first in range(0, out.size, _TILE):
        for i in range(first + _TILE, first + 2 * _TILE, BLOCK):
            fetch_block(x, i)
        part, target = x[first : first + _TILE], out[first : first + _TILE]
        for i in range(target.size):
            y = np.float32(min(np.float32(abs(part[i]) * factor), _MANY))
            level = np.int32(np.float32(y + _UP))
            level = level if y >= _DEAD else _ZERO
            target[i] = np.uint8(np.uint32(level) << np.uint32(1))


@block("x", "at", "tops", "factor", "out", "i")
def _plain_block(e: Emitter) -> None:
    """Write the plain levels of 32 values to `out`, from element i on, and raise the 32 `tops`."""
    builder, number, word = e.builder, floats(), lanes(32)
    dead, up, most = (number([float(value)] * BLOCK) for value in (_DEAD, _UP, _MANY))
    bits = e.magnitude_bits(e.load(e.address("x", "at"), number))
    tops = e.args["tops"]
    e.store(e.larger(bits, e.load(tops, word)), tops)
    y = e.smaller(builder.fmul(builder.bitcast(bits, number), e.splat(e.args["factor"])), most)
    level = builder.fptosi(builder.fadd(y, up), word)
    level = builder.select(builder.fcmp_ordered(">=", y, dead), level, word([0] * BLOCK))
    symbols = builder.trunc(builder.add(level, level), lanes(8))
    e.store(symbols, e.address("out", "i"), 1)


@kernel(f"{TERMS}, boolean, out float32[], out uint32[], float32, out uint8[]")
def _sum_plainly(terms, streaming, sums, tops, factor, out):
    # The terms have n == out.size elements, and the backup has as many or none. sums and tops have
    # BLOCK elements; those of tops are 0. Returns the bits of the largest magnitude.
    n = terms[0].size
    for i in range(0, n, BLOCK):
        part = sums[: min(BLOCK, n - i)]
        add_tile(terms, i, part.size, part, streaming, AHEAD)
        if part.size == BLOCK:
            _plain_block(sums, 0, tops, factor, out, i)
        else:
            _plain_tail(part, factor, tops, out[i:])
    if streaming:
        fence()
    return _largest_of(tops)


@kernel("in float32[], float32, out uint32[], out uint8[]")
def _quantize_and_find_top(x, factor, tops, out):
    # out.size == x.size, tops.size == BLOCK; those of tops are 0. Returns the bits of the largest
    # magnitude.
    whole = x.size - x.size % BLOCK
    for i in range(0, whole, BLOCK):
        fetch_block(x, i + AHEAD)
        _plain_block(x, i, tops, factor, out, i)
    _plain_tail(x[whole:], factor, tops, out[whole:])
    return _largest_of(tops)


@subroutine
def _plain_tail(x, factor, tops, out):
    """Write the plain levels of fewer than 32 values, and raise their tops."""
    quantize_plainly(x, factor, out)
    for j in range(x.size):
        tops[j] = max(tops[j], magnitude_bits(x[j]))


@subroutine
def _largest_of(tops):
    top = np.uint32(0)
    for j in range(tops.size):
        top = max(top, tops[j])
    return top


@kernel("in float32[], float32, out uint8[], int64, out int32[], out int64[], out int64[]")
def _plain_sums(x, factor, symbols, width, narrow, rows, columns):
    # symbols.size == x.size; `add_magnitudes` describes the other arrays.
    quantize_plainly(x, factor, symbols)
    add_magnitudes(symbols, width, narrow, rows, columns)


@kernel("in float32[], float32")
def _random_squares(x, factor):
    total = np.int64(0)
    for first in range(0, x.size, _TILE):
        part, tile_sum = x[first : first + _TILE], np.uint32(0)
        for i in range(part.size):
            y = np.float32(abs(part[i]) * factor)
            fraction = np.uint32(np.int32(np.float32(y - np.float32(np.int32(y))) * _FACTOR))
            square = np.uint32(fraction * np.uint32(np.uint32(FINE) - fraction))
            tile_sum = np.uint32(tile_sum + square)
        total += tile_sum
    return total


@kernel("in int64[], float64, in uint8[], out float32[]", vectorized=False)
def _fill_points(symbols, part, centroids, out):
    for i in range(out.size):  # symbols.size == out.size; centroids.size == 3
        k = symbols[i] >> 1
        point = np.float32(0)
        if k > 0:
            offset = np.int64(centroids[min(k, 3) - 1]) - CENTER
            point = np.float32(np.float64(256 * k + offset) * part)
        out[i] = -point if symbols[i] & 1 and k > 0 else point


@block("symbols", "i", "points", "store", "scale", "out")
def _points_block(e: Emitter) -> None:
    """Write the points of 32 symbols from i, which registers hold."""
    symbols = e.load(e.address("symbols", "i"), lanes(8), 1)
    places = e.builder.zext(symbols, lanes(32))
    values = e.looked_up_floats(e.args["points"], places)
    e.store_as(values, e.address("out", "i"))


@factory(lambda: [()])
def _points_writer() -> Kernel:
    in_registers = np.uint8(floats_in_registers())  # of the processor that it is compiled for

    @kernel("in uint8[], in float32[], int64, float32, out float32[]", variant="points")
    def write_points(symbols, points, store, scale, out):
        # symbols.size == out.size; points.size == 256; store: WRITE or ADD.
        for tile in range(0, out.size, _TILE):
            part, target = symbols[tile : tile + _TILE], out[tile : tile + _TILE]
            first = np.int64(0)
            if in_registers:
                top = np.uint8(0)
                for i in range(part.size):
                    top = max(top, part[i])
                if top < in_registers:
                    first = target.size - target.size % BLOCK
                    for i in range(0, first, BLOCK):
                        _points_block(part, i, points, store, scale, target)
            for i in range(first, target.size):
                point = points[part[i]]
                target[i] = target[i] + scale * point if store == ADD else point

    return write_points
