"""A reader of unsigned integers of a few bits each."""

from __future__ import annotations

import numpy as np

from gcodec.errors import Truncated
from gcodec.kernels.bits.sized_integers import read_sized
from gcodec.runtime.device import host


class BitReader:
    """Reads unsigned integers, most significant bit first.

    Parameters
    ----------
    data : uint8 array
        The bytes.
    at, end : int
        First bit to read, and the bit after the last valid one.
    most : int
        Largest number of bits that the caller reads.
    what : str
        Name of the structure, for the error message.

    Attributes
    ----------
    at : int
        The next bit.
    """

    def __init__(self, data: np.ndarray, at: int, end: int, most: int, what: str) -> None:
        self._first = at // 8  # in whole bytes
        last = -(-min(at + most, end) // 8)
        self._data = host(data[self._first : last])
        self._end = end
        self._what = what
        self.at = at

    def take(self, count: int) -> int:
        """Return the next `count` bits as an integer; raise `Truncated` if the bits end."""
        if count > self._end - self.at:
            raise self.truncated()
        start = self.at // 8
        self.at += count
        stop = self.at + 7 >> 3
        part = self._data[start - self._first : stop - self._first]
        word = int.from_bytes(part.tobytes(), "big")
        return word >> 8 * stop - self.at & (1 << count) - 1

    def take_sized(self, count: int) -> np.ndarray:
        """Return `count` integers that have their lengths; raise `Truncated` if the bits end."""
        numbers, _ = self.sized(count)
        if numbers.size < count:
            raise self.truncated()
        return numbers

    def sized(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return integers that have their lengths, fewer than `count` if the bits end.

        See `gcodec.kernels.bits.sized_integers`. Also return the bit after each one.
        """
        before = 8 * self._first
        numbers, ends = read_sized(self._data, self.at - before, self._end - before, count)
        ends += before
        if ends.size:
            self.at = int(ends[-1])
        return numbers, ends

    def truncated(self) -> Truncated:
        """Return the error of bits that end too early."""
        return Truncated(f"the bits end within {self._what}, at bit {self._end}")
