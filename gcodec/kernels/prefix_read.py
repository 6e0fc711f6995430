"""The reader of prefix codes: up to six symbols with one look at the next twelve bits.

A string is read in blocks of equal counts of symbols. Where a block begins each is known, several
are read at once, so that a processor need not wait for one symbol to know where the next begins.
"""

from __future__ import annotations

import functools

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.codewords import CORRUPT, TRUNCATED, Rule
from gcodec.kernels.jit import Kernel, kernel
from gcodec.kernels.prefix_table import (
    WIDE,
    WINDOW,
    Mapping,
    PrefixCode,
    read_runs,
    read_singles,
    reading,
)
from gcodec.kernels.words import load_word, peek, store_word, swapped

ENTRIES = 4  # blocks that are read at once
BROKEN = -3  # a block does not end where the next begins

_LOOKS = 4  # looks at a table for each word of bits
_WORDS = 2  # words for each turn of an entry point
_RUN = 6  # symbols that one look finds at most
_MARGIN = _WORDS * _LOOKS * _RUN + 8  # symbols before the end of a block where looking ahead stops
_ZERO = np.uint64(0)
_LOOK = np.uint64(64 - WINDOW)
_COUNT, _USED = np.uint64(48), np.uint64(56)  # where an entry of a table has them
_SEVEN = np.uint64(7)
_TAKEN = 56 * _WORDS  # bits that words hold from any bit of their first byte on


def read_blocks(
    code: PrefixCode,
    data: np.ndarray,
    starts: np.ndarray,
    bounds: np.ndarray,
    symbols: np.ndarray,
    wide: np.ndarray,
    end: int,
    chained: bool,
) -> None:
    """Read a part of a string, on the calling thread.

    Parameters
    ----------
    code : PrefixCode
    data : uint8 array
    starts : (count + 1,) int64 array
        Bit where each block begins, and where the last ends. Of those, only the first is looked
        at, and the others written, unless `chained`.
    bounds : (count,) int64 array
        Ends of the blocks of symbols, not falling; the last is n.
    symbols : (n,) uint8 array
        Where they are written; WIDE for those that are too large.
    wide : (n,) uint64 array
        Where those are written; of no elements, if the code has none.
    end : int
        Bit where the string ends.
    chained : bool
        Whether it is known where blocks begin, and each must end where the next begins.

    Raises
    ------
    FormatError
    """
    status = np.zeros(2, np.int64)
    tables = read_runs(code), read_singles(code)
    state = np.empty(ENTRIES, np.int64), np.empty(ENTRIES, np.int64), np.empty(ENTRIES, np.int64)
    numbers = np.uint64(code.parameter), np.uint64(code.top)
    loop = _reader(code.kind)
    loop(data, starts, bounds, chained, end, *tables, *numbers, *state, symbols, wide, status)
    check(status, chained)


def check(status: np.ndarray, chained: bool) -> None:
    """Raise what a kernel says of a string; blocks that are said to begin somewhere may not."""
    found, at = int(status[0]), int(status[1])
    if found < 0 and chained:
        raise Corrupt(f"the seek table or the payload is wrong: no block holds bit {at}")
    if found == TRUNCATED:
        raise Truncated(f"the payload ends within the word at its bit {at}")
    if found == CORRUPT:
        raise Corrupt(f"the payload has no valid word at its bit {at}")


@functools.cache
def _reader(kind: tuple[Rule, Mapping, int]) -> Kernel:
    rule, mapping, shift = kind
    read_symbol = reading(kind)

    @kernel(
        "in uint8[], out int64[], in int64[], boolean, int64, in uint64[], in uint32[], uint64, "
        "uint64, out int64[], out int64[], out int64[], out uint8[], out uint64[], out int64[]",
        variant=f"{rule.name} {mapping} {shift}",
    )
    def read_words(
        data,
        starts,
        bounds,
        chained,
        end,
        runs,
        singles,
        parameter,
        top,
        bits,
        places,
        stops,
        out,
        wide,
        status,
    ):
        # bits, places and stops have ENTRIES elements: of each entry point, the next bit, the next
        # symbol, and the end of its symbols.
        count = bounds.size  # of the bounds, none passes out.size
        look_end = min(
            end - _TAKEN, 8 * (data.size - 8 * _WORDS)
        )  # a word of bits from here is inside
        step = ENTRIES if chained else 1
        for first in range(0, count, step):
            some = min(step, count - first)
            for j in range(some):
                bits[j] = starts[first + j]
                places[j] = bounds[first + j - 1] if first + j else 0
                stops[j] = bounds[first + j]
                if bits[j] < 0 or bits[j] > end:
                    status[0], status[1] = BROKEN, bits[j]
                    return
            left = some
            while left > 0:
                left = 0
                for j in range(some):
                    at, i, stop = bits[j], places[j], stops[j]
                    if i + _MARGIN <= stop and at <= look_end:
                        # Each look writes 8 bytes, of which it counts at most _RUN.
                        entry = _ZERO
                        for _ in range(_WORDS):
                            word = swapped(load_word(data, at >> 3)) << np.uint64(at & 7)
                            total = _ZERO
                            for _ in range(_LOOKS):
                                entry = runs[(word << total) >> _LOOK]
                                store_word(out, i, entry)
                                i += np.int64((entry >> _COUNT) & _SEVEN)
                                total += entry >> _USED
                            at += np.int64(total)
                        left += 1
                        if entry >> _USED:
                            bits[j], places[j] = at, i
                            continue
                    # At the end of a block, or where no short word stands: one symbol.
                    if i < stop:
                        found = np.int64(singles[peek(data, at) >> _LOOK])
                        if found and at + (found & 63) <= end:
                            out[i] = np.uint8(found >> 6)
                            at += found & 63
                        else:
                            symbol, after = read_symbol(data, at, end, parameter, top)
                            if after < 0:
                                status[0], status[1] = after, at
                                return
                            at = after
                            if symbol >= WIDE:  # so the code has such symbols
                                wide[i] = symbol
                                symbol = np.uint64(WIDE)
                            out[i] = np.uint8(symbol)
                        i += 1
                        left += i < stop
                    bits[j], places[j] = at, i
            for j in range(some):
                if not chained:
                    starts[first + 1] = bits[0]
                elif bits[j] != starts[first + j + 1]:
                    status[0], status[1] = BROKEN, starts[first + j + 1]
                    return
        status[0] = 0

    return read_words
