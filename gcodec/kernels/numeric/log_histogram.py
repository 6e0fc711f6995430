"""Histogram of magnitudes on a logarithmic scale: by exponent and 6 bits of the mantissa.

Integer counts do not depend on the order of elements, so they depend neither on the threads nor on
the device.
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
"""Number of omitted mantissa bits of a float32."""
BINS = 1 << 31 - SHIFT
FINITE = INFINITY_BITS >> SHIFT
"""Number of bins of finite values; the bins from this one on count infinity and NaN."""

_TABLES = 4  # equal neighbors would wait for each other's count
_PART = 1 << 22  # elements, few enough for counts of 32 bits
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
        Counts on the host, even if the values are on a device. Element k counts the values x for
        which the bits of abs(x) are from k·2^17 to (k + 1)·2^17 − 1. Bin 0 counts zeros, and
        subnormals below 2^-132.
    """
    step = min(_PART, pool.SEGMENT) if is_converted(values) else _PART

    def task(start: int, stop: int) -> np.ndarray:
        counts = np.zeros(BINS, np.int64)
        tables = np.empty((_TABLES if stop - start > _FEW else 1) * BINS, np.uint32)
        for at in range(start, stop, step):
            part = values[at : min(at + step, stop)]
            _count_magnitudes(part.view(np.uint8), tables, counts)
        return counts

    return sum(pool.run(task, values.size, _PART), np.zeros(BINS, np.int64))


@kernel("in uint8[], out uint32[], out int64[]")
def _count_magnitudes(data, tables, counts):
    # data.size is a multiple of 4 and at most 4 * _PART; counts.size == BINS; tables.size is a
    # multiple of BINS. A magnitude has 31 bits, so its bin is below BINS after a shift by SHIFT.
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
