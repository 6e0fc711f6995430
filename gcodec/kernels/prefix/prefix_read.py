"""The reader of prefix codes: up to six symbols by one table lookup.

A string is read in blocks of equal numbers of symbols. If the begin of each block is stored,
several blocks are read in turn, so that the processor does not wait for one symbol to locate the
next.
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
    ENTRIES,
    LAST_AT,
    LAST_PLACE,
    PLACE,
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


def read_blocks(
    code: PrefixCode | TableCode,
    data: np.ndarray,
    starts: np.ndarray,
    bounds: np.ndarray,
    symbols: np.ndarray,
    wide: np.ndarray,
    end: int,
    chained: bool,
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

    Raises
    ------
    FormatError
    """
    status = np.zeros(2, np.int64)
    loop, *constants = _prepared(code)
    loop(data, starts, bounds, chained, end, *constants, state(), symbols, wide, status)
    check(status, chained)


@functools.lru_cache(maxsize=256)
def _prepared(code: PrefixCode | TableCode) -> tuple[Any, ...]:
    """Return the kernel that reads a code, its numbers and its tables."""
    look = code.look
    return _reader(code.family, look), code.numbers, read_runs(code, look), read_singles(code)


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


def _codes() -> Iterator[tuple[Family, Look]]:
    yield from ((family, Look(WINDOW, 6)) for family in FAMILIES)
    yield from ((IN_TABLES, look) for look in LOOKS)


@factory(_codes)
def _reader(family: Family, look: Look) -> Kernel:
    look_all, margin = looking(ENTRIES, look, {"out": 0}), look.margin
    pass_words, read_rest = between_looks(family, look)

    @kernel(
        "in uint8[], out int64[], in int64[], boolean, int64, in uint64[], "
        f"in uint{8 * look.nbytes}[], in uint32[], out int64[], "
        "out uint8[], out uint64[], out int64[]",
        variant=f"{family.name} {look.window} {look.most}",
        vectorized=False,
    )
    def read_words(
        data, starts, bounds, chained, end, code, runs, singles, heads, out, wide, status
    ):
        # `code` has the numbers of the code. No bound passes out.size; status[0] is 0.
        last_at = min(end - TAKEN, 8 * (data.size - 8))
        step = ENTRIES if chained else 1
        for first in range(0, bounds.size, step):
            blocks = min(step, bounds.size - first)
            for j in range(blocks):
                heads[AT + j] = starts[first + j]
                heads[PLACE + j] = bounds[first + j - 1] if first + j else 0
                heads[LAST_PLACE + j] = bounds[first + j] - margin
                heads[LAST_AT + j] = last_at
                if heads[AT + j] < 0 or heads[AT + j] > end:
                    status[0], status[1] = BROKEN, heads[AT + j]
                    return
            together = blocks == ENTRIES
            while together:
                look_all(data, runs, heads, 0, out)
                together = pass_words(code, data, heads, end, singles, out, wide, status)
            for j in range(blocks):
                if status[0] == 0:
                    stop = bounds[first + j]
                    read_rest(code, data, heads, j, stop, end, runs, singles, out, wide, status)
                if status[0] < 0:
                    return
                if not chained:
                    starts[first + 1] = heads[AT]
                elif heads[AT + j] != starts[first + j + 1]:
                    status[0], status[1] = BROKEN, starts[first + j + 1]
                    return

    return read_words
