"""The inner loop of the readers of prefix codes, as LLVM IR: looks at a table, from many places.

Each look takes an entry by the next bits, writes it, and goes on behind what it found. An entry
has six bytes to write, or two, then a byte that tells how many bits it stands for, and one that
tells how many places it fills; all are 0 where there is none. What a look must wait for is the one
before it; so several strings are read in turn, with all that belongs to them in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.prefix.table_code import Look
from gcodec.runtime.lanes import Emitter, block

ENTRIES = 5  # strings that are read at once
TAKEN = 56  # bits behind a place that all looks at a word may need
AT, PLACE, LAST_PLACE, LAST_AT, STEP = (k * ENTRIES for k in range(5))
LAST_STEP = STEP + 1


def state() -> np.ndarray:
    """Make what a reader keeps of each string.

    Returns
    -------
    (LAST_STEP + 1,) int64 array
        From AT on the next bit, from PLACE on the next place, and the last of both from which on
        looks at a word stay inside of all arrays. At STEP the next step of what is done beside,
        and at LAST_STEP the last from which on there are as many as a round takes.
    """
    return np.empty(LAST_STEP + 1, np.int64)


class Beside(NamedTuple):
    """What is done between looks, which leave a processor and its memory time for it.

    Attributes
    ----------
    steps : int
        How many of its steps a round takes, which looks at a word of each string: a power of two.
    names : tuple of str
        Further arguments of the block.
    emit : callable
        Gets the emitter and the number of a step, and emits that.
    """

    steps: int
    names: tuple[str, ...]
    emit: Callable[[Emitter, Any], None]


def looking(count: int, look: Look, targets: dict[str, int], beside: Beside | None = None) -> Any:
    """Make the block that looks ahead in `count` strings, from number `first` on.

    Its arguments are the bytes of the strings, the table, the state, `first`, and the arrays that
    entries are written to. It ends when a string is behind its last place or bit, or has no entry,
    or where what is done beside is behind its last step.

    Parameters
    ----------
    count : int
    look : Look
        What is in the table.
    targets : dict
        For each array, the bit of an entry where its bytes begin.
    beside : Beside, optional
    """
    further = beside.names if beside else ()

    @block("data", "table", "state", "first", "zero", *targets, *further)
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
        if beside:
            steps = [e.element(e.address("state", "zero"), k) for k in (STEP, LAST_STEP)]
            first_step, last_step = map(builder.load, steps)
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
        stand_step: Any = builder.phi(word) if beside else None
        rounds = word(1 << 62)
        for places, lasts in zip(stand, limits, strict=True):
            for value, limit, step in zip(places, lasts, look, strict=True):
                shift = word((look.times * step - 1).bit_length())
                room = builder.ashr(builder.sub(limit, value), shift)
                fewer = builder.icmp_signed("<", room, rounds)
                rounds = builder.select(fewer, room, rounds)
        if beside:
            shift = word(beside.steps.bit_length() - 1)
            room = builder.ashr(builder.sub(last_step, stand_step), shift)
            fewer = builder.icmp_signed("<", room, rounds)
            rounds = builder.select(fewer, room, rounds)
        rounds = builder.add(rounds, word(1))
        builder.cbranch(builder.icmp_signed(">", rounds, word(0)), body, behind)

        builder.position_at_end(body)
        left = builder.phi(word)
        held = [(builder.phi(word), builder.phi(word)) for _ in range(count)]
        held_step: Any = builder.phi(word) if beside else None
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
        for turn in range(look.times):
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
            # In one place: so what they need is in registers once.
            if beside and turn == look.times // 2:
                for k in range(beside.steps):
                    beside.emit(e, builder.add(held_step, word(k)))
        after = [
            (
                builder.add(at, builder.and_(total, word(255))),
                builder.add(place, builder.lshr(total, word(8))),
            )
            for (at, place), total in zip(held, sums, strict=True)
        ]
        after_step = builder.add(held_step, word(beside.steps)) if beside else None
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
        if beside:
            held_step.add_incoming(stand_step, again)
            held_step.add_incoming(after_step, more)
            stand_step.add_incoming(first_step, begun)
            stand_step.add_incoming(after_step, more)
        for here, values, begin in ((none, after, after_step), (behind, stand, stand_step)):
            builder.position_at_end(here)
            if beside:
                builder.store(begin, steps[0])
            for k, pair in enumerate(values):
                for offset, value in zip((AT, PLACE), pair, strict=True):
                    builder.store(value, field(offset, k))
            builder.branch(done)
        builder.position_at_end(done)

    return look_ahead
