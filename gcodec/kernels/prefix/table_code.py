"""Codes of bytes that are given by how long each word is: canonical prefix words, as Huffman's.

Symbols that have a word, sorted by its length and then by symbol, get consecutive numbers: 0 for
the first, and zeros behind the number wherever words become longer.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import numpy as np

from gcodec.kernels.prefix.codewords import CORRUPT, TRUNCATED, Rule
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel, subroutine

LONGEST = 12  # bits of a word
SYMBOLS = 256
NONE = 63  # in place of how many bits words have together, where there is none


@subroutine(variant="table")
def _no_value(data, at, end, incomplete):
    """Tell what is wrong where the bits from `at` to `end` begin with no word of a table."""
    # All bits begin a word of a complete code; in others, the next one is wrong if it is there.
    if incomplete and at < end:
        return np.uint64(0), np.int64(CORRUPT)
    return np.uint64(0), np.int64(TRUNCATED)


# Its words are all in tables, and so have no rule.
TABLE = Rule("table", None, _no_value)


class Look(NamedTuple):
    """What a reader sees of a string at once.

    Attributes
    ----------
    window : int
        Bits.
    most : int
        Symbols that it finds there at most: 6 or 2, with entries of 8 or 4 bytes.
    """

    window: int
    most: int

    @property
    def times(self) -> int:
        """Looks for each word of bits, of which 56 hold from any bit of a byte on."""
        return 56 // self.window

    @property
    def nbytes(self) -> int:
        """Bytes of an entry, of which two tell how much it has."""
        return self.most + 2

    @property
    def margin(self) -> int:
        """Places that looks at a word of bits may write to."""
        return (self.times - 1) * self.most + self.nbytes


LOOKS = (Look(11, 6), Look(12, 6), Look(13, 2), Look(14, 2))
"""Of the codes of tables, from short words to long ones."""


class TableCode(NamedTuple):
    """A code for bytes, whose words all are in the tables of writers and readers.

    It takes the place of a `prefix_table.PrefixCode`. No symbol is kept elsewhere than in its
    byte: WIDE is a symbol like others.

    Attributes
    ----------
    nbits : bytes
        Bits of the words of the symbols 0 to 255, up to LONGEST; 0 where there is none. The code
        must not have more words than there is room for.
    """

    nbits: bytes

    @classmethod
    def of(cls, lengths: np.ndarray) -> TableCode:
        """Make it of the (n,) uint8 bits of the words of the first n symbols; others have none."""
        return cls(lengths.tobytes().ljust(SYMBOLS, b"\0"))

    @property
    def lengths(self) -> np.ndarray:
        """Bits of the words, as a (256,) uint8 array."""
        return np.frombuffer(self.nbits, np.uint8)

    @property
    def least(self) -> int:
        """Least symbol."""
        return 0

    @property
    def top(self) -> int:
        """Largest symbol."""
        return SYMBOLS - 1

    @property
    def in_bytes(self) -> int:
        """Symbols below it are kept in a byte."""
        return SYMBOLS

    @property
    def wide(self) -> bool:
        """Whether there are symbols that are kept elsewhere."""
        return False

    @property
    def kind(self) -> tuple[Rule, Literal["plain"], int]:
        """What tells one kernel from another."""
        return TABLE, "plain", 0

    @property
    def parameter(self) -> int:
        """Whether there are bits that begin no word."""
        return int(room_left(self.lengths) != 0)

    @property
    def look(self) -> Look:
        """How its words are read: long ones with large windows, for which entries are small."""
        nbits = self.lengths[self.lengths > 0].astype(float)
        mean = (nbits * 0.5**nbits).sum()  # where each symbol is as frequent as its word is short
        if mean < 4.5:
            return LOOKS[1 if nbits.max(initial=0) > 11 else 0]
        return LOOKS[2 if mean < 6.5 else 3]

    def words(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Words of the symbols below `size`, and their lengths; 0 where there is none."""
        bits, nbits = np.zeros(SYMBOLS, np.uint64), np.zeros(SYMBOLS, np.int64)
        _fill_words(self.lengths, bits, nbits)
        return bits[:size], nbits[:size]


@dispatched("gcodec.kernels.prefix.table_code_cuda")
def code_of(lengths: np.ndarray) -> TableCode:
    """Return the code to write with of the (256,) uint8 bits of words, wherever these are."""
    return TableCode.of(lengths)


def room_left(lengths: np.ndarray) -> int:
    """Return how many more words of LONGEST bits a code has room for; negative if it has none."""
    counts = np.bincount(lengths, minlength=LONGEST + 1)
    taken = sum(int(counts[k]) << LONGEST - k for k in range(1, LONGEST + 1))
    return (1 << LONGEST) - taken


@kernel("in uint8[], out uint64[], out int64[]")
def _fill_words(lengths, bits, nbits):
    # all have SYMBOLS elements
    word = np.uint64(0)
    for length in range(1, LONGEST + 1):
        word += word
        for symbol in range(lengths.size):
            if lengths[symbol] == length:
                bits[symbol], nbits[symbol] = word, length
                word += np.uint64(1)


class Places(NamedTuple):
    """What a writer looks up by bytes.

    Bits of words are the highest of a number; how many these are, or NONE, is in its lowest byte.

    Attributes
    ----------
    singles : (256,) uint64 array
        Words of single symbols.
    groups : (256,) uint64 array
        Words of as many symbols as the byte has digits, the highest first.
    digit : int
        Bits of a digit: 2 or 4 where all symbols are below 4 or 16, or 8.
    """

    singles: np.ndarray
    groups: np.ndarray
    digit: int


@functools.lru_cache(maxsize=64)
def places(code: TableCode) -> Places:
    """Make the tables of a writer."""
    bits, nbits = code.words(SYMBOLS)
    top = int(np.flatnonzero(nbits).max(initial=0))
    digit = 2 if top < 4 else 4 if top < 16 else 8
    singles, groups = np.empty(SYMBOLS, np.uint64), np.empty(SYMBOLS, np.uint64)
    _fill_places(bits, nbits, 8, singles)
    _fill_places(bits, nbits, digit, groups)
    return Places(singles, groups, digit)


@kernel("in uint64[], in int64[], int64, out uint64[]")
def _fill_places(bits, nbits, digit, table):
    # all arrays have SYMBOLS elements; digits and shifts are below 8
    for place in range(table.size):
        word, count = np.uint64(0), np.int64(0)
        for shift in range(8 - digit, -1, -digit):
            symbol = (place >> shift) & ((1 << digit) - 1)
            if nbits[symbol] == 0:
                word, count = np.uint64(0), np.int64(NONE)
                break
            word = word << np.uint64(nbits[symbol]) | bits[symbol]
            count += nbits[symbol]  # at most four words of LONGEST bits
        table[place] = word << np.uint64(64 - count) | np.uint64(count)
