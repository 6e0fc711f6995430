"""How many symbols and gaps there are of each size: what exact lengths of strings are made of.

Sizes are counted by their bit length: the words of Elias' codes are as long for all numbers of one
bit length. For Rice codes, the sum of what is left of numbers without their lowest bits is added.
Symbols are twice a level, plus its sign.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.words import bytes_at_least, count_ones, leading_zeros, trailing_zeros
from gcodec.kernels.prefix.run_level import SCAN
from gcodec.runtime import pool
from gcodec.runtime.jit import kernel

_SIZES = 64  # bit lengths, from 1
_NEXT = 4  # parameters of a Rice code that are looked at in one pass, where they are searched
PARAMETERS = 48  # that a Rice code may have
_NEAR = 256  # numbers below it are counted one by one

_PART = 1 << 17  # elements that are counted at a time

_T = TypeVar("_T")
Numbers = Literal["zigzag", "levels", "gaps"]


class Tally(NamedTuple):
    """Counts of numbers of 1, 2, … 64 bits.

    Attributes
    ----------
    above : (64,) int64 array
        Of the levels plus 1, of all elements.
    levels : (64,) int64 array
        Of the levels that are not 0.
    gaps : (64,) int64 array
        Of how far each element whose level is not 0 lies behind the one before it, or behind
        position 0.
    """

    above: np.ndarray
    levels: np.ndarray
    gaps: np.ndarray

    @property
    def sent(self) -> int:
        """How many levels are not 0."""
        return int(self.levels.sum())


def tally(symbols: np.ndarray) -> Tally:
    """Count the (n,) unsigned symbols of a tensor."""

    def task(start: int, stop: int) -> tuple[np.ndarray, int, int]:
        counts, ends = np.zeros(3 * _SIZES, np.int64), np.zeros(2, np.int64)
        part = symbols[start:stop]
        if part.dtype == np.uint8:
            _tally_bytes(part, counts, ends)
        else:
            _tally_wide(part.astype(np.uint32, copy=False), counts, ends)
        first, last = (int(end) for end in ends)
        return counts, start + first if first else 0, start + last if last else 0

    counts, ends = _added(task, symbols.size, 3 * _SIZES)
    above, levels, gaps = counts.reshape(3, _SIZES)
    for gap in _between(ends):
        gaps[gap.bit_length() - 1] += 1
    return Tally(above, levels, gaps)


def _in_parts(task: Callable[[int, int], _T], n: int) -> list[_T]:
    """Return what a task makes of parts of n elements, small enough to be copied."""

    def several(start: int, stop: int) -> list[_T]:
        return [task(at, min(at + _PART, stop)) for at in range(start, stop, _PART)]

    return [result for results in pool.run(several, n, _PART) for result in results]


def _added(
    task: Callable[[int, int], tuple[np.ndarray, int, int]], n: int, size: int
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Add up the (size,) arrays that a task returns for parts of n elements.

    The list contains the two numbers that the task returns with each array.
    """

    def several(start: int, stop: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
        total, ends = np.zeros(size, np.int64), []
        for at in range(start, stop, _PART):
            counts, first, last = task(at, min(at + _PART, stop))
            total += counts  # the array of each part would take megabytes
            ends.append((first, last))
        return total, ends

    found = pool.run(several, n, _PART)
    total = sum((total for total, _ in found), np.zeros(size, np.int64))
    return total, [pair for _, ends in found for pair in ends]


def _between(ends: list[tuple[int, int]]) -> list[int]:
    """Return the gaps before the first element that is sent of each part."""
    gaps, before = [], 0
    for first, last in ends:
        if first:
            gaps.append(first - before)
            before = last
    return gaps


def best_rice(
    symbols: np.ndarray, numbers: Numbers, counts: Tally, silent: int = 0
) -> tuple[int, int]:
    """Find the best parameter of a Rice code.

    Parameters
    ----------
    symbols : (n,) unsigned array
    numbers : "zigzag", "levels" or "gaps"
        What is coded: of all elements, 2k − 1 for the level −k and 2k for k; or of those whose
        level is not 0, the level less 1; or how many lie between them and the one before.
    counts : Tally
        Of these numbers too.
    silent : int
        Elements of level 0 that have no word.

    Returns
    -------
    int, int
        The least parameter of which the words are shortest, and their bits.
    """
    if numbers == "gaps":
        found = _gaps(symbols)
    elif symbols.dtype == np.uint8:
        found = _sums_of_bytes(symbols, numbers)
    else:
        return _search(symbols, numbers, _middle(counts, numbers), silent)
    parameters = np.arange(found.size - 1)
    lengths = found[1:] + (found[0] - silent) * (1 + parameters)
    best = int(np.argmin(lengths))
    return best, int(lengths[best])


def _middle(counts: Tally, numbers: Numbers) -> int:
    """Return which size the median has: a parameter where to look first."""
    sizes = counts.above if numbers == "zigzag" else counts.levels
    return int(np.searchsorted(np.cumsum(sizes), sizes.sum() / 2))


def _gaps(symbols: np.ndarray) -> np.ndarray:
    """Return how many gaps there are, and their sums without 0, 1, 2, … of their lowest bits."""

    def task(start: int, stop: int) -> tuple[np.ndarray, int, int]:
        part = symbols[start:stop]
        small = part if part.dtype == np.uint8 else (part != 0).view(np.uint8)
        counts, far = np.zeros(_NEAR, np.int64), np.zeros(PARAMETERS + 1, np.int64)
        ends = np.zeros(2, np.int64)
        _gap_counts(small, counts, far, ends)
        first, last = (int(end) for end in ends)
        return _sums(counts) + far, start + first if first else 0, start + last if last else 0

    total, ends = _added(task, symbols.size, PARAMETERS + 1)
    for gap in _between(ends):
        total += np.array([1, *(gap - 1 >> k for k in range(PARAMETERS))])
    return total


def _sums_of_bytes(symbols: np.ndarray, numbers: Numbers) -> np.ndarray:
    """Return the same of levels as `_gaps` does of gaps."""
    counts = byte_counts(symbols)
    if numbers == "zigzag":
        order = np.array([0, *(k ^ 1 for k in range(2, _NEAR))])  # 0, −1, 1, −2, 2, …
        return _sums(counts[order])
    return _sums(counts[2::2] + counts[3::2])


def _sums(counts: np.ndarray) -> np.ndarray:
    """Return how many numbers there are, and their sums without 0, 1, 2, … of their lowest bits.

    `counts` tells how many numbers 0, 1, 2, … there are.
    """
    numbers = np.arange(counts.size)
    return np.array([counts.sum(), *(counts @ (numbers >> k) for k in range(PARAMETERS))])


def _search(symbols: np.ndarray, numbers: Numbers, near: int, silent: int) -> tuple[int, int]:
    """Find the best parameter for symbols of more than a byte; see `best_rice`."""

    def totals(first: int) -> list[int]:
        def task(start: int, stop: int) -> np.ndarray:
            sums = np.zeros(_NEXT + 1, np.uint64)
            part = symbols[start:stop].astype(np.uint32, copy=False)
            _shifted(part, numbers == "zigzag", np.uint64(first), sums)
            return sums

        found = _in_parts(task, symbols.size)
        count, *sums = (sum(int(part[k]) for part in found) for k in range(_NEXT + 1))
        return [total + (count - silent) * (1 + first + k) for k, total in enumerate(sums)]

    first = max(near - 1, 0)
    while True:  # the length is convex in the parameter
        lengths = totals(first)
        best = lengths.index(min(lengths))
        if best == 0 and first > 0:
            first -= 1
        elif best == _NEXT - 1:
            first += 1
        else:
            return first + best, lengths[best]


@kernel("in uint8[], out int64[], out int64[]")
def _tally_bytes(small, counts, ends):
    # counts: above, levels, gaps, _SIZES each. ends: positions of the first and the last symbol
    # that is not 0, or 0. The gap before the first is not counted.
    # The loop counts those of at least so many bits; what each has more than the next follows.
    above, levels, gaps = counts[:_SIZES], counts[_SIZES : 2 * _SIZES], counts[2 * _SIZES :]
    last = np.int64(0)
    whole = small.size - small.size % SCAN
    for i in range(0, whole, SCAN):
        sent = bytes_at_least(small, i, np.uint8(1))
        if sent == 0:
            continue
        for k in range(1, 8):  # symbols of levels from 2^k − 1 on, and from 2^(k − 1) on
            level = np.int64(count_ones(bytes_at_least(small, i, np.uint8((2 << k) - 2))))
            above[k] += level
            if level == 0:
                break
        for k in range(7):
            level = np.int64(count_ones(bytes_at_least(small, i, np.uint8(2 << k))))
            levels[k] += level
            if level == 0:
                break
        head = i + 1 + np.int64(trailing_zeros(sent))
        if last:
            gaps[63 - np.int64(leading_zeros(np.uint64(head - last)))] += 1
        else:
            ends[0] = head
        last = i + SCAN - np.int64(leading_zeros(sent))
        # All gaps but the first are within the word: `zeros_n` marks where n zeros precede.
        rest = sent & (sent - np.uint64(1))
        if rest:
            zeros_1 = ~sent << np.uint64(1)
            zeros_2 = zeros_1 & zeros_1 << np.uint64(1)
            zeros_3 = zeros_2 & zeros_1 << np.uint64(2)
            zeros_4 = zeros_2 & zeros_2 << np.uint64(2)
            zeros_7 = zeros_4 & zeros_3 << np.uint64(4)
            zeros_8 = zeros_4 & zeros_4 << np.uint64(4)
            zeros_15 = zeros_8 & zeros_7 << np.uint64(8)
            zeros_16 = zeros_8 & zeros_8 << np.uint64(8)
            zeros_31 = zeros_16 & zeros_15 << np.uint64(16)
            two, four = count_ones(rest & zeros_1), count_ones(rest & zeros_3)
            eight, sixteen = count_ones(rest & zeros_7), count_ones(rest & zeros_15)
            more = count_ones(rest & zeros_31)
            gaps[0] += np.int64(count_ones(rest) - two)
            gaps[1] += np.int64(two - four)
            gaps[2] += np.int64(four - eight)
            gaps[3] += np.int64(eight - sixteen)
            gaps[4] += np.int64(sixteen - more)
            gaps[5] += np.int64(more)
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
    # as _tally_bytes
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
    # counts of gaps − 1 below counts.size; far: how many are not below, and their sums without
    # 0, 1, 2, … bits. For ends, see _tally_bytes.
    last = np.int64(0)
    for i in range(0, small.size, SCAN):
        mask = np.uint64(0)
        if i + SCAN <= small.size:
            mask = bytes_at_least(small, i, np.uint8(1))
        else:
            for k in range(small.size - i):
                mask |= np.uint64(small[i + k] != 0) << np.uint64(k)
        while mask:
            here = i + 1 + np.int64(trailing_zeros(mask))
            gap = here - last - 1
            if last == 0:
                ends[0] = here
            elif gap < counts.size:
                counts[gap] += 1
            else:
                far[0] += 1
                for k in range(1, far.size):
                    far[k] += gap
                    gap >>= 1
            last = here
            mask &= mask - np.uint64(1)
    ends[1] = last


@kernel("in uint32[], boolean, uint64, out uint64[]")
def _shifted(symbols, zigzag, first, sums):
    # sums: how many numbers, then the sums of the numbers without first, first + 1, … bits.
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
        rest = number >> first
        for k in range(1, sums.size):
            sums[k] += rest
            rest >>= one
