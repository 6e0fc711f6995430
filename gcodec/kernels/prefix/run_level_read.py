"""The reader of units: up to three with one look at the next twelve bits."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.words import load_word, peek, store_word, swapped
from gcodec.kernels.prefix.look_ahead import AT, LAST_AT, LAST_PLACE, PLACE, TAKEN, looking, state
from gcodec.kernels.prefix.prefix_read import BROKEN, check
from gcodec.kernels.prefix.prefix_table import (
    UNIT_KINDS,
    WIDE,
    WINDOW,
    Kind,
    read_singles,
    reading,
)
from gcodec.kernels.prefix.run_level import FAR, RunLevelCode, RunLevelPairs, name_of
from gcodec.kernels.prefix.run_level_table import NEAR, read_units
from gcodec.kernels.prefix.table_code import Look
from gcodec.runtime.jit import Kernel, factory, inline, kernel

_TURNS = 8  # units of each block that are read one by one before short ones are looked for
_TOGETHER = 4  # blocks that are read at once; with more, one of them too often has a long word
GAP_WINDOW = 16  # bits that a reader looks up for a gap
_UNITS = Look(WINDOW, 3)
_MARGIN = (
    _UNITS.most * _UNITS.times + 8
)  # units before the end of a block where looking ahead stops
_FARTHEST = np.uint64(2**63 - 1)  # gap
_BITS, _COUNT, _BYTE = np.uint64(48), np.uint64(56), np.uint64(255)  # of an entry
_GAPS = np.uint64(24)
_LOOK, _GAP_LOOK = np.uint64(64 - WINDOW), np.uint64(64 - GAP_WINDOW)


def read_unit_blocks(
    code: RunLevelCode,
    data: np.ndarray,
    starts: np.ndarray,
    bounds: np.ndarray,
    units: RunLevelPairs,
    end: int,
    chained: bool,
) -> tuple[int, int]:
    """Read units, on the calling thread, up to the last bound or the end of the string.

    Parameters
    ----------
    code : UnitCode
    data : uint8 array
    starts : int64 array
        Bit where each block begins, and behind the last the bit where it ends if `chained`.
    bounds : (count,) int64 array
        Ends of the blocks of units, rising; the last block may have fewer.
    units : Units
        Of as many units as the last bound says.
    end : int
        Bit where the string ends.
    chained : bool
        Whether each block must end where the next begins.

    Returns
    -------
    int, int
        How many units there are, and the bit behind the last.

    Raises
    ------
    FormatError
    """
    tables = read_units(code.gap, code.symbol), read_singles(code.gap, GAP_WINDOW, NEAR)
    single = read_singles(code.symbol)
    numbers = map(np.uint64, (code.gap.parameter, code.symbol.parameter, code.symbol.top))
    status = np.zeros(3, np.int64)
    where = data, starts, bounds, chained, end
    _reader(code.kind)(*where, *tables, single, *numbers, state(), *units, status)
    check(status, chained)
    return int(status[2]), int(status[1])


_look_one, _look_all = (
    looking(count, _UNITS, {"symbols": 0, "gaps": 24}) for count in (1, _TOGETHER)
)


@factory(lambda: ((kind,) for kind in UNIT_KINDS))
def _reader(kind: tuple[Kind, Kind]) -> Kernel:
    read_gap, read_symbol = reading(kind[0]), reading(kind[1])

    @inline
    def read_unit(data, at, end, gap_singles, singles, p_gap, p, top, gaps, symbols, far, wide, i):
        """Read the unit at bit `at` to place i; return the next bit, or what is wrong."""
        found = np.int64(gap_singles[peek(data, at) >> _GAP_LOOK])
        gap = np.uint64(found >> 6)
        if found and at + (found & 63) <= end:
            at += found & 63
        else:
            gap, at = read_gap(data, at, end, p_gap, _FARTHEST)
            if at < 0:
                return at
        found = np.int64(singles[peek(data, at) >> _LOOK])
        symbol = np.uint64(found >> 6)
        if found and at + (found & 63) <= end:
            at += found & 63
        else:
            symbol, at = read_symbol(data, at, end, p, top)  # 0, if that is wrong
        if gap >= FAR:
            far[i] = gap
        if symbol >= WIDE:  # so the code has such symbols
            wide[i] = symbol
        gaps[i] = np.uint8(min(gap, np.uint64(FAR)))
        symbols[i] = np.uint8(min(symbol, np.uint64(WIDE)))
        return at

    @kernel(
        "in uint8[], in int64[], in int64[], boolean, int64, in uint64[], in uint32[], "
        "in uint32[], uint64, uint64, uint64, out int64[], out uint8[], out uint8[], "
        "out uint64[], out uint64[], out int64[]",
        variant=name_of(kind),
    )
    def read_some(
        data,
        starts,
        bounds,
        chained,
        end,
        runs,
        gap_singles,
        singles,
        p_gap,
        p,
        top,
        kept,
        gaps,
        symbols,
        far,
        wide,
        status,
    ):
        count = bounds.size  # of the bounds, none passes gaps.size == symbols.size
        for first in range(0, count, _TOGETHER):
            some = min(_TOGETHER, count - first)
            for j in range(some):
                b = first + j
                stop = starts[b + 1] if chained else end
                kept[AT + j] = starts[b]
                kept[PLACE + j] = bounds[b - 1] if b else 0
                kept[LAST_PLACE + j] = bounds[b] - _MARGIN
                kept[LAST_AT + j] = min(stop - TAKEN, 8 * (data.size - 8))
                if starts[b] < 0 or starts[b] > stop or stop > end:
                    status[0], status[1] = BROKEN, starts[b]
                    return
            together = some == _TOGETHER
            while together:
                _look_all(data, runs, kept, 0, 0, symbols, gaps)
                # One of them stands before a unit that is not short; where few are, more follow.
                for turn in range(_TURNS * _TOGETHER):
                    j = turn % _TOGETHER
                    at, i = kept[AT + j], kept[PLACE + j]
                    if i > kept[LAST_PLACE + j] or at > kept[LAST_AT + j]:
                        together = False
                        break
                    # So the two words that are in tables, of 28 bits at most, are in the block.
                    word = swapped(load_word(data, at >> 3)) << np.uint64(at & 7)
                    near = np.int64(gap_singles[word >> _GAP_LOOK])
                    found = np.int64(singles[(word << np.uint64(near & 63)) >> _LOOK])
                    if near and found:
                        after = at + (near & 63) + (found & 63)
                        symbols[i] = np.uint8(found >> 6)
                        gaps[i] = np.uint8(min(near >> 6, np.int64(FAR)))
                        if near >> 6 >= FAR:
                            far[i] = np.uint64(near >> 6)
                    else:
                        after = read_unit(
                            data,
                            at,
                            end,
                            gap_singles,
                            singles,
                            p_gap,
                            p,
                            top,
                            gaps,
                            symbols,
                            far,
                            wide,
                            i,
                        )
                        if after < 0:
                            status[0], status[1] = after, at
                            return
                    kept[AT + j], kept[PLACE + j] = after, i + 1
            for j in range(some):
                b = first + j
                stop = starts[b + 1] if chained else end
                _look_one(data, runs, kept, j, 0, symbols, gaps)
                at, i = kept[AT + j], kept[PLACE + j]
                while i < bounds[b] and at < stop:
                    if i + 8 <= bounds[b] and at <= kept[LAST_AT + j]:
                        word = swapped(load_word(data, at >> 3)) << np.uint64(at & 7)
                        entry = runs[word >> _LOOK]
                        if entry:
                            store_word(symbols, i, entry)
                            store_word(gaps, i, entry >> _GAPS)
                            at += np.int64((entry >> _BITS) & _BYTE)
                            i += np.int64(entry >> _COUNT)
                            continue
                    after = read_unit(
                        data,
                        at,
                        end,
                        gap_singles,
                        singles,
                        p_gap,
                        p,
                        top,
                        gaps,
                        symbols,
                        far,
                        wide,
                        i,
                    )
                    if after < 0:
                        status[0], status[1] = after, at
                        return
                    at, i = after, i + 1
                    if i <= kept[LAST_PLACE + j] and at <= kept[LAST_AT + j]:
                        kept[AT + j], kept[PLACE + j] = at, i
                        _look_one(data, runs, kept, j, 0, symbols, gaps)
                        at, i = kept[AT + j], kept[PLACE + j]
                kept[AT + j], kept[PLACE + j] = at, i
                begun = kept[PLACE + j] > (bounds[b - 1] if b else 0)
                full = kept[PLACE + j] == bounds[b] or (b + 1 == count and begun)
                if chained and (kept[AT + j] != stop or not full):
                    status[0], status[1] = BROKEN, stop
                    return
                status[1], status[2] = kept[AT + j], kept[PLACE + j]
        status[0] = 0

    return read_some
