"""Strings of bytes after a table of their statistics: Huffman words or rANS.

The payload contains the table of an alphabet before the string, or both sides know the table. A
string of no symbols has no table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from gcodec.entropy import frequency_table, huffman, rans
from gcodec.entropy.coder import (
    BitSpan,
    CodedString,
    EmptyString,
    RansString,
    WordString,
    Written,
    seek_of_blocks,
    seek_of_runs,
)
from gcodec.kernels.bits.bit_string import BitString, SymbolsOf
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix import dense_string
from gcodec.kernels.prefix.table_code import (
    LONGEST,
    TableCode,
    code_of,
    put_lengths,
    words_nbits,
)
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_table import read_tables, write_tables
from gcodec.runtime.device import beside, dispatched
from gcodec.runtime.memory import Drainable, contents
from gcodec.wire.seek import LOG2_BLOCK, LOG2_STATES

Kind = Literal["huffman", "rans"]
StaticTables = Callable[[], np.ndarray]
"""A cached function that returns the (count, 256) numbers of static tables; see `Table`."""


class Table(NamedTuple):
    """The statistics by which a string of bytes is coded; on a device if its counts are.

    Attributes
    ----------
    kind : {"huffman", "rans"}
        The coder.
    numbers : (256,) array
        The codeword length of each symbol, uint8, or its frequency, int64.
    log2_total : int
        Base-2 logarithm of the sum of the frequencies; 0 for Huffman.
    alphabet : (k,) uint8 array or None
        The symbols of the table in the payload, in increasing order; None if the payload contains
        no table.
    which : int
        The number of a static table among those of `best_table`, from 1 on; otherwise 0.
    """

    kind: Kind
    numbers: np.ndarray
    log2_total: int = 0
    alphabet: np.ndarray | None = None
    which: int = 0

    @classmethod
    def own(cls, kind: Kind, counts: np.ndarray, alphabet: np.ndarray) -> Table:
        """Return the best table for (256,) counts of an alphabet; the payload then contains it."""
        if kind == "huffman":
            return cls(kind, huffman.code_lengths(counts), 0, alphabet)
        return cls(kind, *rans.best_frequencies(counts), alphabet)

    @classmethod
    def static(cls, kind: Kind, counts: np.ndarray) -> Table:
        """Return the table of (256,) counts that both sides know, with a sum of 2^14 for rANS."""
        if kind == "huffman":
            return cls(kind, huffman.code_lengths(counts))
        return cls(kind, counts, rans.STATIC_LOG2_TOTAL)

    @classmethod
    def read(cls, kind: Kind, span: BitSpan, alphabet: np.ndarray) -> tuple[Table, BitSpan]:
        """Read the table of an alphabet; return it and the bits after it.

        Raises
        ------
        FormatError
        """
        data, first, end, _ = span
        if kind == "huffman":
            lengths, first = huffman.read_lengths(data, first, end, alphabet)
            return cls(kind, lengths, 0, alphabet), span.after(first)
        numbers, log2_total, first = frequency_table.read_frequencies(data, first, end, alphabet)
        return cls(kind, numbers, log2_total, alphabet), span.after(first)

    def nbits(self, counts: np.ndarray) -> int:
        """Return the bits of table and string for (256,) counts; an estimate for "rans"."""
        alphabet = () if self.alphabet is None else self.alphabet
        if self.kind == "huffman":
            table_nbits = huffman.LENGTH_NBITS * len(alphabet)
            return table_nbits + words_nbits(self.numbers, counts)
        table_nbits = frequency_table.table_nbits(self.numbers[alphabet]) if len(alphabet) else 0
        return table_nbits + rans.estimated_nbits(counts, self.numbers, self.log2_total)

    def open(self, span: BitSpan, coded: CodedMask) -> CodedString:
        """Open the string after the table.

        Raises
        ------
        FormatError
        """
        if not coded.words:
            return EmptyString(span, has_blocks=self.kind == "huffman")
        string = self.string(span, coded)
        string.refuse_short()
        if isinstance(string, RansString):
            return string._replace(span=span.aligned("table and string"))
        return string

    def string(self, span: BitSpan, coded: CodedMask) -> RansString | WordString:
        """Return the string of a span without looking at its bits; see `open`."""
        if self.kind == "rans":
            return RansString(span, coded.words, read_tables(self.numbers, self.log2_total))
        return WordString(span, TableCode.of(self.numbers), coded)


@dispatched("gcodec.entropy.device", by="numbers")
def front(
    head: BitString,
    kind: Kind,
    numbers: np.ndarray,
    log2_total: int,
    alphabet: np.ndarray | None,
    which: int = 0,
) -> tuple[np.ndarray, int]:
    """Return the bits before a string: a head, and the fields of a `Table` if it has an alphabet.

    The bits before a rANS string are whole bytes.
    """
    if alphabet is not None and kind == "huffman":
        put_lengths(numbers, alphabet, head)
    elif alphabet is not None:
        head.extend(*frequency_table.write_frequencies(numbers, log2_total, alphabet))
    if kind == "rans":
        head.align()
    nbits = head.nbits
    return head.trimmed(), nbits


@dispatched("gcodec.entropy.device")
def best_table(
    counts: np.ndarray,
    own: Table | None,
    kind: Kind,
    alphabet: np.ndarray,
    static_tables: StaticTables | None = None,
) -> tuple[Table, int]:
    """Select the table for which table and string together are shortest, the first of equals.

    Parameters
    ----------
    counts : (256,) int64 array
        Number of occurrences of each symbol.
    own : Table or None
        The table that `Table.own` made from these counts; the first of the candidates.
    kind, alphabet
        See `Table`.
    static_tables : StaticTables, optional
        The tables that both sides know. Required if `own` is None.

    Returns
    -------
    table : Table
        The selected table.
    nbits : int
        Bits of table and string; an estimate for rANS.
    """
    if static_tables is None:
        assert own is not None, "without other tables, there must be one of its own"
        return own, own.nbits(counts)
    static, log2_total = static_tables(), rans.STATIC_LOG2_TOTAL if kind == "rans" else 0
    if kind == "rans":
        sizes = rans.estimated_sizes(counts, static, log2_total)
    else:
        sizes = (static.astype(np.int64) @ counts).tolist()
    best = min(sizes)
    if own is not None and (nbits := own.nbits(counts)) <= best:
        return own, nbits
    which = sizes.index(best)
    return Table(kind, static[which], log2_total, None, which + 1), best


def write(
    table: Table | None,
    symbols: SymbolsOf | np.ndarray | Drainable,
    coded: CodedMask,
    head: BitString,
    n: int,
    lead: int = 0,
    before: int = 0,
) -> Written:
    """Write a table and its string after a head.

    Parameters
    ----------
    table : Table or None
        The table; None if there is no symbol to code.
    symbols : callable or array
        The symbols; see `dense_string.write`.
    coded : CodedMask
        The elements that have a symbol. With rANS, all must have one.
    head : BitString
        Bits that precede the table. If the table is on a device, alternatively an array there,
        and the number of its bits.
    n : int
        Number of elements of the tensor.
    lead : int
        Number of bytes that stay free before the head; 0 for rANS.
    before : int
        Number of bits of the payload that precede the head, and that are not written here; 0 for
        symbols on a device.
    """
    if table is None:
        nbits = head.nbits
        return Written(beside(head.trimmed(), contents(symbols)), nbits)
    leading = front(head, *table)
    if table.kind == "huffman":
        code, block = code_of(table.numbers), 1 << LOG2_BLOCK
        data, nbits, offsets = dense_string.write(
            code, symbols, np.dtype(np.uint8), coded, block, lead, leading
        )
        total = nbits + before if before else nbits  # which may be deferred
        return Written(data, nbits, seek_of_blocks(n, total, offsets))
    tables = write_tables(table.numbers, table.log2_total)
    data, nbits, runs = rans_string.write(tables, symbols, coded.n, leading[0], LOG2_STATES)
    total = nbits + before if before else nbits
    return Written(data, nbits, seek_of_runs(n, total, runs))


def open(kind: Kind, span: BitSpan, alphabet: np.ndarray, coded: CodedMask) -> CodedString:
    """Open a string whose table the payload contains; see `Table.read` and `Table.open`."""
    if not coded.words:
        return EmptyString(span, has_blocks=kind == "huffman")
    table, span = Table.read(kind, span, alphabet)
    return table.open(span, coded)


def longest_nbits(kind: Kind, n: int, alphabet: int) -> int:
    """Return an upper bound of the bits of n symbols and of a table of `alphabet` symbols."""
    if kind == "huffman":
        return huffman.LENGTH_NBITS * alphabet + LONGEST * n
    # A frequency has at most 15 bits, the first of which is not stored.
    return 4 + alphabet * (4 + 14) + 7 + rans_string.most_nbits(n)
