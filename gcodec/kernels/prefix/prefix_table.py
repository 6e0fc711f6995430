"""Prefix codes, and their tables: words of up to four symbols, and symbols by the next bits.

The word of a symbol is that of a universal code. Tables contain the symbols below 255 whose words
are short; the code's rule encodes and decodes all others. The words of a `TableCode` are all in
tables.
"""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple, get_args

import numpy as np

from gcodec.kernels.numeric.words import peek
from gcodec.kernels.prefix.codewords import (
    CORRUPT,
    FAMILIES,
    TRUNCATED,
    Family,
    Rule,
    family_of,
)
from gcodec.kernels.prefix.table_code import LOOKS, SYMBOLS, Look, TableCode
from gcodec.runtime.jit import Inline, Kernel, factory, inline, kernel

Mapping = Literal["plain", "zigzag", "signed"]

WIDE = 255  # byte of the symbol 255, and of larger ones, if a second array holds these
FOURS, TWOS = 3, 6  # bits of the symbols that tables join in groups of four or of two
WINDOW = 12  # bits of a lookup of a reader
_GROUP_NBITS = 26  # most bits of a group of words
SINGLE_NBITS = 28  # most bits of a word in the tables of a writer

Kind = tuple[Rule, Mapping, int]
# Elements of `PrefixCode.numbers`.
RULE, PARAMETER, TOP, MAPPING, SHIFT = range(5)
_PLAIN, _ZIGZAG, _SIGNED = (np.uint64(k) for k in range(3))


class PrefixCode(NamedTuple):
    """A prefix code of symbols.

    Attributes
    ----------
    rule : Rule
    parameter : int
        Parameter of the rule.
    first : int
        Least value for which the rule has a word.
    mapping : "plain", "zigzag" or "signed"
        Word of a symbol. plain: the word of the value symbol + shift. zigzag: symbols 2k and
        2k + 1 stand for k and −k and have the words of the values 2k and 2k − 1. signed: the same
        symbols have the bit 0 or 1 followed by the word of the value k + shift.
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
        """Number of the least symbols that a byte represents itself."""
        return WIDE

    @property
    def wide(self) -> bool:
        """Whether a second array must hold the symbols from WIDE on, as some exceed a byte."""
        return self.top > WIDE

    @property
    def kind(self) -> Kind:
        """What distinguishes codes of equal parameters."""
        return self.rule, self.mapping, self.shift

    @property
    def family(self) -> Family:
        """The rules that the kernels of this code serve."""
        return family_of(self.rule)

    @property
    def numbers(self) -> np.ndarray:
        """The properties that kernels read: RULE, PARAMETER, TOP, MAPPING and SHIFT, as uint64."""
        return _numbers_of(self)

    @property
    def look(self) -> Look:
        """Layout of the table of a reader."""
        return Look(WINDOW, 6)

    def words(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the words of the symbols below `size`, and their lengths; 0 if above 56 bits."""
        bits, nbits = np.zeros(size, np.uint64), np.zeros(size, np.int64)
        least = min(self.least, size)
        stop = min(self.top + 1, size)
        loop = _words_kernel(self.family)
        loop(self.numbers, np.uint64(least), bits[least:stop], nbits[least:stop])
        if self.mapping != "plain":  # there is no −0
            bits[1:2], nbits[1:2] = 0, 0
        return bits, nbits


@functools.lru_cache(maxsize=256)
def _numbers_of(code: PrefixCode) -> np.ndarray:
    rule, mapping = code.family.rules.index(code.rule), get_args(Mapping).index(code.mapping)
    shift = code.shift % 2**64  # the additions wrap
    return np.array([rule, code.parameter, code.top, mapping, shift], np.uint64)


@inline
def split(code, symbol):
    """Return the number of sign bits of a symbol, the sign, and the value of the word."""
    if code[MAPPING] == _PLAIN:
        return np.int64(0), np.uint64(0), symbol + code[SHIFT]
    odd = symbol & np.uint64(1)
    if code[MAPPING] == _ZIGZAG:
        return np.int64(0), np.uint64(0), symbol - odd - odd
    return np.int64(1), odd, (symbol >> np.uint64(1)) + code[SHIFT]


@functools.cache
def reading(family: Family) -> Inline:
    """Make the inline function that decodes one symbol by its rule.

    (code, data, at, end) -> (symbol, next bit, or TRUNCATED or CORRUPT)
    """
    value_of = family.value

    @inline
    def read_symbol(code, data, at, end):
        sign, top, is_signed = np.uint64(0), code[TOP], code[MAPPING] == _SIGNED
        if is_signed:
            if at >= end:
                return np.uint64(0), np.int64(TRUNCATED)
            sign = peek(data, at) >> np.uint64(63)
            at += 1
        value, after = value_of(code[RULE], data, at, end, code[PARAMETER])
        if after < 0:
            return np.uint64(0), after
        if value > top and not is_signed:  # so nothing below wraps
            return np.uint64(0), np.int64(CORRUPT)
        symbol = value - code[SHIFT]
        if is_signed:
            # There is no −0. With the shift −1, only a difference that wraps gives the level 0.
            if symbol > top >> np.uint64(1) or (
                symbol == 0 and (sign or np.int64(code[SHIFT]) < 0)
            ):
                return np.uint64(0), np.int64(CORRUPT)
            symbol += symbol + sign
        elif code[MAPPING] == _ZIGZAG:
            odd = value & np.uint64(1)
            symbol = value + odd + odd
        if symbol > top:
            return np.uint64(0), np.int64(CORRUPT)
        return symbol, after

    return read_symbol


@factory(lambda: ((family,) for family in FAMILIES))
def _words_kernel(family: Family) -> Kernel:
    """Make the kernel that writes words of the symbols from `first` on, and their lengths."""
    word_of = family.word

    @kernel(
        "in uint64[], uint64, out uint64[], out int64[]", variant=family.name, vectorized=False
    )
    def fill_words(code, first, bits, nbits):
        for i in range(bits.size):  # nbits.size == bits.size
            before, sign, value = split(code, first + np.uint64(i))
            zeros, _high, low, length = word_of(code[RULE], value, code[PARAMETER])
            if zeros <= np.uint64(56) and length + np.int64(zeros) + before <= 56:
                nbits[i] = length + np.int64(zeros) + before
                bits[i] = low
                if before:
                    bits[i] |= sign << np.uint64(nbits[i] - 1)
            else:
                nbits[i], bits[i] = 0, 0

    return fill_words


class WriteTables(NamedTuple):
    """Tables of a writer, whose entries are word * 64 + length.

    Attributes
    ----------
    groups : (2**(4 * FOURS) + 2**(2 * TWOS),) uint32 array
        Words of four symbols below 2**FOURS, which are the digits of the index; then words of two
        symbols below 2**TWOS. The length is 63 if the words are too long.
    singles : (WIDE + 1,) uint64 array
        Words of single symbols; 0 for symbol WIDE, and for words that are too long.
    """

    groups: np.ndarray
    singles: np.ndarray


@functools.lru_cache(maxsize=256)
def write_tables(code: PrefixCode) -> WriteTables:
    """Return the tables of a writer."""
    bits, nbits = code.words(WIDE + 1)
    bits[WIDE], nbits[WIDE] = 0, 0
    twos = _joined(bits, nbits, 1 << TWOS)
    fours = _joined(*_joined(bits, nbits, 1 << FOURS), 1 << 2 * FOURS)
    groups = np.concatenate([_entries(*fours), _entries(*twos)])
    return WriteTables(groups, ready(bits, nbits))


def ready(bits: np.ndarray, nbits: np.ndarray) -> np.ndarray:
    """Return word * 64 + length for words and their lengths; 0 without a word of <= 28 bits."""
    short = (nbits > 0) & (nbits <= SINGLE_NBITS)
    return np.where(short, bits << np.uint64(6) | nbits.astype(np.uint64), np.uint64(0))


def _joined(bits: np.ndarray, nbits: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Join each pair of the first `size` words; a length of 0 means no word."""
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
    """Return the symbols below `size`, or of bytes, by `window` bits that begin with their word.

    Returns
    -------
    (2**window,) uint32 array
        symbol * 64 + length; 0 if no word of these symbols matches.
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
def read_runs(code: PrefixCode | TableCode, look: Look) -> np.ndarray:
    """Return the symbols of consecutive words that fit in a window, up to the most of a `Look`.

    Parameters
    ----------
    code : PrefixCode or TableCode
    look : Look
        One of LOOKS.

    Returns
    -------
    (2**window,) uint64 or uint32 array
        Six or two bytes of symbols, the first lowest; a byte with their bits; their number.
    """
    return runs_of(read_singles(code), look)


def runs_of(singles: np.ndarray, look: Look) -> np.ndarray:
    """Return the table `read_runs` by a table `read_singles` of WINDOW bits."""
    size = 1 << look.window
    tables = np.empty(2 * size, f"u{look.nbytes}")
    _filling(look)(singles, np.empty(SYMBOLS, np.uint8), tables)
    return tables[size:]


@functools.lru_cache(maxsize=256)
def read_levels(code: PrefixCode) -> tuple[np.ndarray, np.ndarray]:
    """Return the tables `read_runs` and `read_singles` with the int8 level of each symbol."""
    singles = read_singles(code)
    symbols = (singles >> 6).astype(np.int64)
    levels = np.where(symbols & 1, -(symbols >> 1), symbols >> 1).astype(np.uint8)
    singles = levels.astype(np.uint32) << 6 | singles & 63
    return runs_of(singles, code.look), singles


@factory(lambda: ((look,) for look in LOOKS))
def _filling(look: Look) -> Kernel:
    """Make the kernel that fills the table of a window, by those of all narrower windows.

    The run of a window consists of its first word and the run of the bits after this word. So the
    runs of narrower windows have one word less. Windows that begin with the same word are
    neighbors, as are the windows of their remaining bits.
    """
    window, most, nbytes = *look, look.nbytes
    kind = np.dtype(f"u{nbytes}").type
    bits_at, count_at, last_at = kind(8 * most), kind(8 * most + 8), kind(8 * most - 16)
    byte, rest_symbols, one = kind(8), kind((1 << 8 * most - 8) - 1), kind(1 << 8 * most + 8)

    @kernel(f"in uint32[], out uint8[], out uint{8 * nbytes}[]", variant=f"{window} {most}")
    def fill_runs(singles, lengths, tables):
        # singles.size == 2**WINDOW, lengths.size == SYMBOLS, and tables.size == 2**(window + 1).
        # The windows of `width` bits have the entries from 2**width to 2**(width + 1) - 1. Bit
        # `width` of `full` is 1 if any of them has `most` - 1 words or more.
        full = np.int64(0)
        tables[0] = 0
        for width in range(window + 1):
            size, start, words = 1 << width, 0, kind(0)
            while start < size:
                single = np.int64(singles[(start << WINDOW) >> width])
                symbol, length = single >> 6, single & 63
                if single == 0 or length > width:
                    tables[size + start] = 0
                    start += 1
                    continue
                lengths[symbol] = length  # of a byte, as are all symbols of runs
                word = kind(kind(kind(symbol) | one) | kind(kind(length) << bits_at))
                rest = 1 << (width - length)  # windows that begin with this word
                if most == 2 and width < window:
                    tables[size + start : size + start + rest] = word
                    start += rest
                    continue
                for k in range(rest):
                    further = tables[rest + k]
                    numbers = kind(kind(further >> bits_at) << bits_at)
                    entry = kind(kind(word + numbers) | kind(kind(further & rest_symbols) << byte))
                    tables[size + start + k] = entry
                    words = max(words, kind(entry >> count_at))
                if width < window and full >> (width - length) & 1:
                    for k in range(size + start, size + start + rest):
                        if tables[k] >> count_at == most:  # without the last word
                            last = kind(kind(tables[k] >> last_at) >> byte & kind(255))
                            used = kind(kind(lengths[last]) << bits_at)
                            tables[k] -= kind(kind(one + used) | kind(last << last_at << byte))
                start += rest
            full |= np.int64(words >= most - 1) << width

    return fill_runs


@functools.lru_cache(maxsize=256)
def least_nbits(code: PrefixCode | TableCode) -> int:
    """Return the bits of the shortest word of a code; 57 if all words are longer than 56."""
    lengths = code.words(code.in_bytes)[1]
    return int(lengths[lengths > 0].min(initial=57))
