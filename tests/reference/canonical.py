"""Canonical Huffman codes: lengths by package-merge, tables, and codewords as strings of 0 and 1.

Source: ``docs/wire-format.md``, Huffman words. Symbols are indices into an alphabet.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from .universal import Bits, Corrupt, Truncated, fixed

LONGEST = 12

Item = tuple[int, list[int]]  # a weight, and the symbols in it


def _merged(coins: Sequence[Item], packages: Sequence[Item]) -> list[Item]:
    """Merge both by weight; the sort keeps coins before packages of the same weight."""
    return sorted([*coins, *packages], key=lambda item: item[0])


def lengths_of(counts: Sequence[int]) -> list[int]:
    """Return the length of each symbol's codeword, 0 for a symbol that does not occur."""
    coins = _merged([(count, [i]) for i, count in enumerate(counts) if count], [])
    lengths = [0] * len(counts)
    if len(coins) == 1:
        lengths[coins[0][1][0]] = 1
        return lengths
    packages: list[Item] = []
    for _ in range(LONGEST - 1):
        merged = _merged(coins, packages)
        pairs = zip(merged[::2], merged[1::2], strict=False)  # an odd one is left out
        packages = [(a[0] + b[0], a[1] + b[1]) for a, b in pairs]
    for _, symbols in _merged(coins, packages)[: max(2 * len(coins) - 2, 0)]:
        for i in symbols:
            lengths[i] += 1
    return lengths


def words(lengths: Sequence[int]) -> list[str]:
    """Return the codeword of each symbol, empty for a symbol without one.

    Raises
    ------
    Corrupt
        If the lengths do not form a code.
    """
    used = sorted((length, i) for i, length in enumerate(lengths) if length)
    if any(length > LONGEST for length, _ in used):
        raise Corrupt("a word that is too long")
    if [length for length, _ in used] != [1] and (
        sum(1 << (LONGEST - length) for length, _ in used) != 1 << LONGEST
    ):
        raise Corrupt("lengths of no complete code")
    actual = [""] * len(lengths)
    word, before = 0, used[0][0]
    for length, i in used:
        word <<= length - before
        actual[i] = fixed(word, length)
        word, before = word + 1, length
    return actual


def table(lengths: Sequence[int]) -> str:
    """Return the bits of a table of lengths."""
    return "".join(fixed(length, 4) for length in lengths)


def read_table(bits: Bits, size: int) -> list[int]:
    """Read a table of lengths."""
    lengths = [bits.number(4) for _ in range(size)]
    words(lengths)
    return lengths


def read_word(bits: Bits, of: Sequence[str]) -> int:
    """Read the codeword of a symbol."""
    symbols, lengths = _symbols(tuple(of))
    for length in lengths:
        symbol = symbols.get(bits.text[bits.at : bits.at + length])
        if symbol is not None:
            bits.at += length
            return symbol
    rest = bits.text[bits.at : bits.at + LONGEST]
    if any(word.startswith(rest) for word in symbols):
        raise Truncated("the bits end within a word")
    raise Corrupt("a word of no symbol")


@functools.lru_cache(maxsize=64)
def _symbols(of: tuple[str, ...]) -> tuple[dict[str, int], list[int]]:
    """Return the symbol of each codeword, and the lengths of codewords in ascending order."""
    symbols = {word: i for i, word in enumerate(of) if word}
    return symbols, sorted({len(word) for word in symbols})
