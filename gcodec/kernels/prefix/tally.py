"""Counts of symbols and gaps by size, from which exact lengths of strings follow.

Elias' codes have words of equal length for all numbers of one bit length, so bit lengths are
counted. Rice codes need the sums of numbers without their lowest bits. A symbol is twice a level,
plus its sign.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.words import at_least, count_ones, leading_zeros, trailing_zeros
from gcodec.kernels.prefix.run_level import SCAN
from gcodec.runtime import pool
from gcodec.runtime.jit import kernel

_SIZES = 64  # bit lengths, from 1
_NEXT = 4  # Rice parameters that one pass of a search evaluates
PARAMETERS = 48  # number of Rice parameters
_NEAR = 256  # numbers below it are counted individually
_ZIGZAG = np.array([0, *(k ^ 1 for k in range(2, _NEAR))])  # symbols of 0, −1, 1, −2, 2, …

_PART = 1 << 17  # elements that are counted at a time, few enough to be copied

Numbers = Literal["zigzag", "levels", "gaps"]


class Tally(NamedTuple):
    """Counts of numbers of 1, 2, … 64 bits.

    Attributes
    ----------
    above : (64,) int64 array
        Counts of the levels plus 1, of all elements.
    levels : (64,) int64 array
        Counts of the nonzero levels.
    gaps : (64,) int64 array
        Counts of the distances of elements with a nonzero level from the preceding one, or from
        position 0.
    """

    above: np.ndarray
    levels: np.ndarray
    gaps: np.ndarray

    @property
    def nonzero(self) -> int:
        """Number of nonzero levels."""
        return int(self.levels.sum())


def tally(symbols: np.ndarray) -> Tally:
    """Count the (n,) unsigned symbols of a tensor."""

    def count(part: np.ndarray, ends: np.ndarray) -> np.ndarray:
        counts = np.zeros(3 * _SIZES, np.int64)
        if part.dtype == np.uint8:
            _tally_bytes(part, counts, ends)
        else:
            _tally_wide(part.astype(np.uint32, copy=False), counts, ends)
        return counts

    counts, crossing = _total(count, symbols, 3 * _SIZES)
    above, levels, gaps = counts.reshape(3, _SIZES)
    for gap in crossing:
        gaps[gap.bit_length() - 1] += 1
    return Tally(above, levels, gaps)


def _total(
    count: Callable[[np.ndarray, np.ndarray], np.ndarray], symbols: np.ndarray, size: int
) -> tuple[np.ndarray, list[int]]:
    """Add up the counts of all parts of a tensor.

    Parameters
    ----------
    count : callable
        Returns the (size,) int64 counts of a part, and writes the positions, from 1, of its first
        and last nonzero symbol to a (2,) array of zeros.
    symbols : (n,) unsigned array
    size : int

    Returns
    -------
    (size,) int64 array
        Sum of the counts.
    list of int
        Gap before the first nonzero symbol of each part that has one.
    """

    def several(start: int, stop: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
        total, ends = np.zeros(size, np.int64), []
        for at in range(start, stop, _PART):
            own = np.zeros(2, np.int64)
            total += count(symbols[at : min(at + _PART, stop)], own)  # the arrays take megabytes
            first, last = own.tolist()
            if first:
                ends.append((at + first, at + last))
        return total, ends

    total, gaps, before = np.zeros(size, np.int64), [], 0
    for part, ends in pool.run(several, symbols.size, _PART):
        total += part
        for first, last in ends:
            gaps.append(first - before)
            before = last
    return total, gaps


def best_rice(
    symbols: np.ndarray, numbers: Numbers, counts: Tally, uncoded: int = 0
) -> tuple[int, int]:
    """Find the best parameter of a Rice code.

    Parameters
    ----------
    symbols : (n,) unsigned array
    numbers : "zigzag", "levels" or "gaps"
        Numbers that are coded. zigzag: 2k − 1 for the level −k and 2k for k, for all elements.
        levels: the nonzero levels less 1. gaps: the number of zeros before each nonzero level.
    counts : Tally
        Counts of the same symbols.
    uncoded : int
        Elements of level 0 that have no word.

    Returns
    -------
    int, int
        The least parameter with the shortest words, and the total of their bits.
    """
    if numbers == "gaps":
        sums = _gaps(symbols)
    elif symbols.dtype == np.uint8:
        sums = _sums_of_bytes(symbols, numbers)
    else:
        return _search(symbols, numbers, _middle(counts, numbers), uncoded)
    parameters = np.arange(sums.size - 1)
    lengths = sums[1:] + (sums[0] - uncoded) * (1 + parameters)
    best = int(np.argmin(lengths))
    return best, int(lengths[best])


def _middle(counts: Tally, numbers: Numbers) -> int:
    """Return the bit length of the median: the parameter where a search begins."""
    sizes = counts.above if numbers == "zigzag" else counts.levels
    return int(np.searchsorted(np.cumsum(sizes), sizes.sum() / 2))


def _gaps(symbols: np.ndarray) -> np.ndarray:
    """Return the number of gaps, and their sums without 0, 1, 2, … of their lowest bits."""

    def count(part: np.ndarray, ends: np.ndarray) -> np.ndarray:
        small = part if part.dtype == np.uint8 else (part != 0).view(np.uint8)
        counts = np.zeros(_NEAR + PARAMETERS + 1, np.int64)
        _gap_counts(small, counts[:_NEAR], counts[_NEAR:], ends)
        return counts

    counts, crossing = _total(count, symbols, _NEAR + PARAMETERS + 1)
    gaps = np.array(crossing, np.int64)[:, np.newaxis] - 1
    across = (gaps >> np.arange(PARAMETERS)).sum(axis=0)
    return _sums(counts[:_NEAR]) + counts[_NEAR:] + np.array([gaps.size, *across])


def _sums_of_bytes(symbols: np.ndarray, numbers: Numbers) -> np.ndarray:
    """Return the number of levels, and their sums without 0, 1, 2, … of their lowest bits."""
    counts = byte_counts(symbols)
    if numbers == "zigzag":
        return _sums(counts[_ZIGZAG])
    return _sums(counts[2::2] + counts[3::2])


def _sums(counts: np.ndarray) -> np.ndarray:
    """Return the number of numbers, and their sums without 0, 1, 2, … of their lowest bits.

    `counts` holds how often the numbers 0, 1, 2, … occur.
    """
    shifted = np.arange(counts.size) >> np.arange(PARAMETERS)[:, np.newaxis]
    return np.array([counts.sum(), *shifted @ counts])


def _search(symbols: np.ndarray, numbers: Numbers, near: int, uncoded: int) -> tuple[int, int]:
    """Find the best parameter for symbols of more than a byte; see `best_rice`."""
    first = max(near - 1, 0)

    def count(part: np.ndarray, ends: np.ndarray) -> np.ndarray:
        sums = np.zeros(_NEXT + 1, np.uint64)
        _shifted(part.astype(np.uint32, copy=False), numbers == "zigzag", np.uint64(first), sums)
        return sums.view(np.int64)

    while True:  # the length is convex in the parameter
        words, *sums = _total(count, symbols, _NEXT + 1)[0].tolist()
        lengths = [total + (words - uncoded) * (1 + first + k) for k, total in enumerate(sums)]
        best = lengths.index(min(lengths))
        if best == 0 and first > 0:
            first -= 1
        elif best == _NEXT - 1:
            first += 1
        else:
            return first + best, lengths[best]


@kernel("in uint8[], out int64[], out int64[]")
def _tally_bytes(small, counts, ends):
    # counts: above, levels, gaps, _SIZES each. ends: positions of the first and the last nonzero
    # symbol, or 0. The gap before the first is not counted.
    # The first loop counts levels of at least k bits; differences of these counts follow.
    above, levels, gaps = counts[:_SIZES], counts[_SIZES : 2 * _SIZES], counts[2 * _SIZES :]
    last = np.int64(0)
    whole = small.size - small.size % SCAN
    for i in range(0, whole, SCAN):
        nonzero = at_least(small, i, np.uint8(1))
        if nonzero == 0:
            continue
        for k in range(1, 8):  # symbols of levels from 2^k − 1 on, and from 2^(k − 1) on
            level = np.int64(count_ones(at_least(small, i, np.uint8((2 << k) - 2))))
            above[k] += level
            if level == 0:
                break
        for k in range(7):
            level = np.int64(count_ones(at_least(small, i, np.uint8(2 << k))))
            levels[k] += level
            if level == 0:
                break
        head = i + 1 + np.int64(trailing_zeros(nonzero))
        if last:
            gaps[63 - np.int64(leading_zeros(np.uint64(head - last)))] += 1
        else:
            ends[0] = head
        last = i + SCAN - np.int64(leading_zeros(nonzero))
        # All gaps but the first lie within the word. `zeros_n` marks where n zeros precede.
        later = nonzero & (nonzero - np.uint64(1))
        if later:
            zeros_1 = ~nonzero << np.uint64(1)
            zeros_2 = zeros_1 & zeros_1 << np.uint64(1)
            zeros_3 = zeros_2 & zeros_1 << np.uint64(2)
            zeros_4 = zeros_2 & zeros_2 << np.uint64(2)
            zeros_7 = zeros_4 & zeros_3 << np.uint64(4)
            zeros_8 = zeros_4 & zeros_4 << np.uint64(4)
            zeros_15 = zeros_8 & zeros_7 << np.uint64(8)
            zeros_16 = zeros_8 & zeros_8 << np.uint64(8)
            zeros_31 = zeros_16 & zeros_15 << np.uint64(16)
            two, four = count_ones(later & zeros_1), count_ones(later & zeros_3)
            eight, sixteen = count_ones(later & zeros_7), count_ones(later & zeros_15)
            thirty_two = count_ones(later & zeros_31)
            gaps[0] += np.int64(count_ones(later) - two)
            gaps[1] += np.int64(two - four)
            gaps[2] += np.int64(four - eight)
            gaps[3] += np.int64(eight - sixteen)
            gaps[4] += np.int64(sixteen - thirty_two)
            gaps[5] += np.int64(thirty_two)
    above[0] = whole
    for k in range(_SIZES - 1):
        above[k] -= above[k + 1]
        levels[k] -= levels[k + 1]
    for i in range(whole, small.size):
        level = np.uint64(small[i] >> 1)
        above[63 - np.int64(leading_zeros(level + np.uint64(1)))] += 1
        if level:
            levels[63 - np.int64(leading_zeros(level))] += 1
            if last:
                gaps[63 - np.int64(leading_zeros(np.uint64(i + 1 - last)))] += 1
            else:
                ends[0] = i + 1
            last = np.int64(i + 1)
    ends[1] = last


@kernel("in uint32[], out int64[], out int64[]")
def _tally_wide(symbols, counts, ends):
    # See _tally_bytes for the arguments.
    last = np.int64(0)
    for i in range(symbols.size):
        level = np.uint64(symbols[i] >> np.uint32(1))
        counts[63 - np.int64(leading_zeros(level + np.uint64(1)))] += 1  # from 0 to 63
        if symbols[i]:
            counts[_SIZES + 63 - np.int64(leading_zeros(level))] += 1
            if last:
                gap = np.uint64(i + 1 - last)
                counts[2 * _SIZES + 63 - np.int64(leading_zeros(gap))] += 1
            else:
                ends[0] = i + 1
            last = np.int64(i + 1)
    ends[1] = last


@kernel("in uint8[], out int64[], out int64[], out int64[]")
def _gap_counts(small, counts, far, ends):
    # counts: gaps − 1 below counts.size. far: the number of all others, and their sums without the
    # lowest 0, 1, 2, … bits. See _tally_bytes for `ends`.
    last = np.int64(0)
    for i in range(0, small.size, SCAN):
        mask = np.uint64(0)
        if i + SCAN <= small.size:
            mask = at_least(small, i, np.uint8(1))
        else:
            for k in range(small.size - i):
                mask |= np.uint64(small[i + k] != 0) << np.uint64(k)
        while mask:
            position = i + 1 + np.int64(trailing_zeros(mask))
            gap = position - last - 1
            if last == 0:
                ends[0] = position
            elif gap < counts.size:
                counts[gap] += 1
            else:
                far[0] += 1
                for k in range(1, far.size):
                    far[k] += gap
                    gap >>= 1
            last = position
            mask &= mask - np.uint64(1)
    ends[1] = last


@kernel("in uint32[], boolean, uint64, out uint64[]")
def _shifted(symbols, zigzag, first, sums):
    # sums: the number of numbers, then their sums without the lowest first, first + 1, … bits.
    one = np.uint64(1)
    for i in range(symbols.size):
        symbol = np.uint64(symbols[i])
        if zigzag:
            number = symbol - (symbol & one) - (symbol & one)
        elif symbol == 0:
            continue
        else:
            number = (symbol >> one) - one
        sums[0] += one
        quotient = number >> first
        for k in range(1, sums.size):
            sums[k] += quotient
            quotient >>= one
