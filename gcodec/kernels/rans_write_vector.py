"""Vector IR of the writer of rANS blocks: groups of 32 symbols, the last first.

No index is checked but by the conditions that end the loop.
"""

from __future__ import annotations

from typing import Any

from gcodec.kernels.lanes import Emitter, block, lanes
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
    load_states,
    loop,
    members_of,
    shuffled,
    spread,
    store_states,
)

_EVEN = [0, 2, 8, 10, 4, 6, 12, 14]  # of two vectors, words 0 and 2 of each 128 bits


def writing(log2_total: int) -> Any:
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
            for half in (1, 0):
                source = builder.gep(symbols, [builder.add(place, word(HALF * half))])
                here = slice(2 * half, 2 * half + 2)
                x[here], keep, words = _put(e, x[here], log2_total, source, entries)
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

        at, place, *x = loop(e, [at, place, *load_states(e, states)], going, group)
        builder.store(at, e.element(kept, AT))
        builder.store(place, e.element(kept, PLACE))
        store_states(e, x, states)

    return write_groups


def _put(
    e: Emitter, states: list[Any], log2_total: int, source: Any, entries: Any
) -> tuple[list[Any], list[Any], Any]:
    """Emit the coding of 16 symbols: states, masks of lanes without a word, 32 bytes of words."""
    from llvmlite import ir

    builder, word, kind = e.builder, ir.IntType(64), ir.VectorType(ir.FloatType(), 8)
    after, keeps, low = [], [], []
    for x, order in zip(states, (FIRST, SECOND), strict=True):
        found = []
        for some in ((0, 1, 4, 5), (2, 3, 6, 7)):
            symbols = (builder.load(e.element(source, order[k])) for k in some)
            indices = [builder.zext(symbol, word) for symbol in symbols]
            entry = gathered(e, entries, indices, lanes(64, 4))
            found.append(builder.bitcast(entry, lanes(32, 8)))
        reciprocal, pair = (
            builder.shuffle_vector(*found, lanes(32, 8)([first + k for k in _EVEN]))
            for first in (0, 1)
        )
        frequency, start = builder.and_(pair, spread(0xFFFF)), builder.lshr(pair, spread(16))
        keep = builder.icmp_signed(">", frequency, builder.lshr(x, spread(32 - log2_total)))
        keeps.append(keep)
        low.append(builder.and_(x, spread(0xFFFF)))
        x = builder.select(keep, x, builder.lshr(x, spread(16)))
        # The quotient, or one less; see `halved_reciprocals`.
        half = builder.sitofp(builder.lshr(x, spread(1)), kind)
        product = builder.fmul(half, builder.bitcast(reciprocal, kind))
        quotient = builder.fptosi(product, lanes(32, 8))
        rest = builder.sub(x, builder.mul(quotient, frequency))
        exact = builder.icmp_signed(">", frequency, rest)
        gain = builder.sub(spread(1 << log2_total), frequency)
        rest = builder.add(rest, builder.select(exact, spread(0), gain))
        x = builder.add(builder.shl(quotient, spread(log2_total)), start)
        after.append(builder.add(x, rest))
    both = instruction(e, "packusdw", lanes(16, HALF), *low)
    return after, keeps, builder.bitcast(both, lanes(8, 2 * HALF))
