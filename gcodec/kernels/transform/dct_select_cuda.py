"""Launcher of dct_select.cu; see `gcodec.kernels.transform.dct_select`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_parts
from gcodec.runtime.deferred import Deferred


def largest(y: Array, k: int, places: Array, values: Array) -> Any:
    """Select from each chunk; return a `Deferred`: whether all elements are finite."""
    device, (chunks, size) = device_with(y), y.shape
    top = device.zeros(1, np.uint32)
    arguments = y, chunks, size, k, places, values, top
    launch_parts(device, "dct_select", "select_largest", chunks, 1, *arguments)
    return Deferred(device, top, lambda words: bool(words[0] < INFINITY_BITS))
