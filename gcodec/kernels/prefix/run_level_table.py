"""Units as tables: what a writer puts for four symbols, what a reader sees in 12 bits."""

from __future__ import annotations

import functools

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

NEAR = 1024  # gaps below it have their word in a table


@functools.lru_cache(maxsize=64)
def unit_tables(gap: PrefixCode, code: PrefixCode) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make the tables of a writer of units, each a gap and a symbol.

    Returns
    -------
    gaps : (NEAR,) uint64 array
    singles : (WIDE + 1,) uint64 array
        As `WriteTables.singles`, of gaps and of symbols.
    groups : (2**(4 * FOURS),) uint64 array
        Of four symbols below 2**FOURS, by the number that has them as digits: their units but for
        the first gap. From the lowest bit on: how many bits these are (8 bits; 63 where there are
        too many), zeros before the first symbol that is not 0, zeros behind the last (4 each), how
        many are not 0 (8), the bits.
    """
    gaps, singles = ready(*gap.words(NEAR)), write_tables(code).singles
    groups = np.empty(1 << 4 * FOURS, np.uint64)
    _fill_groups(gaps, singles, groups)
    return gaps, singles, groups


@kernel("in uint64[], in uint64[], out uint64[]")
def _fill_groups(gaps, singles, groups):
    # gaps.size == NEAR, singles.size == WIDE + 1
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
def read_units(gap: PrefixCode, code: PrefixCode) -> np.ndarray:
    """All units of a gap and a symbol, up to three, that stand in a window.

    Returns
    -------
    (2**WINDOW,) uint64 array
        Three bytes of symbols, the first lowest; three of gaps; their bits; how many they are.
    """
    table = np.zeros(1 << WINDOW, np.uint64)
    _fill_units(read_singles(gap), read_singles(code), table)
    return table


@kernel("in uint32[], in uint32[], out uint64[]")
def _fill_units(gaps, singles, table):
    # all have 2**WINDOW elements
    for start in range(table.size):
        entry, count, used = np.uint64(0), 0, np.int64(0)
        while count < 3:
            gap = np.int64(gaps[(start << used) & (table.size - 1)])
            after = used + (gap & 63)
            if gap == 0 or after > WINDOW:
                break
            found = np.int64(singles[(start << after) & (table.size - 1)])
            if found == 0 or after + (found & 63) > WINDOW:
                break
            entry |= np.uint64(found >> 6) << np.uint64(8 * count)
            entry |= np.uint64(gap >> 6) << np.uint64(8 * count + 24)
            used = after + (found & 63)
            count += 1
        table[start] = entry | np.uint64(count) << np.uint64(56) | np.uint64(used) << np.uint64(48)
