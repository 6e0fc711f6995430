"""Run–level pairs of a sparse string: the gap to the next nonzero symbol, then that symbol.

Positions count from 1; a gap is the difference from the preceding nonzero position, or from
position 0. Both words are those of prefix codes. Blocks of a seek table are blocks of pairs.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from gcodec.kernels.prefix.prefix_table import (
    FOURS,
    SINGLE_NBITS,
    WINDOW,
    PrefixCode,
    read_singles,
    ready,
    write_tables,
)
from gcodec.runtime.jit import kernel

FAR = 255  # byte that stands for a gap from 255 on, which a second array holds
NEAR = 1024  # gaps below it have their word in a table
SCAN = 64  # symbols that kernels scan at once
_TAIL = 4096  # symbols that are searched for the last nonzero one at a time


class RunLevelCode(NamedTuple):
    """The codes of a run–level pair.

    Attributes
    ----------
    gap, symbol : PrefixCode
    """

    gap: PrefixCode
    symbol: PrefixCode


class RunLevelPairs(NamedTuple):
    """Run–level pairs that were read.

    Attributes
    ----------
    gaps, symbols : (n,) uint8 array
        FAR for a gap from there on, WIDE for a symbol from there on.
    far, wide : (n,) uint64 array
        These gaps and symbols; `wide` has no elements if the code has no such symbols.
    """

    gaps: np.ndarray
    symbols: np.ndarray
    far: np.ndarray
    wide: np.ndarray

    @classmethod
    def empty(cls, code: RunLevelCode, n: int) -> RunLevelPairs:
        """Allocate n pairs of a code."""
        gaps, symbols = np.empty((2, n), np.uint8)
        wide = np.empty(n * code.symbol.wide, np.uint64)
        return cls(gaps, symbols, np.empty(n, np.uint64), wide)


def count_pairs(symbols: np.ndarray) -> tuple[int, int]:
    """Return the number of nonzero symbols of (n,) unsigned ones, and the position of the last.

    The position is 0 if all symbols are 0.
    """
    number = int(np.count_nonzero(symbols))
    for stop in range(symbols.size if number else 0, 0, -_TAIL):
        start = max(stop - _TAIL, 0)
        nonzero = np.flatnonzero(symbols[start:stop])
        if nonzero.size:
            return number, start + int(nonzero[-1]) + 1
    return 0, 0


@functools.lru_cache(maxsize=64)
def write_pair_tables(
    gap: PrefixCode, code: PrefixCode
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tables of a writer of run–level pairs.

    Returns
    -------
    gaps : (NEAR,) uint64 array
    singles : (WIDE + 1,) uint64 array
        Entries of gaps and of symbols; see `WriteTables.singles`.
    groups : (2**(4 * FOURS),) uint64 array
        Pairs of four symbols below 2**FOURS, which are the digits of the index, without the first
        gap. From the lowest bit on: the number of bits (8 bits; 63 if there are too many), zeros
        before the first nonzero symbol, zeros after the last (4 bits each), the number of nonzero
        symbols (8 bits), the bits.
    """
    gaps, singles = ready(*gap.words(NEAR)), write_tables(code).singles
    groups = np.empty(1 << 4 * FOURS, np.uint64)
    _fill_groups(gaps, singles, groups)
    return gaps, singles, groups


@kernel("in uint64[], in uint64[], out uint64[]")
def _fill_groups(gaps, singles, groups):
    # gaps.size == NEAR; singles.size == WIDE + 1.
    for place in range(groups.size):
        bits, nbits, count = np.uint64(0), np.uint64(0), np.uint64(0)
        lead, gap = np.uint64(0), 0
        for k in range(4):
            symbol = (place >> FOURS * (3 - k)) & ((1 << FOURS) - 1)
            gap += 1
            if symbol:
                word = singles[symbol]
                if count == 0:
                    lead = np.uint64(k)
                else:
                    before = gaps[gap]
                    bits = bits << (before & np.uint64(63)) | before >> np.uint64(6)
                    nbits += before & np.uint64(63) if before else np.uint64(63)
                bits = bits << (word & np.uint64(63)) | word >> np.uint64(6)
                nbits += word & np.uint64(63) if word else np.uint64(63)
                count += np.uint64(1)
                gap = 0
        if nbits > np.uint64(SINGLE_NBITS):
            bits, nbits = np.uint64(0), np.uint64(63)
        tail = np.uint64(gap) if count else np.uint64(4)
        groups[place] = (
            nbits
            | lead << np.uint64(8)
            | tail << np.uint64(12)
            | count << np.uint64(16)
            | bits << np.uint64(24)
        )


@functools.lru_cache(maxsize=256)
def read_pair_table(gap: PrefixCode, code: PrefixCode) -> np.ndarray:
    """Return the consecutive pairs, up to three, that fit in a window.

    Returns
    -------
    (2**WINDOW,) uint64 array
        Three bytes of symbols, the first lowest; three of gaps; a byte with their bits; their
        number.
    """
    table = np.zeros(1 << WINDOW, np.uint64)
    _fill_pair_table(read_singles(gap), read_singles(code), table)
    return table


@kernel("in uint32[], in uint32[], out uint64[]")
def _fill_pair_table(gaps, singles, table):
    # All arrays have 2**WINDOW elements.
    for start in range(table.size):
        entry, count, used = np.uint64(0), 0, np.int64(0)
        while count < 3:
            gap = np.int64(gaps[(start << used) & (table.size - 1)])
            after = used + (gap & 63)
            if gap == 0 or after > WINDOW:
                break
            single = np.int64(singles[(start << after) & (table.size - 1)])
            if single == 0 or after + (single & 63) > WINDOW:
                break
            entry |= np.uint64(single >> 6) << np.uint64(8 * count)
            entry |= np.uint64(gap >> 6) << np.uint64(8 * count + 24)
            used = after + (single & 63)
            count += 1
        table[start] = entry | np.uint64(count) << np.uint64(56) | np.uint64(used) << np.uint64(48)
