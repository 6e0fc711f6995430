"""Histogram of bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.kernels.numeric.words import load_word
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel

_VALUES = 256
_TABLES = 8  # equal neighbors would wait for each other's count
_APART = _VALUES + 8  # entries from one table to the next; multiples of a page would collide
_BYTE, _EIGHT = np.uint64(255), np.uint64(8)


@dispatched("gcodec.kernels.numeric.byte_counts_cuda")
def byte_counts(codes: np.ndarray) -> np.ndarray:
    """Count the values of (n,) uint8 codes, as a (256,) int64 array in their memory."""

    def task(start: int, stop: int) -> np.ndarray:
        counts = np.zeros(_TABLES * _APART, np.int64)
        _count_values(codes[start:stop], counts)
        return counts

    total = np.zeros(_TABLES * _APART, np.int64)
    for counts in pool.run(task, codes.size):
        total += counts
    sums: np.ndarray = total.reshape(_TABLES, _APART).sum(axis=0)[:_VALUES]
    return sums


def counts_of_parts(parts: Callable[[int, int], np.ndarray], n: int, step: int) -> np.ndarray:
    """Count the values of n bytes on the host, of which ``parts(start, stop)`` returns a range.

    Threads of the pool call it for ranges of `step` bytes; the last one may be shorter.
    """

    def task(start: int, stop: int) -> np.ndarray:
        counts = np.zeros(_TABLES * _APART, np.int64)
        for at in range(start, stop, step):
            _count_values(parts(at, min(at + step, stop)), counts)
        return counts

    total: np.ndarray = np.sum(pool.run(task, n, step), axis=0)
    sums: np.ndarray = total.reshape(_TABLES, _APART).sum(axis=0)[:_VALUES]
    return sums


@kernel("in uint8[], out int64[]")
def _count_values(codes, counts):
    # counts.size == _TABLES * _APART
    whole = codes.size // 8
    for i in range(whole):
        word = load_word(codes, 8 * i)
        for table in range(_TABLES):
            counts[np.uint64(_APART * table) + (word & _BYTE)] += 1
            word >>= _EIGHT
    for i in range(8 * whole, codes.size):
        counts[codes[i]] += 1
