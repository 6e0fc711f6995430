"""Estimated size of a context-coded string for each of several matrices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gcodec.kernels.context.class_map import CLASSES, TILE, count_tables
from gcodec.kernels.context.class_tables import POINT, add_of_class, add_symbols
from gcodec.kernels.context.scale_lists import SCRATCH, list_nbits
from gcodec.kernels.context.scale_logs import find_scales
from gcodec.kernels.numeric.magnitudes import add_magnitudes
from gcodec.runtime.jit import kernel

Matrices = Sequence[tuple[int, int, int]]  # width, group and quantum; see `scales_of_sums`


class Prices(NamedTuple):
    """Costs by which bits are estimated.

    Attributes
    ----------
    ones : (int, int)
        See `scale_logs.scales_of_sums`.
    costs : (CLASSES · 256, tables) int64 array
        Cost of each symbol with each table; see `class_tables.counts_nbits`.
    logs : (m,) int64 array
        See `scale_lists.nbits`.
    """

    ones: tuple[int, int]
    costs: np.ndarray
    logs: np.ndarray


class Sizes(NamedTuple):
    """Estimated bits of a string.

    Attributes
    ----------
    symbols : int
        Bits of the sampled symbols, with the best table.
    rows, columns : int
        Bits of the lists of scales.
    """

    symbols: int
    rows: int
    columns: int


def matrix_sizes(
    symbols: np.ndarray, matrices: Matrices, step: int, prices: Prices
) -> list[Sizes]:
    """Estimate the bits of (n,) uint8 symbols, n > 0, in each matrix, with its own scales.

    Parameters
    ----------
    symbols : (n,) uint8 array
    matrices : sequence of (width, group, quantum)
    step : int
        Only the symbols of every `step`-th tile of 2^12 elements are counted.
    prices : Prices
    """
    order, table, columns, narrowest = _in_order(tuple(matrices))
    rows = -(-symbols.size // narrowest)
    ones, costs, logs = prices
    out = np.empty((len(order), 3), np.int64)
    _find_sizes(
        *(symbols, table, *ones, step, costs.reshape(-1), logs),
        *(np.empty(TILE + 2 * (rows + columns), np.uint8), np.empty(TILE, np.uint16)),
        *(np.zeros(columns + 512, np.int32), count_tables(), np.empty(rows + columns, np.int64)),
        *(np.empty(SCRATCH + 2 * costs.shape[1], np.int64), out.reshape(-1)),
    )
    sizes = out.tolist()
    return [Sizes(*sizes[place]) for place in order]


@functools.lru_cache(maxsize=256)
def _in_order(
    matrices: tuple[tuple[int, int, int], ...],
) -> tuple[list[int], np.ndarray, int, int]:
    """Sort matrices so that those with the same sums are neighbors.

    Returns
    -------
    order : list of int
        Sorted position of each matrix.
    table : (3 · k,) int64 array
        The numbers of all matrices in sorted order.
    columns : int
        Largest width of a matrix with column scales.
    narrowest : int
        Least width of all.
    """
    first = sorted(range(len(matrices)), key=lambda i: matrices[i][:2])
    table = np.array([matrices[i] for i in first], np.int64).reshape(-1)
    columns = max((width for width, group, _ in matrices if group > 0), default=0)
    narrowest = min(width for width, _, _ in matrices)
    return np.argsort(first).tolist(), table, columns, narrowest


@kernel(
    "in uint8[], in int64[], (int64, int64), int64, in int64[], in int64[], "
    "(out uint8[], out uint16[], out int32[], out int32[], out int64[], out int64[]), out int64[]",
    vectorized=False,
)
def _find_sizes(symbols, table, ones, step, costs, logs, room, out):
    # table.size == out.size: 3 numbers of each matrix. With R and C as the largest numbers of
    # rows and of columns, sums.size >= R + C, narrow.size >= 512 + C, bytes_.size >= TILE + 2 (R +
    # C); joined.size == TILE. `tables` and `narrow` are zeros; scratch.size is SCRATCH and twice
    # the number of tables.
    bytes_, joined, narrow, tables, sums, scratch = room
    n, before, had_columns = symbols.size, np.int64(0), False
    list_scratch, halves = scratch[:SCRATCH], scratch[SCRATCH:]
    counts, total, narrow = narrow[:256], narrow[256:512], narrow[512:]
    for at in range(0, table.size, 3):
        width, group, quantum = table[at], table[at + 1], table[at + 2]
        count, height = (n + width - 1) // width, width if group > 0 else 0
        rows, columns = sums[:count], sums[count : count + height]
        if width != before or (height > 0 and not had_columns):
            columns[:] = 0
            add_magnitudes(symbols, width, narrow[:height], rows, columns)
        before, had_columns = width, height > 0
        tile, down = bytes_[:TILE], bytes_[TILE : TILE + count]
        across = bytes_[TILE + count : TILE + count + height]
        find_scales(rows, columns, n, (width, group, quantum), ones, down, across)
        halves[:] = 0
        if at > 0 and count == 1 and height == 0:  # a single class
            add_of_class(total, min(np.int64(down[0]), CLASSES - 1), costs, halves)
        else:
            first = total[: 256 if at == 0 else 0]
            scales, own = (down, across, width), (tile, joined, tables)
            add_symbols(symbols, scales, 0, step, own, counts, first, costs, halves, tile[:0])
        size, least = halves.size // 2, np.int64(0)
        for t in range(size):
            # The low halves have 16 bits.
            nbits = (halves[t] + (halves[size + t] >> 16)) >> (POINT - 16)
            least = nbits if t == 0 else min(least, nbits)
        out[at], out[at + 1], out[at + 2] = least, list_nbits(down, logs, list_scratch), 0
        if height > 0:
            groups, group_scales = (width + group - 1) // group, bytes_[TILE + count + height :]
            for j in range(groups):
                group_scales[j] = across[j * group]
            out[at + 2] = list_nbits(group_scales[:groups], logs, list_scratch)
