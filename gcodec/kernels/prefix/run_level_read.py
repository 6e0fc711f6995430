"""The reader of run–level pairs: up to three pairs by one lookup of the next twelve bits."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.words import load_word, peek, store_word, swapped
from gcodec.kernels.prefix.codewords import LEVELS
from gcodec.kernels.prefix.look_ahead import AT, LAST_AT, LAST_PLACE, PLACE, TAKEN, looking, state
from gcodec.kernels.prefix.prefix_read import BROKEN, check
from gcodec.kernels.prefix.prefix_table import WIDE, WINDOW, read_singles, reading
from gcodec.kernels.prefix.run_level import FAR, NEAR, RunLevelCode, RunLevelPairs, read_pair_table
from gcodec.kernels.prefix.table_code import Look
from gcodec.runtime.jit import kernel, subroutine

_TURNS = 8  # pairs of each block that are read one by one before lookups of several continue
_TOGETHER = 4  # blocks that are read in turn; with more, one of them too often has a long word
GAP_WINDOW = 16  # bits of the lookup of a gap
_PAIRS = Look(WINDOW, 3)
_MARGIN = _PAIRS.most * _PAIRS.times + 8  # pairs at the end of a block that lookups must not reach
_BITS, _COUNT, _BYTE = np.uint64(48), np.uint64(56), np.uint64(255)  # of an entry
_GAPS = np.uint64(24)
_LOOK, _GAP_LOOK = np.uint64(64 - WINDOW), np.uint64(64 - GAP_WINDOW)


def read_pair_blocks(
    code: RunLevelCode,
    data: np.ndarray,
    starts: np.ndarray,
    bounds: np.ndarray,
    pairs: RunLevelPairs,
    end: int,
    chained: bool,
) -> tuple[int, int]:
    """Read run–level pairs, on the calling thread, up to the last bound or the end of the string.

    Parameters
    ----------
    code : RunLevelCode
    data : uint8 array
    starts : int64 array
        Bit where each block begins and, if `chained`, the bit where the last ends.
    bounds : (count,) int64 array
        Ends of the blocks of pairs, rising; the last block may have fewer.
    pairs : RunLevelPairs
        Receives the pairs; has as many elements as the last bound.
    end : int
        Bit where the string ends.
    chained : bool
        Whether each block must end where the next one begins.

    Returns
    -------
    int, int
        Number of pairs, and the bit after the last.

    Raises
    ------
    FormatError
    """
    status = np.zeros(3, np.int64)
    _read_pairs(
        *(data, starts, bounds, chained, end, read_pair_table(code.gap, code.symbol)),
        *(read_singles(code.gap, GAP_WINDOW, NEAR), read_singles(code.symbol)),
        *(code.gap.numbers, code.symbol.numbers, state(), *pairs, status),
    )
    check(status, chained)
    return int(status[2]), int(status[1])


_look_one, _look_all = (
    looking(count, _PAIRS, {"levels": 0, "gaps": 24}) for count in (1, _TOGETHER)
)
_read_symbol = reading(LEVELS)


@subroutine
def _read_pair(data, at, end, tables, pairs, i):
    """Read the pair at bit `at` to place i; return the next bit, or an error."""
    _, near, singles, gap_code, code = tables
    gaps, levels, far, wide = pairs
    entry = np.int64(near[peek(data, at) >> _GAP_LOOK])
    gap = np.uint64(entry >> 6)
    if entry and at + (entry & 63) <= end:
        at += entry & 63
    else:
        gap, at = _read_symbol(gap_code, data, at, end)
        if at < 0:
            return at
    entry = np.int64(singles[peek(data, at) >> _LOOK])
    symbol = np.uint64(entry >> 6)
    if entry and at + (entry & 63) <= end:
        at += entry & 63
    else:
        symbol, at = _read_symbol(code, data, at, end)  # symbol 0, if `at` is an error
    if gap >= FAR:
        far[i] = gap
    if symbol >= WIDE and wide.size:  # wide.size == gaps.size if a symbol exceeds a byte
        wide[i] = symbol
    gaps[i] = np.uint8(min(gap, np.uint64(FAR)))
    levels[i] = np.uint8(min(symbol, np.uint64(WIDE)))
    return at


@kernel(
    "in uint8[], in int64[], in int64[], boolean, int64, "
    "(in uint64[], in uint32[], in uint32[], in uint64[], in uint64[]), out int64[], "
    "(out uint8[], out uint8[], out uint64[], out uint64[]), out int64[]",
    vectorized=False,
)
def _read_pairs(data, starts, bounds, chained, end, tables, heads, pairs, status):
    # No bound passes gaps.size == levels.size. The tables are those of runs, of gaps and of
    # symbols, and then the numbers of the codes of gaps and of symbols.
    runs, near, singles, _, _ = tables
    gaps, levels, far, _ = pairs
    count = bounds.size
    for first in range(0, count, _TOGETHER):
        blocks = min(_TOGETHER, count - first)
        for j in range(blocks):
            b = first + j
            stop = starts[b + 1] if chained else end
            heads[AT + j] = starts[b]
            heads[PLACE + j] = bounds[b - 1] if b else 0
            heads[LAST_PLACE + j] = bounds[b] - _MARGIN
            heads[LAST_AT + j] = min(stop - TAKEN, 8 * (data.size - 8))
            if starts[b] < 0 or starts[b] > stop or stop > end:
                status[0], status[1] = BROKEN, starts[b]
                return
        together = blocks == _TOGETHER
        while together:
            _look_all(data, runs, heads, 0, levels, gaps)
            # One of the blocks has a long pair next; where short pairs are rare, more follow.
            for turn in range(_TURNS * _TOGETHER):
                j = turn % _TOGETHER
                at, i = heads[AT + j], heads[PLACE + j]
                if i > heads[LAST_PLACE + j] or at > heads[LAST_AT + j]:
                    together = False
                    break
                # So two words of tables, of at most 28 bits, are inside the block.
                word = swapped(load_word(data, at >> 3)) << np.uint64(at & 7)
                gap = np.int64(near[word >> _GAP_LOOK])
                entry = np.int64(singles[(word << np.uint64(gap & 63)) >> _LOOK])
                if gap and entry:
                    after = at + (gap & 63) + (entry & 63)
                    levels[i] = np.uint8(entry >> 6)
                    gaps[i] = np.uint8(min(gap >> 6, np.int64(FAR)))
                    if gap >> 6 >= FAR:
                        far[i] = np.uint64(gap >> 6)
                else:
                    after = _read_pair(data, at, end, tables, pairs, i)
                    if after < 0:
                        status[0], status[1] = after, at
                        return
                heads[AT + j], heads[PLACE + j] = after, i + 1
        for j in range(blocks):
            b = first + j
            stop = starts[b + 1] if chained else end
            _look_one(data, runs, heads, j, levels, gaps)
            at, i = heads[AT + j], heads[PLACE + j]
            while i < bounds[b] and at < stop:
                if i + 8 <= bounds[b] and at <= heads[LAST_AT + j]:
                    word = swapped(load_word(data, at >> 3)) << np.uint64(at & 7)
                    run = runs[word >> _LOOK]
                    if run:
                        store_word(levels, i, run)
                        store_word(gaps, i, run >> _GAPS)
                        at += np.int64((run >> _BITS) & _BYTE)
                        i += np.int64(run >> _COUNT)
                        continue
                after = _read_pair(data, at, end, tables, pairs, i)
                if after < 0:
                    status[0], status[1] = after, at
                    return
                at, i = after, i + 1
                if i <= heads[LAST_PLACE + j] and at <= heads[LAST_AT + j]:
                    heads[AT + j], heads[PLACE + j] = at, i
                    _look_one(data, runs, heads, j, levels, gaps)
                    at, i = heads[AT + j], heads[PLACE + j]
            nonempty = i > (bounds[b - 1] if b else 0)
            full = i == bounds[b] or (b + 1 == count and nonempty)
            if chained and (at != stop or not full):
                status[0], status[1] = BROKEN, stop
                return
            status[1], status[2] = at, i
    status[0] = 0
