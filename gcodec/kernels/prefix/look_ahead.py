"""The inner loop of the readers of prefix codes, as LLVM IR: table lookups in several strings.

Each lookup loads the table entry for the next bits, writes its symbols, and advances by the bits
of these symbols. An entry holds six or two bytes to write, then a byte with the number of bits and
one with the number of places; all are 0 if no word is that short. A lookup must wait only for the
preceding one in the same string, so the loop alternates between several strings and keeps the
state of all of them in registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.kernels.prefix.table_code import Look
from gcodec.runtime.jit import Intrinsic
from gcodec.runtime.lanes import Emitter, Value, block, integer

ENTRIES = 5  # strings that are read in turn
TAKEN = 56  # bits that all lookups in one loaded word may need
AT, PLACE, LAST_PLACE, LAST_AT, BLOCK, START, END, END_PLACE, STEP = (
    k * ENTRIES for k in range(9)
)
LAST_STEP = STEP + 1


def state() -> np.ndarray:
    """Allocate the state of a reader.

    Returns
    -------
    (LAST_STEP + 1,) int64 array
        For each string: from AT on the next bit, from PLACE on the next place, from LAST_AT and
        LAST_PLACE on the last of both from which the lookups of a word stay inside of all arrays.
        For the caller alone: from BLOCK on the number of a block, from START and END on bits, and
        from END_PLACE on a place. At STEP the next step of the side work, and at LAST_STEP the
        last step from which a round of them is left.
    """
    return np.empty(LAST_STEP + 1, np.int64)


class SideWork(NamedTuple):
    """Work that is interleaved with lookups, which leave the memory and a part of the core idle.

    Attributes
    ----------
    steps : int
        Steps for each round of lookups (one word of each string): a power of two.
    names : tuple of str
        Additional arguments of the block.
    emit : callable
        Emits one step; gets the emitter and the number of the step.
    """

    steps: int
    names: tuple[str, ...]
    emit: Callable[[Emitter, Value], None]


def looking(
    count: int, look: Look, targets: dict[str, int], side: SideWork | None = None
) -> Intrinsic:
    """Make the block that looks up words in `count` strings, from number `first` on.

    The arguments of the block are the bytes of the strings, the table, the state, `first`, and the
    arrays to which it writes. The block ends when a string passes its last place or bit, when a
    string has no entry, or when the side work passes its last step.

    Parameters
    ----------
    count : int
    look : Look
        Layout of the table.
    targets : dict
        For each array, the bit of an entry where its bytes begin.
    side : SideWork, optional
    """
    further = side.names if side else ()

    @block("data", "table", "state", "first", *targets, *further)
    def look_ahead(e: Emitter) -> None:
        builder, word = e.builder, integer(64)
        data, table = e.args["data"], e.args["table"]
        arrays = {name: e.args[name] for name in targets}
        own = e.address("state", "first")
        # The bit and the place of each string, and the step; what each gains in a round at most.
        fields = [e.element(own, field + k) for k in range(count) for field in (AT, PLACE)]
        ends = [e.element(own, field + k) for k in range(count) for field in (LAST_AT, LAST_PLACE)]
        gains = [look.times * look.window, look.times * look.most] * count
        if side:
            fields.append(e.element(e.args["state"], STEP))
            ends.append(e.element(e.args["state"], LAST_STEP))
            gains.append(side.steps)
        limits, before = [builder.load(end) for end in ends], [builder.load(f) for f in fields]
        begun = builder.block
        check, body, no_entry, at_limit, done = (
            builder.append_basic_block(name)
            for name in ("check", "body", "no_entry", "at_limit", "done")
        )
        builder.branch(check)

        # How many rounds are possible before the limits must be checked again.
        builder.position_at_end(check)
        checked = [builder.phi(word) for _ in fields]
        rounds = word(1 << 62)
        for value, limit, gain in zip(checked, limits, gains, strict=True):
            room = builder.ashr(builder.sub(limit, value), word((gain - 1).bit_length()))
            fewer = builder.icmp_signed("<", room, rounds)
            rounds = builder.select(fewer, room, rounds)
        rounds = builder.add(rounds, word(1))
        builder.cbranch(builder.icmp_signed(">", rounds, word(0)), body, at_limit)

        builder.position_at_end(body)
        left = builder.phi(word)
        current = [builder.phi(word) for _ in fields]
        bits, starts = current[: 2 * count : 2], current[1 : 2 * count : 2]
        words = []
        for at in bits:
            pointer = builder.gep(data, [builder.lshr(at, word(3))])
            loaded = builder.load(builder.bitcast(pointer, word.as_pointer()), align=1)
            words.append(builder.shl(builder.bswap(loaded), builder.and_(at, word(7))))
        pointers = [
            {name: builder.gep(array, [start]) for name, array in arrays.items()}
            for start in starts
        ]
        # Sums over all lookups so far: bits in the lowest byte, places above it.
        sums, last = [word(0)] * count, [word(0)] * count
        for turn in range(look.times):
            # The strings take turns, as a core looks only so far ahead for independent work.
            for k in range(count):
                index = builder.lshr(words[k], word(64 - look.window))
                entry = builder.load(builder.gep(table, [index]))
                kind, place = entry.type, builder.lshr(sums[k], word(8))
                for name, shift in targets.items():
                    pointer = builder.bitcast(
                        builder.gep(pointers[k][name], [place]), kind.as_pointer()
                    )
                    builder.store(builder.lshr(entry, kind(shift)), pointer, align=1)
                last[k] = builder.zext(builder.lshr(entry, kind(kind.width - 16)), word)
                # A shift uses the lowest six bits only.
                words[k] = builder.shl(words[k], builder.and_(last[k], word(63)))
                sums[k] = builder.add(sums[k], last[k])
            # All steps in one place, so that their operands are loaded to registers once.
            if side and turn == look.times // 2:
                for k in range(side.steps):
                    side.emit(e, builder.add(current[-1], word(k)))
        then = []
        for at, start, total in zip(bits, starts, sums, strict=True):
            then.append(builder.add(at, builder.and_(total, word(255))))
            then.append(builder.add(start, builder.lshr(total, word(8))))
        if side:
            then.append(builder.add(current[-1], word(side.steps)))
        # All lookups after one without an entry have none either, so the last one decides.
        more = builder.icmp_unsigned("!=", last[0], word(0))
        for entry in last[1:]:
            more = builder.and_(more, builder.icmp_unsigned("!=", entry, word(0)))
        following = builder.append_basic_block("following")
        builder.cbranch(more, following, no_entry)
        builder.position_at_end(following)
        fewer = builder.sub(left, word(1))
        builder.cbranch(builder.icmp_unsigned("!=", fewer, word(0)), body, check)

        left.add_incoming(rounds, check)
        left.add_incoming(fewer, following)
        for phi, checked_phi, first, new in zip(current, checked, before, then, strict=True):
            phi.add_incoming(checked_phi, check)
            phi.add_incoming(new, following)
            checked_phi.add_incoming(first, begun)
            checked_phi.add_incoming(new, following)
        for exit_block, values in ((no_entry, then), (at_limit, checked)):
            builder.position_at_end(exit_block)
            for value, field in zip(values, fields, strict=True):
                builder.store(value, field)
            builder.branch(done)
        builder.position_at_end(done)

    return look_ahead
