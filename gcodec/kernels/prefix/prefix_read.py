"""The reader of prefix codes: up to six symbols by one table lookup.

A string is read in blocks of equal numbers of symbols. If the begin of each block is stored,
several blocks are read in turn, so that the processor does not wait for one symbol to locate the
next. Otherwise, the parts of a block are read in turn, from bits at equal distances. A prefix code
synchronizes itself: a reader that begins within a word soon reaches the end of a word, and from
there on reads the same words as one that began with the block. So the reader of each part goes on
until it reaches a word that the reader of the following part has read too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.numeric.words import load_word, peek, store_word, swapped
from gcodec.kernels.prefix.codewords import CORRUPT, FAMILIES, TRUNCATED, Family
from gcodec.kernels.prefix.look_ahead import (
    AT,
    BLOCK,
    END,
    END_PLACE,
    ENTRIES,
    LAST_AT,
    LAST_PLACE,
    PLACE,
    START,
    TAKEN,
    looking,
    state,
)
from gcodec.kernels.prefix.prefix_table import (
    WIDE,
    WINDOW,
    PrefixCode,
    read_runs,
    read_singles,
    reading,
)
from gcodec.kernels.prefix.table_code import IN_TABLES, LOOKS, Look, TableCode
from gcodec.runtime.jit import Kernel, factory, inline, kernel, subroutine

BROKEN = -3  # a block does not end where the next begins

_SINGLE = np.uint64(64 - WINDOW)
_LEAST_PARTED = 1 << 12  # symbols of a block from which on reading parts of it in turn pays
# Bits between parts are multiples of this number, so that words of equal lengths, up to 8 bits,
# begin where the parts do: the readers of such words would never synchronize.
_PART_NBITS = 840
_SURE = 31 / 32  # share of the probable bits of a block that its words nearly always take
_SEARCHED = 8  # two readers must meet within the first eighth of the words of a part
_MOST_RESTARTS = 100  # of the readers of parts in a block, each after bits that are no word


def read_blocks(
    code: PrefixCode | TableCode,
    data: np.ndarray,
    starts: np.ndarray,
    bounds: np.ndarray,
    symbols: np.ndarray,
    wide: np.ndarray,
    end: int,
    chained: bool,
    left: int = 0,
) -> None:
    """Read a part of a string on the calling thread.

    Parameters
    ----------
    code : PrefixCode or TableCode
    data : uint8 array
    starts : (count + 1,) int64 array
        Bit where each block begins, and where the last ends. Unless `chained`, only the first is
        used, and the reader writes the others.
    bounds : (count,) int64 array
        Ends of the blocks of symbols, not falling; the last is n.
    symbols : (n,) uint8 array
        Receives the symbols; WIDE for larger ones.
    wide : (n,) uint64 array
        Receives the symbols from WIDE on; of no elements unless `code.wide`.
    end : int
        Bit where the string ends.
    chained : bool
        Whether `starts` is complete, so that each block must end where the next one begins.
    left : int
        Symbols up to `end`, about, if blocks that are not chained may be read in parts; 0 if not.

    Raises
    ------
    FormatError
    """
    status, rate, room = np.zeros(2, np.int64), 0.0, 0
    if not chained and left >= symbols.size >= _LEAST_PARTED and not wide.size:
        rate, largest = max(end - int(starts[0]), 0) / left, symbols.size
        if bounds.size > 1:
            largest = int(np.diff(bounds, prepend=0).max())
        room = largest + largest // 2  # as some parts have more words than others
    loop, *constants = prepared(code)
    outputs = symbols, wide, np.empty(room, np.uint8)
    loop(data, starts, bounds, chained, end, rate, *constants, state(), *outputs, status)
    check(status, chained)


@functools.lru_cache(maxsize=256)
def prepared(code: PrefixCode | TableCode) -> tuple[Any, ...]:
    """Return the kernel that reads a code, its numbers and its tables; see `reader`."""
    look = code.look
    return reader(code.family, look), code.numbers, read_runs(code, look), read_singles(code)


def check(status: np.ndarray, chained: bool) -> None:
    """Raise the error that a kernel reported by a number below 0 and a bit of the string."""
    error, at = status[:2].tolist()
    if error < 0 and chained:
        raise Corrupt(f"the seek table or the payload is wrong: no block holds bit {at}")
    if error == TRUNCATED:
        raise Truncated(f"the payload ends within the word at its bit {at}")
    if error == CORRUPT:
        raise Corrupt(f"the payload has no valid word at its bit {at}")


@inline
def _write_symbol(symbol, out, wide, i):
    if symbol >= WIDE and wide.size:  # wide.size == out.size if a symbol exceeds a byte
        wide[i] = symbol
    out[i] = np.uint8(min(symbol, np.uint64(WIDE)))


@inline
def _write_level(symbol, out, wide, i):
    level = np.int64(symbol >> np.uint64(1))
    out[i] = np.uint8(-level if symbol & np.uint64(1) else level)


@functools.cache
def between_looks(family: Family, look: Look, signed: bool = False) -> tuple[Any, Any]:
    """Make the helpers that read on where `look_ahead.looking` ends.

    With `signed`, they write the levels of symbols, as int8, in place of the symbols.

    Returns
    -------
    pass_words
        (code, data, heads, end, singles, out, wide, status) -> bool. Reads one word of
        each string that is not near its end; returns whether all strings allow lookups again.
    read_rest
        (code, data, heads, j, stop, end, runs, singles, out, wide, status). Reads string j up to
        place `stop`; heads[AT + j] becomes the bit where it ends.

    Both report an error to `status`, as a number below 0 and a bit, and otherwise leave it alone.
    """
    read_symbol, write = reading(family), _write_level if signed else _write_symbol
    look_one = looking(1, look, {"out": 0})
    window = np.uint64(64 - look.window)
    bits_at, count_at = np.uint64(8 * look.most), np.uint64(8 * look.most + 8)  # of an entry

    @subroutine
    def read_long(code, data, at, end, out, wide, i):
        """Read a symbol by its rule to place i; return the bit after `at`, or an error."""
        symbol, after = read_symbol(code, data, at, end)
        if after >= 0:
            write(symbol, out, wide, i)
        return after

    @inline
    def pass_words(code, data, heads, end, singles, out, wide, status):
        together = True
        for j in range(ENTRIES):
            i, at = heads[PLACE + j], heads[AT + j]
            if i > heads[LAST_PLACE + j] or at > heads[LAST_AT + j]:
                together = False
            elif together:  # one of the strings has a long word next
                word = swapped(load_word(data, at >> 3)) << np.uint64(at & 7)
                entry = np.int64(singles[word >> _SINGLE])
                if entry:
                    after = at + (entry & 63)
                    out[i] = np.uint8(entry >> 6)
                else:
                    after = read_long(code, data, at, end, out, wide, i)
                if after < 0:
                    status[0], status[1] = after, at
                    together = False
                else:
                    heads[AT + j], heads[PLACE + j] = after, i + 1
        return together

    @inline
    def read_rest(code, data, heads, j, stop, end, runs, singles, out, wide, status):
        look_one(data, runs, heads, j, out)
        at, i = heads[AT + j], heads[PLACE + j]
        last_at, last_place = heads[LAST_AT + j], heads[LAST_PLACE + j]
        while i < stop:
            if at <= last_at:
                word = swapped(load_word(data, at >> 3)) << np.uint64(at & 7)
                run = np.uint64(runs[word >> window])
                count = np.int64(run >> count_at)
                if count and i + count <= stop:
                    if i + 8 <= stop:
                        store_word(out, i, run)
                    else:
                        for k in range(count):
                            out[i + k] = np.uint8(run >> np.uint64(8 * k))
                    at += np.int64((run >> bits_at) & np.uint64(255))
                    i += count
                    continue
            else:
                word = peek(data, at)
            entry = np.int64(singles[word >> _SINGLE])
            if entry and at + (entry & 63) <= end:
                out[i] = np.uint8(entry >> 6)
                at += entry & 63
                i += 1
                continue
            after = read_long(code, data, at, end, out, wide, i)
            if after < 0:
                status[0], status[1] = after, at
                break
            at, i = after, i + 1
            if at <= last_at and i <= last_place:
                heads[AT + j], heads[PLACE + j] = at, i
                look_one(data, runs, heads, j, out)
                at, i = heads[AT + j], heads[PLACE + j]
        heads[AT + j] = at

    return pass_words, read_rest


@inline
def begin(starts, bounds, block, last_at, margin, heads, j):
    """Let string j be that of a block."""
    heads[BLOCK + j] = block
    heads[AT + j] = starts[block]
    heads[PLACE + j] = bounds[block - 1] if block else 0
    heads[LAST_PLACE + j] = bounds[block] - margin
    heads[LAST_AT + j] = last_at


@inline
def last_lookup(data, end):
    """Return the last bit at which lookups stay inside the string and the array."""
    return min(end - TAKEN, 8 * (data.size - 8))


@inline
def is_amid(heads, j):
    """Return whether lookups in string j are possible."""
    return heads[PLACE + j] <= heads[LAST_PLACE + j] and heads[AT + j] <= heads[LAST_AT + j]


@functools.cache
def _together(family: Family, look: Look) -> Any:
    """Make the helper that reads all strings in turn until no lookup is possible in one of them.

    (code, data, heads, end, runs, singles, out, wide, status); an invalid word is reported as by
    `between_looks`. At least one string has a block. The loop takes as long with fewer blocks than
    strings, so a string without a block is that of another one, in step with it.
    """
    look_all = looking(ENTRIES, look, {"out": 0})
    pass_words, _ = between_looks(family, look)

    @subroutine
    def read_together(code, data, heads, end, runs, singles, out, wide, status):
        source = 0
        while heads[BLOCK + source] < 0:
            source += 1
        for j in range(ENTRIES):
            if heads[BLOCK + j] < 0:
                for field in (AT, PLACE, LAST_PLACE, LAST_AT):
                    heads[field + j] = heads[field + source]
        together = True
        while together:
            look_all(data, runs, heads, 0, out)
            together = pass_words(code, data, heads, end, singles, out, wide, status)

    return read_together


@functools.cache
def _parted(family: Family, look: Look) -> Any:
    """Make the helper that reads a block of `out` from bit `first` on, in parts.

    (code, data, first, nbits, end, runs, singles, heads, room, out, wide, status) -> next bit.
    The block has `nbits` bits, about. `room` receives the symbols of the parts.
    """
    read_together, margin = _together(family, look), look.margin
    _, read_rest = between_looks(family, look)

    @subroutine
    def read_parts(code, data, first, nbits, end, runs, singles, heads, room, wide, status):
        """Read parts of `nbits` bits; START, END and END_PLACE tell where they begin and end."""
        last_at, space = last_lookup(data, end), room.size // ENTRIES
        for j in range(ENTRIES):
            heads[BLOCK + j], heads[START + j] = j, first + j * nbits
            heads[AT + j], heads[PLACE + j] = heads[START + j], j * space
            heads[LAST_PLACE + j] = (j + 1) * space - margin
            heads[LAST_AT + j] = min(first + (j + 1) * nbits - 1, last_at)
        left, restarts = ENTRIES, 0
        while left:
            read_together(code, data, heads, end, runs, singles, room, wide, status)
            for j in range(ENTRIES):
                if heads[BLOCK + j] < 0:
                    continue
                is_wrong = status[0] < 0 and heads[AT + j] == status[1]
                if is_wrong and j > 0 and restarts < _MOST_RESTARTS:
                    # The reader has not read words of the block yet, or the block is damaged.
                    heads[AT + j], heads[PLACE + j] = heads[AT + j] + 1, j * space
                    heads[START + j], restarts = heads[AT + j], restarts + 1
                elif is_wrong or not is_amid(heads, j):
                    heads[END + j], heads[END_PLACE + j] = heads[AT + j], heads[PLACE + j]
                    left, heads[BLOCK + j] = left - 1, -1
            status[0] = 0

    @subroutine
    def read_one(code, data, heads, j, end, runs, singles, out, wide, status):
        """Read a word of string j, or all words up to its last bit, if that is farther."""
        i = heads[PLACE + j]
        read_rest(code, data, heads, j, i + 1, end, runs, singles, out, wide, status)
        heads[PLACE + j] = max(heads[PLACE + j], i + 1)

    @subroutine
    def read_parted(code, data, first, nbits, end, runs, singles, heads, room, out, wide, status):
        nbits = nbits // ENTRIES // _PART_NBITS * _PART_NBITS
        read_parts(code, data, first, nbits, end, runs, singles, heads, room, wide, status)
        last_at, space = last_lookup(data, end), room.size // ENTRIES
        # String 0 reads the block to `out`.
        heads[AT], heads[PLACE], heads[LAST_PLACE] = first, 0, out.size - margin
        for j in range(ENTRIES):
            # String 1 reads the first words of part j again.
            begun = j * space
            heads[AT + 1], heads[PLACE + 1] = heads[START + j], begun
            heads[LAST_AT + 1], heads[LAST_PLACE + 1] = last_at, -1
            last_tried = begun + (heads[END_PLACE + j] - begun) // _SEARCHED
            while heads[AT] != heads[AT + 1] and heads[PLACE] < out.size:
                if heads[AT] < heads[AT + 1]:
                    heads[LAST_AT] = min(heads[AT + 1] - 1, last_at)
                    read_one(code, data, heads, 0, end, runs, singles, out, wide, status)
                elif heads[PLACE + 1] < last_tried:
                    read_one(code, data, heads, 1, end, runs, singles, room, wide, status)
                else:
                    break
                if status[0] < 0:
                    return np.int64(-1)
            source, place = heads[PLACE + 1], heads[PLACE]
            count = heads[END_PLACE + j] - source
            if heads[AT] == heads[AT + 1] and count <= out.size - place:
                for k in range(0, count - 7, 8):
                    store_word(out, place + k, load_word(room, source + k))
                for k in range(count & -8, count):
                    out[place + k] = room[source + k]
                heads[AT], heads[PLACE] = heads[END + j], place + count
        heads[LAST_AT] = last_at
        read_rest(code, data, heads, 0, out.size, end, runs, singles, out, wide, status)
        return heads[AT]

    return read_parted


def _codes() -> Iterator[tuple[Family, Look]]:
    yield from ((family, Look(WINDOW, 6)) for family in FAMILIES)
    yield from ((IN_TABLES, look) for look in LOOKS)


@factory(_codes)
def reader(family: Family, look: Look) -> Kernel:
    """Return the kernel of `read_blocks`."""
    read_together, read_parted = _together(family, look), _parted(family, look)
    margin, (_, read_rest) = look.margin, between_looks(family, look)

    @kernel(
        "in uint8[], out int64[], in int64[], boolean, int64, float64, in uint64[], "
        f"in uint{8 * look.nbytes}[], in uint32[], out int64[], "
        "(out uint8[], out uint64[], out uint8[]), out int64[]",
        variant=f"{family.name} {look.window} {look.most}",
        vectorized=False,
    )
    def read_words(
        data, starts, bounds, chained, end, rate, code, runs, singles, heads, outputs, status
    ):
        # `code` has the numbers of the code. No bound passes out.size; status[0] is 0. Words have
        # `rate` bits, about, or 0 if no block is to be read in parts; otherwise `room` has half
        # as many elements again as the largest block.
        out, wide, room = outputs
        last_at = last_lookup(data, end)
        if not chained:
            for block in range(bounds.size):
                begin(starts, bounds, block, last_at, margin, heads, 0)
                place, stop = heads[PLACE], bounds[block]
                if rate and stop - place >= _LEAST_PARTED:
                    part, nbits = out[place:stop], np.int64(_SURE * rate * (stop - place))
                    read_parted(
                        *(code, data, starts[block], nbits, end),
                        *(runs, singles, heads, room, part, wide, status),
                    )
                else:
                    read_rest(code, data, heads, 0, stop, end, runs, singles, out, wide, status)
                if status[0] < 0:
                    return
                starts[block + 1] = heads[AT]
            return
        for block in range(bounds.size + 1):
            if starts[block] < 0 or starts[block] > end:
                status[0], status[1] = BROKEN, starts[block]
                return
        left, begun = bounds.size, min(ENTRIES, bounds.size)
        for j in range(ENTRIES):
            heads[BLOCK + j] = -1
            if j < begun:
                begin(starts, bounds, j, last_at, margin, heads, j)
        while left:
            read_together(code, data, heads, end, runs, singles, out, wide, status)
            for j in range(ENTRIES):
                block = heads[BLOCK + j]
                if block < 0 or is_amid(heads, j) or status[0] < 0:
                    continue
                stop = bounds[block]
                read_rest(code, data, heads, j, stop, end, runs, singles, out, wide, status)
                if status[0] == 0 and heads[AT + j] != starts[block + 1]:
                    status[0], status[1] = BROKEN, starts[block + 1]
                left, heads[BLOCK + j] = left - 1, -1
                if begun < bounds.size:
                    begin(starts, bounds, begun, last_at, margin, heads, j)
                    begun += 1
            if status[0] < 0:
                return

    return read_words
