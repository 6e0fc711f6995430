"""Launcher of log_histogram.cu; see `gcodec.kernels.numeric.log_histogram`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.log_histogram import BINS
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_parts
from gcodec.runtime.device import Device

PART = 1 << 15  # elements that a block counts before it adds its counts to the total


def counts_of(device: Device, values: Array) -> Array:
    """Count (n,) float32 values, as a (BINS,) uint64 array that stays on the device."""
    counts, n = device.zeros(BINS, np.uint64), values.size
    launch_parts(device, "log_histogram", "count_magnitudes", n, PART, values, n, counts)
    return counts


def log_histogram(values: Array) -> np.ndarray:
    """Count values by the bits of their magnitude; the counts are on the host."""
    device = device_with(values)
    return device.to_host(counts_of(device, values)).astype(np.int64)
