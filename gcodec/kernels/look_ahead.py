"""The inner loop of the readers of prefix codes, as LLVM IR: looks at a table, from many places.

Each look takes an entry by the next bits, writes it, and goes on behind what it found. An entry
has six bytes to write, or two, then a byte that tells how many bits it stands for, and one that
tells how many places it fills; all are 0 where there is none. What a look must wait for is the one
before it; so several strings are read in turn, with all that belongs to them in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.lanes import Emitter, block
from gcodec.kernels.table_code import Look

ENTRIES = 5  # strings that are read at once
TAKEN = 56  # bits behind a place that all looks at a word may need
AT, PLACE, LAST_PLACE, LAST_AT = (k * ENTRIES for k in range(4))


def state() -> np.ndarray:
    """Make what a reader keeps of each string.

    Returns
    -------
    (4 * ENTRIES,) int64 array
        From AT on the next bit, from PLACE on the next place, and the last of both from which on
        looks at a word stay inside of all arrays.
    """
    return np.empty(4 * ENTRIES, np.int64)


def looking(count: int, look: Look, targets: dict[str, int]) -> Any:
    """Make the block that looks ahead in `count` strings, from number `first` on.

    Its arguments are the bytes of the strings, the table, the state, `first`, and the arrays that
    entries are written to. It ends when a string is behind its last place or bit, or has no entry.

    Parameters
    ----------
    count : int
    look : Look
        What is in the table.
    targets : dict
        For each array, the bit of an entry where its bytes begin.
    """

    @block("data", "table", "state", "first", "zero", *targets)
    def look_ahead(e: Emitter) -> None:
        from llvmlite import ir

        builder, word = e.builder, ir.IntType(64)
        data, table = e.address("data", "zero"), e.address("table", "zero")
        arrays = {name: e.address(name, "zero") for name in targets}
        kept = e.address("state", "first")

        def field(offset: int, k: int) -> Any:
            return e.element(kept, offset + k)

        limits = [
            (builder.load(field(LAST_AT, k)), builder.load(field(LAST_PLACE, k)))
            for k in range(count)
        ]
        begun = builder.block
        before = [
            (builder.load(field(AT, k)), builder.load(field(PLACE, k))) for k in range(count)
        ]
        again, body, none, behind, done = (
            builder.append_basic_block(name)
            for name in ("again", "body", "none", "behind", "done")
        )
        builder.branch(again)

        # How many words of bits may be looked at before it is checked where the strings stand.
        builder.position_at_end(again)
        stand = [(builder.phi(word), builder.phi(word)) for _ in range(count)]
        rounds = word(1 << 62)
        for places, lasts in zip(stand, limits, strict=True):
            for value, limit, step in zip(places, lasts, look, strict=True):
                shift = word((look.times * step - 1).bit_length())
                room = builder.ashr(builder.sub(limit, value), shift)
                fewer = builder.icmp_signed("<", room, rounds)
                rounds = builder.select(fewer, room, rounds)
        rounds = builder.add(rounds, word(1))
        builder.cbranch(builder.icmp_signed(">", rounds, word(0)), body, behind)

        builder.position_at_end(body)
        left = builder.phi(word)
        held = [(builder.phi(word), builder.phi(word)) for _ in range(count)]
        words = []
        for at, _ in held:
            pointer = builder.gep(data, [builder.lshr(at, word(3))])
            loaded = builder.load(builder.bitcast(pointer, word.as_pointer()), align=1)
            words.append(builder.shl(builder.bswap(loaded), builder.and_(at, word(7))))
        starts = [
            {name: builder.gep(array, [place]) for name, array in arrays.items()}
            for _, place in held
        ]
        # Of all looks so far, the bits in the lowest byte and the places above it.
        sums, last = [word(0)] * count, [word(0)] * count
        for _ in range(look.times):
            # In turn, as a processor only looks so far ahead for what need not wait.
            for k in range(count):
                index = builder.lshr(words[k], word(64 - look.window))
                entry = builder.load(builder.gep(table, [index]))
                kind, place = entry.type, builder.lshr(sums[k], word(8))
                for name, shift in targets.items():
                    pointer = builder.bitcast(
                        builder.gep(starts[k][name], [place]), kind.as_pointer()
                    )
                    builder.store(builder.lshr(entry, kind(shift)), pointer, align=1)
                last[k] = builder.zext(builder.lshr(entry, kind(kind.width - 16)), word)
                # A shift looks at the lowest six bits only.
                words[k] = builder.shl(words[k], builder.and_(last[k], word(63)))
                sums[k] = builder.add(sums[k], last[k])
        after = [
            (
                builder.add(at, builder.and_(total, word(255))),
                builder.add(place, builder.lshr(total, word(8))),
            )
            for (at, place), total in zip(held, sums, strict=True)
        ]
        # Behind a look that finds no entry the next finds none too; so the last tells.
        found = builder.icmp_unsigned("!=", last[0], word(0))
        for entry in last[1:]:
            found = builder.and_(found, builder.icmp_unsigned("!=", entry, word(0)))
        more = builder.append_basic_block("more")
        builder.cbranch(found, more, none)
        builder.position_at_end(more)
        fewer = builder.sub(left, word(1))
        builder.cbranch(builder.icmp_unsigned("!=", fewer, word(0)), body, again)

        left.add_incoming(rounds, again)
        left.add_incoming(fewer, more)
        for k in range(count):
            for phi, first, then in zip(held[k], stand[k], after[k], strict=True):
                phi.add_incoming(first, again)
                phi.add_incoming(then, more)
            for phi, first, then in zip(stand[k], before[k], after[k], strict=True):
                phi.add_incoming(first, begun)
                phi.add_incoming(then, more)
        for here, values in ((none, after), (behind, stand)):
            builder.position_at_end(here)
            for k, pair in enumerate(values):
                for offset, value in zip((AT, PLACE), pair, strict=True):
                    builder.store(value, field(offset, k))
            builder.branch(done)
        builder.position_at_end(done)

    return look_ahead
