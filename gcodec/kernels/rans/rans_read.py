"""The reader of rANS blocks: 32 interleaved states that consume words of 16 bits.

A state x encodes the symbol to which the slot x mod 2^P belongs. Removing the symbol yields the
state f·(x >> P) + (x mod 2^P) − c, where f is the number of slots of the symbol and c the first of
them. If the result is below 2^16, the state is shifted up and takes the next word as its lower
half. Sources: Duda, arXiv 1311.2540; Giesen, arXiv 1402.3392.

With a trellis, each lane also has a path through it, on which the model of its next symbol
depends.

On hosts with vectors, groups of 32 symbols are read by vector IR. The halves of a group wait for
each other only to locate the next word; groups of several blocks that are read in turn do not wait
for each other at all. The IR checks no index except by the conditions that end its loop.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.quantize.trellis import (
    LOG2_QUANTIZER,
    OTHER,
    PARITY,
    PATH,
    STEPS,
    above_class,
    after,
)
from gcodec.kernels.rans.rans_table import (
    LEAST_STATE,
    LOG2_ALPHABET,
    STATE_NBYTES,
    ReadTables,
)
from gcodec.kernels.rans.rans_vector import (
    AT,
    CLASSED_LANES,
    CURSOR,
    HALF,
    LANES,
    LAST_AT,
    LAST_PLACE,
    ORDERS,
    PLACE,
    load_states,
    members_of,
    no_groups,
    packed,
    shuffled,
    spread,
    store_states,
    vector_width,
    word_orders,
)
from gcodec.runtime.jit import Intrinsic, Kernel, factory, inline, kernel, subroutine
from gcodec.runtime.lanes import Emitter, Value, block, integer
from gcodec.runtime.lanes import lanes as vector

_ONE, _FOUR, _EIGHT, _SIXTEEN = (np.uint64(k) for k in (1, 4, 8, 16))
_LOW, _LEAST = np.uint64(0xFFFF), np.uint64(LEAST_STATE)
TRUNCATED, _LOW_HEAD, _OTHER_END = -1, -2, -3  # errors of a reader; negated on a device


class Reader:
    """Reads blocks one after the other, or several of equal length in turn.

    Parameters
    ----------
    tables : ReadTables
    data : uint8 array
    end : int
        The byte where words end, at most data.size.
    ways : int
        Number of blocks that are read in turn.
    lanes : int
        Number of interleaved states of a block.
    trellis : bool
        Whether the current quantizer of a trellis is a part of the model; see `trellis`. The
        tables must then have classes.
    width : int
        Lanes of vectors, 0 for none; used only with LANES states. See `vector_width`.
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
        self._loop = _reader(tables.classed, compact and width > 0, ways, lanes, trellis, width)
        self._log2_total = np.uint64(tables.log2_total)
        self._tables = tables.entries, tables.slots, tables.pairs, _expanding()
        self._data, self._end = data, end
        self._states = np.empty(ways * lanes, np.uint32)
        self._paths = np.zeros(ways * lanes, np.uint32)
        self._cursors = np.empty(ways * CURSOR, np.int64)

    def __call__(
        self,
        places: np.ndarray,
        classes: np.ndarray,
        out: np.ndarray,
        run_size: int,
        row: int,
        ends: np.ndarray,
        states: np.ndarray,
        whole: bool = True,
    ) -> None:
        """Read one block for each way.

        Parameters
        ----------
        places : (ways,) int64 array
            First byte of each block, from 0 to `end`.
        classes : (ways * n,) uint8 array, or of no elements
            Classes of the symbols, if the tables have classes.
        out : (ways * n,) uint8 array
            Receives the symbols, block after block.
        run_size, row : int
            The i-th run of `run_size` symbols, a multiple of LANES, is reported in row `row` + i;
            the runs of a block follow those of the preceding block.
        ends : int64 array
            Receives the byte after each run.
        states : (rows, lanes) uint32 array
            Receives the states after each run.
        whole : bool
            False if a block continues after these symbols; its states may then have any value.

        Raises
        ------
        FormatError
        """
        self._loop(
            *(self._data, self._end, places, run_size, row, self._log2_total, *self._tables),
            *(self._states, self._paths, self._cursors, classes, out, ends, states.reshape(-1)),
        )
        status = int(self._cursors[AT])
        if whole or status != _OTHER_END:
            check(status, self._end)


def check(status: int, end: int) -> None:
    """Raise the error that a reader reports, if any, given the byte where the payload ends."""
    if status == TRUNCATED:
        raise Truncated(f"the payload ends within a block of symbols, at byte {end}")
    if status == _LOW_HEAD:
        raise Corrupt("a block of symbols begins in a state below 2**16")
    if status == _OTHER_END:
        raise Corrupt("a block of symbols does not end in the states that it must")


@functools.cache
def _expanding() -> np.ndarray:
    """Tabulate the shuffles that distribute consecutive words to the lanes of a set, in order."""

    def words_of(members: int) -> list[int]:
        before = (bin(members & ((1 << lane) - 1)).count("1") for lane in range(8))
        return [count if members >> lane & 1 else -1 for lane, count in enumerate(before)]

    return word_orders(words_of)


def _variants() -> Iterator[tuple[bool, bool, int, int, bool, int]]:
    width = vector_width()
    for compact in (True, False) if width else (False,):
        yield from ((False, compact, ways, LANES, False, width) for ways in (1, 2))
        yield True, compact, 1, LANES, False, width
    if width:
        yield True, True, 1, LANES, True, width
    yield True, False, 1, LANES, True, 0
    for lanes, trellis in itertools.product(CLASSED_LANES[:-1], (False, True)):
        yield True, False, 1, lanes, trellis, 0


@functools.cache
def _scalar_loops(classed: bool, lanes: int, trellis: bool) -> tuple[Any, Any, Any]:
    """Make the loops that read states and symbols without vectors."""
    above_symbol, group_nbytes = np.uint64(LOG2_ALPHABET), 2 * lanes

    @subroutine
    def read_head(data, at, states):
        """Read the states of a block from byte `at` on; return whether all are valid."""
        for lane in range(lanes):
            x = np.uint32(0)
            for k in range(4):
                x |= np.uint32(data[at + 4 * lane + k]) << np.uint32(8 * k)
            states[lane] = x
            if x < LEAST_STATE:
                return False
        return True

    @inline
    def read_symbol_of(lane, i, word_at, data, shift, slots, pairs, states, paths, classes, out):
        """Read symbol i of a lane; return 1 if its state consumed the word at a byte, else 0."""
        x = np.uint64(states[lane])
        model = np.uint64(classes[i]) if classed else np.uint64(0)
        if trellis:
            model |= np.uint64(above_class(paths[lane]))
        slot = x & ((_ONE << shift) - _ONE)
        symbol = slots[slot | model << shift]
        if trellis:
            paths[lane] = after(paths[lane], np.uint32(symbol))
        out[i] = symbol
        pair = np.uint64(pairs[np.uint64(symbol) | model << above_symbol])
        word = np.uint64(data[word_at]) | np.uint64(data[word_at + _ONE]) << _EIGHT
        x = (pair & _LOW) * (x >> shift) + slot - (pair >> _SIXTEEN)
        need = np.uint64(x < _LEAST)
        states[lane] = np.uint32(x << (need << _FOUR) | word & (np.uint64(0) - need))
        return need

    @subroutine
    def read_whole(data, end, at, shift, slots, pairs, states, paths, classes, out):
        """Read groups of a symbol for each lane; return their symbols, and the next byte."""
        place, i = np.uint64(at), 0
        # No word of these groups passes the end.
        while i + lanes <= out.size and np.int64(place) + group_nbytes <= end:
            for lane in range(lanes):
                need = read_symbol_of(
                    lane, i + lane, place, data, shift, slots, pairs, states, paths, classes, out
                )
                place += need << _ONE
            i += lanes
        return i, np.int64(place)

    @subroutine
    def read_singles(data, end, at, shift, slots, pairs, states, paths, classes, out):
        """Read symbols, the first of lane 0; return the next byte, or -1 if a word is missing."""
        place, stop, last = np.uint64(at), np.uint64(end), np.uint64(end - 2)
        for i in range(out.size):
            word_at = min(place, last)
            need = read_symbol_of(
                i % lanes, i, word_at, data, shift, slots, pairs, states, paths, classes, out
            )
            place += need << _ONE
            if place > stop:
                return -1
        return np.int64(place)

    return read_head, read_whole, read_singles


@factory(_variants)
def _reader(
    classed: bool, compact: bool, ways: int, lanes: int, trellis: bool, width: int
) -> Kernel:
    head, group_nbytes = STATE_NBYTES * lanes, 2 * lanes
    read_head, read_whole, read_singles = _scalar_loops(classed, lanes, trellis)
    read_groups: Callable[..., None] | Intrinsic = no_groups
    if width:
        read_groups = _reading_groups(classed, trellis, compact, ways, width)

    @kernel(
        "in uint8[], int64, in int64[], int64, int64, uint64, "
        "(in uint32[], in uint8[], in uint32[], in uint8[]), "
        "(out uint32[], out uint32[], out int64[]), in uint8[], out uint8[], out int64[], "
        "out uint32[]",
        variant=f"{classed} {compact} {ways} {lanes} {trellis} {width}",
    )
    def read_blocks(
        data, end, starts, run_size, row, shift, tables, room, classes, out, ends, snapshots
    ):
        # 0 <= starts[way] <= end <= data.size. Each of `ways` has out.size / ways symbols, `lanes`
        # states, CURSOR of `cursors`, and for each of its runs an end and `lanes` snapshots, from
        # `row` on. A slot is below slots.size, which is entries.size if that is not 0. Either
        # there are out.size classes, each with its part of the tables, or there is one model. With
        # a trellis there are CLASSES of them for each quantizer, and of RUN and `run_size` one is
        # a multiple of the other. `shift` is the logarithm of the number of slots of a table.
        entries, slots, pairs, order = tables
        states, paths, cursors = room
        n = out.size // ways
        count = (n + run_size - 1) // run_size
        length = min(run_size, RUN) if trellis else run_size
        table = entries if compact else pairs
        for way in range(ways):
            at = starts[way]
            if at + head > end:
                cursors[AT] = TRUNCATED
                return
            if not read_head(data, at, states[way * lanes : (way + 1) * lanes]):
                cursors[AT] = _LOW_HEAD
                return
            cursors[CURSOR * way + AT] = at + head
            cursors[CURSOR * way + LAST_AT] = end - group_nbytes
        for start in range(0, n, length):
            stop = min(start + length, n)
            for way in range(ways):
                cursors[CURSOR * way + PLACE] = way * n + start
                cursors[CURSOR * way + LAST_PLACE] = way * n + stop - lanes
            if trellis and start % RUN == 0:
                for k in range(ways * lanes):
                    paths[k] = 0
            if width:
                read_groups(data, shift, table, slots, order, states, paths, cursors, classes, out)
            for way in range(ways):
                own = states[way * lanes : (way + 1) * lanes]
                along = paths[way * lanes : (way + 1) * lanes]
                at, place = cursors[CURSOR * way + AT], cursors[CURSOR * way + PLACE]
                tail, models = out[place : way * n + stop], classes[place : way * n + stop]
                whole, at = read_whole(
                    data, end, at, shift, slots, pairs, own, along, models, tail
                )
                tail, models = tail[whole:], models[whole:]
                at = read_singles(data, end, at, shift, slots, pairs, own, along, models, tail)
                if at < 0:
                    cursors[AT] = TRUNCATED
                    return
                run = row + way * count + start // run_size
                cursors[CURSOR * way + AT] = ends[run] = at
                for lane in range(lanes):
                    snapshots[run * lanes + lane] = own[lane]
        for k in range(ways * lanes):
            if states[k] != LEAST_STATE:
                cursors[AT] = _OTHER_END
                return

    return read_blocks


def _reading_groups(
    classed: bool, trellis: bool, compact: bool, ways: int, width: int
) -> Intrinsic:
    """Make the block that reads groups of several rANS blocks in turn.

    `cursors` holds four int64 for each rANS block: AT, the byte of its next word, from 0 on;
    PLACE, its next symbol; and the last value of both with which a group is read. The caller
    ensures LAST_AT + 64 <= data.size and LAST_PLACE + LANES <= out.size. All blocks advance until
    one of them passes its last byte or place.

    Parameters
    ----------
    classed : bool
        Whether each symbol has a class, with its own part of the tables.
    trellis : bool
        Whether the current quantizer chooses a part of the tables too; only if compact.
    compact : bool
        Whether `table` is `ReadTables.entries`; otherwise it is `ReadTables.pairs`.
    ways, width : int
    """
    arrays = "data", "table", "slots", "expand", "states", "paths", "cursors", "classes", "out"

    @block("data", "shift", *arrays[1:])
    def read_groups(e: Emitter) -> None:
        builder, word = e.builder, integer(64)
        data, table, slots, expand, states, paths, cursors, classes, out = (
            e.args[name] for name in arrays
        )
        before, last, bits = [], [], e.args["shift"]
        shift = e.splat(builder.trunc(bits, integer(32)), width)
        mask = builder.sub(builder.shl(spread(shift, 1), shift), spread(shift, 1))
        for way in range(ways):
            at, place, *limits = (
                builder.load(e.element(cursors, CURSOR * way + k)) for k in range(CURSOR)
            )
            before += [at, place, *load_states(e, e.element(states, LANES * way), width)]
            before += load_states(e, e.element(paths, LANES * way), width) if trellis else []
            last.append(limits)
        size, count = len(before) // ways, HALF // width  # vectors of a half group

        def going(current: list[Value]) -> Value:
            inside = integer(1)(1)
            for way, limits in enumerate(last):
                for value, limit in zip(current[size * way :], limits, strict=False):
                    inside = builder.and_(inside, builder.icmp_signed("<=", value, limit))
            return inside

        def compact_entries(slot: Value, path: Value, order: list[int], models: Value) -> Value:
            """Emit `ReadTables.entries` for the lanes of a vector."""
            if classed:
                half = e.load(models, vector(8, HALF), 1)
                model = builder.zext(e.picked(half, order), slot.type)
                slot = builder.or_(slot, builder.shl(model, shift))
            if trellis:
                other = builder.and_(path, spread(slot, OTHER))
                above = builder.add(shift, spread(slot, LOG2_QUANTIZER))
                slot = builder.or_(slot, builder.shl(other, above))
            return e.gathered(table, e.indices(slot), slot.type)

        def pairs_of(slot: Value, order: list[int], models: Value, target: Value) -> Value:
            """Emit the symbols of the lanes of a vector, and return their `ReadTables.pairs`."""
            indices = []
            for index, lane in zip(e.indices(slot), order, strict=True):
                model = word(0)
                if classed:
                    model = builder.zext(builder.load(e.element(models, lane)), word)
                    index = builder.or_(index, builder.shl(model, bits))
                symbol = builder.load(builder.gep(slots, [index]))
                builder.store(symbol, e.element(target, lane))
                above = builder.shl(model, word(LOG2_ALPHABET))
                indices.append(builder.or_(builder.zext(symbol, word), above))
            return e.gathered(table, indices, slot.type)

        def take(current: list[Value], along: list[Value], models: Value, target: Value) -> None:
            """Emit the decoding of 16 symbols to 16 bytes; replace the states and paths."""
            symbols = []
            for k, (x, order) in enumerate(zip(current, ORDERS[width], strict=True)):
                splat = functools.partial(spread, x)
                slot = builder.and_(x, mask)  # so inside of the table
                if compact:
                    path = along[k] if trellis else None
                    entry = compact_entries(slot, path, order, models)
                    symbols.append(builder.and_(entry, splat(0xFF)))
                    frequency = builder.lshr(entry, splat(20))
                    offset = builder.and_(builder.lshr(entry, splat(8)), splat(0xFFF))
                    if trellis:  # see `trellis.after`
                        parity = builder.and_(builder.add(symbols[k], splat(2)), splat(PARITY))
                        steps = builder.lshr(splat(STEPS), builder.add(path, parity))
                        along[k] = builder.and_(steps, splat(PATH))
                else:
                    pair = pairs_of(slot, order, models, target)
                    frequency = builder.and_(pair, splat(0xFFFF))
                    offset = builder.sub(slot, builder.lshr(pair, splat(16)))
                times = builder.lshr(x, shift)
                current[k] = builder.add(builder.mul(frequency, times), offset)
            if compact:
                e.store(builder.trunc(packed(e, symbols), vector(8, HALF)), target, 1)

        def group(current: list[Value]) -> list[Value]:
            then = list(current)
            for half in range(2):
                for way in range(0, size * ways, size):
                    first = way + 2 + count * half
                    own = slice(first, first + count)
                    along = slice(first + 2 * count, first + 3 * count)
                    place = builder.add(current[way + 1], word(HALF * half))
                    models = builder.gep(classes, [place])
                    states, paths = then[own], then[along] if trellis else []
                    take(states, paths, models, builder.gep(out, [place]))
                    then[way], then[own] = _refill(e, states, data, then[way], expand)
                    if trellis:
                        then[along] = paths
            for way in range(0, size * ways, size):
                then[way + 1] = builder.add(current[way + 1], word(LANES))
            return then

        final = e.loop(before, going, group)
        for way in range(ways):
            at, place, *x = final[size * way : size * way + size]
            builder.store(at, e.element(cursors, CURSOR * way + AT))
            builder.store(place, e.element(cursors, CURSOR * way + PLACE))
            store_states(e, x[: 2 * count], e.element(states, LANES * way), width)
            if trellis:
                store_states(e, x[2 * count :], e.element(paths, LANES * way), width)

    return read_groups


def _refill(
    e: Emitter, states: list[Value], data: Value, at: Value, expand: Value
) -> tuple[Value, list[Value]]:
    """Emit that lanes below 2^16 take the words from byte `at` on; return the byte after them."""
    builder, halves = e.builder, vector(16, HALF)
    needs = [builder.icmp_unsigned("<", x, spread(x, 1 << 16)) for x in states]
    moved = [builder.shl(x, spread(x, 16)) for x in states]
    if len(states) == 1:
        words, need = e.load(builder.gep(data, [at]), halves, 1), needs[0]
        zeros = halves([0] * HALF)
        words = e.x86("avx512.mask.expand.v16i16", halves, [words, zeros, need])
        full = builder.or_(moved[0], builder.zext(words, states[0].type))
        count = builder.ctpop(builder.zext(builder.bitcast(need, integer(HALF)), at.type))
        after = builder.add(at, builder.shl(count, at.type(1)))
        return after, [builder.select(need, full, states[0])]
    *members, twice = members_of(e, needs)
    middle = builder.add(at, builder.shl(builder.ctpop(members[0]), at.type(1)))
    eight = vector(8, HALF)
    words = e.joined([e.load(builder.gep(data, [byte]), eight, 1) for byte in (at, middle)])
    words = builder.bitcast(shuffled(e, words, expand, members), halves)
    then = []
    for k, first in enumerate((0, 4)):
        # Four words of each eight, with zeros above them.
        order = [i for at in (first, first + 8) for k in range(at, at + 4) for i in (k, HALF)]
        wide = builder.shuffle_vector(words, words.type([0] * HALF), vector(32, HALF)(order))
        kept = builder.select(needs[k], moved[k], states[k])
        then.append(builder.or_(kept, builder.bitcast(wide, vector(32, 8))))
    return builder.add(at, builder.ctpop(twice)), then
