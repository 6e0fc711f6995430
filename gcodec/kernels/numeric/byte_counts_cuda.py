"""Launcher of byte_counts.cu; see `gcodec.kernels.numeric.byte_counts`."""

from __future__ import annotations

import numpy as np

from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_parts

_PART = 1 << 14  # bytes that a block counts at a time


def byte_counts(codes: Array) -> Array:
    """Count the values of bytes; the counts stay on the device."""
    device, n = device_with(codes), codes.size
    counts = device.zeros(256, np.uint64)
    launch_parts(device, "byte_counts", "count_values", n, _PART, codes, n, counts)
    return counts.view(np.int64)
