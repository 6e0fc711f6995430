"""rANS strings: blocks of 2^18 symbols, each its states and then its words, in parallel.

All numbers are little-endian. A block stores the 32 states with which a reader starts, 4 bytes
each, then the words that the reader consumes. The last block may have fewer symbols, and short
strings may have fewer states. A reader ends each block with all states equal to 2^16. A seek table
stores the bit where each run of symbols begins and, within a block, the states there.

Symbols may have classes, each with a model of its own: the caller of the writer puts the class
above the symbol, and the caller of the reader supplies the classes. With a trellis (see
`trellis`), the current quantizer is a part of the model too: the caller of the writer puts it
above the class, and the reader derives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import SPARE, BitString, SymbolsOf, parts_of, written
from gcodec.kernels.rans.rans_read import Reader
from gcodec.kernels.rans.rans_runs import BLOCK, LOG2_BLOCK, Runs
from gcodec.kernels.rans.rans_table import STATE_NBYTES, ReadTables, WriteTables
from gcodec.kernels.rans.rans_vector import LANES, vector_width
from gcodec.kernels.rans.rans_write import Writer
from gcodec.runtime import pool
from gcodec.runtime.device import device_of, dispatched
from gcodec.runtime.memory import Drainable, release

ClassesOf = Callable[[int, int, np.ndarray], np.ndarray]
Take = Callable[[int, np.ndarray], None]


@dispatched("gcodec.kernels.rans.rans_string_cuda", by="symbols")
def write(
    tables: WriteTables,
    symbols: SymbolsOf | np.ndarray | Drainable,
    n: int,
    lead: np.ndarray,
    log2_run: int = LOG2_BLOCK,
    lanes: int = LANES,
    before_join: Callable[[int], None] | None = None,
) -> tuple[np.ndarray, int, Runs]:
    """Write the string of n symbols.

    Parameters
    ----------
    tables : WriteTables
        Each symbol must have a frequency.
    symbols : callable or array
        The symbols as an (n,) uint8 array, or uint16 with classes, released if it is a
        `Drainable`. Or a callable that returns the symbols of a range: it may fill the array that
        it gets for them, and is called on the threads of the pool.
    n : int
        Number of symbols.
    lead : uint8 array
        Bytes that precede the string.
    log2_run : int
        Log2 of the symbols of an indexed run, from 5 to 18.
    lanes : int
        Number of interleaved states of a block.
    before_join : callable, optional
        Called with `nbits` when all symbols have been read; see `bit_string.written`. Ignored on
        a device.

    Returns
    -------
    data : uint8 array
        Lead and string.
    nbits : int
        Bits of `data`.
    runs : Runs
        Index of the string.
    """
    get = parts_of(symbols)
    runs, dtype = Runs.empty(log2_run, n, lanes), np.uint16 if tables.classed else np.uint8
    if 0 < n <= BLOCK:  # one block, whose bytes need no string that grows
        write_block = Writer(tables, n, lanes, vector_width())
        room = np.empty(n, dtype)
        block = write_block(get(0, n, room), 1 << log2_run, 0, runs.offsets, runs.states)
        runs.settle(runs.offsets[:-1].copy(), np.array([0, block.size]))
        nbits = 8 * (lead.size + block.size)
        if before_join is not None:
            before_join(nbits)
        return np.concatenate((lead, block)), nbits, runs
    ends = np.zeros(-(-n >> LOG2_BLOCK) + 1, np.int64)

    def task(start: int, stop: int) -> BitString:
        string: BitString | None = None
        size = min(BLOCK, stop - start)
        write_block, room = Writer(tables, size, lanes, vector_width()), np.empty(size, dtype)
        for at in range(start, stop, BLOCK):
            end = min(at + BLOCK, stop)
            part = get(at, end, room[: end - at])
            row = at >> log2_run
            block = write_block(part, 1 << log2_run, row, runs.offsets, runs.states)
            release(symbols, at, end)
            # Room for all further blocks too, if they are about as long as this one.
            needed = int(SPARE * block.size * max((stop - at) / BLOCK, 1))
            if string is None:
                string = BitString(lead.size if start == 0 else 0, needed)
            string.reserve(needed)
            string.extend(block, 8 * block.size)
            ends[1 + (at >> LOG2_BLOCK)] = block.size
        return BitString(lead.size) if string is None else string

    data, nbits, _ = written(task, n, BLOCK, before_join)
    data[: lead.size] = lead
    ends.cumsum(out=ends)
    runs.settle(runs.offsets[:-1].copy(), ends)
    return data, nbits, runs


def heads_nbits(n: int, lanes: int = LANES) -> int:
    """Return the number of bits of the states that begin all blocks of n symbols."""
    return 8 * STATE_NBYTES * lanes * -(-n >> LOG2_BLOCK)


def most_nbits(n: int) -> int:
    """Return an upper bound for the number of bits of the string of n symbols."""
    return heads_nbits(n) + 16 * n


def refuse_short(n: int, nbits: int, lanes: int = LANES) -> None:
    """Raise `Truncated` if `nbits` bits cannot hold n symbols."""
    least = heads_nbits(n, lanes)
    if least > nbits:
        raise Truncated(f"the payload has {nbits} bits for {n} symbols, which take {least}")


class Layout(NamedTuple):
    """Where a string lies in its data, and how its symbols are coded.

    Attributes
    ----------
    tables : ReadTables
    first, end : int
        Bits where the string begins, a multiple of 8, and where it ends.
    n : int
        Number of symbols.
    classes_of : callable, optional
        Returns the classes of a range as a uint8 array; it may fill the array that it gets for
        them. Required if the tables have classes; called on the threads of the pool.
    lanes : int
        Number of interleaved states of a block.
    trellis : bool
        Whether the current quantizer of a trellis is a part of the model. The tables must then
        have classes.
    """

    tables: ReadTables
    first: int
    end: int
    n: int
    classes_of: ClassesOf | None = None
    lanes: int = LANES
    trellis: bool = False

    def refuse_short(self) -> None:
        """Raise `Truncated` if the bits cannot hold all symbols."""
        refuse_short(self.n, self.end - self.first, self.lanes)

    def classes(self, start: int, stop: int, room: np.ndarray) -> np.ndarray:
        """Return the classes of a range, if there are any; they may be in `room`."""
        if self.classes_of is None:
            return room[:0]
        return self.classes_of(start, stop, room[: stop - start])


@dispatched("gcodec.kernels.rans.rans_string_cuda")
def read(
    data: np.ndarray,
    layout: Layout,
    take: Take,
    runs: Runs | None = None,
    bits_follow: bool = False,
) -> int:
    """Read the string of n symbols.

    Parameters
    ----------
    data : uint8 array
    layout : Layout
    take : callable
        Receives the first index of a range, and its symbols as a uint8 array that is overwritten
        later. Called on the threads of the pool, for all ranges in any order.
    runs : Runs, optional
        Index of the string. Blocks are then read in parallel, and the reader verifies the index.
    bits_follow : bool
        Whether the string may end before the end of the layout.

    Returns
    -------
    int
        The bit after the string.

    Raises
    ------
    FormatError
    """
    layout.refuse_short()
    if runs is None:
        after = _read_in_order(data, layout, take, Runs.empty(LOG2_BLOCK, layout.n, layout.lanes))
    else:
        after = _read_in_parallel(data, layout, take, runs, 0, layout.n)
    if not bits_follow:
        refuse_more(after, layout.end)
    return after


def read_range(
    data: np.ndarray, layout: Layout, start: int, stop: int, take: Take, runs: Runs | None = None
) -> None:
    """Read whole runs that contain symbols `start` to `stop` - 1 of a string; see `read`.

    With `runs`, the preceding run is read too, and each run must end as the next one begins;
    without, all blocks up to symbol `stop` are read. `take` receives all symbols that are read. A
    device reads the whole string.
    """
    if device_of(data) is not None:
        read(data, layout, take, runs)
    elif runs is None:
        # The first blocks of a string are a string too.
        upto = min(-(-stop >> LOG2_BLOCK) << LOG2_BLOCK, layout.n)
        read(data, layout._replace(n=upto), take, None, upto < layout.n)
    else:
        layout.refuse_short()
        _read_in_parallel(data, layout, take, runs, start, stop)


@dispatched("gcodec.kernels.rans.rans_string_cuda")
def index(data: np.ndarray, layout: Layout, log2_run: int) -> Runs:
    """Index the runs of a string by reading it; see `read`."""
    layout.refuse_short()
    runs = Runs.empty(log2_run, layout.n, layout.lanes)
    refuse_more(_read_in_order(data, layout, _ignore, runs), layout.end)
    runs.offsets[1:] = 8 * runs.offsets[1:] - layout.first
    runs.states[1:] = runs.states[:-1]
    runs.states[:: 1 << LOG2_BLOCK - log2_run] = 0
    return runs


def refuse_more(after: int, end: int) -> None:
    """Raise `Corrupt` if a payload continues, up to bit `end`, after the bit of its last word."""
    if after < end:
        raise Corrupt(f"the payload has {end - after} bits after its last codeword")


def _read_in_order(data: np.ndarray, layout: Layout, take: Take, runs: Runs) -> int:
    """Read all blocks one after the other; return the bit after the string.

    `runs` receives the byte after each run, as the offset of the next one, and the states after
    each run.
    """
    n, ends = layout.n, runs.offsets[1:]
    read_block = _reader(data, layout, 1)
    room, models = np.empty((2, min(BLOCK, n)), np.uint8)
    place, per_block = np.array([layout.first // 8]), 1 << LOG2_BLOCK - runs.log2_run
    for at in range(0, n, BLOCK):
        symbols = room[: min(BLOCK, n - at)]
        row, classes = at >> runs.log2_run, layout.classes(at, at + symbols.size, models)
        read_block(place, classes, symbols, 1 << runs.log2_run, row, ends, runs.states)
        take(at, symbols)
        place[0] = ends[min(row + per_block, ends.size) - 1]
    return 8 * int(place[0])


def _read_in_parallel(
    data: np.ndarray, layout: Layout, take: Take, runs: Runs, start: int, stop: int
) -> int:
    """Read the runs that cover a range in parallel; return the bit after the string."""
    first, n = layout.first, layout.n
    runs.check(n, layout.end - first, layout.lanes)
    run_size, per_block = 1 << runs.log2_run, 1 << LOG2_BLOCK - runs.log2_run
    start, stop = runs.covering(start, stop, n)
    origin = start >> LOG2_BLOCK << LOG2_BLOCK

    def task(at: int, end: int) -> None:
        at, end = max(origin + at, start), min(origin + end, stop)
        # The tables of several models leave no room for two blocks in the caches.
        ways = 1 if layout.tables.classed else 2
        read_one, read_two = _reader(data, layout, 1), _reader(data, layout, ways)
        room = np.empty(min(ways * BLOCK, end - at), np.uint8)
        models = np.empty_like(room)
        read_runs = Runs.empty(runs.log2_run, room.size, layout.lanes)
        while at < end:
            # Two whole blocks, if another one follows: no word is then near the end of data.
            two = ways == 2 and at % BLOCK == 0 and at + 2 * BLOCK <= min(end, n - 1)
            upto = min((at >> LOG2_BLOCK) + (2 if two else 1) << LOG2_BLOCK, end)
            rows = slice(at >> runs.log2_run, -(-upto >> runs.log2_run))
            places, moved = (first + runs.offsets[rows][::per_block]) >> 3, 0
            symbols, classes = room[: upto - at], layout.classes(at, upto, models)
            read_blocks = read_two if two else read_one
            if at % BLOCK:
                read_blocks, places, moved = _resumed(data, layout, runs, rows)
            whole = upto % BLOCK == 0 or upto == n
            try:
                read_blocks(
                    *(places, classes, symbols, run_size, 0),
                    *(read_runs.offsets, read_runs.states, whole),
                )
            except Truncated as error:
                raise Corrupt(f"the seek table or the payload is wrong: {error}") from None
            if not runs.same(rows, read_runs, first - 8 * moved):
                raise Corrupt("the seek table or the payload is wrong: a run begins elsewhere")
            for k in range(0, symbols.size, BLOCK):
                take(at + k, symbols[k : k + BLOCK])
            at = upto

    pool.run(task, stop - origin, BLOCK)
    return first + int(runs.offsets[-1])


def _resumed(
    data: np.ndarray, layout: Layout, runs: Runs, rows: slice
) -> tuple[Reader, np.ndarray, int]:
    """Copy runs from within a block to a block of its own: their states, then their words.

    Return the reader of the copy, where its block begins, and how many bytes further on the block
    would begin in `data`.
    """
    at, stop = ((layout.first + runs.offsets[[rows.start, rows.stop]]) >> 3).tolist()
    head = runs.states[rows.start].astype("<u4").view(np.uint8)
    # With the further words that the last group of symbols may consume.
    end = min(layout.end // 8, data.size, stop + 2 * layout.lanes)
    copy = np.concatenate((head, data[at:end]))
    reader = _reader(copy, layout._replace(end=8 * copy.size), 1)
    return reader, np.zeros(1, np.int64), at - head.size


def _reader(data: np.ndarray, layout: Layout, ways: int) -> Reader:
    end, lanes = min(layout.end // 8, data.size), layout.lanes
    return Reader(layout.tables, data, end, ways, lanes, layout.trellis, vector_width())


def _ignore(at: int, symbols: np.ndarray) -> None:
    """Discard the symbols of a string that is only indexed."""
