"""Histogram of bytes."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.words import leading_zeros, load_word
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel, subroutine
from gcodec.runtime.lanes import Emitter, block, lanes

_VALUES = 256
_TABLES = 8  # equal neighbors would wait for each other's count
_APART = _VALUES + 8  # entries from one table to the next; multiples of a page would collide
_FEW = 24  # bytes below this value are compared with each value, which vectors do fast
_LANES = 64  # bytes that are compared at once
_ROW = 32 * _LANES
_TILE = 4 * _ROW  # bytes whose sums in a lane fit a byte
_POINT = 28  # fractional bits of logarithms
_BYTE, _EIGHT = np.uint64(255), np.uint64(8)


@dispatched("gcodec.kernels.numeric.byte_counts_cuda")
def byte_counts(codes: np.ndarray) -> np.ndarray:
    """Count the values of (n,) uint8 codes, as a (256,) int64 array in their memory."""

    def task(start: int, stop: int) -> np.ndarray:
        counts = np.zeros(_VALUES, np.int64)
        _count_values(codes[start:stop], count_tables(), np.empty(_LANES, np.uint8), counts)
        return counts

    return pool.run_added(task, codes.size, beside=codes)


def count_tables() -> np.ndarray:
    """Return memory for the tables of `count_part`."""
    return np.empty(_TABLES * _APART, np.int64)


def least_nbits(counts: np.ndarray, logs: np.ndarray) -> int:
    """Return a lower bound of the bits of any string of symbols with (k,) int64 counts.

    The bound is the entropy, rounded down by up to 2^-13 bits for each symbol. `logs` is log2 of
    each index up to 2^15, in units of 2^-28, rounded down.
    """
    return int(_least_nbits(counts, logs))


def estimated_counts(
    counts: np.ndarray, n: int, sampled: int, occurring: tuple[int, int] | None
) -> np.ndarray:
    """Return the counts of n bytes by those of a sample.

    Parameters
    ----------
    counts : (256,) int64 array
        Counts of the sample.
    n, sampled : int
        Number of all bytes, and of those in the sample.
    occurring : (int, int) or None
        The least byte from 1 on that may occur, and the largest. These bytes and those between
        them count at least once, and so does the byte 0. None if no bytes may but the sample's.
    """
    out = np.empty(_VALUES, np.int64)
    _estimate(counts, n, sampled, *(occurring or (1, 0)), out)
    return out


@kernel("in int64[], int64, int64, int64, int64, out int64[]", vectorized=False)
def _estimate(counts, n, sampled, low, high, out):
    # counts.size == out.size == _VALUES; no count is above `sampled`. n is divided first, because
    # counts[value] * n would overflow for 2^34 bytes that are nearly all equal.
    times, rest = n // sampled, n % sampled
    for value in range(_VALUES):
        may_occur = low <= high and (value == 0 or low <= value <= high)
        scaled = counts[value] * times + counts[value] * rest // sampled
        out[value] = max(scaled, 1 if may_occur else 0)


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
    return logs[top] + (shift << _POINT), logs[above] + 1 + (shift << _POINT)


@subroutine
def count_part(codes, tables):
    """Count bytes in tables, which are 0 before the first call; see `add_tables`."""
    # tables.size == _TABLES * _APART.
    whole, zeros = codes.size // 8, 0
    for i in range(whole):
        word = load_word(codes, 8 * i)
        if word == 0:  # zeros come in runs, and would wait for each other's count
            zeros += 8
            continue
        for table in range(_TABLES):
            tables[np.uint64(_APART * table) + (word & _BYTE)] += 1
            word >>= _EIGHT
    tables[0] += zeros
    for i in range(8 * whole, codes.size):
        tables[codes[i]] += 1


@subroutine
def add_tables(tables, counts):
    """Add the counts of tables to (256,) counts."""
    for table in range(_TABLES):
        for value in range(_VALUES):
            counts[value] += tables[_APART * table + value]


@kernel("in int64[], int64, in int64[]", vectorized=False)
def ideal_nbits(counts, width, logs):
    """Return the bits of symbols, coded by an ideal coder for each model of `width` counts."""
    # counts.size is a multiple of `width`; logs.size == 2**15 + 1. The upper and lower 16 bits of
    # the numbers are multiplied apart, as the products of whole numbers would exceed 64 bits.
    high, low, own_high, own_low = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for start in range(0, counts.size, width):
        total = np.int64(0)
        for i in range(start, start + width):
            count = counts[i]
            if count > 0:
                log, _ = _log2_limits(count, logs)
                own_high += (count >> 16) * log
                own_low += (count & 0xFFFF) * log
                total += count
        if total > 0:
            log, _ = _log2_limits(total, logs)
            high += (total >> 16) * log
            low += (total & 0xFFFF) * log
    return (high + (low >> 16) >> _POINT - 16) - (own_high + (own_low >> 16) >> _POINT - 16)


@block("codes", "i", "value", "sums")
def _count_one(e: Emitter) -> None:
    """Add which of `_ROW` bytes from i on are one value to `_LANES` sums of bytes."""
    builder, kind = e.builder, lanes(8, _LANES)
    value = e.splat(builder.trunc(e.args["value"], kind.element), _LANES)
    source, target = e.address("codes", "i"), e.args["sums"]
    sums = e.load(target, kind, 1)
    for first in range(0, _ROW, _LANES):
        equal = builder.icmp_unsigned("==", e.load(e.element(source, first), kind, 1), value)
        sums = builder.sub(sums, builder.sext(equal, kind))
    e.store(sums, target, 1)


@kernel("in uint8[], out int64[], out uint8[], out int64[]")
def _count_values(codes, tables, sums, counts):
    # tables.size == _TABLES * _APART; sums.size == _LANES; counts.size == _VALUES. The counts are
    # added to `counts`.
    tables[:] = 0
    for first in range(0, codes.size, _TILE):
        part = codes[first : first + _TILE]
        top = np.uint8(0)
        for i in range(part.size):
            top = max(top, part[i])
        if top >= _FEW or part.size < _TILE:
            count_part(part, tables)
            continue
        for value in range(top + 1):
            sums[:] = 0
            for i in range(0, _TILE, _ROW):
                _count_one(part, i, value, sums)
            for lane in range(_LANES):
                counts[value] += np.int64(sums[lane])
    add_tables(tables, counts)
