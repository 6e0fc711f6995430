"""Vector IR of the writer of rANS blocks: groups of 32 symbols, the last first.

No index is checked but by the conditions that end the loop.
"""

from __future__ import annotations

import functools
from typing import Any

from gcodec.kernels.rans.rans_vector import (
    AT,
    HALF,
    KEPT,
    LANES,
    ORDERS,
    PLACE,
    instruction,
    load_states,
    members_of,
    packed,
    shuffled,
    spread,
    store_states,
)
from gcodec.runtime.lanes import Emitter, block, floats, lanes

# By the lanes of a vector, which entries of 64 bits are gathered to two, so that of words of 32
# bits those at EVEN, and those behind them, are in order.
_GATHERED = {16: (range(8), range(8, 16)), 8: ((0, 1, 4, 5), (2, 3, 6, 7))}
_EVEN = {16: range(0, 32, 2), 8: (0, 2, 8, 10, 4, 6, 12, 14)}


def writing(log2_total: int, width: int) -> Any:
    """Make the block that writes groups of symbols, the last first.

    Kept are, as int64: AT, how many words of `out` are free; PLACE, how many symbols are to come;
    and the least of both with which a group is written. Then LAST_AT and LAST_PLACE >= LANES.
    """

    @block("symbols", "entries", "compress", "states", "kept", "zero", "out")
    def write_groups(e: Emitter) -> None:
        from llvmlite import ir

        builder, word = e.builder, ir.IntType(64)
        symbols, entries, compress, states, kept, out = (
            e.address(name, "zero")
            for name in ("symbols", "entries", "compress", "states", "kept", "out")
        )
        at, place, *last = (builder.load(e.element(kept, k)) for k in range(KEPT))

        def going(held: list[Any]) -> Any:
            room, more = (
                builder.icmp_signed(">=", value, end)
                for value, end in zip(held, last, strict=False)
            )
            return builder.and_(room, more)

        def group(held: list[Any]) -> list[Any]:
            at, place, *x = held
            place = builder.sub(place, word(LANES))
            count = HALF // width  # vectors of a half
            for half in (1, 0):
                source = builder.gep(symbols, [builder.add(place, word(HALF * half))])
                here = slice(count * half, count * half + count)
                x[here], keep, words = _put(e, x[here], log2_total, source, entries)
                if count == 1:
                    at = _store_words(e, words, keep[0], out, at)
                    continue
                words = builder.bitcast(words, lanes(8, 2 * HALF))
                *members, _ = members_of(e, keep)
                words = shuffled(e, words, compress, members)
                for k in (1, 0):
                    order = lanes(32, HALF)(list(range(HALF * k, HALF * k + HALF)))
                    # Eight words, of which the last are to stay.
                    at = builder.sub(at, word(8))
                    pointer = builder.gep(out, [at])
                    e.store(builder.shuffle_vector(words, words, order), pointer, 2)
                    at = builder.add(at, builder.ctpop(members[k]))
            return [at, place, *x]

        at, place, *x = e.loop([at, place, *load_states(e, states, width)], going, group)
        builder.store(at, e.element(kept, AT))
        builder.store(place, e.element(kept, PLACE))
        store_states(e, x, states, width)

    return write_groups


def _put(
    e: Emitter, states: list[Any], log2_total: int, source: Any, entries: Any
) -> tuple[list[Any], list[Any], Any]:
    """Emit the coding of 16 symbols: states, masks of lanes without a word, 16 words."""
    from llvmlite import ir

    builder, word, width = e.builder, ir.IntType(64), states[0].type.count
    after, keeps, low = [], [], []
    for x, order in zip(states, ORDERS[width], strict=True):
        every = functools.partial(spread, x)
        found = []
        for some in _GATHERED[width]:
            symbols = (builder.load(e.element(source, order[k])) for k in some)
            indices = [builder.zext(symbol, word) for symbol in symbols]
            entry = e.gathered(entries, indices, lanes(64, width // 2))
            found.append(builder.bitcast(entry, x.type))
        reciprocal, pair = (
            builder.shuffle_vector(*found, x.type([first + k for k in _EVEN[width]]))
            for first in (0, 1)
        )
        frequency, start = builder.and_(pair, every(0xFFFF)), builder.lshr(pair, every(16))
        keep = builder.icmp_signed(">", frequency, builder.lshr(x, every(32 - log2_total)))
        keeps.append(keep)
        low.append(builder.and_(x, every(0xFFFF)))
        x = builder.select(keep, x, builder.lshr(x, every(16)))
        # The quotient, or one less; see `halved_reciprocals`.
        half = builder.sitofp(builder.lshr(x, every(1)), floats(width))
        product = builder.fmul(half, builder.bitcast(reciprocal, half.type))
        quotient = builder.fptosi(product, x.type)
        rest = builder.sub(x, builder.mul(quotient, frequency))
        exact = builder.icmp_signed(">", frequency, rest)
        gain = builder.sub(every(1 << log2_total), frequency)
        rest = builder.add(rest, builder.select(exact, every(0), gain))
        x = builder.add(builder.shl(quotient, every(log2_total)), start)
        after.append(builder.add(x, rest))
    return after, keeps, packed(e, low)


def _store_words(e: Emitter, words: Any, keep: Any, out: Any, at: Any) -> Any:
    """Emit that the words of all lanes but those of a mask are put before `at`; return where."""
    from llvmlite import ir

    builder, kind = e.builder, words.type
    drop = builder.not_(keep)
    first = instruction(e, "avx512.mask.compress.v16i16", kind, words, kind([0] * HALF), drop)
    count = builder.ctpop(builder.bitcast(drop, ir.IntType(HALF)))
    # All 16 are stored, of which the last are to stay.
    top = builder.lshr(ir.IntType(2 * HALF)(0xFFFF), builder.zext(count, ir.IntType(2 * HALF)))
    mask = builder.bitcast(builder.not_(builder.trunc(top, ir.IntType(HALF))), keep.type)
    last = instruction(e, "avx512.mask.expand.v16i16", kind, first, kind([0] * HALF), mask)
    e.store(last, builder.gep(out, [builder.sub(at, at.type(HALF))]), 2)
    return builder.sub(at, builder.zext(count, at.type))
