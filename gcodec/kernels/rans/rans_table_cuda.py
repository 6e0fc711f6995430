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
    return _write("write_tables", frequencies, log2_total, classed=False)


def write_model_tables(frequencies: Array, log2_total: int) -> WriteTables:
    """Return the tables of several models with (256 · models,) uint16 frequencies."""
    return _write("write_model_tables", frequencies, log2_total, classed=True)


def _write(name: str, frequencies: Array, log2_total: Any, *, classed: bool) -> WriteTables:
    device, size = device_with(frequencies), frequencies.size
    reciprocals, pairs = device.empty(size, np.uint64), device.empty(size, np.uint32)
    arguments = frequencies, log2_total, reciprocals, pairs
    device.launch("rans_table", name, size // _SYMBOLS, _SYMBOLS, *arguments)
    return WriteTables(log2_total, classed, reciprocals[:0], reciprocals, pairs)
