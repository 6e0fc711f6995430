"""Small numbers of a few bits each, read one after the other."""

from __future__ import annotations

import numpy as np

from gcodec.errors import Truncated
from gcodec.runtime.device import host


class BitReader:
    """Reads numbers, most significant bit first.

    Parameters
    ----------
    data : uint8 array
    at, end : int
        Bits where they begin, and where what holds them ends.
    most : int
        Bits of all that is read at most.
    what : str
        What they are part of, for who finds that the bits end within it.

    Attributes
    ----------
    at : int
        The next bit.
    """

    def __init__(self, data: np.ndarray, at: int, end: int, most: int, what: str) -> None:
        first = at // 8
        last = -(-min(at + most, end) // 8)
        self._number = int.from_bytes(host(data[first:last]).tobytes(), "big")
        self._stop = 8 * last
        self._end = end
        self._what = what
        self.at = at

    def take(self, count: int) -> int:
        """Return the next bits as a number."""
        if count > self._end - self.at:
            raise Truncated(f"the bits end within {self._what}, at bit {self._end}")
        self.at += count
        return self._number >> self._stop - self.at & (1 << count) - 1

    def take_sized(self) -> int:
        """Return a number whose length comes first, in 4 bits; its highest bit is left out."""
        length = self.take(4)
        return 1 << length - 1 | self.take(length - 1) if length else 0
