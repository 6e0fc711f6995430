"""The reader of prefix codes: up to six symbols with one look at the next bits.

A string is read in blocks of equal counts of symbols. Where a block begins each is known, several
are read at once, so that a processor need not wait for one symbol to know where the next begins.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.prefix.codewords import CORRUPT, TRUNCATED
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
from gcodec.kernels.prefix.prefix_group import between_looks
from gcodec.kernels.prefix.prefix_table import (
    DENSE_KINDS,
    WINDOW,
    Kind,
    PrefixCode,
    read_runs,
    read_singles,
)
from gcodec.kernels.prefix.table_code import LOOKS, TABLE, Look, TableCode
from gcodec.runtime.jit import Kernel, factory, kernel

BROKEN = -3  # a block does not end where the next begins


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
    """Read a part of a string, on the calling thread.

    Parameters
    ----------
    code : PrefixCode or TableCode
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
    loop, *fixed = _prepared(code)
    loop(data, starts, bounds, chained, end, *fixed, state(), symbols, wide, status)
    check(status, chained)


@functools.lru_cache(maxsize=256)
def _prepared(code: PrefixCode | TableCode) -> tuple[Any, ...]:
    """Return the kernel that reads a code, its tables and numbers."""
    tables = read_runs(code), read_singles(code)
    numbers = np.uint64(code.parameter), np.uint64(code.top)
    return _reader(code.kind, code.look), *tables, *numbers


def check(status: np.ndarray, chained: bool) -> None:
    """Raise what a kernel says of a string; blocks that are said to begin somewhere may not."""
    found, at = int(status[0]), int(status[1])
    if found < 0 and chained:
        raise Corrupt(f"the seek table or the payload is wrong: no block holds bit {at}")
    if found == TRUNCATED:
        raise Truncated(f"the payload ends within the word at its bit {at}")
    if found == CORRUPT:
        raise Corrupt(f"the payload has no valid word at its bit {at}")


def _codes() -> Iterator[tuple[Kind, Look]]:
    yield from ((kind, Look(WINDOW, 6)) for kind in DENSE_KINDS)
    yield from (((TABLE, "plain", 0), look) for look in LOOKS)


@factory(_codes)
def _reader(kind: Kind, look: Look) -> Kernel:
    rule, mapping, shift = kind
    look_all, margin = looking(ENTRIES, look, {"out": 0}), look.margin
    pass_words, read_rest = between_looks(kind, look)

    @kernel(
        "in uint8[], out int64[], in int64[], boolean, int64, "
        f"in uint{8 * look.nbytes}[], in uint32[], uint64, uint64, out int64[], "
        "out uint8[], out uint64[], out int64[]",
        variant=f"{rule.name} {mapping} {shift} {look.window} {look.most}",
    )
    def read_words(
        data, starts, bounds, chained, end, runs, singles, parameter, top, kept, out, wide, status
    ):
        # of the bounds, none passes out.size; status[0] is 0
        last_at = min(end - TAKEN, 8 * (data.size - 8))
        step = ENTRIES if chained else 1
        for first in range(0, bounds.size, step):
            blocks = min(step, bounds.size - first)
            for j in range(blocks):
                kept[AT + j] = starts[first + j]
                kept[PLACE + j] = bounds[first + j - 1] if first + j else 0
                kept[LAST_PLACE + j] = bounds[first + j] - margin
                kept[LAST_AT + j] = last_at
                if kept[AT + j] < 0 or kept[AT + j] > end:
                    status[0], status[1] = BROKEN, kept[AT + j]
                    return
            together = blocks == ENTRIES
            while together:
                look_all(data, runs, kept, 0, 0, out)
                together = pass_words(data, kept, end, singles, parameter, top, out, wide, status)
            for j in range(blocks):
                if status[0] == 0:
                    stop = bounds[first + j]
                    read_rest(
                        data, kept, j, stop, end, runs, singles, parameter, top, out, wide, status
                    )
                if status[0] < 0:
                    return
                if not chained:
                    starts[first + 1] = kept[AT]
                elif kept[AT + j] != starts[first + j + 1]:
                    status[0], status[1] = BROKEN, starts[first + j + 1]
                    return

    return read_words
