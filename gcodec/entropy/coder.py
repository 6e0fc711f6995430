"""The protocol of symbol coders, and the parts that every coder shares.

A symbol coder turns the symbols of a message into a string of bits, and back. Codecs use every
coder in the same way.

To encode, a codec *prices* its candidates, selects the shortest one, and *writes* only that one:

- *price* returns the length in bits of the string that a coder would write, tables included. The
  length is exact for codewords and an estimate for rANS.
- *write* appends the string to the bits that precede it in the payload, and returns a `Written`:
  the bytes, the number of valid bits, and a seek table if the payload is long enough for one.

To decode, a codec *opens* the string, and then *reads* all of its symbols or a range:

- *open* receives a `BitSpan`: the bits of the payload from the string on, with the seek table. It
  parses the tables and checks the length, decodes no symbol, and returns a `CodedString`.
- *read* decodes all symbols on the threads of the pool, and passes each range to a `Take` callback
  as soon as it is decoded. With a seek table the threads decode its blocks in parallel. It returns
  the bit after the string.
- *read_range* decodes only the blocks that contain a range of symbols; `WordString`, `RansString`
  and `ContextString` implement it.
- *blocks* decodes a string from its start to build a seek table for it.

====================  ====================  =====================  ===========================
coder                 price                 write                  open
====================  ====================  =====================  ===========================
codewords             `level_codes.plan`    `dense_string.write`   `WordString`
run–level pairs       `level_codes.plan`    `sparse_string.write`  `RunLevelString`
bytes by a table      `tabled.Table.nbits`  `tabled.write`         `tabled.open`, `Table.open`
bytes of a range      `ranged.Plan.of`      `ranged.Plan.write`    `ranged.open_string`
levels by context     `table_choice.plan`   `context.coder.write`  `context.coder.open`
symbols by context    `symbol_coder.plan`   `symbol_coder.write`   `symbol_coder.open`
exponents by context  `byte_coder.plan`     `byte_coder.write`     `byte_coder.open`
positions             `positions.write`     `positions.write`      `positions.IndexString`
====================  ====================  =====================  ===========================

An opened string owns the seek table of its payload, so no caller can skip the checks of the table.
Every error in a string raises `FormatError`: `Truncated` if bits are missing, else `Corrupt`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import SymbolsOf
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.pack import check_padding
from gcodec.kernels.prefix import dense_string, sparse_string
from gcodec.kernels.prefix.dense_string import widened
from gcodec.kernels.prefix.prefix_table import WIDE, PrefixCode
from gcodec.kernels.prefix.run_level import FAR, RunLevelCode, RunLevelPairs
from gcodec.kernels.prefix.table_code import TableCode
from gcodec.kernels.rans import rans_runs, rans_string
from gcodec.kernels.rans.rans_runs import Runs
from gcodec.kernels.rans.rans_string import ClassesOf
from gcodec.kernels.rans.rans_table import ReadTables, WriteTables
from gcodec.kernels.rans.rans_vector import LANES
from gcodec.payload import Payload
from gcodec.runtime.deferred import Deferred, map_deferred, when_known
from gcodec.runtime.device import device_of, host
from gcodec.wire import seek as seek_tables
from gcodec.wire.seek import LOG2_BLOCK, LOG2_STATES, MIN_ELEMENTS, SeekTable

_LOG2_LONG = 20  # logarithm of the symbols that a reader on the host reads at a time

Take = Callable[[int, np.ndarray], None]
"""Receives the index of the first symbol of a range, and the symbols, which later calls reuse.

Threads of the pool call it, once for each range, in any order. Where a whole string is read,
ranges begin at multiples of 2**12 symbols, whatever the blocks of a seek table.
"""


class Written(NamedTuple):
    """A string that a coder wrote, and the bits before it.

    Attributes
    ----------
    data : (ceil(nbits / 8),) uint8 array
        The bytes.
    nbits : int
        Number of valid bits.
    seek : SeekTable or None
        None if the payload is too short for a seek table, or its code has no blocks.
    """

    data: np.ndarray
    nbits: int
    seek: SeekTable | None = None


def blank(nbits: int, lead: int = 0) -> Written:
    """Return a string of zeros after `lead` bytes, without a seek table."""
    total = 8 * lead + nbits
    return Written(np.zeros(-(-total // 8), np.uint8), total)


class BitSpan(NamedTuple):
    """A range of bits that contains a string, and the seek table of its payload.

    Attributes
    ----------
    data : uint8 array
        Bytes of the payload.
    first, end : int
        First bit of the string, and the bit after the string or the payload.
    seek : SeekTable or None
        Seek table of the payload. With a table, readers decode its blocks in parallel, and raise
        `Corrupt` if the table does not match the string.
    """

    data: np.ndarray
    first: int
    end: int
    seek: SeekTable | None = None

    @classmethod
    def of(cls, payload: Payload, first: int = 0) -> BitSpan:
        """Return the bits of a payload from bit `first` on; raise `Corrupt` for its padding."""
        if payload.nbits != 8 * payload.data.size:  # whole bytes have no padding
            check_padding(payload.data, payload.nbits)
        return cls(payload.data, first, payload.nbits, payload.seek)

    @property
    def nbits(self) -> int:
        """The length of the span in bits."""
        return self.end - self.first

    def after(self, first: int) -> BitSpan:
        """Return the bits from bit `first` on."""
        return BitSpan(self.data, first, self.end, self.seek)

    def aligned(self, parts: str, first: int | None = None) -> BitSpan:
        """Return the bits from the next byte boundary on, or from the one after bit `first`.

        Raise `Corrupt` unless the skipped bits are zeros. The error message names the `parts`
        before and after the boundary.
        """
        first = self.first if first is None else first
        at, used = divmod(first, 8)
        if not used:
            return self.after(first)
        if first < self.end and int(host(self.data[at : at + 1])[0]) & 0xFF >> used:
            raise Corrupt(f"bits between {parts} are not zero", at)
        return self.after(8 * at + 8)

    def refuse_bits(self) -> None:
        """Raise `Corrupt` if the span has bits, although there is no symbol to code."""
        if self.first < self.end:
            raise Corrupt(f"the payload has {self.nbits} bits that code nothing")

    def refuse_more_words(self, after: int) -> None:
        """Raise `Corrupt` if the span has bits from bit `after` on, where its words end."""
        rans_string.refuse_more(after, self.end)

    def must_cover(self, *, bits_follow: bool = False) -> SeekTable | None:
        """Return the seek table; raise `Corrupt` unless it covers the span or bits may follow."""
        if self.seek is not None and not bits_follow:
            self.seek.must_cover(self.nbits)
        return self.seek


class CodedString(Protocol):
    """A string that a coder opened: parsed up to its first symbol."""

    @property
    def span(self) -> BitSpan:
        """The bits of the symbols."""

    def read(self, take: Take, *, bits_follow: bool = False) -> int:
        """Decode all symbols, on the threads of the pool.

        Parameters
        ----------
        take : callable
            Receives the symbols; see `Take`.
        bits_follow : bool
            Whether other bits may follow the string in its span.

        Returns
        -------
        int
            The bit after the string.

        Raises
        ------
        FormatError
        """

    def blocks(self, log2_block: int) -> SeekTable:
        """Return a seek table with blocks of 2^log2_block symbols, found by decoding them all.

        A string of no symbols, or of fewer rANS states than a table stores, has an empty table.
        """


class EmptyString(NamedTuple):
    """A string of no symbols, which has no bits.

    Attributes
    ----------
    span : BitSpan
        The bits, of which there must be none.
    has_blocks : bool
        Whether the seek table counts elements, so that a table is valid without symbols.
    """

    span: BitSpan
    has_blocks: bool = False

    def read(self, take: Take, *, bits_follow: bool = False) -> int:
        """Check that there are no bits; see `CodedString.read`."""
        span = self.span
        if not bits_follow:
            span.refuse_bits()
        if not self.has_blocks:
            seek_tables.refuse_table(span.seek)
        elif span.seek is not None:
            span.seek.must_cover(0)
        return span.first

    def blocks(self, log2_block: int) -> SeekTable:
        """Return an empty seek table."""
        return no_blocks(log2_block)


class WordString(NamedTuple):
    """A string of codewords; see `CodedString` for its methods.

    Attributes
    ----------
    span : BitSpan
        The bits of the codewords.
    code : PrefixCode or TableCode
        The code.
    coded : CodedMask
        The elements that have a codeword. The symbols of all other elements are 0.
    dtype : dtype
        The dtype of the symbols: uint8, uint16 or uint32.
    """

    span: BitSpan
    code: PrefixCode | TableCode
    coded: CodedMask
    dtype: np.dtype[Any] = np.dtype(np.uint8)

    def refuse_short(self) -> None:
        """Raise `Truncated` if the bits cannot contain all codewords."""
        dense_string.refuse_short(self.code, self.coded, self.span.nbits)

    def read(self, take: Take, *, bits_follow: bool = False) -> int:
        """Decode all codewords; see `CodedString.read`."""
        log2_block, offsets = self._log2_unmarked, None
        if (seek := self.span.must_cover(bits_follow=bits_follow)) is not None:
            log2_block, offsets = seek.log2_block, seek.offsets
        return self._checked_end(self._offsets(take, log2_block, offsets), bits_follow)

    def read_range(self, start: int, stop: int, take: Take) -> None:
        """Decode symbols start to stop - 1, and the other symbols of their blocks.

        All elements must have codewords. Without a seek table, the first block begins with the
        string.
        """
        seek, n, first = self.span.must_cover(), self.coded.n, 0
        log2_block, offsets, span = self._log2_unmarked, None, self.span
        if seek is not None:
            log2_block = seek.log2_block
            low, high = start >> log2_block, -(-stop >> log2_block)
            first, offsets = low << log2_block, seek.offsets[low : high + 1]
            end = span.first + int(offsets[-1])
            span = BitSpan(span.data, span.first + int(offsets[0]), end)
            offsets = offsets - offsets[0]
            stop = min(high << log2_block, n)
        part = self._replace(span=span, coded=CodedMask.all(stop - first))
        ends = part._offsets(lambda at, symbols: take(first + at, symbols), log2_block, offsets)
        if stop == n:
            part._checked_end(ends, bits_follow=False)

    def blocks(self, log2_block: int) -> SeekTable:
        """Return a seek table of the string."""
        return SeekTable.of(log2_block, host(self._offsets(ignore, log2_block, None)))

    @property
    def _log2_unmarked(self) -> int:
        """Logarithm of the block size of a string without a seek table.

        The host reads the parts of a long block in turn, but a device the blocks of a string.
        """
        return _LOG2_LONG if device_of(self.span.data) is None else LOG2_BLOCK

    def _offsets(self, take: Take, log2_block: int, offsets: np.ndarray | None) -> np.ndarray:
        def take_widened(at: int, symbols: np.ndarray, wide: np.ndarray) -> None:
            take(at, widened(symbols, wide, self.dtype))

        data, first, end, _ = self.span
        string = data, first, end, self.coded, 1 << log2_block, offsets
        is_plain = self.dtype == np.uint8 and not self.code.wide and self.coded.uncoded is None
        if is_plain and isinstance(take, into):
            return dense_string.read(self.code, *string, take_widened, take.out)
        return dense_string.read(self.code, *string, take_widened)

    def _checked_end(self, offsets: np.ndarray, bits_follow: bool) -> int:
        """Return the bit after the string, given its block offsets; refuse bits after it."""
        span, device = self.span, device_of(offsets)
        size: int | Deferred = (
            int(offsets[-1]) if device is None else Deferred(device, offsets[-1:])
        )
        if bits_follow:
            return span.first + int(size)

        when_known(size, lambda size: span.refuse_more_words(span.first + size))
        return span.end


class RansString(NamedTuple):
    """A string of rANS symbols; see `CodedString` for its methods.

    Attributes
    ----------
    span : BitSpan
        The bits of the string, which begins at a byte boundary.
    n : int
        Number of symbols.
    tables : ReadTables
        The frequency tables.
    classes_of : callable or None
        Returns the classes of a range, in coding order; see `rans_string.Layout`.
    lanes : int
        Number of interleaved states.
    with_trellis : bool
        Whether the next quantizer is a part of each model.
    """

    span: BitSpan
    n: int
    tables: ReadTables
    classes_of: ClassesOf | None = None
    lanes: int = LANES
    with_trellis: bool = False

    def refuse_short(self) -> None:
        """Raise `Truncated` if the bits cannot contain all symbols."""
        self._layout.refuse_short()

    def read(self, take: Take, *, bits_follow: bool = False) -> int:
        """Decode all symbols; see `CodedString.read`."""
        runs = self._runs(bits_follow)
        return rans_string.read(self.span.data, self._layout, take, runs, bits_follow)

    def read_range(self, start: int, stop: int, take: Take) -> None:
        """Decode symbols start to stop - 1, and the other symbols of their blocks.

        Without a seek table, the first block begins with the string.
        """
        runs = self._runs()
        rans_string.read_range(self.span.data, self._layout, start, stop, take, runs)

    def blocks(self, log2_block: int) -> SeekTable:
        """Return a seek table of the string."""
        runs = rans_string.index(self.span.data, self._layout, log2_block)
        if self.lanes < LANES:
            return no_blocks(log2_block)
        return SeekTable.of(log2_block, runs.offsets, None, runs.states)

    def _runs(self, bits_follow: bool = False) -> Runs | None:
        """Return the runs of the seek table."""
        seek = self.span.seek
        if seek is None or seek.states is None:
            return None
        self.span.must_cover(bits_follow=bits_follow)
        return Runs(seek.log2_block, seek.offsets, seek.states)

    @property
    def _layout(self) -> rans_string.Layout:
        span, models = self.span, (self.classes_of, self.lanes, self.with_trellis)
        return rans_string.Layout(self.tables, span.first, span.end, self.n, *models)


class RunLevelString(NamedTuple):
    """A string of run–level pairs, up to the end of its span.

    Attributes
    ----------
    span : BitSpan
        The bits of the pairs.
    code : RunLevelCode
        Codes of gaps and symbols.
    """

    span: BitSpan
    code: RunLevelCode

    def read(self, place: sparse_string.Place) -> None:
        """Decode all pairs.

        Raises
        ------
        FormatError
        """
        seek = self.span.seek
        if seek is None or seek.positions is None:
            self._read(place, LOG2_BLOCK)
        else:
            self.span.must_cover()
            self._read(place, seek.log2_block, (seek.offsets, seek.positions))

    def blocks(self, place: sparse_string.Place, log2_block: int) -> SeekTable:
        """Return a seek table with blocks of 2^log2_block pairs, found by decoding them all."""
        return SeekTable.of(log2_block, *self._read(place, log2_block))

    def _read(
        self,
        place: sparse_string.Place,
        log2_block: int,
        table: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        data, first, end, _ = self.span
        return sparse_string.read(self.code, data, first, end, 1 << log2_block, table, place)


def unpacked(pairs: RunLevelPairs, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the gaps and symbols of the first `count` pairs, as uint64."""
    gaps, symbols = pairs.gaps[:count], pairs.symbols[:count]
    all_gaps = np.where(gaps == FAR, pairs.far[:count], gaps)
    if pairs.wide.size:
        return all_gaps, np.where(symbols == WIDE, pairs.wide[:count], symbols)
    return all_gaps, symbols.astype(np.uint64)


def ignore(at: int, symbols: np.ndarray) -> None:
    """Ignore symbols: a `Take` for callers that only check a string."""


class into:
    """A `Take` that copies symbols to an array of all symbols, to which readers may also write."""

    def __init__(self, out: np.ndarray) -> None:
        self.out = out

    def __call__(self, at: int, symbols: np.ndarray) -> None:
        """Copy the symbols of a range."""
        self.out[at : at + symbols.size] = symbols


def no_blocks(log2_block: int) -> SeekTable:
    """Return the seek table of a string of no symbols."""
    return SeekTable.of(log2_block, np.zeros(2, np.int64))


def seek_of_blocks(n: int, nbits: int, *sums: np.ndarray) -> SeekTable | None:
    """Return the seek table of blocks of 2^LOG2_BLOCK; None for a payload that is too short.

    Parameters
    ----------
    n : int
        Elements of the tensor.
    nbits : int
        Bits of the payload.
    *sums : (count + 1,) int64 array
        Offsets of the blocks, and positions of their last elements; see `SeekTable.of`.
        A `Deferred` number or array makes the result a `Deferred`.
    """

    def table(nbits: int, *sums: np.ndarray) -> SeekTable | None:
        table = SeekTable.of(LOG2_BLOCK, *sums)
        return table if seek_tables.worthwhile(table, n, nbits) else None

    if n < MIN_ELEMENTS:
        return None
    return map_deferred(table, nbits, *sums)


def seek_of_runs(n: int, nbits: int, runs: Runs) -> SeekTable | None:
    """Return the seek table of a rANS string; None for a payload that is too short.

    See `seek_of_blocks` for `n` and `nbits`. Each run in `runs` has 2^LOG2_STATES symbols.
    """

    def table(runs: Runs, nbits: int) -> SeekTable | None:
        for log2_block in (LOG2_STATES, seek_tables.LOG2_RANS):
            count = -(-len(runs.states) >> log2_block - runs.log2_run)
            # The number n may be on a device.
            most = 0 if count < 2 else seek_tables.most_nbytes(n, -(-nbits // 8))
            if seek_tables.states_nbytes(count, log2_block) < most:
                table = _joined_runs(runs, log2_block)
                if seek_tables.worthwhile(table, n, nbits):
                    return table
        return None

    if isinstance(n, int) and n < MIN_ELEMENTS:
        return None
    return map_deferred(table, runs, nbits)


def write_classed(
    tables: WriteTables,
    symbols: SymbolsOf | np.ndarray,
    n: int,
    lead: np.ndarray,
    lanes: int,
    before_join: Callable[[int], None] | None = None,
) -> Written:
    """Write symbols that are joined with the model of their class; see `rans_string.write`.

    A string of fewer states than a seek table stores has no table.
    """
    log2_run = LOG2_STATES if lanes == LANES else rans_runs.LOG2_BLOCK
    data, nbits, runs = rans_string.write(tables, symbols, n, lead, log2_run, lanes, before_join)
    return Written(data, nbits, seek_of_runs(n, nbits, runs) if lanes == LANES else None)


def _joined_runs(runs: Runs, log2_block: int) -> SeekTable:
    """Return the table of a rANS string with blocks of 2^log2_block symbols, whole runs each."""
    step = 1 << log2_block - runs.log2_run
    offsets = np.append(runs.offsets[:-1:step], runs.offsets[-1])
    return SeekTable.of(log2_block, offsets, None, runs.states[::step])
