"""Outliers: the positions and values of symbols that the table of their class does not contain.

    k in 5 bits · gaps as rice:k words · k in 5 bits · symbols as rice:k words

A gap is the number of elements between an outlier and the preceding outlier, or the start.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context.outlier_lists import put_lists, read_lists


class Outliers(NamedTuple):
    """The symbols that escapes in a string stand for.

    Attributes
    ----------
    positions : (k,) int64 array
        Positions in the tensor, increasing.
    symbols : (k,) int64 array
        Twice a magnitude, plus 1 if the value is negative.
    """

    positions: np.ndarray
    symbols: np.ndarray

    def put(self, string: BitString) -> None:
        """Append both lists to a string, unless they are empty."""
        if self.positions.size:
            put_lists(self.positions, self.symbols, string)

    @classmethod
    def read(cls, count: int, n: int, data: np.ndarray, at: int, end: int) -> tuple[Outliers, int]:
        """Read `count` outliers among n elements from bit `at` on; also return the next bit.

        Raises
        ------
        FormatError
        """
        if not count:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64)), at
        positions, symbols, at = read_lists(data, at, end, count, n)
        return cls(positions, symbols), at

    @property
    def largest(self) -> int:
        """The largest symbol, or 0 if there are no outliers."""
        return int(self.symbols.max()) if self.symbols.size else 0

    def within(self, start: int, stop: int) -> slice:
        """Return the slice of the outliers in a range of elements."""
        first, last = self.positions.searchsorted((start, stop)).tolist()
        return slice(first, last)

    def part(self, start: int, stop: int) -> Outliers:
        """Return the outliers in a range of elements, whose positions then count from `start`."""
        positions = self.positions
        if not positions.size or (start == 0 and positions[-1] < stop):  # all, in most calls
            return self
        inside = self.within(start, stop)
        return Outliers(positions[inside] - start, self.symbols[inside])
