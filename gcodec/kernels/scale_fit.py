"""What the symbols of each row, and of each column, would cost if its scale were another.

Elements lie in rows of `width`, and have classes as in `class_map`. Costs are integers, so that
their sums have no order.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels import pool
from gcodec.kernels.class_map import CENTRE, CLASSES
from gcodec.kernels.device import twinned
from gcodec.kernels.jit import kernel

SHIFTS = 5  # that are tried: none, and two on either side
MAGNITUDES = 128


@twinned("scale_fit")
def row_costs(
    symbols: np.ndarray, rows: np.ndarray, columns: np.ndarray, costs: np.ndarray, quantum: int
) -> np.ndarray:
    """Add up what the symbols of each row cost when its scale is moved.

    Parameters
    ----------
    symbols : (n,) uint8 array
    rows : (ceil(n / width),) uint8 array
        Scales up to 127, as are those of columns.
    columns : (width,) uint8 array
    costs : (CLASSES, MAGNITUDES) int32 array
        Of a symbol, by class and magnitude; below 2^19.
    quantum : int
        By how much a scale is moved at once, at most 8.

    Returns
    -------
    (rows, SHIFTS) int64 array
    """
    return _sums(symbols, rows, columns, costs, quantum, True)


@twinned("scale_fit")
def column_costs(
    symbols: np.ndarray, rows: np.ndarray, columns: np.ndarray, costs: np.ndarray, quantum: int
) -> np.ndarray:
    """Add up what the symbols of each column cost, as (width, SHIFTS) int64; see `row_costs`."""
    return _sums(symbols, rows, columns, costs, quantum, False)


def cost_table(costs: np.ndarray, quantum: int, magnitudes: int) -> tuple[np.ndarray, int]:
    """Return costs by magnitude, class and shift, and how many classes come before the first."""
    far = SHIFTS // 2 * quantum
    # Those of an element lie side by side.
    classes = np.arange(-far, CLASSES + far)[:, None] + (np.arange(SHIFTS) * quantum - far)
    return costs.T[:magnitudes, np.clip(classes, 0, CLASSES - 1)].reshape(-1), far


def _sums(
    symbols: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    costs: np.ndarray,
    quantum: int,
    of_rows: bool,
) -> np.ndarray:
    table, far = cost_table(costs, quantum, 1 + int(symbols.max() >> 1))
    width = columns.size
    found = np.zeros((rows.size, SHIFTS), np.int64)

    def task(start: int, stop: int) -> np.ndarray:
        first = start // width  # whole rows, but for the last
        some, here = rows[first : -(-stop // width)], symbols[start:stop]
        if of_rows:
            out = found[first : first + some.size].reshape(-1)
            _add_rows(here, some, columns, table, far, out)
            return np.empty(0, np.int64)
        sums = np.zeros(width * SHIFTS, np.int64)
        _add_columns(here, some, columns, table, far, sums)
        return sums

    parts = pool.run(task, symbols.size, width)
    if of_rows:
        return found
    total: np.ndarray = np.sum(parts, axis=0).reshape(width, SHIFTS)
    return total


@kernel("in uint8[], in uint8[], in uint8[], in int32[], int64, out int64[]")
def _add_rows(symbols, rows, columns, table, far, sums):
    # rows.size rows of columns.size symbols, the last of them perhaps shorter; sums.size ==
    # SHIFTS * rows.size; table.size == count * SHIFTS for each magnitude
    # up to the largest there is.
    count = CLASSES + 2 * far
    for row in range(rows.size):
        here = symbols[row * columns.size : (row + 1) * columns.size]
        scale = np.int64(rows[row]) - CENTRE + far
        a = b = c = d = e = np.int64(0)
        for j in range(here.size):
            place = min(max(scale + np.int64(columns[j]), 0), count - 1)
            at = (np.int64(here[j] >> np.uint8(1)) * count + place) * SHIFTS
            a += table[at]
            b += table[at + 1]
            c += table[at + 2]
            d += table[at + 3]
            e += table[at + 4]
        first = row * SHIFTS
        sums[first] = a
        sums[first + 1] = b
        sums[first + 2] = c
        sums[first + 3] = d
        sums[first + 4] = e


@kernel("in uint8[], in uint8[], in uint8[], in int32[], int64, out int64[]")
def _add_columns(symbols, rows, columns, table, far, sums):
    # As above; sums.size == SHIFTS * columns.size.
    count = CLASSES + 2 * far
    for row in range(rows.size):
        here = symbols[row * columns.size : (row + 1) * columns.size]
        scale = np.int64(rows[row]) - CENTRE + far
        for j in range(here.size):
            place = min(max(scale + np.int64(columns[j]), 0), count - 1)
            at = (np.int64(here[j] >> np.uint8(1)) * count + place) * SHIFTS
            first = j * SHIFTS
            for k in range(SHIFTS):
                sums[first + k] += table[at + k]
