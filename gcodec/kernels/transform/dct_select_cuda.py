"""Launcher of dct_select.cu; see `gcodec.kernels.transform.dct_select`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_parts


def largest(y: Array, k: int, places: Array, values: Array) -> bool:
    """Select from each chunk; return whether all elements are finite."""
    device, (chunks, size) = device_with(y), y.shape
    top = device.zeros(1, np.uint32)
    arguments = y, chunks, size, k, places, values, top
    launch_parts(device, "dct_select", "select_largest", chunks, 1, *arguments)
    return int(device.to_host(top)[0]) < INFINITY_BITS
