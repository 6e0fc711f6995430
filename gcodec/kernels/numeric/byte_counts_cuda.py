"""Launcher of byte_counts.cu; see `gcodec.kernels.numeric.byte_counts`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks

_VALUES = 256
_PART = 1 << 16  # bytes that a block counts at a time


def byte_counts(codes: Any) -> Any:
    """Count the values of bytes; the counts stay on the device."""
    device = device_with(codes)
    counts = device.zeros(_VALUES, np.uint64)
    arguments = codes, np.int64(codes.size), counts
    grid = striding_blocks(codes.size, _PART)
    device.launch("byte_counts", "count_values", grid, THREADS, *arguments)
    return counts.view(np.int64)
