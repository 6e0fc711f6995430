"""Clusters of strings of bytes with similar histograms."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.byte_counts import (
    add_tables,
    count_part,
    count_tables,
    ideal_nbits,
)
from gcodec.runtime.jit import kernel, subroutine

_VALUES = 256
_PER_BYTE = 4  # bins of means from one byte to the next
_BINS = _PER_BYTE * _VALUES


def clusters(
    symbols: np.ndarray, ends: np.ndarray, sizes: np.ndarray, least: int, logs: np.ndarray
) -> np.ndarray:
    """Assign strings of bytes to clusters, with a table for each cluster.

    Strings with nearly the same mean of the bytes that are not 0 are in one cluster. Of neighbors
    in the order of means, those are merged, one pair after the other, whose tables save the least.

    Parameters
    ----------
    symbols : (n,) uint8 array
        Samples of the strings, end to end.
    ends : (k,) int64 array
        The end of each sample, which is not empty.
    sizes : (k,) int64 array
        Lengths of the strings, up to 2^24.
    least : int
        Bits that a further table must save.
    logs : (2**15 + 1,) int64 array
        See `byte_counts.least_nbits`.

    Returns
    -------
    (k,) int64 array
        The number of each string's cluster.
    """
    labels, numbers = np.empty(ends.size, np.int64), np.zeros((4, _BINS), np.int64)
    counts = np.zeros((_BINS + 1) * _VALUES, np.int64)
    _cluster(symbols, ends, sizes, least, logs, count_tables(), counts, *numbers, labels)
    return labels


@subroutine
def _fill_mean_bins(symbols, ends, sizes, tables, counts, is_used, labels):
    """Add the counts of each string to the bin of its mean, whose number is its label."""
    own, start = counts[_BINS * _VALUES :], 0  # the last row of counts is free
    for k in range(ends.size):
        tables[:] = 0
        own[:] = 0
        count_part(symbols[start : ends[k]], tables)
        add_tables(tables, own)
        sampled, total = ends[k] - start, np.int64(0)
        for value in range(_VALUES):
            total += value * own[value]
        others = sampled - own[0]
        labels[k] = _PER_BYTE * total // others if others > 0 else 0
        row = counts[labels[k] * _VALUES : (labels[k] + 1) * _VALUES]
        for value in range(_VALUES):
            row[value] += own[value] * sizes[k] // sampled
        is_used[labels[k]] = 1
        start = ends[k]


@subroutine
def _added_nbits(counts, nbits, first, second, logs):
    """Return how many bits more the bytes of two bins take if they share a table."""
    shared = counts[_BINS * _VALUES :]
    for value in range(_VALUES):
        shared[value] = counts[first * _VALUES + value] + counts[second * _VALUES + value]
    return ideal_nbits(shared, _VALUES, logs) - nbits[first] - nbits[second]


@subroutine
def _merge_mean_bins(counts, size, least, logs, nbits, added, live, leaders):
    """Merge neighbors among `size` bins; `live` has their numbers, and then those that remain."""
    for i in range(size - 1):
        added[i] = _added_nbits(counts, nbits, live[i], live[i + 1], logs)
    while size > 1:
        best = 0
        for i in range(1, size - 1):
            if added[i] < added[best]:
                best = i
        if added[best] >= least:
            break
        first, second = live[best], live[best + 1]
        for value in range(_VALUES):
            counts[first * _VALUES + value] += counts[second * _VALUES + value]
        nbits[first] += nbits[second] + added[best]
        leaders[second] = first
        size -= 1
        for i in range(best + 1, size):
            live[i] = live[i + 1]
        for i in range(best, size - 1):
            added[i] = added[i + 1]
        for i in range(max(best - 1, 0), min(best + 1, size - 1)):
            added[i] = _added_nbits(counts, nbits, live[i], live[i + 1], logs)


@kernel(
    "in uint8[], in int64[], in int64[], int64, in int64[], out int64[], out int64[], "
    "(out int64[], out int64[], out int64[], out int64[]), out int64[]"
)
def _cluster(symbols, ends, sizes, least, logs, tables, counts, numbers, labels):
    # ends.size == sizes.size == labels.size; counts.size == (_BINS + 1) * _VALUES, and each of
    # `numbers` has _BINS elements; all of these are 0. See `count_part` for `tables`.
    nbits, added, live, leaders = numbers
    _fill_mean_bins(symbols, ends, sizes, tables, counts, nbits, labels)
    size = 0
    for b in range(_BINS):
        leaders[b] = b
        if nbits[b] > 0:
            nbits[b] = ideal_nbits(counts[b * _VALUES : (b + 1) * _VALUES], _VALUES, logs)
            live[size] = b
            size += 1
    _merge_mean_bins(counts, size, least, logs, nbits, added, live, leaders)
    for b in range(_BINS):  # leaders come before those whom they lead
        leaders[b] = leaders[leaders[b]]
    for k in range(labels.size):
        labels[k] = leaders[labels[k]]
