"""Strings of bytes behind a table that tells how often each occurs: Huffman words, or rANS.

A table is sent ahead of its string, for the symbols of an alphabet, or both sides know it. Where
there is no symbol to code, there is neither.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from gcodec.entropy import frequency_table, huffman, rans
from gcodec.entropy.word_string import WordString
from gcodec.errors import Corrupt
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix import dense_string
from gcodec.kernels.prefix.dense_string import SymbolsOf
from gcodec.kernels.prefix.table_code import LONGEST, TableCode, code_of
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_runs import Runs
from gcodec.kernels.rans.rans_table import ReadTables, read_tables, write_tables
from gcodec.kernels.rans.rans_vector import LANES
from gcodec.runtime.deferred import mapped
from gcodec.runtime.device import dispatched, host, placed
from gcodec.runtime.memory import Drainable, contents
from gcodec.wire.seek import (
    LOG2_BLOCK,
    LOG2_RANS,
    LOG2_STATES,
    SeekTable,
    first_worthwhile,
    refuse_table,
)

Kind = Literal["huffman", "rans"]
StaticTables = Callable[[], np.ndarray]
"""A cached function that returns the (count, 256) numbers of static tables; see `Table`."""
Take = Callable[[int, np.ndarray], None]

_NOTHING = np.zeros(256, np.int64)  # counts


class Table(NamedTuple):
    """What a string of bytes is coded with. What a device made of counts stays there.

    Attributes
    ----------
    kind : {"huffman", "rans"}
    numbers : (256,) array
        Of each symbol: the bits of its word, uint8; or its frequency, int64.
    log2_total : int
        Of the frequencies; 0 for words.
    alphabet : (k,) uint8 array or None
        The symbols that the table is sent for, rising; None where it is not sent.
    which : int
        Not 0 where it is not sent either, but one of the static tables of `best_table`, from 1 on.
    """

    kind: Kind
    numbers: np.ndarray
    log2_total: int = 0
    alphabet: np.ndarray | None = None
    which: int = 0

    @classmethod
    def own(cls, kind: Kind, counts: np.ndarray, alphabet: np.ndarray) -> Table:
        """Make the best table for (256,) counts of symbols of an alphabet, which is sent."""
        if kind == "huffman":
            return cls(kind, huffman.code_lengths(counts), 0, alphabet)
        return cls(kind, *rans.best_frequencies(counts), alphabet)

    @classmethod
    def static(cls, kind: Kind, counts: np.ndarray) -> Table:
        """Make the table of (256,) counts that both sides know; those of rANS add up to 2^14."""
        return _static(kind, counts.tobytes())

    def nbits(self, counts: np.ndarray) -> int:
        """Return the bits of table and string for (256,) counts; those of rANS are estimated."""
        alphabet = () if self.alphabet is None else self.alphabet
        if self.kind == "huffman":
            sent = huffman.LENGTH_NBITS * len(alphabet)
            return sent + int(counts @ self.numbers.astype(np.int64))
        sent = frequency_table.table_nbits(self.numbers[alphabet]) if len(alphabet) else 0
        return sent + rans.estimated_nbits(counts, self.numbers, self.log2_total)


@dispatched("gcodec.entropy.device", by="numbers")
def front(
    head: Any,
    kind: Kind,
    numbers: np.ndarray,
    log2_total: int,
    alphabet: np.ndarray | None,
    which: int = 0,
) -> tuple[np.ndarray, int]:
    """Return the bits before a string: a head, and the table of a `Table`, if it is sent."""
    if alphabet is not None and kind == "huffman":
        head.extend(*huffman.write_lengths(numbers, alphabet))
    elif alphabet is not None:
        head.extend(*frequency_table.write_frequencies(numbers, log2_total, alphabet))
    if kind == "rans":
        head.extend(np.zeros(1, np.uint8), -head.nbits % 8)
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
    """Select the table with which table and string are shortest, the first of equals.

    Parameters
    ----------
    counts : (256,) int64 array
        Number of occurrences of each symbol.
    own : Table or None
        The table that is made for these counts and sent, if there is one; it comes first.
    kind, alphabet
        See `Table`.
    static_tables : StaticTables, optional
        The tables that both sides know. Required if `own` is None.

    Returns
    -------
    table : Table
    nbits : int
        Bits of table and string; for rANS an estimate.
    """
    log2_total = rans.STATIC_LOG2_TOTAL if kind == "rans" else 0
    tables = [] if own is None else [own]
    for which, numbers in enumerate(static_tables() if static_tables else (), 1):
        tables.append(Table(kind, numbers, log2_total, None, which))
    sizes = [table.nbits(counts) for table in tables]
    return tables[sizes.index(min(sizes))], min(sizes)


@functools.lru_cache(maxsize=1024)
def _static(kind: Kind, data: bytes) -> Table:
    counts = np.frombuffer(data, np.int64)
    if kind == "huffman":
        return Table(kind, huffman.code_lengths(counts))
    return Table(kind, counts, rans.STATIC_LOG2_TOTAL)


def write(
    table: Table | None,
    symbols_of: SymbolsOf | np.ndarray | Drainable,
    coded: CodedMask,
    head: Any,
    n: int,
    lead: int = 0,
) -> tuple[np.ndarray, int, SeekTable | None]:
    """Write table and string behind a head.

    Parameters
    ----------
    table : Table or None
        None where there is no symbol to code.
    symbols_of : callable or array
        See `dense_string.write`.
    coded : CodedMask
        Which of them have words. With rANS, all.
    head : BitString
        With a table of a device, or bytes there and how many bits count.
    n : int
        Elements of the tensor.
    lead : int
        Bytes that are left free before the head, of words.

    Returns
    -------
    data : uint8 array
    nbits : int
    seek : SeekTable or None
        None where the payload is too short for one.
    """
    if table is None:
        nbits = head.nbits
        return placed(head.trimmed(), contents(symbols_of)), nbits, None
    before = front(head, *table)
    if table.kind == "huffman":
        code, dtype, every = code_of(table.numbers), np.dtype(np.uint8), 1 << LOG2_BLOCK
        made = dense_string.write(code, symbols_of, dtype, coded, every, lead, before)
        return *made[:2], _blocks_of(n, *made[1:])
    tables = write_tables(table.numbers, table.log2_total)
    data, nbits, runs = rans_string.write(tables, symbols_of, coded.n, before[0], LOG2_STATES)
    return data, nbits, index_of(runs, n, nbits)


def _blocks_of(n: int, nbits: int, offsets: np.ndarray) -> SeekTable | None:
    """Return the table of a string of words, if the payload is worth one."""

    def made(nbits: int, offsets: np.ndarray) -> SeekTable | None:
        return first_worthwhile(n, nbits, SeekTable.of(LOG2_BLOCK, offsets))

    found: SeekTable | None = mapped(made, nbits, offsets)
    return found


def index_of(runs: Runs, n: int, nbits: int) -> SeekTable | None:
    """Return the table of a rANS string of runs of 2^LOG2_STATES, if the payload is worth one.

    Of runs that a device has yet to tell it is a `Deferred`.
    """

    def made(runs: Runs, nbits: int) -> SeekTable | None:
        return first_worthwhile(
            n, nbits, *(_every(runs, log2) for log2 in (LOG2_STATES, LOG2_RANS))
        )

    found: SeekTable | None = mapped(made, runs, nbits)
    return found


def _every(runs: Runs, log2_block: int) -> SeekTable:
    """Return the table of a rANS string with larger blocks than its runs."""
    step = 1 << log2_block - runs.log2_run
    offsets = np.append(runs.offsets[:-1:step], runs.offsets[-1])
    return SeekTable.of(log2_block, offsets, None, runs.states[::step])


class String(NamedTuple):
    """A string that is read, behind its table.

    Attributes
    ----------
    table : Table
    data : uint8 array
    first, end : int
        Bits where the string begins, or zeros before it, and where it ends.
    coded : CodedMask
        See `write`.
    seek : SeekTable or None
        The table of the payload. Blocks are then read side by side, and must be so.
    """

    table: Table
    data: np.ndarray
    first: int
    end: int
    coded: CodedMask
    seek: SeekTable | None

    @classmethod
    def behind(
        cls,
        kind: Kind,
        data: np.ndarray,
        first: int,
        end: int,
        alphabet: np.ndarray,
        coded: CodedMask,
        seek: SeekTable | None,
    ) -> String:
        """Read the table from bit `first` on, if there is something to code.

        Raises
        ------
        FormatError
        """
        if not coded.words:
            return cls(Table.static(kind, _NOTHING), data, first, end, coded, seek)
        if kind == "huffman":
            lengths, after = huffman.read_lengths(data, first, end, alphabet)
            table = Table(kind, lengths, 0, alphabet)
        else:
            frequencies, log2_total, after = frequency_table.read_frequencies(
                data, first, end, alphabet
            )
            table = Table(kind, frequencies, log2_total, alphabet)
        return cls(table, data, after, end, coded, seek)

    def refuse_short(self) -> None:
        """Raise `Truncated` if the bits cannot hold all symbols."""
        if self.table.kind == "rans":
            rans_string.refuse_short(self.coded.words, self.end - self.first)
        elif self.coded.words:
            self._words.refuse_short()

    def read(self, take: Take, *, bits_follow: bool = False) -> int:
        """Read all symbols; return the bit behind them.

        Parameters
        ----------
        take : callable
            Gets the first of a range and its symbols, which later ones overwrite; called on the
            threads of the pool, for all ranges in any order.
        bits_follow : bool
            Whether the string may end before `end`.

        Raises
        ------
        FormatError
        """
        seek = self.seek
        if not self.coded.words:
            if self.first < self.end and not bits_follow:
                raise Corrupt(f"the payload has {self.end - self.first} bits that code nothing")
            if self.table.kind == "rans":
                refuse_table(seek)
            elif seek is not None:  # blocks of elements without words
                seek.must_cover(0)
            return self.first
        if self.table.kind == "rans":
            runs, where = None, self._where()
            if seek is not None and seek.states is not None:
                if not bits_follow:
                    seek.must_cover(self.end - where[0])
                runs = Runs(seek.log2_block, seek.offsets, seek.states)
            return rans_string.read(self._model, self.data, *where, take, runs, bits_follow)
        return self._words.read(lambda at, symbols, _: take(at, symbols), bits_follow=bits_follow)

    def blocks(self, log2_block: int) -> SeekTable:
        """Find where blocks begin, by reading all; where nothing is coded, one that is empty."""
        if not self.coded.words:
            states = np.zeros((1, LANES), np.uint32) if self.table.kind == "rans" else None
            return SeekTable.of(log2_block, np.zeros(2, np.int64), None, states)
        if self.table.kind == "rans":
            runs = rans_string.index(self._model, self.data, *self._where(), log2_block)
            return SeekTable.of(log2_block, runs.offsets, None, runs.states)
        return self._words.blocks(log2_block)

    @property
    def _model(self) -> ReadTables:
        return read_tables(self.table.numbers, self.table.log2_total)

    def _where(self) -> tuple[int, int, int]:
        """Return where a rANS string begins and ends, and how many symbols it has."""
        first = self.first + -self.first % 8
        at = self.first // 8
        between = host(self.data[at : at + 1]) if self.first < min(first, self.end) else [0]
        if int(between[0]) & 0xFF >> self.first % 8:
            raise Corrupt("bits between table and string are not zero", self.first // 8)
        return first, self.end, self.coded.words

    @property
    def _words(self) -> WordString:
        code = TableCode.of(self.table.numbers)
        return WordString(code, self.data, self.first, self.end, self.coded, self.seek)


def longest_nbits(kind: Kind, n: int, alphabet: int) -> int:
    """Return the most bits of a table for so many symbols, and of a string of n."""
    if kind == "huffman":
        return huffman.LENGTH_NBITS * alphabet + LONGEST * n
    # A frequency has at most 15 bits, of which the first is not sent.
    return 4 + alphabet * (4 + 14) + 7 + rans_string.most_nbits(n)
