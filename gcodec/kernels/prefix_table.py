"""Prefix codes as tables: what a writer puts for four symbols, what a reader sees in 12 bits.

A symbol is what is coded; its word is that of a universal code. Symbols below 255 whose words are
short are in tables, all others go by the code's rule.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import numpy as np

from gcodec.kernels.codewords import CORRUPT, TRUNCATED, Rule
from gcodec.kernels.jit import Kernel, kernel, subroutine
from gcodec.kernels.words import peek

Mapping = Literal["plain", "zigzag", "signed"]

WIDE = 255  # in a byte: a symbol from here on, which is kept elsewhere
FOURS, TWOS = 3, 6  # bits of the symbols of which words stand together, four or two at a time
WINDOW = 12  # bits that a reader looks up
_GROUP_NBITS = 26  # bits of the longest words that stand together
_SINGLE_NBITS = 28  # of the longest words that a writer has ready


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
    def kind(self) -> tuple[Rule, Mapping, int]:
        """What tells one kernel from another."""
        return self.rule, self.mapping, self.shift


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
def reading(kind: tuple[Rule, Mapping, int]) -> Any:
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


@functools.cache
def _words_kernel(kind: tuple[Rule, Mapping, int]) -> Kernel:
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


def _words(code: PrefixCode, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Words of the symbols below `size`, and their lengths; 0 where there is none of 56 bits."""
    bits, nbits = np.zeros(size, np.uint64), np.zeros(size, np.int64)
    least = min(code.least, size)
    stop = min(code.top + 1, size)
    loop = _words_kernel(code.kind)
    loop(np.uint64(code.parameter), np.uint64(least), bits[least:stop], nbits[least:stop])
    if code.mapping != "plain":  # there is no −0
        bits[1:2], nbits[1:2] = 0, 0
    return bits, nbits


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
    bits, nbits = _words(code, WIDE + 1)
    bits[WIDE], nbits[WIDE] = 0, 0
    twos = _joined(bits, nbits, 1 << TWOS)
    fours = _joined(*_joined(bits, nbits, 1 << FOURS), 1 << 2 * FOURS)
    groups = np.concatenate([_entries(*fours), _entries(*twos)])
    return WriteTables(groups, _ready(bits, nbits))


def _ready(bits: np.ndarray, nbits: np.ndarray) -> np.ndarray:
    """Join words and their lengths; 0 where a word is too long, or none."""
    ready = (nbits > 0) & (nbits <= _SINGLE_NBITS)
    return np.where(ready, bits << np.uint64(6) | nbits.astype(np.uint64), np.uint64(0))


NEAR = 1024  # gaps below it have their word in a table


@functools.lru_cache(maxsize=64)
def unit_tables(gap: PrefixCode, code: PrefixCode) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make the tables of a writer of units, each a gap and a symbol.

    Returns
    -------
    gaps : (NEAR,) uint64 array
    singles : (WIDE + 1,) uint64 array
        As `WriteTables.singles`, of gaps and of symbols.
    groups : (2**(4 * FOURS),) uint64 array
        Of four symbols below 2**FOURS, by the number that has them as digits: their units but for
        the first gap. From the lowest bit on: how many bits these are (8 bits; 63 where there are
        too many), zeros before the first symbol that is not 0, zeros behind the last (4 each), how
        many are not 0 (8), the bits.
    """
    gaps, singles = _ready(*_words(gap, NEAR)), write_tables(code).singles
    groups = np.empty(1 << 4 * FOURS, np.uint64)
    _fill_groups(gaps, singles, groups)
    return gaps, singles, groups


@kernel("in uint64[], in uint64[], out uint64[]")
def _fill_groups(gaps, singles, groups):
    # gaps.size == NEAR, singles.size == WIDE + 1
    for place in range(groups.size):
        bits, nbits, count = np.uint64(0), np.uint64(0), np.uint64(0)
        lead, gap = np.uint64(0), 0
        for k in range(4):
            symbol = (place >> FOURS * (3 - k)) & ((1 << FOURS) - 1)
            gap += 1
            if symbol:
                word = singles[symbol]
                if count == 0:
                    lead = np.uint64(k)
                else:
                    before = gaps[gap]
                    bits = bits << (before & np.uint64(63)) | before >> np.uint64(6)
                    nbits += before & np.uint64(63) if before else np.uint64(63)
                bits = bits << (word & np.uint64(63)) | word >> np.uint64(6)
                nbits += word & np.uint64(63) if word else np.uint64(63)
                count += np.uint64(1)
                gap = 0
        if nbits > np.uint64(_SINGLE_NBITS):
            bits, nbits = np.uint64(0), np.uint64(63)
        tail = np.uint64(gap) if count else np.uint64(4)
        groups[place] = (
            nbits
            | lead << np.uint64(8)
            | tail << np.uint64(12)
            | count << np.uint64(16)
            | bits << np.uint64(24)
        )


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
def read_singles(code: PrefixCode, window: int = WINDOW, size: int = WIDE) -> np.ndarray:
    """Symbols below `size` by the `window` bits that begin with their word.

    Returns
    -------
    (2**window,) uint32 array
        symbol·64 + length; 0 where there is none.
    """
    bits, nbits = _words(code, size)
    table = np.zeros(1 << window, np.uint32)
    for symbol in np.flatnonzero((nbits > 0) & (nbits <= window)).tolist():
        length = int(nbits[symbol])
        start = int(bits[symbol]) << window - length
        table[start : start + (1 << window - length)] = symbol << 6 | length
    return table


@functools.lru_cache(maxsize=256)
def read_runs(code: PrefixCode) -> np.ndarray:
    """All symbols, up to six, whose words stand one behind the other in a window.

    Returns
    -------
    (2**WINDOW,) uint64 array
        A byte for each symbol, the first lowest, in six; their bits; how many they are.
    """
    table = np.zeros(1 << WINDOW, np.uint64)
    _fill_runs(read_singles(code), table)
    return table


@functools.lru_cache(maxsize=256)
def read_units(gap: PrefixCode, code: PrefixCode) -> np.ndarray:
    """All units of a gap and a symbol, up to three, that stand in a window.

    Returns
    -------
    (2**WINDOW,) uint64 array
        Three bytes of symbols, the first lowest; three of gaps; their bits; how many they are.
    """
    table = np.zeros(1 << WINDOW, np.uint64)
    _fill_units(read_singles(gap), read_singles(code), table)
    return table


@kernel("in uint32[], out uint64[]")
def _fill_runs(singles, table):
    # both have 2**WINDOW elements
    for start in range(table.size):
        entry, count, used = np.uint64(0), 0, np.int64(0)
        while count < 6:
            found = np.int64(singles[(start << used) & (table.size - 1)])
            if found == 0 or used + (found & 63) > WINDOW:
                break
            entry |= np.uint64(found >> 6) << np.uint64(8 * count)
            used += found & 63
            count += 1
        table[start] = entry | np.uint64(count) << np.uint64(56) | np.uint64(used) << np.uint64(48)


@kernel("in uint32[], in uint32[], out uint64[]")
def _fill_units(gaps, singles, table):
    # all have 2**WINDOW elements
    for start in range(table.size):
        entry, count, used = np.uint64(0), 0, np.int64(0)
        while count < 3:
            gap = np.int64(gaps[(start << used) & (table.size - 1)])
            after = used + (gap & 63)
            if gap == 0 or after > WINDOW:
                break
            found = np.int64(singles[(start << after) & (table.size - 1)])
            if found == 0 or after + (found & 63) > WINDOW:
                break
            entry |= np.uint64(found >> 6) << np.uint64(8 * count)
            entry |= np.uint64(gap >> 6) << np.uint64(8 * count + 24)
            used = after + (found & 63)
            count += 1
        table[start] = entry | np.uint64(count) << np.uint64(56) | np.uint64(used) << np.uint64(48)


@functools.lru_cache(maxsize=256)
def least_nbits(code: PrefixCode) -> int:
    """Bits of the shortest word of a code; a lower bound where all are longer than 56."""
    lengths = _words(code, WIDE)[1]
    return int(lengths[lengths > 0].min(initial=57))
