"""Symbols that the table of their class does not have: where they are, and what they are.

    k in 5 bits · rice:k words of the gaps before them · k in 5 bits · rice:k words of themselves

A gap is how many elements lie between an exception and the one before it, or the start.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context.outlier_lists import put_lists, read_lists


class Outliers(NamedTuple):
    """Symbols that are told beside a string.

    Attributes
    ----------
    places : (k,) int64 array
        Rising.
    symbols : (k,) int64 array
        Twice a magnitude, plus 1 where it is negative.
    """

    places: np.ndarray
    symbols: np.ndarray

    def put(self, string: BitString) -> None:
        """Put them at the end of a string, if there are some."""
        if self.places.size:
            put_lists(self.places, self.symbols, string)

    @classmethod
    def read(cls, count: int, n: int, data: np.ndarray, at: int, end: int) -> tuple[Outliers, int]:
        """Read so many among n elements from bit `at` on; return the next bit too.

        Raises
        ------
        FormatError
        """
        if not count:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64)), at
        places, symbols, at = read_lists(data, at, end, count, n)
        return cls(places, symbols), at

    def within(self, start: int, stop: int) -> slice:
        """Return which of them lie in a range of elements."""
        if not self.places.size:
            return slice(0, 0)
        return slice(int(self.places.searchsorted(start)), int(self.places.searchsorted(stop)))
