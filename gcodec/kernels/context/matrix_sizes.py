"""About how many bits a string takes, by each of several matrices that its symbols may lie in."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gcodec.kernels.context.class_costs import add_of_class, add_symbols
from gcodec.kernels.context.class_fill import CLASSES
from gcodec.kernels.context.class_tally import TILE, spare_tables
from gcodec.kernels.context.list_sizes import ROOM, list_nbits
from gcodec.kernels.context.scale_logs import find_scales
from gcodec.kernels.numeric.magnitudes import add_magnitudes
from gcodec.runtime.jit import kernel

Matrices = Sequence[tuple[int, int, int]]


class Prices(NamedTuple):
    """By what bits are told.

    Attributes
    ----------
    ones : (int, int)
        See `scale_logs.scales_of_sums`.
    costs : (CLASSES · 256, tables) int64 array
    logs : (m,) int64 array
        See `list_sizes.nbits`.
    point : int
        Costs are in units of 2^-point, below 2^33; from 16 on.
    """

    ones: tuple[int, int]
    costs: np.ndarray
    logs: np.ndarray
    point: int


class Sizes(NamedTuple):
    """Bits, about.

    Attributes
    ----------
    symbols : int
        Of the symbols that were looked at, by the best table.
    rows, columns : int
        Of the scales.
    """

    symbols: int
    rows: int
    columns: int


def matrix_sizes(symbols: np.ndarray, every: Matrices, step: int, prices: Prices) -> list[Sizes]:
    """Tell what (n,) uint8 symbols, n > 0, take in matrices, with the scales of their magnitudes.

    Parameters
    ----------
    symbols : (n,) uint8 array
    every : list of matrices
        See `scale_logs.scales_of_sums`.
    step : int
        In every `step`-th tile of 2^12 elements symbols are looked at.
    prices : Prices
    """
    order, threes, columns, narrowest = _in_order(tuple(every))
    rows = -(-symbols.size // narrowest)
    (row_one, column_one), costs, logs, point = prices
    found = np.empty((len(order), 3), np.int64)
    _find_sizes(
        *(symbols, threes, row_one, column_one, step, costs.reshape(-1), logs, point),
        *(np.empty(TILE + 2 * (rows + columns), np.uint8), np.empty(TILE, np.uint16)),
        *(np.zeros(columns + 512, np.int32), spare_tables(), np.empty(rows + columns, np.int64)),
        *(np.empty(ROOM + 2 * costs.shape[1], np.int64), found.reshape(-1)),
    )
    sizes = [Sizes(coded, down, across) for coded, down, across in found.tolist()]
    return [sizes[place] for place in order]


@functools.lru_cache(maxsize=256)
def _in_order(
    every: tuple[tuple[int, int, int], ...],
) -> tuple[list[int], np.ndarray, int, int]:
    """Return where matrices come, so that those of the same sums come together.

    And all of them in this order, the most columns that have scales, and the narrowest rows.
    """
    first = sorted(range(len(every)), key=lambda i: every[i][:2])
    order, widths = np.argsort(first).tolist(), [width for width, _, _ in every]
    told = np.array([every[i] for i in first], np.int64).reshape(-1)
    columns = max((width for width, group, _ in every if group > 0), default=0)
    return order, told, columns, min(widths)


@kernel(
    "in uint8[], in int64[], int64, int64, int64, in int64[], in int64[], int64, out uint8[], "
    "out uint16[], out int32[], out int32[], out int64[], out int64[], out int64[]"
)
def _find_sizes(
    symbols,
    every,
    row_one,
    column_one,
    step,
    costs,
    logs,
    point,
    bytes_,
    joined,
    narrow,
    spare,
    sums,
    room,
    found,
):
    # every.size == found.size, threes. With the most rows and columns that there are, sums and
    # narrow have room for both, and for the columns; narrow for 512 more, bytes_ for TILE more,
    # and both twice; joined.size == TILE. Spare and narrow are zeros; room.size == ROOM
    # and twice the tables.
    n, before, had_columns = symbols.size, np.int64(0), False
    lists, paid = room[:ROOM], room[ROOM:]
    counts, whole, narrow = narrow[:256], narrow[256:512], narrow[512:]
    for at in range(0, every.size, 3):
        width, group, quantum = every[at], every[at + 1], every[at + 2]
        count, height = (n + width - 1) // width, width if group > 0 else 0
        rows, columns = sums[:count], sums[count : count + height]
        if width != before or (height > 0 and not had_columns):
            columns[:] = 0
            add_magnitudes(symbols, width, narrow[:height], rows, columns)
        before, had_columns = width, height > 0
        tile, down = bytes_[:TILE], bytes_[TILE : TILE + count]
        across = bytes_[TILE + count : TILE + count + height]
        find_scales(rows, columns, n, width, group, quantum, row_one, column_one, down, across)
        paid[:] = 0
        if at > 0 and count == 1 and height == 0:  # all are of a class
            add_of_class(whole, min(np.int64(down[0]), CLASSES - 1), costs, paid)
        else:
            first = whole[: 256 if at == 0 else 0]
            add_symbols(
                *(symbols, down, across, width, 0, step, tile, joined, spare, counts, first),
                *(costs, paid, tile[:0]),
            )
        tables, least = paid.size // 2, np.int64(0)
        for t in range(tables):
            # What is in halves, of 16 bits the lower.
            nbits = (paid[t] + (paid[tables + t] >> 16)) >> (point - 16)
            least = nbits if t == 0 else min(least, nbits)
        found[at], found[at + 1], found[at + 2] = least, list_nbits(down, logs, lists), 0
        if height > 0:
            groups, each = (width + group - 1) // group, bytes_[TILE + count + height :]
            for j in range(groups):
                each[j] = across[j * group]
            found[at + 2] = list_nbits(each[:groups], logs, lists)
