"""The k largest magnitudes of an array, or all from a threshold on, by their positions.

Magnitudes are compared as integers, the bits of |x|, so that nothing is rounded; of equal ones the
first are taken. A histogram of the upper bits tells in which bin the least of the k lies; what is
of that bin or above is gathered, as a rule little more than k, and the bin is cut by further
histograms, down to one number. Where most elements are candidates, as with many equal ones, it is
the array itself that is cut further, since a list of them would be as large.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.log_histogram import FINITE, SHIFT, log_histogram
from gcodec.kernels.numeric.reduce import INFINITY_BITS, max_abs_bits
from gcodec.kernels.numeric.scatter import take
from gcodec.kernels.numeric.words import magnitudes_above, trailing_zeros
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.memory import float_bits

_CUT = 9  # bits by which a bin is cut at a time
_FEW = 4  # candidates are gathered where this many times as many are left
_WORD = 64  # elements that are compared at once
_TABLES = 4  # equal neighbours would wait for each other's count


@dispatched("gcodec.kernels.numeric.select_cuda")
def largest(values: np.ndarray, k: int) -> np.ndarray | None:
    """Find the k largest magnitudes, of equal ones the first.

    Parameters
    ----------
    values : (n,) float32 array
    k : int
        From 0 to n.

    Returns
    -------
    (k,) int64 array or None
        Positions, rising; None if there is NaN or infinity among the values.
    """
    counts = log_histogram(values)
    if counts[FINITE:].any():
        return None
    if k in (0, values.size):
        return np.arange(k)
    some, positions = values, None  # candidates, and where these are
    low, shift, need = 0, SHIFT, k
    while True:
        place, inside, above = _bin_of(counts, need)
        low += place << shift
        need -= above  # as many are from `low` to 2^shift levels above it; k − need are higher
        if need == inside or shift == 0:
            break
        if _FEW * (k - need + inside) <= some.size:
            found = _above(some, low - 1)
            positions = found if positions is None else positions[found]
            some = take(some, found)
        finer = max(shift - _CUT, 0)
        counts, shift = _counts_within(some, low, finer, 1 << shift - finer), finer
    if need == inside:
        found = _above(some, low - 1)
    else:
        found = np.concatenate([_above(some, low), _first(some, low, need)])
        found.sort(kind="stable")  # which merges the two
    return found if positions is None else positions[found]


@dispatched("gcodec.kernels.numeric.select_cuda")
def at_least(values: np.ndarray, threshold: np.float32) -> np.ndarray | None:
    """Find all magnitudes from a threshold on, which is not NaN; else as `largest`."""
    level = int(threshold.view(np.int32)) if threshold > 0 else 0
    found = _above(values, level - 1)
    return None if max_abs_bits(take(values, found)) >= INFINITY_BITS else found


@dispatched("gcodec.kernels.numeric.select_cuda")
def take_largest(values: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return positions and elements of the k largest, both on the host; None as `largest`."""
    positions = largest(values, k)
    return None if positions is None else (positions, take(values, positions))


@dispatched("gcodec.kernels.numeric.select_cuda")
def take_at_least(
    values: np.ndarray, threshold: np.float32
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return those from a threshold on; see `take_largest`."""
    positions = at_least(values, threshold)
    return None if positions is None else (positions, take(values, positions))


def _bin_of(counts: np.ndarray, need: int) -> tuple[int, int, int]:
    """Find the bin of the last of the `need` largest; how many it and those above it hold."""
    totals = np.cumsum(counts[::-1])
    place = int(np.searchsorted(totals, need))
    inside = int(counts[-1 - place])
    return counts.size - 1 - place, inside, int(totals[place]) - inside


def _above(values: np.ndarray, level: int) -> np.ndarray:
    """Return the (m,) int64 positions of all magnitudes whose bits are above a level."""

    def task(start: int, stop: int) -> list[tuple[int, np.ndarray]]:
        room = np.empty(min(stop - start, pool.SEGMENT), np.int32)
        parts = []
        for at in range(start, stop, pool.SEGMENT):
            part = values[at : min(at + pool.SEGMENT, stop)]
            parts.append((at, room[: _positions_above(part, np.int32(level), room)].copy()))
        return parts

    parts = [part for parts in pool.run(task, values.size) for part in parts]
    out = np.empty(sum(part.size for _, part in parts), np.int64)
    end = 0
    for at, part in parts:
        np.add(part, at, out=out[end : end + part.size], dtype=np.int64)
        end += part.size
    return out


def _first(values: np.ndarray, level: int, count: int) -> np.ndarray:
    """Return the positions of the first `count` magnitudes whose bits are a level."""
    out, found = np.empty(count, np.int64), 0
    for at in range(0, values.size, pool.SEGMENT):
        some = _first_equal(values[at : at + pool.SEGMENT], np.int32(level), out[found:])
        out[found : found + some] += at
        found += some
        if found == count:
            break
    return out


def _counts_within(values: np.ndarray, low: int, shift: int, bins: int) -> np.ndarray:
    """Count the magnitudes in each of some bins of 2^shift levels, from a level on."""

    def task(start: int, stop: int) -> np.ndarray:
        tables = np.zeros(_TABLES * (bins + 1), np.int64)
        for at in range(start, stop, pool.SEGMENT):
            part = values[at : min(at + pool.SEGMENT, stop)]
            _count_within(part, np.uint32(low), np.uint32(shift), tables)
        return tables

    total = np.zeros(_TABLES * (bins + 1), np.int64)
    for tables in pool.run(task, values.size):
        total += tables
    counts: np.ndarray = total.reshape(_TABLES, bins + 1).sum(axis=0)
    return counts[:bins]


@kernel("in float32[], int32, out int32[]")
def _positions_above(values, level, out):
    # out.size >= values.size, and no more are found than were looked at
    found = 0
    whole = values.size - values.size % _WORD
    for i in range(0, whole, _WORD):
        mask = magnitudes_above(values, i, level)
        while mask:
            out[found] = np.int32(i + np.int64(trailing_zeros(mask)))
            found += 1
            mask &= mask - np.uint64(1)
    for i in range(whole, values.size):
        if np.int32(float_bits(values[i]) & np.uint32(0x7FFFFFFF)) > level:
            out[found] = np.int32(i)
            found += 1
    return found


@kernel("in float32[], int32, out int64[]")
def _first_equal(values, level, out):
    found = 0
    whole = values.size - values.size % _WORD
    for i in range(0, whole, _WORD):
        equal = magnitudes_above(values, i, np.int32(level - 1))
        equal ^= magnitudes_above(values, i, level)
        while equal and found < out.size:
            out[found] = i + np.int64(trailing_zeros(equal))
            found += 1
            equal &= equal - np.uint64(1)
        if found == out.size:
            return found
    for i in range(whole, values.size):
        equal = np.int32(float_bits(values[i]) & np.uint32(0x7FFFFFFF)) == level
        if equal and found < out.size:
            out[found] = i
            found += 1
    return found


@kernel("in float32[], uint32, uint32, out int64[]")
def _count_within(values, low, shift, tables):
    # tables.size == _TABLES * (bins + 1); the last of each table is for all that is outside,
    # which below `low` is what wraps around
    bins = np.uint32(tables.size // _TABLES - 1)
    whole = values.size - values.size % _TABLES
    for i in range(0, whole, _TABLES):
        for table in range(_TABLES):
            size = np.uint32(float_bits(values[i + table]) & np.uint32(0x7FFFFFFF))
            place = min(np.uint32(np.uint32(size - low) >> shift), bins)
            tables[np.uint64(place) + np.uint64(table) * np.uint64(bins + np.uint32(1))] += 1
    for i in range(whole, values.size):
        size = np.uint32(float_bits(values[i]) & np.uint32(0x7FFFFFFF))
        tables[np.uint64(min(np.uint32(np.uint32(size - low) >> shift), bins))] += 1
