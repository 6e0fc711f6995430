"""The reader of rANS blocks: 32 states that take turns, and take up words of 16 bits.

A state x holds the symbol to which the slot x mod 2^P belongs; without it, the state is
f·(x >> P) + (x mod 2^P) − c, with f slots of the symbol of which c is the first. Where this is
below 2^16, the next word comes below it. Sources: Duda, arXiv 1311.2540; Giesen, arXiv 1402.3392.

With a trellis, each lane has a path through it too, on which the model of its next symbol depends.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.quantize.trellis import above_class, after
from gcodec.kernels.rans.rans_read_vector import reading
from gcodec.kernels.rans.rans_table import (
    COMPACT,
    LEAST_LOG2,
    LEAST_STATE,
    LOG2_ALPHABET,
    MOST_LOG2,
    STATE_NBYTES,
    ReadTables,
)
from gcodec.kernels.rans.rans_vector import (
    AT,
    CLASSED_LANES,
    KEPT,
    LANES,
    LAST_AT,
    LAST_PLACE,
    PLACE,
    no_groups,
    orders,
    vector_width,
)
from gcodec.runtime.jit import Kernel, factory, inline, kernel, subroutine

_ONE, _FOUR, _EIGHT, _SIXTEEN = (np.uint64(k) for k in (1, 4, 8, 16))
_LOW, _LEAST = np.uint64(0xFFFF), np.uint64(LEAST_STATE)
_TRUNCATED, _LOW_HEAD, _OTHER_END = -1, -2, -3  # what a reader may find


class Reader:
    """Reads blocks, one after the other, or several of equal length in turn.

    Parameters
    ----------
    tables : ReadTables
    data : uint8 array
    end : int
        The byte where words end, at most data.size.
    ways : int
        Blocks that are read in turn.
    lanes : int
        States of a block that take turns.
    trellis : bool
        Whether the quantiser that is next is a part of the model; see `trellis`. There are then
        classes.
    width : int
        Lanes of vectors, 0 for none; only used for LANES states. See `vector_width`.
    """

    def __init__(
        self,
        tables: ReadTables,
        data: np.ndarray,
        end: int,
        ways: int,
        lanes: int,
        trellis: bool,
        width: int,
    ) -> None:
        compact = tables.entries.size > 0
        if lanes != LANES or (trellis and not compact):
            width = 0
        kind = tables.log2_total, tables.classed, compact
        self._loop = _reader(*kind, ways, lanes, trellis, width)
        self._tables = tables.entries, tables.slots, tables.pairs, _expanding()
        self._data, self._end = data, end
        self._states = np.empty(ways * lanes, np.uint32)
        self._paths = np.zeros(ways * lanes, np.uint32)
        self._kept = np.empty(ways * KEPT, np.int64)

    def __call__(
        self,
        places: np.ndarray,
        classes: np.ndarray,
        out: np.ndarray,
        every: int,
        row: int,
        ends: np.ndarray,
        states: np.ndarray,
        whole: bool = True,
    ) -> None:
        """Read as many blocks as there are ways.

        Parameters
        ----------
        places : (ways,) int64 array
            The byte where each begins, from 0 to `end`.
        classes : (ways * n,) uint8 array, or of no elements
            Those of the symbols, if there are classes.
        out : (ways * n,) uint8 array
            The symbols, those of a block behind those of the one before it.
        every, row : int
            The i-th run of `every` symbols, a multiple of LANES, is told in row + i, those of a
            block behind those of the one before it.
        ends : int64 array
            The byte behind each run.
        states : (rows, lanes) uint32 array
            The states behind each run.
        whole : bool
            False where a block goes on: its states are then any.

        Raises
        ------
        FormatError
        """
        self._loop(
            *(self._data, self._end, places, every, row, *self._tables, self._states),
            *(self._paths, self._kept, classes, out, ends, states.reshape(-1)),
        )
        status = int(self._kept[AT])
        if status == _TRUNCATED:
            raise Truncated(f"the payload ends within a block of symbols, at byte {self._end}")
        if status == _LOW_HEAD:
            raise Corrupt("a block of symbols begins in a state below 2**16")
        if status == _OTHER_END and whole:
            raise Corrupt("a block of symbols does not end in the states that it must")


@inline
def _stepped(x, slot, pair, shift, word):
    """Take the symbol of a slot out of a state; return that, and 1 if it took up the word."""
    x = (pair & _LOW) * (x >> shift) + slot - (pair >> _SIXTEEN)
    need = np.uint64(x < _LEAST)
    return x << (need << _FOUR) | word & (np.uint64(0) - need), need


@functools.cache
def _expanding() -> np.ndarray:
    """Give the next words to the lanes of a set, in order."""

    def words_of(members: int) -> list[int]:
        before = (bin(members & ((1 << lane) - 1)).count("1") for lane in range(8))
        return [count if members >> lane & 1 else -1 for lane, count in enumerate(before)]

    return orders(words_of)


def _models() -> Iterator[tuple[int, bool, bool, int, int, bool, int]]:
    for log2_total, ways in itertools.product(range(LEAST_LOG2, MOST_LOG2 + 1), (1, 2)):
        for compact in (True, False) if 1 << log2_total <= COMPACT else (False,):
            yield log2_total, False, compact, ways, LANES, False, vector_width()
    for lanes, compact in itertools.product(CLASSED_LANES, (True, False)):
        for trellis in (False, True):
            width = vector_width() if lanes == LANES else 0
            yield LEAST_LOG2, True, compact, 1, lanes, trellis, width


@factory(_models)
def _reader(
    log2_total: int,
    classed: bool,
    compact: bool,
    ways: int,
    lanes: int,
    trellis: bool,
    width: int,
) -> Kernel:
    last_slot, shift = np.uint64((1 << log2_total) - 1), np.uint64(log2_total)
    above_symbol, head, group_nbytes = np.uint64(LOG2_ALPHABET), STATE_NBYTES * lanes, 2 * lanes
    variant = f"{log2_total} {classed} {compact} {ways} {lanes} {trellis} {width}"
    read_groups = no_groups
    if width:
        read_groups = reading(log2_total, classed, trellis, compact, ways, width)

    @subroutine(variant=variant)
    def read_head(data, at, states):
        """Read the states of a block from byte `at` on; tell if they may be such."""
        for lane in range(lanes):
            x = np.uint32(0)
            for k in range(4):
                x |= np.uint32(data[at + 4 * lane + k]) << np.uint32(8 * k)
            states[lane] = x
            if x < LEAST_STATE:
                return False
        return True

    @subroutine(variant=variant)
    def read_whole(data, end, at, slots, pairs, states, paths, classes, out):
        """Read groups of a symbol for each lane; return how many, and the next byte."""
        place, i = np.uint64(at), 0
        # No word is missing.
        while i + lanes <= out.size and np.int64(place) + group_nbytes <= end:
            for lane in range(lanes):
                x = np.uint64(states[lane])
                model = np.uint64(classes[i + lane]) if classed else np.uint64(0)
                if trellis:
                    model |= np.uint64(above_class(paths[lane]))
                symbol = slots[x & last_slot | model << shift]
                if trellis:
                    paths[lane] = after(paths[lane], np.uint32(symbol))
                out[i + lane] = symbol
                pair = np.uint64(pairs[np.uint64(symbol) | model << above_symbol])
                word = np.uint64(data[place]) | np.uint64(data[place + _ONE]) << _EIGHT
                x, need = _stepped(x, x & last_slot, pair, shift, word)
                place += need << _ONE
                states[lane] = np.uint32(x)
            i += lanes
        return i, np.int64(place)

    @subroutine(variant=variant)
    def read_singles(data, end, at, slots, pairs, states, paths, classes, out):
        """Read symbols, the first of lane 0; return the next byte, or -1 if a word is missing."""
        place, stop, last = np.uint64(at), np.uint64(end), np.uint64(end - 2)
        for i in range(out.size):
            x = np.uint64(states[i % lanes])
            model = np.uint64(classes[i]) if classed else np.uint64(0)
            if trellis:
                model |= np.uint64(above_class(paths[i % lanes]))
            symbol = slots[x & last_slot | model << shift]
            if trellis:
                paths[i % lanes] = after(paths[i % lanes], np.uint32(symbol))
            out[i] = symbol
            pair = np.uint64(pairs[np.uint64(symbol) | model << above_symbol])
            here = min(place, last)
            word = np.uint64(data[here]) | np.uint64(data[here + _ONE]) << _EIGHT
            x, need = _stepped(x, x & last_slot, pair, shift, word)
            place += need << _ONE
            if place > stop:
                return -1
            states[i % lanes] = np.uint32(x)
        return np.int64(place)

    @kernel(
        "in uint8[], int64, in int64[], int64, int64, in uint32[], in uint8[], in uint32[], "
        "in uint8[], out uint32[], out uint32[], out int64[], in uint8[], out uint8[], "
        "out int64[], out uint32[]",
        variant=variant,
    )
    def read_blocks(
        data,
        end,
        starts,
        every,
        row,
        entries,
        slots,
        pairs,
        order,
        states,
        paths,
        kept,
        classes,
        out,
        ends,
        behind,
    ):
        # 0 <= starts[way] <= end <= data.size. Each of `ways` has out.size / ways symbols, `lanes`
        # states, KEPT of `kept`, and for each of its runs an end and `lanes` states behind, from
        # `row` on. A slot is below slots.size, which is entries.size if that is not 0; there are
        # out.size classes, each with its part of the tables, or there is but one model. With a
        # trellis there are CLASSES of them for each quantiser, and of RUN and `every` one is a
        # multiple of the other.
        n = out.size // ways
        count = (n + every - 1) // every
        length = min(every, RUN) if trellis else every
        table = entries if compact else pairs
        for way in range(ways):
            at = starts[way]
            if at + head > end:
                kept[AT] = _TRUNCATED
                return
            if not read_head(data, at, states[way * lanes : (way + 1) * lanes]):
                kept[AT] = _LOW_HEAD
                return
            kept[KEPT * way + AT], kept[KEPT * way + LAST_AT] = at + head, end - group_nbytes
        for start in range(0, n, length):
            stop = min(start + length, n)
            for way in range(ways):
                kept[KEPT * way + PLACE] = way * n + start
                kept[KEPT * way + LAST_PLACE] = way * n + stop - lanes
            if trellis and start % RUN == 0:
                for k in range(ways * lanes):
                    paths[k] = 0
            if width:
                read_groups(data, table, slots, order, states, paths, kept, classes, 0, out)
            for way in range(ways):
                here = states[way * lanes : (way + 1) * lanes]
                along = paths[way * lanes : (way + 1) * lanes]
                at, place = kept[KEPT * way + AT], kept[KEPT * way + PLACE]
                rest, models = out[place : way * n + stop], classes[place : way * n + stop]
                whole, at = read_whole(data, end, at, slots, pairs, here, along, models, rest)
                rest, models = rest[whole:], models[whole:]
                at = read_singles(data, end, at, slots, pairs, here, along, models, rest)
                if at < 0:
                    kept[AT] = _TRUNCATED
                    return
                run = row + way * count + start // every
                kept[KEPT * way + AT] = ends[run] = at
                for lane in range(lanes):
                    behind[run * lanes + lane] = here[lane]
        for k in range(ways * lanes):
            if states[k] != LEAST_STATE:
                kept[AT] = _OTHER_END
                return

    return read_blocks
