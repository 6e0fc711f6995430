"""Launcher of rans_table.cu; see `gcodec.kernels.rans.rans_table`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.rans.rans_table import WriteTables
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with

_SYMBOLS = 256


def write_tables(frequencies: Array, log2_total: Any) -> WriteTables:
    """Return the tables of an encoder for one model, whose total is a `Deferred`."""
    device = device_with(frequencies)
    reciprocals, pairs = device.empty(_SYMBOLS, np.uint64), device.empty(_SYMBOLS, np.uint32)
    device.launch(
        *("rans_table", "write_tables", 1, _SYMBOLS),
        *(frequencies, log2_total.words, reciprocals, pairs),
    )
    return WriteTables(log2_total, False, reciprocals[:0], reciprocals, pairs)


def write_model_tables(frequencies: Array, log2_total: int) -> WriteTables:
    """Return the tables of several models with (256 · models,) uint16 frequencies."""
    device, size = device_with(frequencies), frequencies.size
    reciprocals, pairs = device.empty(size, np.uint64), device.empty(size, np.uint32)
    device.launch(
        *("rans_table", "write_model_tables", size // _SYMBOLS, _SYMBOLS),
        *(frequencies, np.int64(log2_total), reciprocals, pairs),
    )
    return WriteTables(log2_total, True, reciprocals[:0], reciprocals, pairs)
