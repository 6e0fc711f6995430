"""Costs of the symbols of each row, and of each column, for shifted scales.

Elements lie in rows of `width`, and have the classes of `class_map`. Costs are integers, so their
sums do not depend on the order.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.class_map import CENTER, CLASSES
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import Emitter, block, lanes

SHIFTS = 5  # candidates of a scale: itself, and two on either side
MAGNITUDES = 128

_VECTOR = 8  # SHIFTS, padded to a vector
_TURNS = 4  # sums of a row that take turns
_WIDE = 1 << 13  # columns of a strip, whose sums stay in a cache
_MANY = 1 << 11  # elements whose costs are summed in 32 bits


@dispatched("gcodec.kernels.context.scale_fit_cuda")
def row_costs(
    symbols: np.ndarray, rows: np.ndarray, columns: np.ndarray, costs: np.ndarray, quantum: int
) -> np.ndarray:
    """Sum the costs of the symbols of each row for each shift of its scale.

    Parameters
    ----------
    symbols : (n,) uint8 array
    rows : (ceil(n / width),) uint8 array
        Scales up to 127.
    columns : (width,) uint8 array
        Scales up to 127.
    costs : (CLASSES, MAGNITUDES) int32 array
        Cost of a symbol by class and magnitude, below 2^19.
    quantum : int
        Distance of two shifts, at most 8.

    Returns
    -------
    (rows, SHIFTS) int64 array
    """
    table, far = _padded_costs(symbols, costs, quantum)
    width = columns.size
    sums = np.zeros((rows.size, SHIFTS), np.int64)

    def task(start: int, stop: int) -> None:
        first, last = start // width, -(-stop // width)  # whole rows; the last may be shorter
        scratch, out = np.empty(_TURNS * _VECTOR, np.int32), sums[first:last].reshape(-1)
        _add_rows(symbols[start:stop], rows[first:last], columns, table, far, scratch, out)

    pool.run(task, symbols.size, width)
    return sums


@dispatched("gcodec.kernels.context.scale_fit_cuda")
def column_costs(
    symbols: np.ndarray, rows: np.ndarray, columns: np.ndarray, costs: np.ndarray, quantum: int
) -> np.ndarray:
    """Sum the costs of the symbols of each column, as (width, SHIFTS) int64; see `row_costs`."""
    table, far = _padded_costs(symbols, costs, quantum)
    width = columns.size

    def add(part: np.ndarray, part_rows: np.ndarray, own: np.ndarray, sums: np.ndarray) -> None:
        scratch = np.zeros(own.size * _VECTOR, np.int32)
        _add_columns(part, width, part_rows, own, table, far, scratch, sums)

    if width < _WIDE:

        def add_rows(start: int, stop: int) -> np.ndarray:
            sums = np.zeros(width * SHIFTS, np.int64)
            add(symbols[start:stop], rows[start // width : -(-stop // width)], columns, sums)
            return sums

        return pool.run_added(add_rows, symbols.size, width).reshape(width, SHIFTS)
    total = np.zeros((width, SHIFTS), np.int64)

    def add_strip(number: int, _: int) -> None:
        strip = slice(number * _WIDE, min((number + 1) * _WIDE, width))
        add(symbols[strip.start :], rows, columns[strip], total[strip].reshape(-1))

    # Sums of all columns for each thread would take more memory than the tensor.
    strips = -(-width // _WIDE)
    if pool.is_one(symbols.size):
        for number in range(strips):
            add_strip(number, number + 1)
    else:
        pool.run_each(add_strip, strips)
    return total


def cost_table(costs: np.ndarray, quantum: int, magnitudes: int) -> tuple[np.ndarray, int]:
    """Return costs by magnitude, class and shift, and the number of classes before class 0.

    Returns
    -------
    (magnitudes, classes, SHIFTS) int32 array, int
    """
    far = SHIFTS // 2 * quantum
    # The costs of one element are contiguous.
    classes = np.arange(-far, CLASSES + far)[:, None] + (np.arange(SHIFTS) * quantum - far)
    return costs.T[:magnitudes, np.clip(classes, 0, CLASSES - 1)], far


def _padded_costs(symbols: np.ndarray, costs: np.ndarray, quantum: int) -> tuple[np.ndarray, int]:
    """Return the flat table of `cost_table` with _VECTOR entries for each class."""
    table, far = cost_table(costs, quantum, 1 + int(symbols.max() >> 1))
    padded = np.zeros((*table.shape[:2], _VECTOR), np.int32)
    padded[:, :, :SHIFTS] = table
    return padded.reshape(-1), far


@block("table", "at", "sums", "place")
def _add_shifts(e: Emitter) -> None:
    """Add the costs of all shifts to sums."""
    kind, sums = lanes(32, _VECTOR), e.address("sums", "place")
    total = e.builder.add(e.load(sums, kind), e.load(e.address("table", "at"), kind))
    e.store(total, sums)


@kernel("in uint8[], in uint8[], in uint8[], in int32[], int64, out int32[], out int64[]")
def _add_rows(symbols, rows, columns, table, far, scratch, sums):
    # There are rows.size rows of columns.size symbols; the last row may be shorter. sums.size ==
    # SHIFTS * rows.size; table.size == count * _VECTOR for each magnitude up to the largest;
    # scratch.size == _TURNS * _VECTOR. Costs below 2^19 of _MANY elements fit 32 bits.
    count = CLASSES + 2 * far
    for row in range(rows.size):
        row_symbols = symbols[row * columns.size : (row + 1) * columns.size]
        out = sums[row * SHIFTS : (row + 1) * SHIFTS]
        scale = np.int64(rows[row]) - CENTER + far
        for first in range(0, row_symbols.size, _MANY):
            for k in range(scratch.size):
                scratch[k] = 0
            for j in range(first, min(first + _MANY, row_symbols.size)):
                place = min(max(scale + np.int64(columns[j]), 0), count - 1)
                at = (np.int64(row_symbols[j] >> np.uint8(1)) * count + place) * _VECTOR
                # Sums take turns: one that has just been stored is not yet ready to be loaded.
                _add_shifts(table, at, scratch, j % _TURNS * _VECTOR)
            for turn in range(_TURNS):
                for k in range(SHIFTS):
                    out[k] += np.int64(scratch[turn * _VECTOR + k])


@kernel("in uint8[], int64, in uint8[], in uint8[], in int32[], int64, out int32[], out int64[]")
def _add_columns(symbols, width, rows, columns, table, far, scratch, sums):
    # As above, but `columns` are the first of `width`, and the last row may have none of them;
    # sums.size == SHIFTS * columns.size, scratch.size == _VECTOR * columns.size, all 0.
    count = CLASSES + 2 * far
    for first in range(0, rows.size, _MANY):
        for row in range(first, min(first + _MANY, rows.size)):
            row_symbols = symbols[row * width : row * width + columns.size]
            scale = np.int64(rows[row]) - CENTER + far
            for j in range(row_symbols.size):
                place = min(max(scale + np.int64(columns[j]), 0), count - 1)
                at = (np.int64(row_symbols[j] >> np.uint8(1)) * count + place) * _VECTOR
                _add_shifts(table, at, scratch, j * _VECTOR)
        for j in range(columns.size):
            for k in range(SHIFTS):
                sums[j * SHIFTS + k] += np.int64(scratch[j * _VECTOR + k])
                scratch[j * _VECTOR + k] = 0
