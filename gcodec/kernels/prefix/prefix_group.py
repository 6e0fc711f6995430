"""What readers of prefix codes do between looks: a word that is not short, and a block's end."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gcodec.kernels.numeric.words import load_word, peek, store_word, swapped
from gcodec.kernels.prefix.look_ahead import AT, ENTRIES, LAST_AT, LAST_PLACE, PLACE, looking
from gcodec.kernels.prefix.prefix_table import WIDE, WINDOW, Kind, reading
from gcodec.kernels.prefix.table_code import Look
from gcodec.runtime.jit import inline, subroutine

_SINGLE = np.uint64(64 - WINDOW)


@inline
def _write_symbol(symbol, out, wide, i):
    if symbol >= WIDE:  # so the code has such symbols
        wide[i] = symbol
    out[i] = np.uint8(min(symbol, np.uint64(WIDE)))


@inline
def _write_level(symbol, out, wide, i):
    level = np.int64(symbol >> np.uint64(1))
    out[i] = np.uint8(-level if symbol & np.uint64(1) else level)


@functools.cache
def between_looks(kind: Kind, look: Look, signed: bool = False) -> tuple[Any, Any]:
    """Make the helpers that go on where `look_ahead.looking` ends.

    With `signed`, what is written of a symbol is its level, as an int8.

    Returns
    -------
    pass_words
        (data, kept, end, singles, parameter, top, out, wide, status) -> whether all strings may be
        looked at again. Those that may are read on by one word.
    read_rest
        (data, kept, j, stop, end, runs, singles, parameter, top, out, wide, status): string j is
        read up to place `stop`, and kept[AT + j] is where it ends.

    Both write to `status` what is wrong, a number below 0, and where, and leave it alone else.
    """
    rule, mapping, shift = kind
    read_symbol, write = reading(kind), _write_level if signed else _write_symbol
    name = f"{rule.name} {mapping} {shift} {look.window} {look.most} {signed}"
    look_one = looking(1, look, {"out": 0})
    window = np.uint64(64 - look.window)
    bits_at, count_at = np.uint64(8 * look.most), np.uint64(8 * look.most + 8)  # of an entry

    @subroutine(variant=name)
    def read_one(data, at, end, singles, parameter, top, out, wide, i):
        """Read the symbol at bit `at` to place i; return the next bit, or what is wrong."""
        found = np.int64(singles[peek(data, at) >> _SINGLE])
        if found and at + (found & 63) <= end:
            out[i] = np.uint8(found >> 6)
            return at + (found & 63)
        symbol, after = read_symbol(data, at, end, parameter, top)
        if after >= 0:
            write(symbol, out, wide, i)
        return after

    @inline
    def pass_words(data, kept, end, singles, parameter, top, out, wide, status):
        together = True
        for j in range(ENTRIES):
            i, at = kept[PLACE + j], kept[AT + j]
            if i > kept[LAST_PLACE + j] or at > kept[LAST_AT + j]:
                together = False
            elif together:  # one of them stands before a word that is not short
                after = read_one(data, at, end, singles, parameter, top, out, wide, i)
                if after < 0:
                    status[0], status[1] = after, at
                    together = False
                else:
                    kept[AT + j], kept[PLACE + j] = after, i + 1
        return together

    @inline
    def read_rest(data, kept, j, stop, end, runs, singles, parameter, top, out, wide, status):
        look_one(data, runs, kept, j, 0, out)
        at, i = kept[AT + j], kept[PLACE + j]
        last_at, last_place = kept[LAST_AT + j], kept[LAST_PLACE + j]
        while i < stop:
            if at <= last_at:
                word = swapped(load_word(data, at >> 3)) << np.uint64(at & 7)
                entry = np.uint64(runs[word >> window])
                some = np.int64(entry >> count_at)
                if some and i + some <= stop:
                    if i + 8 <= stop:
                        store_word(out, i, entry)
                    else:
                        for k in range(some):
                            out[i + k] = np.uint8(entry >> np.uint64(8 * k))
                    at += np.int64((entry >> bits_at) & np.uint64(255))
                    i += some
                    continue
                found = np.int64(singles[word >> _SINGLE])
                if found:
                    out[i] = np.uint8(found >> 6)
                    at += found & 63
                    i += 1
                    continue
            after = read_one(data, at, end, singles, parameter, top, out, wide, i)
            if after < 0:
                status[0], status[1] = after, at
                break
            at, i = after, i + 1
            if at <= last_at and i <= last_place:
                kept[AT + j], kept[PLACE + j] = at, i
                look_one(data, runs, kept, j, 0, out)
                at, i = kept[AT + j], kept[PLACE + j]
        kept[AT + j] = at

    return pass_words, read_rest
