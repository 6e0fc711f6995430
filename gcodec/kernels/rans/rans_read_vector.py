"""Vector IR of the reader of rANS blocks: groups of 32 symbols.

The halves of a group only wait for each other to know where the next word lies; so do groups of
several blocks, that are read in turn, not at all. No index is checked but by those conditions that
end the loop.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from gcodec.kernels.quantize.trellis import LOG2_QUANTISER, OTHER, PARITY, PATH, STEPS
from gcodec.kernels.rans.rans_table import LOG2_ALPHABET
from gcodec.kernels.rans.rans_vector import (
    AT,
    HALF,
    KEPT,
    LANES,
    ORDERS,
    PLACE,
    instruction,
    joined,
    load_states,
    members_of,
    packed,
    shuffled,
    spread,
    store_states,
)
from gcodec.runtime.lanes import Emitter, block, lanes


class _Tables(NamedTuple):
    """Addresses of what readers look up."""

    table: Any
    slots: Any
    expand: Any


def reading(
    log2_total: int, classed: bool, trellis: bool, compact: bool, ways: int, width: int
) -> Any:
    """Make the block that reads groups of several rANS blocks in turn.

    Of each are kept, as int64: AT, the byte of its next word, from 0 on; PLACE, of its next
    symbol; and the last of both with which a group is read. Then LAST_AT + 64 <= data.size and
    LAST_PLACE + LANES <= out.size. All go on until one of them is behind its last.

    Parameters
    ----------
    log2_total : int
    classed : bool
        Whether there is a class for each symbol, with its own part of the tables.
    trellis : bool
        Whether the quantiser that is next chooses a part of the tables too; only if compact.
    compact : bool
        Whether `table` is the `entries` of `ReadTables`, else it is the `pairs`.
    ways, width : int
    """

    @block("data", "table", "slots", "expand", "states", "paths", "kept", "classes", "zero", "out")
    def read_groups(e: Emitter) -> None:
        from llvmlite import ir

        builder, word = e.builder, ir.IntType(64)
        data, out, kept, states, paths, classes = (
            e.address(name, "zero")
            for name in ("data", "out", "kept", "states", "paths", "classes")
        )
        tables = _Tables(*(e.address(name, "zero") for name in _Tables._fields))
        before, last = [], []
        for way in range(ways):
            at, place, *ends = (builder.load(e.element(kept, KEPT * way + k)) for k in range(KEPT))
            before += [at, place, *load_states(e, e.element(states, LANES * way), width)]
            before += load_states(e, e.element(paths, LANES * way), width) if trellis else []
            last.append(ends)
        size, count = len(before) // ways, HALF // width  # vectors of a half

        def going(held: list[Any]) -> Any:
            both = ir.IntType(1)(1)
            for way, ends in enumerate(last):
                for value, end in zip(held[size * way :], ends, strict=False):
                    both = builder.and_(both, builder.icmp_signed("<=", value, end))
            return both

        def group(held: list[Any]) -> list[Any]:
            after = list(held)
            for half in range(2):
                for way in range(0, size * ways, size):
                    first = way + 2 + count * half
                    here = slice(first, first + count)
                    along = slice(here.start + 2 * count, here.stop + 2 * count)
                    place = builder.add(held[way + 1], word(HALF * half))
                    target = builder.gep(out, [place])
                    some = builder.gep(classes, [place]) if classed else None
                    told: Any = log2_total, tables, some, target
                    if trellis:
                        moved = after[here], after[along]
                        after[here], after[along] = _take_compact(e, *moved, *told)
                    elif compact:
                        after[here], _ = _take_compact(e, after[here], [], *told)
                    else:
                        after[here] = _take(e, after[here], *told)
                    after[way], after[here] = _refill(e, after[here], data, after[way], tables)
            for way in range(0, size * ways, size):
                after[way + 1] = builder.add(held[way + 1], word(LANES))
            return after

        after = e.loop(before, going, group)
        for way in range(ways):
            at, place, *x = after[size * way : size * way + size]
            builder.store(at, e.element(kept, KEPT * way + AT))
            builder.store(place, e.element(kept, KEPT * way + PLACE))
            store_states(e, x[: 2 * count], e.element(states, LANES * way), width)
            if trellis:
                store_states(e, x[2 * count :], e.element(paths, LANES * way), width)

    return read_groups


def _classes(e: Emitter, classes: Any, order: list[int], shift: int) -> Any:
    """Emit the classes of some lanes, moved up to where they choose a part of a table."""
    builder, count = e.builder, len(order)
    every = e.load(classes, lanes(8, HALF), 1)
    some = builder.shuffle_vector(every, every, lanes(32, count)(order))
    wide = builder.zext(some, lanes(32, count))
    return builder.shl(wide, spread(wide, shift))


def _take_compact(
    e: Emitter,
    states: list[Any],
    paths: list[Any],
    log2_total: int,
    tables: _Tables,
    classes: Any,
    target: Any,
) -> tuple[list[Any], list[Any]]:
    """Emit that each lane yields a symbol, to 16 bytes, and what its state and path become.

    There are no paths without a trellis.
    """
    builder, symbols, after, along = e.builder, [], [], []
    for k, (x, order) in enumerate(zip(states, ORDERS[states[0].type.count], strict=True)):
        every = functools.partial(spread, x)
        slot = builder.and_(x, every((1 << log2_total) - 1))  # so inside of the table
        if classes is not None:
            slot = builder.or_(slot, _classes(e, classes, order, log2_total))
        if paths:
            other = builder.and_(paths[k], every(OTHER))
            slot = builder.or_(slot, builder.shl(other, every(log2_total + LOG2_QUANTISER)))
        entry = e.gathered(tables.table, e.indices(slot), x.type)
        symbols.append(builder.and_(entry, every(0xFF)))
        if paths:
            along.append(_along(e, paths[k], symbols[-1]))
        times = builder.lshr(x, every(log2_total))
        scaled = builder.mul(builder.lshr(entry, every(20)), times)
        after.append(
            builder.add(scaled, builder.and_(builder.lshr(entry, every(8)), every(0xFFF)))
        )
    e.store(builder.trunc(packed(e, symbols), lanes(8, HALF)), target, 1)
    return after, along


def _along(e: Emitter, path: Any, symbol: Any) -> Any:
    """Emit the paths behind symbols; see `trellis.after`."""
    builder, every = e.builder, functools.partial(spread, path)
    parity = builder.and_(builder.add(symbol, every(2)), every(PARITY))
    return builder.and_(builder.lshr(every(STEPS), builder.add(path, parity)), every(PATH))


def _take(
    e: Emitter, states: list[Any], log2_total: int, tables: _Tables, classes: Any, target: Any
) -> list[Any]:
    """Emit the same by two tables, the second looked at by the symbol."""
    from llvmlite import ir

    builder, after, word = e.builder, [], ir.IntType(64)
    for x, order in zip(states, ORDERS[states[0].type.count], strict=True):
        every = functools.partial(spread, x)
        slot = builder.and_(x, every((1 << log2_total) - 1))  # so inside of the table
        symbols = []
        for index, lane in zip(e.indices(slot), order, strict=True):
            model = None
            if classes is not None:
                model = builder.zext(builder.load(e.element(classes, lane)), word)
                index = builder.or_(index, builder.shl(model, word(log2_total)))
            symbol = builder.load(builder.gep(tables.slots, [index]))
            builder.store(symbol, e.element(target, lane))
            wide = builder.zext(symbol, word)
            if model is not None:
                wide = builder.or_(wide, builder.shl(model, word(LOG2_ALPHABET)))
            symbols.append(wide)
        pair = e.gathered(tables.table, symbols, x.type)
        times = builder.lshr(x, every(log2_total))
        scaled = builder.mul(builder.and_(pair, every(0xFFFF)), times)
        after.append(builder.add(scaled, builder.sub(slot, builder.lshr(pair, every(16)))))
    return after


def _refill(
    e: Emitter, states: list[Any], data: Any, at: Any, tables: _Tables
) -> tuple[Any, list[Any]]:
    """Emit that lanes below 2^16 take the words from byte `at` on; return the byte behind."""
    builder = e.builder
    needs = [builder.icmp_unsigned("<", x, spread(x, 1 << 16)) for x in states]
    if len(states) == 1:
        words, behind = _expanded(e, builder.gep(data, [at]), needs[0])
        moved = builder.shl(states[0], spread(states[0], 16))
        full = builder.or_(moved, builder.zext(words, states[0].type))
        return builder.add(at, behind), [builder.select(needs[0], full, states[0])]
    *members, twice = members_of(e, needs)
    middle = builder.add(at, builder.shl(builder.ctpop(members[0]), at.type(1)))
    eight = lanes(8, HALF)
    words = joined(e, *(e.load(builder.gep(data, [byte]), eight, 1) for byte in (at, middle)))
    words = builder.bitcast(shuffled(e, words, tables.expand, members), lanes(16, HALF))
    after = []
    for x, need, first in zip(states, needs, (0, 4), strict=True):
        # Four words of each eight, with zeros above them.
        order = [i for at in (first, first + 8) for k in range(at, at + 4) for i in (k, HALF)]
        wide = builder.shuffle_vector(words, words.type([0] * HALF), lanes(32, HALF)(order))
        moved = builder.select(need, builder.shl(x, spread(x, 16)), x)
        after.append(builder.or_(moved, builder.bitcast(wide, lanes(32, 8))))
    return builder.add(at, builder.ctpop(twice)), after


def _expanded(e: Emitter, pointer: Any, need: Any) -> tuple[Any, Any]:
    """Emit that the lanes of a mask get the next words, in order; return these and their bytes."""
    from llvmlite import ir

    builder, kind = e.builder, lanes(16, HALF)
    words = e.load(pointer, kind, 1)
    expanded = instruction(e, "avx512.mask.expand.v16i16", kind, words, kind([0] * HALF), need)
    count = builder.ctpop(builder.zext(builder.bitcast(need, ir.IntType(HALF)), ir.IntType(64)))
    return expanded, builder.shl(count, count.type(1))
