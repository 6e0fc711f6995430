"""Descriptions of strings of bytes after a table: the table, and its codewords or rANS states."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import numpy as np

from gcodec.entropy import frequency_table, huffman
from gcodec.entropy.coder import BitSpan, WordString
from gcodec.entropy.tabled import Kind as Coder
from gcodec.entropy.tabled import Table
from gcodec.errors import FormatError
from gcodec.fields import walker
from gcodec.fields.rans import rans_string
from gcodec.fields.walker import DescribeSymbols, FieldSpan, FieldValue, FieldWalker, Kind
from gcodec.fields.words import words
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.sized_integers import LENGTH_NBITS

Meaning = Callable[[int], str]
"""Returns the meaning of a symbol."""


def table(
    walk: FieldWalker, coder: Coder, alphabet: np.ndarray, coded: CodedMask, meaning: Meaning
) -> Generator[FieldSpan, None, Table | None]:
    """Describe the table of an alphabet; return it, or None if there is no symbol to code.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the first bit of the table.
    coder : {"huffman", "rans"}
        Kind of the table.
    alphabet : (k,) uint8 array
        The symbols in the table, in increasing order.
    coded : CodedMask
        The elements that have a symbol.
    meaning : callable
        See `Meaning`.

    Raises
    ------
    FormatError
    """
    if not coded.words:
        return None
    first = walk.at
    if coder == "huffman":

        def describe(nbits: int, number: int) -> FieldValue:
            symbol, note = int(alphabet[number]), "" if nbits else ", without a codeword"
            return FieldValue(nbits, f"{meaning(symbol)}{note}", name=f"length of {symbol}")

        count, lengths = alphabet.size, walker.describe_each(describe)
        yield from walk.fields("table", "length", huffman.LENGTH_NBITS, count, lengths)
    else:
        yield from _frequencies(walk, alphabet, meaning)
    try:
        span = BitSpan(walk.data, first, walk.end)
        return Table.read(coder, span, alphabet)[0]
    except FormatError:
        walk.at = first
        raise


def _frequencies(walk: FieldWalker, alphabet: np.ndarray, meaning: Meaning) -> Iterator[FieldSpan]:
    """Describe a table of frequencies; summarize the fields outside of the range to describe."""
    skipped, nbits, left = 0, 0, walk.most
    for field in frequency_table.fields_of(walk.data, walk.at, walk.end, alphabet):
        width = field.end - field.start
        if field.symbol is None:
            total = FieldValue(field.value, f"frequencies add up to {1 << field.value}")
            yield walk.span("table", "log2 of the sum", width, total)
        elif left == 0 or field.end <= walk.start:
            skipped, nbits = skipped + 1, nbits + width
        else:
            yield from walk.summary("frequency", skipped, {"table": nbits})
            skipped = nbits = 0
            groups = (LENGTH_NBITS, width - LENGTH_NBITS)
            name = f"frequency of {field.symbol}"
            value = FieldValue(field.value, meaning(field.symbol), groups=groups)
            yield walk.span("table", name, width, value)
            left = None if left is None else left - 1
    yield from walk.summary("frequency", skipped, {"table": nbits})


def string(
    walk: FieldWalker,
    table: Table | None,
    kind: Kind,
    name: str,
    count: int,
    describe: DescribeSymbols,
) -> Iterator[FieldSpan]:
    """Describe a string up to the end of the payload.

    Parameters
    ----------
    walk : FieldWalker
        Walker at the first bit after the table.
    table : Table or None
        Table of the string; None if there is no symbol to code.
    kind, name : str
        Kind of the bits, and name of a symbol.
    count : int
        Number of symbols.
    describe : callable
        Describes symbols; see `DescribeSymbols`.

    Raises
    ------
    FormatError
    """
    if table is None:
        return
    string = table.string(BitSpan(walk.data, walk.at, walk.end), CodedMask.all(count))
    if isinstance(string, WordString):
        yield from words(walk, kind, name, string.code, count, describe)
    else:
        yield from walk.pad(-walk.at % 8)
        yield from rans_string(walk, kind, name, string, describe)
