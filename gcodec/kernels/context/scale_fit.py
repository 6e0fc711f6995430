"""What the symbols of each row, and of each column, would cost if its scale were another.

Elements lie in rows of `width`, and have classes as in `class_map`. Costs are integers, so that
their sums have no order.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.class_map import CENTRE, CLASSES
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import Emitter, block, lanes

SHIFTS = 5  # that are tried: none, and two on either side
MAGNITUDES = 128

_VECTOR = 8  # shifts with those that there are not
_TURNS = 4  # sums of a row
_MANY = 1 << 11  # elements that are added up in 32 bits


@dispatched("gcodec.kernels.context.scale_fit_cuda")
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


@dispatched("gcodec.kernels.context.scale_fit_cuda")
def column_costs(
    symbols: np.ndarray, rows: np.ndarray, columns: np.ndarray, costs: np.ndarray, quantum: int
) -> np.ndarray:
    """Add up what the symbols of each column cost, as (width, SHIFTS) int64; see `row_costs`."""
    return _sums(symbols, rows, columns, costs, quantum, False)


def cost_table(costs: np.ndarray, quantum: int, magnitudes: int) -> tuple[np.ndarray, int]:
    """Return costs by magnitude, class and shift, and how many classes come before the first.

    Returns
    -------
    (magnitudes, classes, SHIFTS) int32 array, int
    """
    far = SHIFTS // 2 * quantum
    # Those of an element lie side by side.
    classes = np.arange(-far, CLASSES + far)[:, None] + (np.arange(SHIFTS) * quantum - far)
    return costs.T[:magnitudes, np.clip(classes, 0, CLASSES - 1)], far


def _sums(
    symbols: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    costs: np.ndarray,
    quantum: int,
    of_rows: bool,
) -> np.ndarray:
    costs, far = cost_table(costs, quantum, 1 + int(symbols.max() >> 1))
    padded = np.zeros((*costs.shape[:2], _VECTOR), np.int32)
    padded[:, :, :SHIFTS] = costs
    table = padded.reshape(-1)
    width = columns.size
    found = np.zeros((rows.size, SHIFTS), np.int64)

    def task(start: int, stop: int) -> np.ndarray:
        first = start // width  # whole rows, but for the last
        some, here = rows[first : -(-stop // width)], symbols[start:stop]
        if of_rows:
            out = found[first : first + some.size].reshape(-1)
            _add_rows(here, some, columns, table, far, np.empty(_TURNS * _VECTOR, np.int32), out)
            return np.empty(0, np.int64)
        sums = np.zeros(width * SHIFTS, np.int64)
        room = np.zeros(width * _VECTOR, np.int32)
        _add_columns(here, some, columns, table, far, room, sums)
        return sums

    parts = pool.run(task, symbols.size, width)
    if of_rows:
        return found
    total: np.ndarray = np.sum(parts, axis=0).reshape(width, SHIFTS)
    return total


@block("table", "at", "sums", "place")
def _add_shifts(e: Emitter) -> None:
    """Add the costs of all shifts to sums."""
    kind, sums = lanes(32, _VECTOR), e.address("sums", "place")
    total = e.builder.add(e.load(sums, kind), e.load(e.address("table", "at"), kind))
    e.store(total, sums)


@kernel("in uint8[], in uint8[], in uint8[], in int32[], int64, out int32[], out int64[]")
def _add_rows(symbols, rows, columns, table, far, room, sums):
    # rows.size rows of columns.size symbols, the last of them perhaps shorter; sums.size ==
    # SHIFTS * rows.size; table.size == count * _VECTOR for each magnitude up to the largest there
    # is; room.size == _TURNS * _VECTOR. Costs below 2^19 of _MANY elements fit 32 bits.
    count = CLASSES + 2 * far
    for row in range(rows.size):
        here = symbols[row * columns.size : (row + 1) * columns.size]
        out = sums[row * SHIFTS : (row + 1) * SHIFTS]
        scale = np.int64(rows[row]) - CENTRE + far
        for first in range(0, here.size, _MANY):
            for k in range(room.size):
                room[k] = 0
            for j in range(first, min(first + _MANY, here.size)):
                place = min(max(scale + np.int64(columns[j]), 0), count - 1)
                at = (np.int64(here[j] >> np.uint8(1)) * count + place) * _VECTOR
                # In turns, as a sum that has just been stored is not ready to be loaded.
                _add_shifts(table, at, room, j % _TURNS * _VECTOR)
            for turn in range(_TURNS):
                for k in range(SHIFTS):
                    out[k] += np.int64(room[turn * _VECTOR + k])


@kernel("in uint8[], in uint8[], in uint8[], in int32[], int64, out int32[], out int64[]")
def _add_columns(symbols, rows, columns, table, far, room, sums):
    # As above; sums.size == SHIFTS * columns.size, room.size == _VECTOR * columns.size, all 0.
    count = CLASSES + 2 * far
    for first in range(0, rows.size, _MANY):
        for row in range(first, min(first + _MANY, rows.size)):
            here = symbols[row * columns.size : (row + 1) * columns.size]
            scale = np.int64(rows[row]) - CENTRE + far
            for j in range(here.size):
                place = min(max(scale + np.int64(columns[j]), 0), count - 1)
                at = (np.int64(here[j] >> np.uint8(1)) * count + place) * _VECTOR
                _add_shifts(table, at, room, j * _VECTOR)
        for j in range(columns.size):
            for k in range(SHIFTS):
                sums[j * SHIFTS + k] += np.int64(room[j * _VECTOR + k])
                room[j * _VECTOR + k] = 0
