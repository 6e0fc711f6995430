"""Symbols that the table of their class does not have: where they are, and what they are.

    k in 5 bits · rice:k words of the gaps before them · k in 5 bits · rice:k words of themselves

A gap is how many elements lie between an exception and the one before it, or the start.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.entropy.bit_reader import BitReader
from gcodec.entropy.rice import rice
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels import list_sizes
from gcodec.kernels.bit_string import BitString

RICE_NBITS = 5  # bits of a parameter


class Exceptions(NamedTuple):
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
        if not self.places.size:
            return
        gaps = np.diff(self.places, prepend=-1) - 1
        for numbers in (gaps, self.symbols):
            k = list_sizes.best_rice(numbers)
            string.extend(np.array([k << 8 - RICE_NBITS], np.uint8), RICE_NBITS)
            rice(k).put(numbers.astype(np.uint64), string)

    @classmethod
    def read(
        cls, count: int, n: int, data: np.ndarray, at: int, end: int
    ) -> tuple[Exceptions, int]:
        """Read so many among n elements from bit `at` on; return the next bit too.

        Raises
        ------
        FormatError
        """
        if not count:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64)), at
        found = []
        for _ in range(2):
            reader = BitReader(data, at, end, RICE_NBITS, "a list of exceptions")
            code = rice(reader.take(RICE_NBITS))
            numbers, at = code.decode(data[: -(-end // 8)], count, start=reader.at)
            if int(numbers.max()) >> 40:
                raise Corrupt("a list of exceptions has a number of more than 40 bits")
            found.append(numbers.astype(np.int64))
        if at > end:
            raise Truncated(f"the bits end within a list of exceptions, at bit {end}")
        # Below 2^40 each, of fewer than 2^23 a MiB of data: sums do not wrap around.
        places = np.cumsum(found[0] + 1) - 1
        if int(places[-1]) >= n:
            raise Corrupt(f"an exception lies at element {places[-1]} of {n}")
        if (found[1] == 1).any():
            raise Corrupt("an exception is −0")
        return cls(places, found[1]), at

    def within(self, start: int, stop: int) -> slice:
        """Return which of them lie in a range of elements."""
        first, last = np.searchsorted(self.places, (start, stop)).tolist()
        return slice(first, last)
