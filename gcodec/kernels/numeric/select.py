"""Positions of the k largest magnitudes of an array, or of all magnitudes not below a threshold.

Magnitudes are compared as integers, the bits of |x|, without rounding; the first of equal ones are
taken. A histogram of the upper bits determines the bin of the smallest of the k magnitudes. The
magnitudes of this bin and above, usually few more than k, are gathered. Further histograms divide
the bin down to a single number. If most elements are candidates, for example because many are
equal, the histograms count the array itself, because a list of candidates would be as large.
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
from gcodec.runtime.memory import magnitude_bits

_CUT = 9  # bits by which a histogram divides a bin
_FEW = 4  # candidates are gathered if their number falls by at least this factor
_WORD = 64  # elements that are compared at once
_TABLES = 4  # equal neighbors would wait for each other's count


def largest(values: np.ndarray, k: int, counts: np.ndarray | None = None) -> np.ndarray | None:
    """Find the k largest magnitudes; the first of equal ones are taken.

    Parameters
    ----------
    values : (n,) float32 array
    k : int
        Number of magnitudes, from 0 to n.
    counts : (2**14,) int64 array, optional
        Log-histogram of the values, if it is known.

    Returns
    -------
    (k,) int64 array or None
        Positions, rising; None if the values contain NaN or infinity.
    """
    counts = log_histogram(values) if counts is None else counts
    if counts[FINITE:].any():
        return None
    if k in (0, values.size):
        return np.arange(k)
    candidates, positions = values, None
    low, shift, need = 0, SHIFT, k
    while True:
        place, inside, above = _bin_of(counts, need)
        low += place << shift
        need -= above  # to take from the bin of 2^shift levels from `low` on; k − need are above
        if need == inside or shift == 0:
            break
        if _FEW * (k - need + inside) <= candidates.size:
            selection = _above(candidates, low - 1)
            positions = selection if positions is None else positions[selection]
            candidates = take(candidates, selection)
        finer = max(shift - _CUT, 0)
        counts, shift = _counts_within(candidates, low, finer, 1 << shift - finer), finer
    if need == inside:
        selection = _above(candidates, low - 1)
    else:
        selection = np.concatenate([_above(candidates, low), _first(candidates, low, need)])
        selection.sort(kind="stable")  # merges the two parts
    return selection if positions is None else positions[selection]


def at_least(values: np.ndarray, threshold: np.float32) -> np.ndarray | None:
    """Find all magnitudes not below a threshold, which is not NaN; see `largest`."""
    level = int(threshold.view(np.int32)) if threshold > 0 else 0
    positions = _above(values, level - 1)
    return None if max_abs_bits(take(values, positions)) >= INFINITY_BITS else positions


@dispatched("gcodec.kernels.numeric.select_cuda")
def take_largest(
    values: np.ndarray, k: int, counts: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return positions and elements of the k largest, on the host; or None, as `largest`.

    `counts` must be None on a device.
    """
    positions = largest(values, k, counts)
    return None if positions is None else (positions, take(values, positions))


@dispatched("gcodec.kernels.numeric.select_cuda")
def take_at_least(
    values: np.ndarray, threshold: np.float32
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return positions and elements of `at_least`, on the host; see `take_largest`."""
    positions = at_least(values, threshold)
    return None if positions is None else (positions, take(values, positions))


def _bin_of(counts: np.ndarray, need: int) -> tuple[int, int, int]:
    """Return the bin of the last of the `need` largest, its count, and the counts above it."""
    totals = np.cumsum(counts[::-1])
    place = int(np.searchsorted(totals, need))
    inside = int(counts[-1 - place])
    return counts.size - 1 - place, inside, int(totals[place]) - inside


def _above(values: np.ndarray, level: int) -> np.ndarray:
    """Return the (m,) int64 positions of all magnitudes whose bits are above a level."""

    def task(start: int, stop: int) -> list[tuple[int, np.ndarray]]:
        buffer = np.empty(min(stop - start, pool.SEGMENT), np.int32)
        parts = []
        for at in range(start, stop, pool.SEGMENT):
            part = values[at : min(at + pool.SEGMENT, stop)]
            parts.append((at, buffer[: _positions_above(part, np.int32(level), buffer)].copy()))
        return parts

    parts = [part for parts in pool.run(task, values.size) for part in parts]
    out = np.empty(sum(part.size for _, part in parts), np.int64)
    end = 0
    for at, part in parts:
        np.add(part, at, out=out[end : end + part.size], dtype=np.int64)
        end += part.size
    return out


def _first(values: np.ndarray, level: int, count: int) -> np.ndarray:
    """Return the positions of the first `count` magnitudes whose bits equal a level."""
    out, end = np.empty(count, np.int64), 0
    for at in range(0, values.size, pool.SEGMENT):
        added = _first_equal(values[at : at + pool.SEGMENT], np.int32(level), out[end:])
        out[end : end + added] += at
        end += added
        if end == count:
            break
    return out


def _counts_within(values: np.ndarray, low: int, shift: int, bins: int) -> np.ndarray:
    """Count the magnitudes in `bins` bins of 2^shift levels each, from level `low` on."""

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
    # out.size >= values.size
    count = 0
    whole = values.size - values.size % _WORD
    for i in range(0, whole, _WORD):
        mask = magnitudes_above(values, i, level)
        while mask:
            out[count] = np.int32(i + np.int64(trailing_zeros(mask)))
            count += 1
            mask &= mask - np.uint64(1)
    for i in range(whole, values.size):
        if np.int32(magnitude_bits(values[i])) > level:
            out[count] = np.int32(i)
            count += 1
    return count


@kernel("in float32[], int32, out int64[]")
def _first_equal(values, level, out):
    count = 0
    whole = values.size - values.size % _WORD
    for i in range(0, whole, _WORD):
        equal = magnitudes_above(values, i, np.int32(level - 1))
        equal ^= magnitudes_above(values, i, level)
        while equal and count < out.size:
            out[count] = i + np.int64(trailing_zeros(equal))
            count += 1
            equal &= equal - np.uint64(1)
        if count == out.size:
            return count
    for i in range(whole, values.size):
        is_equal = np.int32(magnitude_bits(values[i])) == level
        if is_equal and count < out.size:
            out[count] = i
            count += 1
    return count


@kernel("in float32[], uint32, uint32, out int64[]")
def _count_within(values, low, shift, tables):
    # tables.size == _TABLES * (bins + 1). The last bin of each table counts the magnitudes outside
    # the others; the difference of a magnitude below `low` wraps around to a large number.
    bins = np.uint32(tables.size // _TABLES - 1)
    whole = values.size - values.size % _TABLES
    for i in range(0, whole, _TABLES):
        for table in range(_TABLES):
            size = magnitude_bits(values[i + table])
            place = min(np.uint32(np.uint32(size - low) >> shift), bins)
            tables[np.uint64(place) + np.uint64(table) * np.uint64(bins + np.uint32(1))] += 1
    for i in range(whole, values.size):
        size = magnitude_bits(values[i])
        tables[np.uint64(min(np.uint32(np.uint32(size - low) >> shift), bins))] += 1
