"""Units of a sparse string: the gap to the next symbol that is not 0, then that symbol.

Positions count from 1; a gap is how far a symbol lies behind the one before it, or behind position
0. Both words are those of prefix codes. Blocks of a seek table count units.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bit_string import SLACK, BitString, moved_on, put
from gcodec.kernels.codewords import CORRUPT, Rule
from gcodec.kernels.jit import Kernel, kernel
from gcodec.kernels.prefix_read import BROKEN, ENTRIES, check
from gcodec.kernels.prefix_table import (
    WIDE,
    WINDOW,
    Mapping,
    PrefixCode,
    read_singles,
    read_units,
    reading,
    write_tables,
)
from gcodec.kernels.prefix_write import narrowed, spelling
from gcodec.kernels.words import (
    count_ones,
    leading_zeros,
    load_word,
    nonzero_bytes,
    peek,
    store_word,
    swapped,
    trailing_zeros,
)

NEAR = 1024  # gaps below it have their word in a table
FAR = 255  # in a byte: a gap from here on, which is kept elsewhere

_GAP_WINDOW = 14  # bits that a reader looks up for a gap
_SCAN = 64  # symbols that are scanned at once
_LOOKS = 4  # looks at a table for each word of bits
_MARGIN = 3 * _LOOKS + 8  # units before the end of a block where looking ahead stops
_FARTHEST = np.uint64(2**63 - 1)  # gap
_TAKEN = 56  # bits that a word holds from any bit of its first byte on
_LENGTH = np.uint64(63)
_SIX = np.uint64(6)

Kind = tuple[Rule, Mapping, int]


def _name(kind: tuple[Kind, Kind]) -> str:
    return " ".join(f"{rule.name} {mapping} {shift}" for rule, mapping, shift in kind)


class UnitCode(NamedTuple):
    """The codes of a unit.

    Attributes
    ----------
    gap, symbol : PrefixCode
    """

    gap: PrefixCode
    symbol: PrefixCode

    @property
    def kind(self) -> tuple[Kind, Kind]:
        """What tells one kernel from another."""
        return self.gap.kind, self.symbol.kind


def count_units(symbols: np.ndarray) -> tuple[int, int]:
    """Return how many of (n,) unsigned symbols are not 0, and the position of the last, or 0."""
    small = symbols if symbols.dtype == np.uint8 else (symbols != 0).view(np.uint8)
    found = np.zeros(2, np.int64)
    _count(small, found)
    return int(found[0]), int(found[1])


@kernel("in uint8[], out int64[]")
def _count(small, found):
    total, last = np.int64(0), np.int64(0)
    whole = small.size - small.size % _SCAN
    for i in range(0, whole, _SCAN):
        mask = nonzero_bytes(small, i)
        if mask:
            total += np.int64(count_ones(mask))
            last = i + _SCAN - np.int64(leading_zeros(mask))
    for i in range(whole, small.size):
        if small[i]:
            total += 1
            last = np.int64(i + 1)
    found[0], found[1] = total, last


# --- write ---------------------------------------------------------------------------------------


def write_units(
    code: UnitCode,
    symbols: np.ndarray,
    base: int,
    number: int,
    last: int,
    every: int,
    string: BitString,
    bits: np.ndarray,
    positions: np.ndarray,
) -> tuple[int, int]:
    """Put the units of a part of a tensor at the end of a string, on the calling thread.

    Parameters
    ----------
    code : UnitCode
    symbols : (n,) unsigned array
        Elements `base` to `base` + n.
    base : int
    number, last : int
        Units before them, and the position of the last of these, or 0.
    every : int
        Units of a block.
    string : BitString
    bits, positions : int64 array
        Of all blocks of the tensor; written for those that begin here: bits of the string, its
        lead too, and the position of the last unit before it.

    Returns
    -------
    int, int
        Units up to the last of these, and its position.
    """
    tables = write_tables(code.gap, NEAR).singles, write_tables(code.symbol).singles
    parameters = np.uint64(code.gap.parameter), np.uint64(code.symbol.parameter)
    small, wide = narrowed(symbols)
    progress = np.array([0, last - base, number], np.int64)
    loop = _writer(code.kind)
    while True:
        room = string.data, string.state
        loop(small, wide, base, every, *tables, *parameters, *room, bits, positions, progress)
        if progress[0] == small.size:
            return int(progress[2]), int(progress[1]) + base
        string.grow()


@functools.cache
def _writer(kind: tuple[Kind, Kind]) -> Kernel:
    spell_gap, spell = spelling(kind[0]), spelling(kind[1])

    @kernel(
        "in uint8[], in uint64[], int64, int64, in uint64[], in uint64[], uint64, uint64, "
        "out uint8[], out uint64[], out int64[], out int64[], out int64[]",
        variant=_name(kind),
    )
    def write(
        small,
        wide,
        base,
        every,
        gaps,
        singles,
        p_gap,
        p,
        out,
        state,
        bits,
        positions,
        progress,
    ):
        # small.size == wide.size, unless no symbol is WIDE; gaps.size == NEAR. `progress` tells
        # the symbols that found room, the position of the last unit from `base` on, and how many
        # units there were, of all that bits and positions have room for.
        at, acc, have = np.int64(state[0]), state[1], state[2]
        i, last, number = progress[0], progress[1], progress[2]
        limit = out.size - SLACK
        until = (every - number % every) % every  # units before the next block begins
        missing = np.uint64(0)
        full = False
        while i < small.size and not full:
            span = min(_SCAN, small.size - i)
            mask = np.uint64(0)
            if span == _SCAN:
                mask = nonzero_bytes(small, i)
            else:
                for k in range(span):
                    mask |= np.uint64(small[i + k] != 0) << np.uint64(k)
            while mask:
                here = i + np.int64(trailing_zeros(mask))
                if at > limit:
                    span, full = here - i, True
                    break
                if until == 0:
                    until = every
                    bits[number // every] = 8 * at + np.int64(have)
                    positions[number // every] = base + last
                gap = np.uint64(here + 1 - last)
                symbol = small[here]
                word = singles[symbol]
                before = gaps[gap] if gap < np.uint64(NEAR) else np.uint64(0)
                if word and before:
                    behind = word & _LENGTH
                    nbits = (before & _LENGTH) + behind
                    acc = put(out, at, acc, have, (before >> _SIX) << behind | word >> _SIX, nbits)
                    acc, have, at = moved_on(acc, have + nbits, at)
                else:
                    old_acc, old_have, old_at = acc, have, at
                    acc, have, at, missing = spell_gap(gap, p_gap, out, acc, have, at)
                    if missing == 0:
                        value = wide[here] if symbol == WIDE else np.uint64(symbol)
                        acc, have, at, missing = spell(value, p, out, acc, have, at)
                    if missing:
                        acc, have, at = old_acc, old_have, old_at
                        span, full = here - i, True
                        break
                last = here + 1
                number += 1
                until -= 1
                mask &= mask - np.uint64(1)
            i += span
        state[0], state[1], state[2], state[3] = np.uint64(at), acc, have, missing
        progress[0], progress[1], progress[2] = i, last, number

    return write


# --- read ----------------------------------------------------------------------------------------


class Units(NamedTuple):
    """Units that were read, by their number.

    Attributes
    ----------
    gaps, symbols : (n,) uint8 array
        FAR for a gap from there on, WIDE for a symbol from there on.
    far, wide : (n,) uint64 array
        These gaps and symbols; of no elements, where the code has no such symbols.
    """

    gaps: np.ndarray
    symbols: np.ndarray
    far: np.ndarray
    wide: np.ndarray


def read_blocks(
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
    check(status)
    return int(status[2]), int(status[1])


@functools.cache
def _reader(kind: tuple[Kind, Kind]) -> Kernel:
    read_gap, read_symbol = reading(kind[0]), reading(kind[1])

    @kernel(
        "in uint8[], in int64[], in int64[], boolean, int64, in uint64[], in uint32[], "
        "in uint32[], uint64, uint64, uint64, out int64[], out int64[], out int64[], "
        "out uint8[], out uint8[], out uint64[], out uint64[], out int64[]",
        variant=_name(kind),
    )
    def read(
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
                        total = np.uint64(0)
                        entry = np.uint64(0)
                        for _ in range(_LOOKS):
                            entry = runs[(word << total) >> np.uint64(64 - WINDOW)]
                            store_word(symbols, i, entry)
                            store_word(gaps, i, entry >> np.uint64(24))
                            i += np.int64((entry >> np.uint64(48)) & np.uint64(3))
                            total += entry >> np.uint64(56)
                        at += np.int64(total)
                        left += 1
                        if entry >> np.uint64(56):
                            bits[j], places[j] = at, i
                            continue
                    # At the end of a block, or where no short unit stands: one unit.
                    if i < stop and at < ends[j]:
                        start = at
                        found = np.int64(
                            gap_singles[peek(data, at) >> np.uint64(64 - _GAP_WINDOW)]
                        )
                        gap = np.uint64(found >> 6)
                        if found and at + (found & 63) <= end:
                            at += found & 63
                        else:
                            gap, at = read_gap(data, at, end, p_gap, _FARTHEST)
                            if at < 0:
                                status[0], status[1] = at, start
                                return
                        found = np.int64(singles[peek(data, at) >> np.uint64(64 - WINDOW)])
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

    return read


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
    last = _placer(out.dtype.name)(*units, bounds, positions, before, out, status)
    if status[0] == CORRUPT:
        raise Corrupt(f"a gap passes the {out.size} elements of the tensor")
    check(status)
    return int(last)


@functools.cache
def _placer(dtype: str) -> Kernel:
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
