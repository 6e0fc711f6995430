"""The reader of units: up to three with one look at the next twelve bits."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.codewords import CORRUPT
from gcodec.kernels.jit import Kernel, kernel
from gcodec.kernels.prefix_read import BROKEN, ENTRIES, check
from gcodec.kernels.prefix_table import NEAR, WIDE, WINDOW, read_singles, read_units, reading
from gcodec.kernels.units import FAR, Kind, UnitCode, Units, name_of
from gcodec.kernels.words import load_word, peek, store_word, swapped

_GAP_WINDOW = 14  # bits that a reader looks up for a gap
_LOOKS = 4  # looks at a table for each word of bits
_MARGIN = 3 * _LOOKS + 8  # units before the end of a block where looking ahead stops
_FARTHEST = np.uint64(2**63 - 1)  # gap
_ZERO = np.uint64(0)
_LOOK = np.uint64(64 - WINDOW)
_COUNT, _USED = np.uint64(48), np.uint64(56)  # where an entry of a table has them
_THREE, _GAPS = np.uint64(3), np.uint64(24)
_GAP_LOOK = np.uint64(64 - _GAP_WINDOW)
_TAKEN = 56  # bits that a word holds from any bit of its first byte on


def read_unit_blocks(
    code: UnitCode,
    data: np.ndarray,
    starts: np.ndarray,
    bounds: np.ndarray,
    units: Units,
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
    tables = read_units(code.gap, code.symbol), read_singles(code.gap, _GAP_WINDOW, NEAR)
    single = read_singles(code.symbol)
    numbers = code.gap.parameter, code.symbol.parameter, code.symbol.top
    state = np.empty(ENTRIES, np.int64), np.empty(ENTRIES, np.int64), np.empty(ENTRIES, np.int64)
    status = np.zeros(3, np.int64)
    _reader(code.kind)(
        data,
        starts,
        bounds,
        chained,
        end,
        *tables,
        single,
        *map(np.uint64, numbers),
        *state,
        *units,
        status,
    )
    check(status, chained)
    return int(status[2]), int(status[1])


@functools.cache
def _reader(kind: tuple[Kind, Kind]) -> Kernel:
    read_gap, read_symbol = reading(kind[0]), reading(kind[1])

    @kernel(
        "in uint8[], in int64[], in int64[], boolean, int64, in uint64[], in uint32[], "
        "in uint32[], uint64, uint64, uint64, out int64[], out int64[], out int64[], "
        "out uint8[], out uint8[], out uint64[], out uint64[], out int64[]",
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
        bits,
        places,
        ends,
        gaps,
        symbols,
        far,
        wide,
        status,
    ):
        # bits, places and ends have ENTRIES elements: of each entry point, the next bit, the next
        # unit, and the bit where its block ends. The bounds do not pass gaps.size == symbols.size.
        count = bounds.size
        look_limit = 8 * (data.size - 8)  # a word of bits from here is inside
        for first in range(0, count, ENTRIES):
            some = min(ENTRIES, count - first)
            for j in range(some):
                bits[j] = starts[first + j]
                places[j] = bounds[first + j - 1] if first + j else 0
                ends[j] = starts[first + j + 1] if chained else end
                if bits[j] < 0 or bits[j] > ends[j] or ends[j] > end:
                    status[0], status[1] = BROKEN, bits[j]
                    return
            left = some
            while left > 0:
                left = 0
                for j in range(some):
                    at, i, stop = bits[j], places[j], bounds[first + j]
                    if i + _MARGIN <= stop and at <= min(ends[j] - _TAKEN, look_limit):
                        # Each look writes 8 bytes, of which it counts at most three.
                        word = swapped(load_word(data, at >> 3)) << np.uint64(at & 7)
                        total = _ZERO
                        entry = _ZERO
                        for _ in range(_LOOKS):
                            entry = runs[(word << total) >> _LOOK]
                            store_word(symbols, i, entry)
                            store_word(gaps, i, entry >> _GAPS)
                            i += np.int64((entry >> _COUNT) & _THREE)
                            total += entry >> _USED
                        at += np.int64(total)
                        left += 1
                        if entry >> _USED:
                            bits[j], places[j] = at, i
                            continue
                    # At the end of a block, or where no short unit stands: one unit.
                    if i < stop and at < ends[j]:
                        start = at
                        found = np.int64(gap_singles[peek(data, at) >> _GAP_LOOK])
                        gap = np.uint64(found >> 6)
                        if found and at + (found & 63) <= end:
                            at += found & 63
                        else:
                            gap, at = read_gap(data, at, end, p_gap, _FARTHEST)
                            if at < 0:
                                status[0], status[1] = at, start
                                return
                        found = np.int64(singles[peek(data, at) >> _LOOK])
                        symbol = np.uint64(found >> 6)
                        if found and at + (found & 63) <= end:
                            at += found & 63
                        else:
                            symbol, at = read_symbol(data, at, end, p, top)
                            if at < 0:
                                status[0], status[1] = at, start
                                return
                        if gap >= FAR:
                            far[i] = gap
                            gap = np.uint64(FAR)
                        if symbol >= WIDE:  # so the code has such symbols
                            wide[i] = symbol
                            symbol = np.uint64(WIDE)
                        gaps[i], symbols[i] = np.uint8(gap), np.uint8(symbol)
                        i += 1
                        left += 1
                    bits[j], places[j] = at, i
            for j in range(some):
                whole = places[j] == bounds[first + j]
                begun = places[j] > (bounds[first + j - 1] if first + j else 0)
                last = first + j + 1 == count
                if chained and (bits[j] != ends[j] or not (whole or (last and begun))):
                    status[0], status[1] = BROKEN, ends[j]
                    return
                status[1], status[2] = bits[j], places[j]
        status[0] = 0

    return read_some


def place(
    units: Units,
    bounds: np.ndarray,
    positions: np.ndarray,
    before: int,
    out: np.ndarray,
) -> int:
    """Write symbols to their positions.

    Parameters
    ----------
    units : Units
    bounds : (count,) int64 array
        Ends of blocks of units; the last tells how many units there are.
    positions : (count,) int64 array
        Of the last unit of each block; of no elements where they are not known.
    before : int
        Position of the last unit before these.
    out : (n,) unsigned array
        Of the whole tensor; zeros.

    Returns
    -------
    int
        The position of the last unit.

    Raises
    ------
    Corrupt
    """
    status = np.zeros(2, np.int64)
    last = _placer(out.dtype)(*units, bounds, positions, before, out, status)
    if status[0] == CORRUPT:
        raise Corrupt(f"a gap passes the {out.size} elements of the tensor")
    check(status, positions.size > 0)
    return int(last)


@functools.cache
def _placer(kind: np.dtype[Any]) -> Kernel:
    dtype = kind.name
    cast = getattr(np, dtype)

    @kernel(
        "in uint8[], in uint8[], in uint64[], in uint64[], in int64[], in int64[], int64, "
        f"out {dtype}[], out int64[]",
        variant=dtype,
    )
    def place_units(gaps, symbols, far, wide, bounds, positions, before, out, status):
        # far and wide have as many elements as gaps, unless no gap is FAR, no symbol WIDE
        last, i = before, 0
        for b in range(bounds.size):
            while i < bounds[b]:  # at most gaps.size
                gap = far[i] if gaps[i] == FAR else np.uint64(gaps[i])
                if gap > np.uint64(out.size - last):
                    status[0], status[1] = CORRUPT, i
                    return last
                last += np.int64(gap)
                symbol = symbols[i]
                out[last - 1] = cast(wide[i]) if symbol == WIDE and wide.size else cast(symbol)
                i += 1
            if positions.size and positions[b] != last:
                status[0], status[1] = BROKEN, b
                return last
        return last

    return place_units
