"""What symbols take by several tables of classes: sums of integers."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.class_map import CLASSES, ScalesOf
from gcodec.kernels.context.class_tally import TILE, spare_tables, taken, tally
from gcodec.runtime import pool
from gcodec.runtime.jit import inline, kernel, subroutine

_PART = 32  # counts, which mostly are all 0


def counts_nbits(counts: np.ndarray, costs: np.ndarray, point: int) -> np.ndarray:
    """Return the bits that counts of symbols take by each table.

    Parameters
    ----------
    counts : (k,) int64 array
        Not below 0.
    costs : (k, tables) int64 array
        In units of 2^-point, below 2^33.
    point : int
        At least 16.

    Returns
    -------
    (tables,) int64 array
        Rounded down.
    """
    sums = np.zeros(2 * costs.shape[1], np.int64)
    _add_counts(counts, costs.reshape(-1), sums)
    return np.array(_joined(sums, point))


def symbols_nbits(
    symbols: np.ndarray, of: ScalesOf, step: int, costs: np.ndarray, point: int
) -> tuple[list[int], np.ndarray]:
    """Return what `counts_nbits` does of (n,) uint8 symbols, and how far these reach.

    Parameters
    ----------
    symbols, of, step
        See `class_map.class_counts`.
    costs, point
        See `counts_nbits`.

    Returns
    -------
    nbits : list of int
    reach : (CLASSES,) uint8 array
        See `class_tally.reach`.
    """

    def task(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        room = np.empty(TILE, np.uint8), np.empty(TILE, np.uint16), spare_tables()
        sums, reach = np.zeros(2 * costs.shape[1], np.int64), np.zeros(CLASSES, np.uint8)
        counts = np.empty(256, np.int32)
        told = *room, counts, counts[:0], costs.reshape(-1), sums, reach
        _add_symbols(symbols[start:stop], *of, start, step, *told)
        return sums, reach

    (sums, reach), *others = pool.run(task, symbols.size, TILE)
    for more, further in others:
        sums += more
        np.maximum(reach, further, out=reach)
    return _joined(sums, point), reach


def _joined(sums: np.ndarray, point: int) -> list[int]:
    """Return sums, given halves of them, without what is behind the point."""
    high, low = sums.reshape(2, -1).tolist()
    return [above + (below >> 16) >> point - 16 for above, below in zip(high, low, strict=True)]


@inline
def _add_one(count, costs, first, sums):
    """Add the costs of a count from `first` on."""
    # In halves, as the products would pass 64 bits.
    tables = sums.size // 2
    above, below = count >> 16, count & 0xFFFF
    each, high, low = costs[first : first + tables], sums[:tables], sums[tables:]
    whole = tables - tables % 4
    for t in range(0, whole, 4):  # of a few tables, so that there is little to begin and to end
        low[t] += each[t] * below
        low[t + 1] += each[t + 1] * below
        low[t + 2] += each[t + 2] * below
        low[t + 3] += each[t + 3] * below
    for t in range(whole, tables):
        low[t] += each[t] * below
    for t in range(tables if above else 0):
        high[t] += each[t] * above


@kernel("in int64[], in int64[], out int64[]")
def _add_counts(counts, costs, sums):
    # 2 * costs.size == counts.size * sums.size.
    tables = sums.size // 2
    for start in range(0, counts.size, _PART):
        part, some = counts[start : start + _PART], np.int64(0)
        for k in range(part.size):
            some |= part[k]
        for k in range(part.size if some else 0):
            _add_one(part[k], costs, (start + k) * tables, sums)


@subroutine(variant="")
def add_symbols(
    symbols,
    rows,
    columns,
    width,
    start,
    step,
    room,
    joined,
    spare,
    counts,
    whole,
    costs,
    sums,
    reach,
):
    """Add halves of what symbols cost by each table, and tell how far they reach.

    See `class_tally.tally`; spare is left as it was. counts.size == 256, and 2 * costs.size ==
    COUNTS * sums.size; reach has CLASSES elements, or none. Counts of all classes are added to
    `whole`, of 256 elements or none.
    """
    low, high, top = tally(symbols, rows, columns, width, start, step, room, joined, spare)
    for row in range(low, high + 1):
        last = taken(spare, row, top, counts)
        add_of_class(counts[: max(last + 1, 0)], row, costs, sums)
        for k in range(last + 1 if whole.size > 0 else 0):
            whole[k] = np.int32(whole[k] + counts[k])
        if reach.size > 0:
            reach[row] = np.uint8((last + 2) >> 1)


@subroutine(variant="")
def add_of_class(counts, row, costs, sums):
    """Add halves of what the first symbols of a class cost, given how often they occur."""
    tables = sums.size // 2
    for k in range(counts.size):
        if counts[k] > 0:
            _add_one(np.int64(counts[k]), costs, ((row << 8) + k) * tables, sums)


@kernel(
    "in uint8[], in uint8[], in uint8[], int64, int64, int64, out uint8[], out uint16[], "
    "out int32[], out int32[], out int32[], in int64[], out int64[], out uint8[]"
)
def _add_symbols(
    symbols,
    rows,
    columns,
    width,
    start,
    step,
    room,
    joined,
    spare,
    counts,
    whole,
    costs,
    sums,
    reach,
):
    add_symbols(
        *(symbols, rows, columns, width, start, step),
        *(room, joined, spare, counts, whole, costs, sums, reach),
    )
