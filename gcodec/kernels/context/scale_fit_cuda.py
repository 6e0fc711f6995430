"""Launchers of scale_fit.cu; see `gcodec.kernels.context.scale_fit`.

Scales and sums are on the host.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.scale_fit import MAGNITUDES, SHIFTS, cost_table
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks

_SEGMENT = 1 << 12  # elements of a row that a warp sums
_BLOCKS = 1 << 11  # largest number of blocks


def row_costs(
    symbols: Array, rows: np.ndarray, columns: np.ndarray, costs: np.ndarray, quantum: int
) -> np.ndarray:
    """Sum the costs of the symbols of each row."""
    grid = striding_blocks(rows.size * -(-columns.size // _SEGMENT), 1, THREADS // 32)
    return _sums("add_row_costs", grid, symbols, rows, columns, costs, quantum, rows.size)


def column_costs(
    symbols: Array, rows: np.ndarray, columns: np.ndarray, costs: np.ndarray, quantum: int
) -> np.ndarray:
    """Sum the costs of the symbols of each column."""
    across = -(-columns.size // THREADS)
    grid = across, max(min(rows.size, _BLOCKS // across), 1)
    return _sums("add_column_costs", grid, symbols, rows, columns, costs, quantum, columns.size)


def _sums(
    name: str,
    grid: int | tuple[int, ...],
    symbols: Array,
    rows: np.ndarray,
    columns: np.ndarray,
    costs: np.ndarray,
    quantum: int,
    size: int,
) -> np.ndarray:
    device, (table, far) = device_with(symbols), cost_table(costs, quantum, MAGNITUDES)
    sums = device.zeros(SHIFTS * size, np.uint64)
    inputs = symbols, symbols.size, device.to_device(rows), device.to_device(columns), columns.size
    lookup = device.to_device(table.reshape(-1)), table.shape[1], far
    device.launch("scale_fit", name, grid, THREADS, *inputs, *lookup, sums)
    return device.to_host(sums).view(np.int64).reshape(size, SHIFTS)
