"""Histogram of magnitudes on a logarithmic scale: how often each exponent and 6 bits below it.

Integer counts do not depend on the order, so neither do they on threads, nor on the host.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.convert import is_converted
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.numeric.words import load_word
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel

SHIFT = 17
"""Bits of a float32 that are left out, all of its mantissa."""
BINS = 1 << 31 - SHIFT
FINITE = INFINITY_BITS >> SHIFT
"""Bins from this one on hold infinity and NaN."""

_TABLES = 4  # equal neighbours would wait for each other's count
_PART = 1 << 22  # elements: few enough for counts of 32 bits
_FEW = 1 << 14  # elements for which clearing more than one table does not pay


@dispatched("gcodec.kernels.numeric.log_histogram_cuda")
def log_histogram(values: np.ndarray) -> np.ndarray:
    """Count the values of a tensor by the bits of their magnitude.

    Parameters
    ----------
    values : (n,) float32 array

    Returns
    -------
    (2**14,) int64 array
        On the host, wherever the values are.
        Element k counts the x for which the bits of abs(x) are k·2^17 and up to 2^17 − 1 above.
        Zeros are in bin 0, with subnormals below 2^-132.
    """
    step = min(_PART, pool.SEGMENT) if is_converted(values) else _PART

    def several(start: int, stop: int) -> np.ndarray:
        counts = np.zeros(BINS, np.int64)
        tables = np.empty((_TABLES if stop - start > _FEW else 1) * BINS, np.uint32)
        for at in range(start, stop, step):
            part = values[at : min(at + step, stop)]
            _count_magnitudes(part.view(np.uint8), tables, counts)
        return counts

    return sum(pool.run(several, values.size, _PART), np.zeros(BINS, np.int64))


@kernel("in uint8[], out uint32[], out int64[]")
def _count_magnitudes(data, tables, counts):
    # data.size is a multiple of 4 and at most 4 * _PART; counts.size == BINS; tables.size is a
    # multiple of it. A magnitude has 31 bits, so that without SHIFT of them it is below BINS.
    tables[:] = np.uint32(0)
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
    for start in range(0, tables.size, BINS):
        table = tables[start : start + BINS]
        for k in range(counts.size):  # table.size == counts.size
            counts[k] += np.int64(table[k])
