"""Codes of bytes that are defined by their word lengths: canonical prefix codes, as Huffman's.

The words of symbols, sorted by length and then by symbol, are consecutive numbers from 0 on; where
words become longer, zeros are appended to the number.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import numpy as np

from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.numeric.words import put
from gcodec.kernels.prefix.codewords import CORRUPT, TRUNCATED, Family, Rule
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel, subroutine

LONGEST = 12  # bits of the longest word
SYMBOLS = 256
NONE = 63  # in place of a number of bits, if a symbol has no word
_MOST_DIGITS = 128  # digits up to which a table of all pairs is small
# How many words of LONGEST bits begin with one of each length; a length of 0 means no word.
_TAKEN = np.array([0, *((1 << LONGEST) >> length for length in range(1, 256))])
_MEAN = 4.5  # mean bits of a word up to which eight words nearly always fit into one store


@subroutine
def _no_value(rule, data, at, end, incomplete):
    """Return the error for bits from `at` to `end` that begin with no word of a table."""
    # Any bits begin a word of a complete code; otherwise further bits cannot complete a word.
    if incomplete and at < end:
        return np.uint64(0), np.int64(CORRUPT)
    return np.uint64(0), np.int64(TRUNCATED)


# All words are in tables, so that the rule has none.
TABLE = Rule("table", None, None)
IN_TABLES = Family("table", (TABLE,), None, _no_value)


class Look(NamedTuple):
    """Layout of the lookup table of a reader.

    Attributes
    ----------
    window : int
        Bits of the index.
    most : int
        Most symbols of an entry: 6 or 2, in entries of 8 or 4 bytes.
    """

    window: int
    most: int

    @property
    def times(self) -> int:
        """Lookups for each word of 64 bits, of which 56 are valid at any bit of a byte."""
        return 56 // self.window

    @property
    def nbytes(self) -> int:
        """Bytes of an entry, the last two of which count bits and symbols."""
        return self.most + 2

    @property
    def margin(self) -> int:
        """Places to which the lookups of a word may write."""
        return (self.times - 1) * self.most + self.nbytes


LOOKS = (Look(11, 6), Look(12, 6), Look(13, 2), Look(14, 2))
"""Layouts for table codes, from short words to long ones."""


class TableCode(NamedTuple):
    """A code of bytes whose words are all in the tables of writers and readers.

    It has the interface of `prefix_table.PrefixCode`. A byte represents each symbol itself: WIDE
    is an ordinary symbol.

    Attributes
    ----------
    nbits : bytes
        Word lengths of the symbols 0 to 255, up to LONGEST bits; 0 for a symbol without a word.
        They must satisfy Kraft's inequality.
    """

    nbits: bytes

    @classmethod
    def of(cls, lengths: np.ndarray) -> TableCode:
        """Return the code with these (n,) uint8 word lengths of the first n symbols."""
        return cls(lengths.tobytes().ljust(SYMBOLS, b"\0"))

    @property
    def lengths(self) -> np.ndarray:
        """Word lengths in bits as a (256,) uint8 array."""
        return np.frombuffer(self.nbits, np.uint8)

    @property
    def top(self) -> int:
        """Largest symbol."""
        return SYMBOLS - 1

    @property
    def in_bytes(self) -> int:
        """Number of the least symbols that a byte represents itself."""
        return SYMBOLS

    @property
    def wide(self) -> bool:
        """Whether a second array must hold large symbols."""
        return False

    @property
    def kind(self) -> tuple[Rule, Literal["plain"], int]:
        """What distinguishes codes; see `prefix_table.PrefixCode`."""
        return TABLE, "plain", 0

    @property
    def family(self) -> Family:
        """The rules that the kernels of this code serve."""
        return IN_TABLES

    @property
    def numbers(self) -> np.ndarray:
        """The properties that kernels read; see `prefix_table.PrefixCode`."""
        return np.array([0, self.parameter, self.top, 0, 0], np.uint64)

    @property
    def parameter(self) -> int:
        """1 if the code is incomplete, so that some bits begin no word; 0 otherwise."""
        return int(room_left(self.lengths) != 0)

    @property
    def look(self) -> Look:
        """Layout of the table of a reader: for long words a large window with small entries."""
        mean = self.mean_nbits
        if mean < 4.5:
            return LOOKS[1 if LONGEST in self.nbits else 0]
        return LOOKS[2 if mean < 6.5 else 3]

    @property
    def mean_nbits(self) -> float:
        """Mean bits of a word, for the distribution of symbols that is optimal for the code."""
        lengths = range(1, LONGEST + 1)
        return sum(self.nbits.count(length) * length * 0.5**length for length in lengths)

    def words(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the words of the symbols below `size`, and their lengths; 0 without a word."""
        bits, nbits = _words_of(self)
        return bits[:size], nbits[:size]


@functools.lru_cache(maxsize=16)  # the tables of a reader or a writer need them one after another
def _words_of(code: TableCode) -> tuple[np.ndarray, np.ndarray]:
    """Return the words of all symbols, and their lengths, read-only; see `TableCode.words`."""
    bits, nbits = np.zeros(SYMBOLS, np.uint64), np.zeros(SYMBOLS, np.int64)
    _fill_words(code.lengths, bits, nbits)
    bits.flags.writeable = nbits.flags.writeable = False
    return bits, nbits


@dispatched("gcodec.kernels.prefix.table_code_cuda")
def code_of(lengths: np.ndarray) -> TableCode:
    """Return the code of a writer by (256,) uint8 word lengths of the host or a device."""
    return TableCode.of(lengths)


def room_left(lengths: np.ndarray) -> int:
    """Return how many words of LONGEST bits a code could add; negative if it is overfull."""
    return (1 << LONGEST) - int(_TAKEN[lengths].sum())


def read_lengths(data: np.ndarray, first: int, alphabet: np.ndarray) -> tuple[np.ndarray, bool]:
    """Read word lengths of 4 bits each.

    Parameters
    ----------
    data : uint8 array
        Holds all lengths from bit `first` on.
    first : int
        From 0 to 7.
    alphabet : (k,) uint8 array
        The symbols of the lengths.

    Returns
    -------
    lengths : (256,) uint8 array
        Word lengths; 0 for symbols that are not in the alphabet.
    is_complete : bool
        Whether the lengths belong to a complete code of words up to LONGEST bits.
    """
    lengths = np.zeros(SYMBOLS, np.uint8)
    return lengths, int(_read_lengths(data, first, alphabet, lengths)) == 0


def put_lengths(lengths: np.ndarray, alphabet: np.ndarray, string: BitString) -> None:
    """Append word lengths to a string, 4 bits each.

    Parameters
    ----------
    lengths : (n,) uint8 array
        Word lengths of the symbols from 0 on.
    alphabet : (k,) uint8 array
        The symbols whose lengths are appended, in increasing order.
    string : BitString
    """
    string.reserve(alphabet.size // 2 + 1)
    _put_lengths(lengths, alphabet, string.data, string.state)


def words_nbits(lengths: np.ndarray, counts: np.ndarray) -> int:
    """Return the bits of all words, given the (n,) uint8 lengths and int64 counts of symbols."""
    return int(_words_nbits(lengths, counts))


@kernel("in uint8[], in int64[]")
def _words_nbits(lengths, counts):
    total = np.int64(0)
    for symbol in range(min(lengths.size, counts.size)):
        total += counts[symbol] * np.int64(lengths[symbol])
    return total


@kernel("in uint8[], in uint8[], out uint8[], out uint64[]", vectorized=False)
def _put_lengths(lengths, alphabet, out, state):
    # lengths.size exceeds all symbols of the alphabet; `out` has room, see `put`.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    for i in range(alphabet.size):
        acc, have, at = put(out, at, acc, have, np.uint64(lengths[alphabet[i]]), np.uint64(4))
    state[0], state[1], state[2] = np.uint64(at), acc, have


@kernel("in uint8[], int64, in uint8[], out uint8[]", vectorized=False)
def _read_lengths(data, first, alphabet, lengths):
    # 8 * data.size >= first + 4 * alphabet.size; lengths.size == SYMBOLS.
    room = np.int64(1 << LONGEST)
    for i in range(alphabet.size):
        at = (first + 4 * i) >> 3
        bits = np.int64(data[at]) << 8
        if at + 1 < data.size:
            bits |= np.int64(data[at + 1])
        length = bits >> (12 - (first + 4 * i & 7)) & 15
        lengths[alphabet[i]] = np.uint8(length)
        if length > LONGEST:
            return np.int64(-1)
        if length > 0:
            room -= np.int64(1 << LONGEST) >> length
    return room


@kernel("in uint8[], out uint64[], out int64[]")
def _fill_words(lengths, bits, nbits):
    # All arrays have SYMBOLS elements.
    word = np.uint64(0)
    for length in range(1, LONGEST + 1):
        word += word
        for symbol in range(lengths.size):
            if lengths[symbol] == length:
                bits[symbol], nbits[symbol] = word, length
                word += np.uint64(1)


class ByteTables(NamedTuple):
    """Tables of a writer, indexed by bytes.

    The highest bits of an entry are those of the words; the lowest byte is their number, or NONE.

    Attributes
    ----------
    singles : (256,) uint64 array
        Words of single symbols.
    groups : (256,) uint64 array
        Words of the symbols that are the digits of the byte, the highest first.
    digit : int
        Bits of a digit: 2 or 4 if all symbols are below 4 or 16, otherwise 8.
    """

    singles: np.ndarray
    groups: np.ndarray
    digit: int


@functools.lru_cache(maxsize=64)
def byte_tables(code: TableCode) -> ByteTables:
    """Return the tables of a writer."""
    words, singles = code.words(SYMBOLS), np.empty(SYMBOLS, np.uint64)
    _fill_places(*words, 8, singles)
    count = len(code.nbits.rstrip(b"\0"))  # no larger symbol has a word
    if count > 16:
        return ByteTables(singles, singles, 8)
    digit, groups = 2 if count <= 4 else 4, np.empty(SYMBOLS, np.uint64)
    _fill_places(*words, digit, groups)
    return ByteTables(singles, groups, digit)


@kernel("in uint64[], in int64[], int64, out uint64[]")
def _fill_places(bits, nbits, digit, table):
    # All arrays have SYMBOLS elements; digits and shifts are below 8.
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


class PairTable(NamedTuple):
    """Table of a writer with the words of all pairs of bytes.

    The digit of a byte is what it exceeds `base` by; the digit of 0 is 0, and no byte from 1 to
    `base` has a word.

    Attributes
    ----------
    base : int
    span : int
        Number of digits; 0 if pairs do not pay.
    entries : (span * span,) uint64 array
        Both words by the digit of the first byte times `span` plus that of the second, as in
        `ByteTables`.
    """

    base: int
    span: int
    entries: np.ndarray


@functools.lru_cache(maxsize=16)
def pair_table(code: TableCode) -> PairTable:
    """Return the words of pairs if they are so short that joining them in fours pays."""
    bits, nbits = code.words(SYMBOLS)
    used = np.flatnonzero(nbits[1:]) + 1
    base, top = (int(used[0]) - 1, int(used[-1])) if used.size else (0, 0)
    span = top - base + 1
    if span > _MOST_DIGITS or code.mean_nbits > _MEAN:
        return PairTable(0, 0, np.empty(0, np.uint64))
    entries = np.empty(span * span, np.uint64)
    # The digit 0 stands for the byte 0 only.
    own = np.append(bits[:1], bits[base + 1 : top + 1])
    own_nbits = np.append(nbits[:1], nbits[base + 1 : top + 1])
    _fill_pairs(own, own_nbits, entries)
    return PairTable(base, span, entries)


@kernel("in uint64[], in int64[], out uint64[]")
def _fill_pairs(bits, nbits, table):
    # bits.size == nbits.size, and table.size is its square; words have at most LONGEST bits.
    for first in range(bits.size):
        part = table[first * bits.size : (first + 1) * bits.size]
        for second in range(part.size):
            count = nbits[first] + nbits[second]
            word = bits[first] << np.uint64(nbits[second]) | bits[second]
            entry = word << np.uint64(64 - count & 63) | np.uint64(count)
            if nbits[first] == 0 or nbits[second] == 0:
                entry = np.uint64(NONE)
            part[second] = entry
