"""Strings of bytes behind a table: the table, and the words or states that say the bytes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import numpy as np

from gcodec.entropy import frequency_table, huffman
from gcodec.entropy.coder import BitSpan, WordString
from gcodec.entropy.tabled import Kind as Coder
from gcodec.entropy.tabled import Table
from gcodec.errors import FormatError
from gcodec.inspect.rans import states
from gcodec.inspect.walker import FieldSpan, FieldValue, FieldWalker, Kind, Tell
from gcodec.inspect.words import words
from gcodec.kernels.bits.coded_mask import CodedMask

Meaning = Callable[[int], str]
"""Tells what a symbol stands for."""


def table(
    walk: FieldWalker, coder: Coder, alphabet: np.ndarray, coded: CodedMask, meaning: Meaning
) -> Generator[FieldSpan, None, Table | None]:
    """Tell a table that is sent for an alphabet; return it, or None where there is none.

    Parameters
    ----------
    walk : FieldWalker
    coder : {"huffman", "rans"}
    alphabet : (k,) uint8 array
        Rising.
    coded : CodedMask
        What is coded with it.
    meaning : callable
        Tells what a symbol stands for.
    """
    if not coded.words:
        return None
    first = walk.at
    if coder == "huffman":

        def tell(at: int, lengths: np.ndarray) -> Iterator[FieldValue]:
            for symbol, nbits in zip(alphabet[at:].tolist(), lengths.tolist(), strict=False):
                none = "" if nbits else ": has no word"
                yield FieldValue(nbits, f"{meaning(symbol)}{none}", name=f"length of {symbol}")

        yield from walk.fields("table", "length", huffman.LENGTH_NBITS, alphabet.size, tell)
    else:
        yield from _frequencies(walk, alphabet, meaning)
    try:
        span = BitSpan(walk.data, first, walk.end)
        return Table.read(coder, span, alphabet)[0]
    except FormatError:
        walk.at = first
        raise


def _frequencies(walk: FieldWalker, alphabet: np.ndarray, meaning: Meaning) -> Iterator[FieldSpan]:
    log2_total, more, nbits, left = 0, 0, 0, walk.most
    for found in frequency_table.fields_of(walk.data, walk.at, walk.end, alphabet):
        width = found.end - found.start
        if found.symbol is None:
            log2_total = found.value
            told = FieldValue(log2_total, f"frequencies add up to {1 << log2_total}")
            yield walk.piece("table", "log2 of the sum", width, told)
        elif left == 0 or found.end <= walk.start:
            more, nbits = more + 1, nbits + width
        else:
            yield from walk.several("frequency", more, {"table": nbits})
            more = nbits = 0
            groups = (frequency_table.LENGTH_NBITS, width - frequency_table.LENGTH_NBITS)
            told = FieldValue(found.value, meaning(found.symbol), groups=groups)
            told = told._replace(name=f"frequency of {found.symbol}")
            yield walk.piece("table", "frequency", width, told)
            left = None if left is None else left - 1
    yield from walk.several("frequency", more, {"table": nbits})


def string(
    walk: FieldWalker, found: Table | None, kind: Kind, name: str, count: int, tell: Tell
) -> Iterator[FieldSpan]:
    """Tell a string of so many bytes, up to the payload's end.

    Parameters
    ----------
    walk : FieldWalker
    found : Table or None
        None where there is nothing to code.
    kind, name : str
    count : int
    tell : callable
        Gets the bytes.
    """
    if found is None:
        return
    string = found.string(BitSpan(walk.data, walk.at, walk.end), CodedMask.all(count))
    if isinstance(string, WordString):
        yield from words(walk, kind, name, string.code, count, tell)
    else:
        yield from walk.pad(-walk.at % 8)
        yield from states(walk, kind, name, string, tell)
