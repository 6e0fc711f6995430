"""Vector IR of the reader of rANS blocks: groups of 32 symbols.

The halves of a group only wait for each other to know where the next word lies; so do groups of
several blocks, that are read in turn, not at all. No index is checked but by those conditions that
end the loop.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gcodec.kernels.lanes import Emitter, block, lanes
from gcodec.kernels.rans_table import LOG2_ALPHABET
from gcodec.kernels.rans_vector import (
    AT,
    FIRST,
    HALF,
    KEPT,
    LANES,
    PLACE,
    SECOND,
    gathered,
    instruction,
    joined,
    load_states,
    loop,
    members_of,
    shuffled,
    spread,
    store_states,
)
from gcodec.kernels.trellis import LOG2_QUANTISER, OTHER, PARITY, PATH, STEPS


class _Tables(NamedTuple):
    """Addresses of what readers look up."""

    table: Any
    slots: Any
    expand: Any


def reading(log2_total: int, classed: bool, trellis: bool, compact: bool, ways: int) -> Any:
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
    ways : int
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
            before += [at, place, *load_states(e, e.element(states, LANES * way))]
            before += load_states(e, e.element(paths, LANES * way)) if trellis else []
            last.append(ends)
        size = len(before) // ways

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
                    here = slice(way + 2 + 2 * half, way + 4 + 2 * half)
                    along = slice(here.start + 4, here.stop + 4)
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

        after = loop(e, before, going, group)
        for way in range(ways):
            at, place, *x = after[size * way : size * way + size]
            builder.store(at, e.element(kept, KEPT * way + AT))
            builder.store(place, e.element(kept, KEPT * way + PLACE))
            store_states(e, x[:4], e.element(states, LANES * way))
            if trellis:
                store_states(e, x[4:], e.element(paths, LANES * way))

    return read_groups


def _indices(e: Emitter, vector: Any) -> list[Any]:
    """Emit the eight lanes of a vector as words of 64 bits."""
    from llvmlite import ir

    builder, word = e.builder, ir.IntType(64)
    pairs = builder.bitcast(vector, lanes(64, 4))
    found = []
    for k in range(4):
        both = builder.extract_element(pairs, ir.IntType(32)(k))
        found += [builder.and_(both, word(0xFFFFFFFF)), builder.lshr(both, word(32))]
    return found


def _classes(e: Emitter, classes: Any, order: list[int], shift: int) -> Any:
    """Emit the classes of eight lanes, moved up to where they choose a part of a table."""
    builder = e.builder
    every = e.load(classes, lanes(8, HALF), 1)
    some = builder.shuffle_vector(every, every, lanes(32, 8)(order))
    return builder.shl(builder.zext(some, lanes(32, 8)), spread(shift))


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
    for k, (x, order) in enumerate(zip(states, (FIRST, SECOND), strict=True)):
        slot = builder.and_(x, spread((1 << log2_total) - 1))  # so inside of the table
        if classes is not None:
            slot = builder.or_(slot, _classes(e, classes, order, log2_total))
        if paths:
            other = builder.and_(paths[k], spread(OTHER))
            slot = builder.or_(slot, builder.shl(other, spread(log2_total + LOG2_QUANTISER)))
        entry = gathered(e, tables.table, _indices(e, slot), lanes(32, 8))
        symbols.append(builder.and_(entry, spread(0xFF)))
        if paths:
            along.append(_along(e, paths[k], symbols[-1]))
        times = builder.lshr(x, spread(log2_total))
        scaled = builder.mul(builder.lshr(entry, spread(20)), times)
        after.append(
            builder.add(scaled, builder.and_(builder.lshr(entry, spread(8)), spread(0xFFF)))
        )
    both = instruction(e, "packusdw", lanes(16, HALF), *symbols)
    e.store(builder.trunc(both, lanes(8, HALF)), target, 1)
    return after, along


def _along(e: Emitter, path: Any, symbol: Any) -> Any:
    """Emit the paths behind symbols; see `trellis.after`."""
    builder = e.builder
    parity = builder.and_(builder.add(symbol, spread(2)), spread(PARITY))
    return builder.and_(builder.lshr(spread(STEPS), builder.add(path, parity)), spread(PATH))


def _take(
    e: Emitter, states: list[Any], log2_total: int, tables: _Tables, classes: Any, target: Any
) -> list[Any]:
    """Emit the same by two tables, the second looked at by the symbol."""
    from llvmlite import ir

    builder, after, word = e.builder, [], ir.IntType(64)
    for x, order in zip(states, (FIRST, SECOND), strict=True):
        slot = builder.and_(x, spread((1 << log2_total) - 1))  # so inside of the table
        symbols = []
        for index, lane in zip(_indices(e, slot), order, strict=True):
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
        pair = gathered(e, tables.table, symbols, lanes(32, 8))
        times = builder.lshr(x, spread(log2_total))
        scaled = builder.mul(builder.and_(pair, spread(0xFFFF)), times)
        after.append(builder.add(scaled, builder.sub(slot, builder.lshr(pair, spread(16)))))
    return after


def _refill(
    e: Emitter, states: list[Any], data: Any, at: Any, tables: _Tables
) -> tuple[Any, list[Any]]:
    """Emit that lanes below 2^16 take the words from byte `at` on; return the byte behind."""
    builder = e.builder
    needs = [builder.icmp_unsigned("<", x, spread(1 << 16)) for x in states]
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
        moved = builder.select(need, builder.shl(x, spread(16)), x)
        after.append(builder.or_(moved, builder.bitcast(wide, lanes(32, 8))))
    return builder.add(at, builder.ctpop(twice)), after
