"""Launcher of log_histogram.cu; see `gcodec.kernels.numeric.log_histogram`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.log_histogram import BINS
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.device import Device

PART = 1 << 15  # elements that a block counts before it adds its counts to those of all


def counts_of(device: Device, values: Any) -> Any:
    """Count (n,) float32 values, as a (BINS,) uint64 array that stays on the device."""
    counts = device.zeros(BINS, np.uint64)
    arguments = values.view(np.uint32), np.int64(values.size), counts
    grid = striding_blocks(values.size, PART)
    device.launch("log_histogram", "count_magnitudes", grid, THREADS, *arguments)
    return counts


def log_histogram(values: Any) -> np.ndarray:
    """Count values by the bits of their magnitude; the counts are on the host."""
    device = device_with(values)
    return device.to_host(counts_of(device, values)).astype(np.int64)
