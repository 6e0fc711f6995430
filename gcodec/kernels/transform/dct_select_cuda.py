"""Launcher of dct_select.cu; see `gcodec.kernels.transform.dct_select`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks


def largest(y: Any, k: int, places: Any, values: Any) -> bool:
    """Select from each chunk; tell whether all of its elements are finite."""
    device, (chunks, size) = device_with(y), y.shape
    top = device.zeros(1, np.uint32)
    found = places.reshape(-1), values.reshape(-1).view(np.uint32)
    sizes = np.int64(chunks), np.int32(size), np.int32(k)
    arguments = y.reshape(-1).view(np.uint32), *sizes, *found, top
    grid = striding_blocks(chunks, 1)
    device.launch("dct_select", "select_largest", grid, THREADS, *arguments)
    return int(device.to_host(top)[0]) < INFINITY_BITS
