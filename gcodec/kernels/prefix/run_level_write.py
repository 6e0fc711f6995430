"""The writer of run–level pairs: those of four symbols at a time where symbols are dense."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.bit_string import SLACK, BitString
from gcodec.kernels.numeric.words import at_least, count_ones, put, trailing_zeros
from gcodec.kernels.prefix.codewords import LEVELS
from gcodec.kernels.prefix.prefix_table import WIDE
from gcodec.kernels.prefix.prefix_write import fours_of, joined, narrowed, spelling
from gcodec.kernels.prefix.run_level import NEAR, SCAN, RunLevelCode, write_pair_tables
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import BLOCK

_MANY = 6  # nonzero symbols among SCAN from which on groups of four are looked up
_LENGTH = np.uint64(63)
_SIX = np.uint64(6)


def write_pairs(
    code: RunLevelCode,
    symbols: np.ndarray,
    base: int,
    number: int,
    last: int,
    block_size: int,
    string: BitString,
    bits: np.ndarray,
    positions: np.ndarray,
) -> tuple[int, int]:
    """Append the run–level pairs of a part of a tensor to a string, on the calling thread.

    Parameters
    ----------
    code : RunLevelCode
    symbols : (n,) unsigned array
        Elements `base` to `base` + n.
    base : int
        Index of the first element.
    number, last : int
        Number of preceding pairs, and position of the last of them, or 0.
    block_size : int
        Pairs of a block.
    string : BitString
    bits, positions : int64 array
        An element for each block of the tensor. For each block that begins in this part, they
        receive the bits of the string before it, including the lead, and the position of the
        preceding pair.

    Returns
    -------
    int, int
        Number of pairs up to the end of this part, and position of the last.
    """
    tables = write_pair_tables(code.gap, code.symbol)
    places = np.empty(BLOCK, np.uint32)
    small, wide = narrowed(symbols, code.symbol.top)
    progress = np.array([0, last - base, number], np.int64)
    while True:
        _write_pairs(
            *(small, wide, base, block_size, *tables, code.gap.numbers, code.symbol.numbers),
            places,
            *(string.data, string.state, bits, positions, progress),
        )
        if progress[0] == small.size:
            return int(progress[2]), int(progress[1]) + base
        string.grow()


_spell = spelling(LEVELS)


@kernel(
    "in uint8[], in uint64[], int64, int64, "
    "(in uint64[], in uint64[], in uint64[], in uint64[], in uint64[]), "
    "out uint32[], out uint8[], out uint64[], out int64[], out int64[], out int64[]",
)
def _write_pairs(
    small, wide, base, block_size, tables, places, out, state, bits, positions, progress
):
    # small.size == wide.size, unless no symbol is WIDE; gaps.size == NEAR. `progress` holds
    # the number of written symbols, the position of the last pair, counted from `base`, and
    # the number of written pairs. `bits` and `positions` have an element for each block of
    # pairs. at, acc, have: see `numeric.words._putting`. The loop over groups of four is not a
    # helper, because LLVM then makes slower code of the whole loop.
    gaps, singles, groups, gap_code, code = tables
    at, acc, have = np.int64(state[0]), state[1], state[2]
    i, last, number = progress[0], progress[1], progress[2]
    limit = out.size - SLACK
    until = (block_size - number % block_size) % block_size  # pairs before the next block
    missing = np.uint64(0)
    full = False
    while i < small.size and not full:
        span = min(SCAN, small.size - i)
        mask = np.uint64(0)
        if span == SCAN:
            mask = at_least(small, i, np.uint8(1))
            near = i - last + SCAN < NEAR and until > SCAN
            if near and count_ones(mask) >= np.uint64(_MANY):
                # Groups of four symbols, up to one that has no word in the table.
                start = i
                for _ in range(SCAN // BLOCK):
                    fours_of(small, i, places)
                    if places[BLOCK // 4]:  # a symbol is too large for a group
                        break
                    k = 0
                    while k < BLOCK // 4 and at <= limit:
                        group = groups[places[k]]
                        nbits = group & _LENGTH
                        count = np.int64((group >> np.uint64(16)) & np.uint64(7))
                        lead = np.int64((group >> np.uint64(8)) & np.uint64(15))
                        before = gaps[np.uint64(i + 1 + lead - last)] if count else np.uint64(0)
                        if nbits == _LENGTH or (before == 0 and count):
                            break
                        word = (before >> _SIX) << nbits | group >> np.uint64(24)
                        nbits += before & _LENGTH
                        acc, have, at = put(out, at, acc, have, word, nbits)
                        i += 4
                        if count:
                            last = i - np.int64((group >> np.uint64(12)) & np.uint64(15))
                        number += count
                        until -= count
                        k += 1
                    if k < BLOCK // 4:
                        break
                if i > start:
                    continue
        else:
            for k in range(span):
                mask |= np.uint64(small[i + k] != 0) << np.uint64(k)
        while mask:
            place = i + np.int64(trailing_zeros(mask))
            if at > limit:
                span, full = place - i, True
                break
            if until == 0:
                until = block_size
                bits[number // block_size] = 8 * at + np.int64(have)
                positions[number // block_size] = base + last
            gap = np.uint64(place + 1 - last)
            symbol = small[place]
            word = singles[symbol]
            before = gaps[gap] if gap < np.uint64(NEAR) else np.uint64(0)
            if word and before:
                pair, nbits = joined(before, word)
                acc, have, at = put(out, at, acc, have, pair, nbits)
            else:
                old_acc, old_have, old_at = acc, have, at
                if before:
                    acc, have, at = put(out, at, acc, have, before >> _SIX, before & _LENGTH)
                else:
                    acc, have, at, missing = _spell(gap_code, gap, out, acc, have, at)
                if missing == 0:
                    value = wide[place] if symbol == WIDE else np.uint64(symbol)
                    acc, have, at, missing = _spell(code, value, out, acc, have, at)
                if missing:
                    acc, have, at = old_acc, old_have, old_at
                    span, full = place - i, True
                    break
            last = place + 1
            number += 1
            until -= 1
            mask &= mask - np.uint64(1)
        i += span
    state[0], state[1], state[2], state[3] = np.uint64(at), acc, have, missing
    progress[0], progress[1], progress[2] = i, last, number
