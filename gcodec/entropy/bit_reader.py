"""A reader of unsigned integers of a few bits each, and the bits of an integer with its length."""

from __future__ import annotations

import numpy as np

from gcodec.errors import Truncated
from gcodec.runtime.device import host

SIZE_NBITS = 4  # of the bit length of an integer


def sized(number: int) -> str:
    """Return the bits that `BitReader.take_sized` reads as a number, as text."""
    return f"{number.bit_length():0{SIZE_NBITS}b}" + (f"{number:b}"[1:] if number else "")


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
        self._bytes = host(data[self._first : last]).tobytes()
        self._end = end
        self._what = what
        self.at = at

    def take(self, count: int) -> int:
        """Return the next `count` bits as an integer; raise `Truncated` if the bits end."""
        if count > self._end - self.at:
            raise Truncated(f"the bits end within {self._what}, at bit {self._end}")
        start = self.at // 8
        self.at += count
        stop = self.at + 7 >> 3
        word = int.from_bytes(self._bytes[start - self._first : stop - self._first], "big")
        return word >> 8 * stop - self.at & (1 << count) - 1

    def take_sized(self) -> int:
        """Return an integer that is stored as its bit length, in 4 bits, and its lower bits."""
        length = self.take(SIZE_NBITS)
        return 1 << length - 1 | self.take(length - 1) if length else 0
