"""Units of a sparse string: the gap to the next symbol that is not 0, then that symbol.

Positions count from 1; a gap is how far a symbol lies behind the one before it, or behind position
0. Both words are those of prefix codes. Blocks of a seek table count units.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.kernels.numeric.words import bytes_at_least, count_ones, leading_zeros
from gcodec.kernels.prefix.prefix_table import Kind, PrefixCode
from gcodec.runtime.jit import kernel

FAR = 255  # in a byte: a gap from here on, which is kept elsewhere
SCAN = 64  # symbols that are scanned at once


def name_of(kind: tuple[Kind, Kind]) -> str:
    """Name the variant of a kernel that is made for these codes."""
    return " ".join(f"{rule.name} {mapping} {shift}" for rule, mapping, shift in kind)


class RunLevelCode(NamedTuple):
    """The codes of a unit.

    Attributes
    ----------
    gap, symbol : PrefixCode
    """

    gap: PrefixCode
    symbol: PrefixCode

    @property
    def kind(self) -> tuple[Kind, Kind]:
        """What tells one kernel from another."""
        return self.gap.kind, self.symbol.kind


class RunLevelPairs(NamedTuple):
    """Units that were read, by their number.

    Attributes
    ----------
    gaps, symbols : (n,) uint8 array
        FAR for a gap from there on, WIDE for a symbol from there on.
    far, wide : (n,) uint64 array
        These gaps and symbols; of no elements, where the code has no such symbols.
    """

    gaps: np.ndarray
    symbols: np.ndarray
    far: np.ndarray
    wide: np.ndarray


def count_units(symbols: np.ndarray) -> tuple[int, int]:
    """Return how many of (n,) unsigned symbols are not 0, and the position of the last, or 0."""
    small = symbols if symbols.dtype == np.uint8 else (symbols != 0).view(np.uint8)
    found = np.zeros(2, np.int64)
    _count_bytes(small, found)
    return int(found[0]), int(found[1])


@kernel("in uint8[], out int64[]")
def _count_bytes(small, found):
    total, last = np.int64(0), np.int64(0)
    whole = small.size - small.size % SCAN
    for i in range(0, whole, SCAN):
        mask = bytes_at_least(small, i, np.uint8(1))
        if mask:
            total += np.int64(count_ones(mask))
            last = i + SCAN - np.int64(leading_zeros(mask))
    for i in range(whole, small.size):
        if small[i]:
            total += 1
            last = np.int64(i + 1)
    found[0], found[1] = total, last
