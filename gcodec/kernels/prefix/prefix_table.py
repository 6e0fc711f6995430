"""Prefix codes as tables: what a writer puts for four symbols, what a reader sees in 12 bits.

A symbol is what is coded; its word is that of a universal code. Symbols below 255 whose words are
short are in tables, all others go by the code's rule. A `TableCode` has its words in tables only.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Literal, NamedTuple

import numpy as np

from gcodec.kernels.numeric.words import peek
from gcodec.kernels.prefix.codewords import CORRUPT, FIXED, OMEGA, RICE, TRUNCATED, UNIVERSAL, Rule
from gcodec.kernels.prefix.table_code import LOOKS, Look, TableCode
from gcodec.runtime.jit import Kernel, factory, kernel, subroutine

Mapping = Literal["plain", "zigzag", "signed"]

WIDE = 255  # in a byte: a symbol from here on, which is kept elsewhere
FOURS, TWOS = 3, 6  # bits of the symbols of which words stand together, four or two at a time
WINDOW = 12  # bits that a reader looks up
_GROUP_NBITS = 26  # bits of the longest words that stand together
SINGLE_NBITS = 28  # of the longest words that a writer has ready

Kind = tuple[Rule, Mapping, int]
DENSE_KINDS: tuple[Kind, ...] = (
    *((rule, "plain", 0) for rule in UNIVERSAL),
    *((OMEGA, "signed", 1), (RICE, "zigzag", 0), (FIXED, "zigzag", 0)),
)
"""Kinds of codes whose words stand alone."""
UNIT_KINDS: tuple[tuple[Kind, Kind], ...] = (
    ((OMEGA, "plain", 0), (OMEGA, "signed", 0)),
    ((RICE, "plain", -1), (RICE, "signed", -1)),
)
"""Kinds of codes of which those of a gap and of a symbol stand together."""


class PrefixCode(NamedTuple):
    """A code for symbols.

    Attributes
    ----------
    rule : Rule
    parameter : int
        Of the rule.
    first : int
        Least value of the rule's words.
    mapping : "plain", "zigzag" or "signed"
        What a symbol's word is. plain: the word of the value symbol + shift. zigzag: symbols 2k
        and 2k + 1 stand for k and −k, with the words of the values 2k and 2k − 1. signed: the same
        symbols, with the bit 0 or 1 and then the word of the value k + shift.
    shift : int
        1, 0 or −1.
    top : int
        Largest symbol.
    """

    rule: Rule
    parameter: int
    first: int
    mapping: Mapping = "plain"
    shift: int = 0
    top: int = 2**64 - 1

    @property
    def least(self) -> int:
        """Least symbol."""
        return (2 if self.mapping == "signed" else 1) * (self.first - self.shift)

    @property
    def in_bytes(self) -> int:
        """Symbols below it are kept in a byte."""
        return WIDE

    @property
    def wide(self) -> bool:
        """Whether there are symbols that are kept elsewhere."""
        return self.top >= WIDE

    @property
    def kind(self) -> Kind:
        """What tells one kernel from another."""
        return self.rule, self.mapping, self.shift

    @property
    def look(self) -> Look:
        """How its words are read."""
        return Look(WINDOW, 6)

    def words(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Words of the symbols below `size`, and their lengths; 0 where there is none of 56."""
        bits, nbits = np.zeros(size, np.uint64), np.zeros(size, np.int64)
        least = min(self.least, size)
        stop = min(self.top + 1, size)
        loop = _words_kernel(self.kind)
        loop(np.uint64(self.parameter), np.uint64(least), bits[least:stop], nbits[least:stop])
        if self.mapping != "plain":  # there is no −0
            bits[1:2], nbits[1:2] = 0, 0
        return bits, nbits


@functools.cache
def splitting(mapping: Mapping, shift: int) -> Any:
    """Make the subroutine (symbol) -> (bits before the word, 0 or 1; their value; value)."""
    zigzag, signed = mapping == "zigzag", mapping == "signed"
    offset = np.uint64(shift % 2**64)  # what is added wraps

    @subroutine(variant=f"{mapping} {shift}")
    def split(symbol):
        if zigzag:
            odd = symbol & np.uint64(1)
            return np.int64(0), np.uint64(0), symbol - odd - odd
        if signed:
            level = symbol >> np.uint64(1)
            return np.int64(1), symbol & np.uint64(1), level + offset
        return np.int64(0), np.uint64(0), symbol + offset

    return split


@functools.cache
def reading(kind: Kind) -> Any:
    """Make the subroutine that reads one symbol by its rule.

    (data, at, end, parameter, top) -> (symbol, next bit, or TRUNCATED or CORRUPT)
    """
    rule, mapping, shift = kind
    value_of = rule.value
    zigzag, signed = mapping == "zigzag", mapping == "signed"
    offset = np.uint64(-shift % 2**64)

    @subroutine(variant=f"{rule.name} {mapping} {shift}")
    def read_symbol(data, at, end, parameter, top):
        sign = np.uint64(0)
        if signed:
            if at >= end:
                return np.uint64(0), np.int64(TRUNCATED)
            sign = peek(data, at) >> np.uint64(63)
            at += 1
        value, after = value_of(data, at, end, parameter)
        if after < 0:
            return np.uint64(0), after
        if value > top and not signed:  # so nothing below wraps
            return np.uint64(0), np.int64(CORRUPT)
        symbol = value + offset
        if zigzag:
            odd = value & np.uint64(1)
            symbol = value + odd + odd
        elif signed:
            level = value + offset
            # The second condition also refuses what wrapped.
            if level > top >> np.uint64(1) or (level == 0 and sign != 0):
                return np.uint64(0), np.int64(CORRUPT)
            symbol = level + level + sign
        if symbol > top:
            return np.uint64(0), np.int64(CORRUPT)
        return symbol, after

    return read_symbol


@factory(
    lambda: ((kind,) for kind in dict.fromkeys((*DENSE_KINDS, *itertools.chain(*UNIT_KINDS))))
)
def _words_kernel(kind: Kind) -> Kernel:
    """Make the kernel: words of the symbols from `first` on, their lengths, 0 where too long."""
    rule, mapping, shift = kind
    word_of, split = rule.word, splitting(mapping, shift)

    @kernel("uint64, uint64, out uint64[], out int64[]", variant=f"{rule.name} {mapping} {shift}")
    def fill_words(parameter, first, bits, nbits):
        for i in range(bits.size):  # nbits.size == bits.size
            before, sign, value = split(first + np.uint64(i))
            zeros, _high, low, length = word_of(value, parameter)
            if zeros <= np.uint64(56) and length + np.int64(zeros) + before <= 56:
                nbits[i] = length + np.int64(zeros) + before
                bits[i] = low
                if before:
                    bits[i] |= sign << np.uint64(nbits[i] - 1)
            else:
                nbits[i], bits[i] = 0, 0

    return fill_words


class WriteTables(NamedTuple):
    """What a writer looks up; a word and its length are word·64 + length.

    Attributes
    ----------
    groups : (2**(4 * FOURS) + 2**(2 * TWOS),) uint32 array
        Words of four symbols below 2**FOURS, by the number that has them as digits; behind these,
        words of two symbols below 2**TWOS. Length 63 where there is none.
    singles : (WIDE + 1,) uint64 array
        Words of single symbols; 0 where there is none. Never for symbol WIDE.
    """

    groups: np.ndarray
    singles: np.ndarray


@functools.lru_cache(maxsize=256)
def write_tables(code: PrefixCode) -> WriteTables:
    """Make the tables of a writer."""
    bits, nbits = code.words(WIDE + 1)
    bits[WIDE], nbits[WIDE] = 0, 0
    twos = _joined(bits, nbits, 1 << TWOS)
    fours = _joined(*_joined(bits, nbits, 1 << FOURS), 1 << 2 * FOURS)
    groups = np.concatenate([_entries(*fours), _entries(*twos)])
    return WriteTables(groups, ready(bits, nbits))


def ready(bits: np.ndarray, nbits: np.ndarray) -> np.ndarray:
    """Join words and their lengths; 0 where a word is too long, or none."""
    short = (nbits > 0) & (nbits <= SINGLE_NBITS)
    return np.where(short, bits << np.uint64(6) | nbits.astype(np.uint64), np.uint64(0))


def _joined(bits: np.ndarray, nbits: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Join every two of the first `size` words, of which those of no length are none."""
    first, second = np.divmod(np.arange(size * size), size)
    together = nbits[first] + nbits[second]
    fits = (nbits[first] > 0) & (nbits[second] > 0) & (together <= _GROUP_NBITS)
    word = bits[first] << nbits[second].astype(np.uint64) | bits[second]
    return np.where(fits, word, np.uint64(0)), np.where(fits, together, 0)


def _entries(bits: np.ndarray, nbits: np.ndarray) -> np.ndarray:
    length = np.where(nbits > 0, nbits, 63).astype(np.uint64)
    return (bits << np.uint64(6) | length).astype(np.uint32)


@functools.lru_cache(maxsize=256)
def read_singles(
    code: PrefixCode | TableCode, window: int = WINDOW, size: int | None = None
) -> np.ndarray:
    """Symbols below `size`, or all in bytes, by the `window` bits that begin with their word.

    Returns
    -------
    (2**window,) uint32 array
        symbol·64 + length; 0 where there is none.
    """
    table = np.zeros(1 << window, np.uint32)
    _fill_singles(*code.words(code.in_bytes if size is None else size), table)
    return table


@kernel("in uint64[], in int64[], out uint32[]")
def _fill_singles(bits, nbits, table):
    for symbol in range(bits.size):  # nbits.size == bits.size
        length = nbits[symbol]
        size = table.size >> length
        if length > 0 and size > 0 and bits[symbol] < np.uint64(1) << np.uint64(length):
            start = np.int64(bits[symbol]) * size
            for place in range(start, start + size):  # at most 2**length times size
                table[place] = np.uint32(symbol << 6 | length)


@functools.lru_cache(maxsize=256)
def read_runs(code: PrefixCode | TableCode, look: Look | None = None) -> np.ndarray:
    """All symbols, up to as many as a look finds, whose words stand one behind the other.

    Parameters
    ----------
    code : PrefixCode or TableCode
    look : Look, optional
        One of LOOKS; the code's own if not given.

    Returns
    -------
    (2**window,) uint64 or uint32 array
        A byte for each symbol, the first lowest, in six or two; their bits; how many they are.
    """
    return runs_of(read_singles(code), look or code.look)


def runs_of(singles: np.ndarray, look: Look) -> np.ndarray:
    """Join the symbols of a table of `read_singles`, of WINDOW bits; see `read_runs`."""
    table = np.zeros(1 << look.window, f"u{look.nbytes}")
    _filling(look)(singles, table)
    return table


@functools.lru_cache(maxsize=256)
def read_levels(code: PrefixCode) -> tuple[np.ndarray, np.ndarray]:
    """Make the tables `read_runs` and `read_singles` of levels: int8 in place of each symbol."""
    singles = read_singles(code)
    symbols = (singles >> 6).astype(np.int64)
    levels = np.where(symbols & 1, -(symbols >> 1), symbols >> 1).astype(np.uint8)
    singles = levels.astype(np.uint32) << 6 | singles & 63
    return runs_of(singles, code.look), singles


@factory(lambda: ((look,) for look in LOOKS))
def _filling(look: Look) -> Kernel:
    window, most, nbytes = *look, look.nbytes

    @kernel(f"in uint32[], out uint{8 * nbytes}[]", variant=f"{window} {most}")
    def fill_runs(singles, table):
        # singles has 2**WINDOW elements, table 2**window
        for start in range(table.size):
            entry, count, used = np.uint64(0), 0, np.int64(0)
            while count < most:
                rest = (start << used) & (table.size - 1)
                found = np.int64(singles[(rest << WINDOW) >> window])
                if found == 0 or used + (found & 63) > window:
                    break
                entry |= np.uint64(found >> 6) << np.uint64(8 * count)
                used += found & 63
                count += 1
            table[start] = entry | np.uint64(count << 8 | used) << np.uint64(8 * nbytes - 16)

    return fill_runs


@functools.lru_cache(maxsize=256)
def least_nbits(code: PrefixCode | TableCode) -> int:
    """Bits of the shortest word of a code; a lower bound where all are longer than 56."""
    lengths = code.words(code.in_bytes)[1]
    return int(lengths[lengths > 0].min(initial=57))
