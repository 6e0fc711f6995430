"""The writer of rANS blocks: 32 interleaved states that emit words of 16 bits.

The writer goes from the last symbol to the first and fills the words backwards, so that it inverts
the steps of a reader in reverse order. A state x becomes floor(x / f)·2^P + (x mod f) + c, where f
is the number of slots of the symbol and c the first of them; before this, the state emits its
lower 16 bits if it would otherwise pass 2^32.

On hosts with vectors, groups of 32 symbols are written by vector IR, which checks no index except
by the conditions that end its loop.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from gcodec.kernels.rans.rans_table import LEAST_STATE, WriteTables
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
from gcodec.runtime.jit import Intrinsic, Kernel, factory, kernel, subroutine
from gcodec.runtime.lanes import Emitter, Value, block, floats, integer
from gcodec.runtime.lanes import lanes as vector

_ONE, _FOUR, _SIXTEEN, _NBITS = (np.uint64(k) for k in (1, 4, 16, 32))
_LOW = np.uint64(0xFFFF)
# By the lanes of a vector, the 64-bit entries that are gathered to each of two vectors, such that
# the 32-bit words at _EVEN, and those that follow them, are in order.
_GATHERED = {16: (range(8), range(8, 16)), 8: ((0, 1, 4, 5), (2, 3, 6, 7))}
_EVEN = {16: range(0, 32, 2), 8: (0, 2, 8, 10, 4, 6, 12, 14)}


class Writer:
    """Writes blocks one after the other.

    Parameters
    ----------
    tables : WriteTables
    most : int
        Largest number of symbols of a block.
    lanes : int
        Number of interleaved states.
    width : int
        Lanes of vectors, 0 for none; used only with LANES states. See `vector_width`.
    """

    def __init__(self, tables: WriteTables, most: int, lanes: int, width: int) -> None:
        width = width if lanes == LANES else 0
        self._loop = _writer(tables.classed, lanes, width)
        self._log2_total = np.uint64(tables.log2_total)
        self._tables = tables.entries, tables.reciprocals, tables.pairs, _compressing()
        # A symbol emits at most one word; vectors are stored whole, with garbage before the words.
        self._words = np.empty(most + LANES + 2 * lanes, np.uint16)
        self._cursor = np.zeros(CURSOR, np.int64)

    def __call__(
        self, symbols: np.ndarray, run_size: int, row: int, words: np.ndarray, states: np.ndarray
    ) -> np.ndarray:
        """Write a block.

        Parameters
        ----------
        symbols : (n,) uint8 array, or uint16 if they have classes
            At least one symbol. Each must have a frequency.
        run_size, row : int
            The i-th run of `run_size` symbols, a multiple of LANES, is reported in row `row` + i.
        words : int64 array
            Receives, for each run, the number of words from its first to the end of the block.
        states : (rows, lanes) uint32 array
            Receives the states before each run.

        Returns
        -------
        uint8 array
            The bytes of the block, which the next call overwrites.
        """
        self._loop(
            *(symbols, run_size, row, self._log2_total, *self._tables, self._cursor),
            *(self._words, words, states.reshape(-1)),
        )
        return self._words[self._cursor[AT] :].view(np.uint8)


@functools.cache
def _compressing() -> np.ndarray:
    """Tabulate the shuffles that move the words of lanes outside a set to the end, in order."""

    def words_of(members: int) -> list[int]:
        outside = [lane for lane in range(8) if not members >> lane & 1]
        return [-1] * (8 - len(outside)) + outside

    return word_orders(words_of)


def _variants() -> Iterator[tuple[bool, int, int]]:
    yield False, LANES, vector_width()
    yield from ((True, k, vector_width() if k == LANES else 0) for k in CLASSED_LANES)


@factory(_variants)
def _writer(classed: bool, lanes: int, width: int) -> Kernel:
    variant, kind = f"{classed} {lanes} {width}", "uint16" if classed else "uint8"
    write_groups = _writing_groups(width) if width else no_groups

    @subroutine
    def stepped(symbol, state, shift, reciprocals, pairs):
        """Return the state after coding a symbol, and 1 if `state` emitted its lower 16 bits."""
        x, pair = np.uint64(state), np.uint64(pairs[symbol])
        frequency = pair & _LOW
        drop = np.uint64(x >> (_NBITS - shift) >= frequency)
        x >>= drop << _FOUR
        times = (x * reciprocals[symbol]) >> (_NBITS + shift)
        return np.uint32(x + times * ((_ONE << shift) - frequency) + (pair >> _SIXTEEN)), drop

    @subroutine
    def write_singles(symbols, shift, reciprocals, pairs, states, out, at):
        """Write symbols, the first of lane 0, before the words from `at`; return their begin."""
        place, whole = np.uint64(at), symbols.size - symbols.size % lanes
        for k in range(1, symbols.size - whole + 1):
            lane = symbols.size - whole - k
            x, drop = stepped(symbols[whole + lane], states[lane], shift, reciprocals, pairs)
            out[place - _ONE] = np.uint16(states[lane])
            place -= drop
            states[lane] = x
        for first in range(whole - lanes, -1, -lanes):
            for k in range(lanes):  # a constant count, so that the compiler unrolls the loop
                lane = np.uint64(lanes - 1 - k)
                symbol = symbols[first + lanes - 1 - k]
                x, drop = stepped(symbol, states[lane], shift, reciprocals, pairs)
                out[place - _ONE] = np.uint16(states[lane])
                place -= drop
                states[lane] = x
        return np.int64(place)

    @kernel(
        f"in {kind}[], int64, int64, uint64, (in uint64[], in uint64[], in uint32[], in uint8[]), "
        "out int64[], out uint16[], out int64[], out uint32[]",
        variant=variant,
    )
    def write_block(symbols, run_size, row, shift, tables, cursor, out, words, snapshots):
        # A symbol takes at most one word: out.size >= symbols.size + LANES + 2 * lanes. Symbols
        # are below the tables' sizes; `words` and `snapshots` have the rows of all runs, of 1 and
        # of `lanes`. `shift` is the logarithm of the number of slots.
        entries, reciprocals, pairs, order = tables
        count = (symbols.size + run_size - 1) // run_size
        at, i = out.size, symbols.size
        states = snapshots[(row + count - 1) * lanes : (row + count) * lanes]
        for lane in range(lanes):
            states[lane] = LEAST_STATE
        for b in range(count - 1, -1, -1):
            start = b * run_size
            if b < count - 1:
                later, states = states, snapshots[(row + b) * lanes : (row + b + 1) * lanes]
                for lane in range(lanes):
                    states[lane] = later[lane]
            whole = i - i % LANES if width else start
            at = write_singles(symbols[whole:i], shift, reciprocals, pairs, states, out, at)
            if width:
                cursor[AT], cursor[PLACE] = at, whole
                cursor[LAST_AT], cursor[LAST_PLACE] = LANES, start + LANES
                write_groups(symbols, shift, entries, order, states, cursor, out)
                at = cursor[AT]
            words[row + b], i = out.size - at, start
        head = out[at - 2 * lanes : at]
        for lane in range(lanes):
            head[2 * lane] = np.uint16(states[lane])
            head[2 * lane + 1] = np.uint16(states[lane] >> np.uint32(16))
        cursor[AT] = at - 2 * lanes

    return write_block


def _writing_groups(width: int) -> Intrinsic:
    """Make the block that writes groups of symbols, the last group first.

    `cursor` holds four int64: AT, the number of free words of `out`; PLACE, the number of symbols
    still to be written; and the least value of both with which a group is written. The caller
    ensures LAST_AT >= LANES and LAST_PLACE >= LANES.
    """
    count = HALF // width  # vectors of a half group

    @block("symbols", "shift", "entries", "compress", "states", "cursor", "out")
    def write_groups(e: Emitter) -> None:
        builder, word = e.builder, integer(64)
        symbols, entries, compress, states, cursor, out = (
            e.args[name] for name in ("symbols", "entries", "compress", "states", "cursor", "out")
        )
        at, place, *limits = (builder.load(e.element(cursor, k)) for k in range(CURSOR))
        shift = e.splat(builder.trunc(e.args["shift"], integer(32)), width)
        above = builder.sub(spread(shift, 32), shift)
        total = builder.shl(spread(shift, 1), shift)

        def going(current: list[Value]) -> Value:
            room, more = (
                builder.icmp_signed(">=", value, limit)
                for value, limit in zip(current, limits, strict=False)
            )
            return builder.and_(room, more)

        def put(x: Value, order: list[int], source: Value) -> tuple[Value, Value, Value]:
            """Emit the coding of a vector: states, mask of lanes without a word, words."""
            splat = functools.partial(spread, x)
            gathered = []
            for positions in _GATHERED[width]:
                loaded = (builder.load(e.element(source, order[k])) for k in positions)
                indices = [builder.zext(symbol, word) for symbol in loaded]
                entry = e.gathered(entries, indices, vector(64, width // 2))
                gathered.append(builder.bitcast(entry, x.type))
            reciprocal, pair = (
                builder.shuffle_vector(*gathered, x.type([first + k for k in _EVEN[width]]))
                for first in (0, 1)
            )
            frequency, start = builder.and_(pair, splat(0xFFFF)), builder.lshr(pair, splat(16))
            keep = builder.icmp_signed(">", frequency, builder.lshr(x, above))
            low = builder.and_(x, splat(0xFFFF))
            x = builder.select(keep, x, builder.lshr(x, splat(16)))
            # The quotient, or one less; see `rans_table._halved_reciprocal`.
            half = builder.sitofp(builder.lshr(x, splat(1)), floats(width))
            product = builder.fmul(half, builder.bitcast(reciprocal, half.type))
            quotient = builder.fptosi(product, x.type)
            remainder = builder.sub(x, builder.mul(quotient, frequency))
            exact = builder.icmp_signed(">", frequency, remainder)
            gain = builder.sub(total, frequency)
            remainder = builder.add(remainder, builder.select(exact, splat(0), gain))
            x = builder.add(builder.shl(quotient, shift), start)
            return builder.add(x, remainder), keep, low

        def group(current: list[Value]) -> list[Value]:
            at, place, *x = current
            place = builder.sub(place, word(LANES))
            for half in (1, 0):
                source = builder.gep(symbols, [builder.add(place, word(HALF * half))])
                own = slice(count * half, count * half + count)
                results = [put(*pair, source) for pair in zip(x[own], ORDERS[width], strict=True)]
                x[own], keep, low = (list(column) for column in zip(*results, strict=True))
                words = packed(e, low)
                if count == 1:
                    at = _store_words(e, words, keep[0], out, at)
                    continue
                words = builder.bitcast(words, vector(8, 2 * HALF))
                *members, _ = members_of(e, keep)
                words = shuffled(e, words, compress, members)
                for k in (1, 0):
                    order = vector(32, HALF)(list(range(HALF * k, HALF * k + HALF)))
                    # Eight words are stored, of which the last ones remain.
                    at = builder.sub(at, word(8))
                    pointer = builder.gep(out, [at])
                    e.store(builder.shuffle_vector(words, words, order), pointer, 2)
                    at = builder.add(at, builder.ctpop(members[k]))
            return [at, place, *x]

        at, place, *x = e.loop([at, place, *load_states(e, states, width)], going, group)
        builder.store(at, e.element(cursor, AT))
        builder.store(place, e.element(cursor, PLACE))
        store_states(e, x, states, width)

    return write_groups


def _store_words(e: Emitter, words: Value, keep: Value, out: Value, at: Value) -> Value:
    """Emit stores, before `at`, of the words of the lanes outside a mask; return their begin."""
    builder, kind = e.builder, words.type
    drop = builder.not_(keep)
    first = e.x86("avx512.mask.compress.v16i16", kind, [words, kind([0] * HALF), drop])
    count = builder.ctpop(builder.bitcast(drop, integer(HALF)))
    # All 16 words are stored, of which the last ones remain.
    top = builder.lshr(integer(2 * HALF)(0xFFFF), builder.zext(count, integer(2 * HALF)))
    mask = builder.bitcast(builder.not_(builder.trunc(top, integer(HALF))), keep.type)
    last = e.x86("avx512.mask.expand.v16i16", kind, [first, kind([0] * HALF), mask])
    e.store(last, builder.gep(out, [builder.sub(at, at.type(HALF))]), 2)
    return builder.sub(at, builder.zext(count, at.type))
