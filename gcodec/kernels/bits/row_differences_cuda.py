"""Launchers of row_differences.cu; see `gcodec.kernels.bits.row_differences`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.row_differences import BAND
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding

_SOURCE = "row_differences"


def subtract_above(symbols: Array, row: int) -> Array:
    """Return the differences."""
    device, n = device_with(symbols), symbols.size
    differences = device.empty(n, np.uint8)
    launch_striding(device, _SOURCE, "subtract_above", n, symbols, n, row, differences)
    return differences


def add_above(differences: Array, row: int) -> None:
    """Replace differences by the bytes."""
    device, n = device_with(differences), differences.size
    columns = -(-n // (BAND * row)) * row
    arguments = columns, n, row, differences
    launch_striding(device, _SOURCE, "add_above", columns, *arguments, per_thread=1)
