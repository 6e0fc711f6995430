"""Histogram of bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.kernels.numeric.words import leading_zeros, load_word
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel

_VALUES = 256
_TABLES = 8  # equal neighbors would wait for each other's count
_APART = _VALUES + 8  # entries from one table to the next; multiples of a page would collide
_BYTE, _EIGHT, _SIXTEEN = np.uint64(255), np.uint64(8), np.uint64(16)


@dispatched("gcodec.kernels.numeric.byte_counts_cuda")
def byte_counts(codes: np.ndarray) -> np.ndarray:
    """Count the values of (n,) uint8 codes, as a (256,) int64 array in their memory."""

    def task(start: int, stop: int) -> np.ndarray:
        counts = np.zeros(_VALUES, np.int64)
        _count_values(codes[start:stop], np.empty(_TABLES * _APART, np.int64), counts)
        return counts

    return _added(pool.run(task, codes.size))


def counts_of_parts(
    parts: Callable[[int, int, np.ndarray], np.ndarray], n: int, step: int
) -> np.ndarray:
    """Count the values of n bytes on the host.

    Parameters
    ----------
    parts : callable
        Returns the bytes of a range, and may write them to the array that it gets. Threads of the
        pool call it for ranges of `step` bytes; the last range may be shorter.
    n, step : int
    """

    def task(start: int, stop: int) -> np.ndarray:
        counts, tables = np.zeros(_VALUES, np.int64), np.empty(_TABLES * _APART, np.int64)
        room = np.empty(min(step, stop - start), np.uint8)
        for at in range(start, stop, step):
            end = min(at + step, stop)
            _count_values(parts(at, end, room[: end - at]), tables, counts)
        return counts

    return _added(pool.run(task, n, step))


def _added(parts: list[np.ndarray]) -> np.ndarray:
    """Return the sum of the counts of the given parts, at least one."""
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total


def least_nbits(counts: np.ndarray, logs: np.ndarray) -> int:
    """Return a lower bound of the bits of any string of symbols with (k,) int64 counts.

    The bound is the entropy, rounded down by up to 2^-13 bits for each symbol. `logs` is log2 of
    each index up to 2^15, in units of 2^-28, rounded down.
    """
    return int(_least_nbits(counts, logs))


@kernel("in int64[], in int64[]", vectorized=False)
def _least_nbits(counts, logs):
    # logs.size is 2^15 + 1; the sum of the counts is below 2^41, so that no product exceeds 63
    # bits.
    n, total = np.int64(0), np.int64(0)
    for k in range(counts.size):
        n += counts[k]
    of_all, _ = _log2_limits(max(n, 1), logs)
    for k in range(counts.size):
        if counts[k] > 0:
            _, own = _log2_limits(counts[k], logs)
            total += counts[k] * (max(of_all - own, 0) >> 12)
    return total >> 16


@inline
def _log2_limits(x, logs):
    """Return limits of log2(x) for x > 0: one below or equal, one above."""
    shift = max(49 - np.int64(leading_zeros(np.uint64(x))), 0)  # leaves 15 bits
    top = x >> shift
    above = top + 1 if shift > 0 else top
    return logs[top] + (shift << 28), logs[above] + 1 + (shift << 28)


@kernel("in uint8[], out int64[], out int64[]")
def _count_values(codes, tables, counts):
    # tables.size == _TABLES * _APART; counts.size == _VALUES. The counts are added to `counts`.
    tables[:] = 0
    whole, top, zeros = codes.size // 8, np.uint8(0), 0
    for i in range(codes.size):
        top = max(top, codes[i])
    is_narrow = top < 16  # two neighbors then fit a byte and are counted together
    for i in range(whole):
        word = load_word(codes, 8 * i)
        if word == 0:  # zeros come in runs, and would wait for each other's count
            zeros += 8
        elif is_narrow:
            word |= word >> np.uint64(4)
            for table in range(0, _TABLES, 2):
                tables[np.uint64(_APART * table) + (word & _BYTE)] += 1
                word >>= _SIXTEEN
        else:
            for table in range(_TABLES):
                tables[np.uint64(_APART * table) + (word & _BYTE)] += 1
                word >>= _EIGHT
    counts[0] += zeros
    for i in range(8 * whole, codes.size):
        counts[codes[i]] += 1
    for table in range(_TABLES):
        for value in range(_VALUES):
            count = tables[_APART * table + value]
            if is_narrow:
                counts[value & 15] += count
                counts[value >> 4] += count
            else:
                counts[value] += count
