"""Strings of prefix words with seek tables: what they are chosen by, and how they are read.

Of universal codes and of those that are tables alike; the words themselves are of
`gcodec.kernels.prefix.dense_string`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix import dense_string
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.runtime.deferred import Deferred, when_known
from gcodec.runtime.device import device_of, host
from gcodec.wire.seek import LOG2_BLOCK, SeekTable

Take = Callable[[int, np.ndarray, np.ndarray], None]


class WordString(NamedTuple):
    """A string of words that is read.

    Attributes
    ----------
    code : PrefixCode or TableCode
    data : uint8 array
    first, end : int
        Bits where the string begins and ends.
    coded : CodedMask
        Which elements have a word.
    seek : SeekTable or None
        The table of the payload. Blocks are then read side by side, and must be so.
    """

    code: PrefixCode | TableCode
    data: np.ndarray
    first: int
    end: int
    coded: CodedMask
    seek: SeekTable | None

    def refuse_short(self) -> None:
        """Raise `Truncated` if the bits cannot hold all words."""
        dense_string.refuse_short(self.code, self.coded, self.end - self.first)

    def read(self, take: Take, *, bits_follow: bool = False) -> int:
        """Read all words; return the bit behind them.

        Parameters
        ----------
        take : callable
            See `dense_string.read`.
        bits_follow : bool
            Whether the string may end before `end`.

        Raises
        ------
        FormatError
        """
        log2_block, offsets, seek = LOG2_BLOCK, None, self.seek
        if seek is not None:
            if not bits_follow:
                seek.must_cover(self.end - self.first)
            log2_block, offsets = seek.log2_block, seek.offsets
        return _checked_end(self, self._offsets(take, log2_block, offsets), bits_follow)

    def blocks(self, log2_block: int) -> SeekTable:
        """Find where blocks begin, by reading all."""
        return SeekTable.of(log2_block, host(self._offsets(ignore, log2_block, None)))

    def _offsets(self, take: Take, log2_block: int, offsets: np.ndarray | None) -> np.ndarray:
        where = self.first, self.end, self.coded, 1 << log2_block
        return dense_string.read(self.code, self.data, *where, offsets, take)


def _checked_end(string: WordString, offsets: np.ndarray, bits_follow: bool) -> int:
    """Return the bit behind a string, given where its blocks end; refuse what follows it."""
    last: Any = offsets[-1:]
    if (device := device_of(offsets)) is None:
        last = last[0]
    else:
        last = Deferred(device, last)
    if bits_follow:
        return string.first + int(last)

    def check(size: int) -> None:
        if string.first + size < string.end:
            left = string.end - string.first - size
            raise Corrupt(f"the payload has {left} bits behind its last word")

    when_known(last, check)
    return string.end


def ignore(at: int, *symbols: np.ndarray) -> None:
    """Take symbols of which only the ends of their words are wanted."""
