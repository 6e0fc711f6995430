"""Launcher of rans_table.cu; see `gcodec.kernels.rans.rans_table`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gcodec.kernels.rans.rans_table import WriteTables
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with

_SYMBOLS = 256


def write_tables(
    frequencies: Array, log2_total: Any, models: Sequence[slice] = (slice(None),)
) -> WriteTables:
    """Return the tables of an encoder: of one model, whose total is a `Deferred`, or of several.

    Several models have (256 · models,) uint16 frequencies, and all their tables are defined.
    """
    device, size, classed = device_with(frequencies), frequencies.size, frequencies.itemsize == 2
    reciprocals, pairs = device.empty(size, np.uint64), device.empty(size, np.uint32)
    name = "write_model_tables" if classed else "write_tables"
    arguments = frequencies, log2_total, reciprocals, pairs
    device.launch("rans_table", name, size // _SYMBOLS, _SYMBOLS, *arguments)
    return WriteTables(log2_total, classed, reciprocals[:0], reciprocals, pairs)
