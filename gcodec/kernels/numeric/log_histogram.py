"""Histogram of magnitudes on a logarithmic scale: by exponent and 6 bits of the mantissa.

Integer counts do not depend on the order of elements, so they depend neither on the threads nor on
the device.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.arithmetic import TERMS, ResidualUpdate, add_tile
from gcodec.kernels.numeric.convert import is_converted
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.numeric.words import load_word
from gcodec.runtime import pool
from gcodec.runtime.cover import streams
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel
from gcodec.runtime.lanes import fence
from gcodec.runtime.memory import magnitude_bits, tile_beside

SHIFT = 17
"""Number of omitted mantissa bits of a float32."""
BINS = 1 << 31 - SHIFT
FINITE = INFINITY_BITS >> SHIFT
"""Number of bins of finite values; the bins from this one on count infinity and NaN."""

_TABLES = 4  # equal neighbors would wait for each other's count
_PART = 1 << 22  # elements, few enough for counts of 32 bits
_FEW = 1 << 14  # elements for which clearing more than one table does not pay
_TILE = 1 << 10  # elements of a sum that are counted while they are in the cache


@dispatched("gcodec.kernels.numeric.log_histogram_cuda")
def log_histogram(values: np.ndarray) -> np.ndarray:
    """Count the values of a tensor by the bits of their magnitude.

    Parameters
    ----------
    values : (n,) float32 array

    Returns
    -------
    (2**14,) int64 array
        Counts on the host, even if the values are on a device. Element k counts the values x for
        which the bits of abs(x) are from k·2^17 to (k + 1)·2^17 − 1. Bin 0 counts zeros, and
        subnormals below 2^-132.
    """
    step = _step(values)

    def task(start: int, stop: int) -> np.ndarray:
        counts, tables = np.zeros(BINS, np.int64), _tables(stop - start)
        for at in range(start, stop, step):
            part = values[at : min(at + step, stop)]
            _count_magnitudes(part.view(np.uint8), tables, counts)
        return counts

    return pool.run_added(task, values.size, _PART)


def add_residual_with_histogram(x: np.ndarray, update: ResidualUpdate) -> tuple[int, np.ndarray]:
    """Do what `arithmetic.add_residual` does, and count the sum as `log_histogram` does.

    Returns
    -------
    top_bits : int
        See `ValueStatistics`.
    counts : (2**14,) int64 array
    """
    streaming, step = streams(update.separate_output), _step(x)

    def task(start: int, stop: int) -> tuple[int, np.ndarray]:
        top, counts, tables = 0, np.zeros(BINS, np.int64), _tables(stop - start)
        sums = tile_beside(_TILE, update.separate_output[start:stop])
        for at in range(start, stop, step):
            end = min(at + step, stop)
            own = update.part(at, end)
            terms = own.terms(x[at:end])
            largest = _count_sums(*terms, streaming, sums, sums.view(np.uint8), tables, counts)
            own.mark_replaced()
            top = max(top, int(largest))
        return top, counts

    tops, parts = zip(*pool.run(task, x.size, _PART, x), strict=True)
    return max(tops), sum(parts, np.zeros(BINS, np.int64))


def _step(values: np.ndarray) -> int:
    """Return the number of elements that are counted at a time."""
    return min(_PART, pool.SEGMENT) if is_converted(values) else _PART


def _tables(n: int) -> np.ndarray:
    """Return uninitialized tables for the counts of n elements."""
    return np.empty((_TABLES if n > _FEW else 1) * BINS, np.uint32)


@inline
def _count_bins(data, tables):
    """Count the magnitudes of float32 values, given as bytes.

    data.size is a multiple of 4; tables.size is BINS or _TABLES * BINS. A magnitude has 31 bits,
    so its bin is below BINS after a shift by SHIFT.
    """
    second = np.uint64(BINS if tables.size > BINS else 0)
    third, fourth = second + second, second + second + second
    below, low, high = np.uint64(BINS - 1), np.uint64(SHIFT), np.uint64(32 + SHIFT)
    whole = data.size - data.size % 16
    for i in range(0, whole, 16):
        a, b = load_word(data, i), load_word(data, i + 8)
        tables[a >> low & below] += np.uint32(1)
        tables[second + (a >> high & below)] += np.uint32(1)
        tables[third + (b >> low & below)] += np.uint32(1)
        tables[fourth + (b >> high & below)] += np.uint32(1)
    for i in range(whole, data.size, 4):
        high_byte, middle = np.int64(data[i + 3]), np.int64(data[i + 2])
        tables[(high_byte & 127) << 7 | middle >> 1] += np.uint32(1)


@inline
def _add_tables(tables, counts):
    """Add the counts of all tables; counts.size == BINS divides tables.size."""
    for start in range(0, tables.size, BINS):
        table = tables[start : start + BINS]
        for k in range(counts.size):  # table.size == counts.size
            counts[k] += np.int64(table[k])


@kernel("in uint8[], out uint32[], out int64[]")
def _count_magnitudes(data, tables, counts):
    # data.size is at most 4 * _PART; see _count_bins and _add_tables.
    tables[:] = np.uint32(0)
    _count_bins(data, tables)
    _add_tables(tables, counts)


@kernel(f"{TERMS}, boolean, out float32[], in uint8[], out uint32[], out int64[]")
def _count_sums(terms, streaming, sums, data, tables, counts):
    # The terms have n elements, at most _PART, and the backup has as many or none. sums.size ==
    # _TILE, and data are its bytes. See _count_bins and _add_tables. Returns the largest
    # magnitude.
    tables[:] = np.uint32(0)
    top = np.uint32(0)
    n = terms[0].size
    for tile in range(0, n, _TILE):
        size = min(n - tile, _TILE)
        add_tile(terms, tile, size, sums, streaming, _TILE)
        for j in range(size):
            top = max(top, magnitude_bits(sums[j]))
        _count_bins(data[: 4 * size], tables)
    if streaming:
        fence()
    _add_tables(tables, counts)
    return top
