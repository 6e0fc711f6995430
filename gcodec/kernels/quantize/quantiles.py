"""Ranges of elements: elements of given ranks, the range of each element, and sums by code.

Nothing is sorted whole. Numbers of a bin share sign, exponent and some bits of the mantissa. A
histogram shows which bins have the elements of the wanted ranks, and only these are sorted.
Ranges are found by coarser bins: a table has the first range of each bin, and few comparisons
follow.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.arithmetic import fetch_block
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import BLOCK

CODES = 256
_SORTED = 1 << 14  # elements up to which sorting all takes less time
_RANK_BIN = 15  # bits of a float32 that a bin for ranks drops
_RANK_BINS = 1 << 32 - _RANK_BIN
_RANGE_BIN = 17  # bits of a float32 that a bin for ranges drops
_TILE = 512  # elements that are prefetched together
_COMPARISONS = 3  # that follow the table, at most


def of_ranks(x: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return the elements of given ranks in ascending order; the sign of 0 is arbitrary.

    Parameters
    ----------
    x : (n,) float32 array
        Finite.
    ranks : (k,) int64 array
        Ascending ranks, from 0 to n − 1.
    """
    if x.size <= _SORTED:
        return sorted_ranks(x, ranks)
    bits, counts = x.view(np.uint32), np.zeros(_RANK_BINS, np.int32)
    is_wanted, places = np.zeros(_RANK_BINS, np.uint8), np.empty(ranks.size, np.int64)
    count = int(_mark_bins(bits, ranks, counts, is_wanted, places))
    wanted = np.empty(count + 1, np.uint32)  # the last one is for unwanted elements
    _take_wanted(bits, is_wanted, wanted)
    return np.asarray(np.sort(wanted[:count].view(np.float32))[places])


def find_ranges(x: np.ndarray, starts: np.ndarray, borders: np.ndarray, out: np.ndarray) -> None:
    """Write the number of borders below each element, as `np.searchsorted` finds it.

    Parameters
    ----------
    x : (n,) float32 array
        Finite.
    starts, borders : array
        See `range_table`.
    out : (n,) uint8 array
    """
    _find_ranges(x, x.view(np.uint32), starts, borders, out)


def range_table(borders: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what `find_ranges` needs, given (255,) ascending float32 borders.

    The first array has the number of borders below all numbers of each bin, and is empty where
    many borders have one bin. The second one has the borders, and infinity.
    """
    borders = np.append(borders + np.float32(0), np.float32(np.inf))  # no −0
    bins = borders[:-1].view(np.uint32) >> np.uint32(_RANGE_BIN)
    if np.bincount(bins).max() > _COMPARISONS:
        return np.empty(0, np.uint8), borders
    least = np.arange(1 << 32 - _RANGE_BIN, dtype=np.uint32) << np.uint32(_RANGE_BIN)
    least[least.size // 2 :] |= np.uint32((1 << _RANGE_BIN) - 1)  # negative, largest magnitude
    starts = np.searchsorted(borders[:-1], least.view(np.float32))
    return starts.astype(np.uint8), borders


# --- the same without kernels --------------------------------------------------------------------


def sorted_ranks(x: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return what `of_ranks` returns, without a kernel."""
    return np.asarray(np.sort(x)[ranks])


def search_ranges(x: np.ndarray, starts: np.ndarray, borders: np.ndarray, out: np.ndarray) -> None:
    """Write what `find_ranges` writes, without a kernel."""
    out[:] = np.searchsorted(borders, x)


def bin_sums(x: np.ndarray, codes: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> None:
    """Write what `sums_of_codes` adds to zeros, without a kernel."""
    sums[:] = np.bincount(codes, x, CODES)  # in order
    counts[:] = np.bincount(codes, minlength=CODES)


# --- loops ---------------------------------------------------------------------------------------


@kernel("in uint32[], in int64[], out int32[], out uint8[], out int64[]")
def _mark_bins(bits, ranks, counts, is_wanted, places):
    # counts and is_wanted are zeros, an element for each bin. places gets, for each rank, the rank
    # among the elements of wanted bins, whose number is returned.
    for i in range(bits.size):
        counts[bits[i] >> np.uint32(_RANK_BIN)] += 1
    half = counts.size // 2
    before, wanted, k = 0, 0, 0
    for j in range(counts.size):  # negative numbers in descending order of their bits first
        b = counts.size - 1 - j if j < half else j - half
        stop = before + counts[b]
        if k < ranks.size and ranks[k] < stop:
            is_wanted[b] = 1
            while k < ranks.size and ranks[k] < stop:
                places[k] = ranks[k] - before + wanted
                k += 1
            wanted += counts[b]
        before = stop
    return wanted


@kernel("in uint32[], in uint8[], out uint32[]")
def _take_wanted(bits, is_wanted, wanted):
    # wanted has one element more than there are in wanted bins.
    count = 0
    for i in range(bits.size):  # count < wanted.size
        wanted[count] = bits[i]
        count += is_wanted[bits[i] >> np.uint32(_RANK_BIN)]


@kernel("in float32[], in uint32[], in uint8[], in float32[], out uint8[]")
def _find_ranges(x, bits, starts, borders, out):
    # bits are those of x; starts has an element for each bin or none; borders.size == CODES, and
    # the last one is infinity.
    for i in range(x.size if starts.size else 0):
        code = np.uint32(starts[bits[i] >> np.uint32(_RANGE_BIN)])
        for _ in range(_COMPARISONS):
            code = np.uint32(code + np.uint32(borders[code] < x[i]))
        out[i] = code
    for i in range(0 if starts.size else x.size):
        code, step = np.uint32(0), np.uint32(CODES // 2)
        while step > 0:  # code + step <= CODES
            is_below = np.uint32(borders[np.uint32(code + step - np.uint32(1))] < x[i])
            code = np.uint32(code + step * is_below)
            step = np.uint32(step >> np.uint32(1))
        out[i] = code


@kernel("in float32[], in uint8[], out float64[], out int64[]")
def sums_of_codes(x, codes, sums, counts):
    """Add the elements of each code to (256,) float64 sums in order, and count them in int64."""
    # codes.size == x.size; sums.size == counts.size == CODES
    for tile in range(0, x.size, _TILE):
        for i in range(tile + _TILE, tile + 2 * _TILE, BLOCK):
            fetch_block(x, i)
        part, own = x[tile : tile + _TILE], codes[tile : tile + _TILE]
        for i in range(part.size):
            code = own[i]
            sums[code] += np.float64(part[i])
            counts[code] += 1
