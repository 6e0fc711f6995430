"""Launchers of scale_fit.cu; see `gcodec.kernels.context.scale_fit`.

Scales and sums are on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.context.scale_fit import MAGNITUDES, SHIFTS, cost_table
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks

_SEGMENT = 1 << 12  # elements of a row that a warp adds up
_BLOCKS = 1 << 11  # at most


def row_costs(
    symbols: Any, rows: np.ndarray, columns: np.ndarray, costs: np.ndarray, quantum: int
) -> np.ndarray:
    """Add up what the symbols of each row cost."""
    grid = striding_blocks(rows.size * -(-columns.size // _SEGMENT), 1, THREADS // 32)
    told = rows, columns, costs, quantum
    return _sums("add_row_costs", grid, symbols, *told, rows.size)


def column_costs(
    symbols: Any, rows: np.ndarray, columns: np.ndarray, costs: np.ndarray, quantum: int
) -> np.ndarray:
    """Add up what the symbols of each column cost."""
    across = -(-columns.size // THREADS)
    grid = across, max(min(rows.size, _BLOCKS // across), 1)
    told = rows, columns, costs, quantum
    return _sums("add_column_costs", grid, symbols, *told, columns.size)


def _sums(
    name: str,
    grid: int | tuple[int, ...],
    symbols: Any,
    rows: np.ndarray,
    columns: np.ndarray,
    costs: np.ndarray,
    quantum: int,
    size: int,
) -> np.ndarray:
    device, (table, far) = device_with(symbols), cost_table(costs, quantum, MAGNITUDES)
    sums = device.zeros(SHIFTS * size, np.uint64)
    device.launch(
        *("scale_fit", name, grid, THREADS, symbols, np.int64(symbols.size)),
        *(device.to_device(rows), device.to_device(columns), np.int64(columns.size)),
        *(device.to_device(table.reshape(-1)), np.int32(table.shape[1]), np.int32(far)),
        sums,
    )
    return device.to_host(sums).view(np.int64).reshape(size, SHIFTS)
