"""Launchers of arithmetic.cu; see `gcodec.kernels.numeric.arithmetic`."""

from __future__ import annotations

import numpy as np

from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding
from gcodec.runtime.deferred import Deferred


def correct(x: Array, residual: Array, decay: np.float32, out: Array) -> Deferred:
    """Write x + decay·residual to `out`; return the bits of the largest magnitude."""
    device, n = device_with(x), x.size
    largest = device.zeros(1, np.uint32)
    launch_striding(device, "arithmetic", "correct", n, x, residual, decay, n, out, largest)
    return Deferred(device, largest)


def add_scaled(decoded: Array, scale: np.float32, out: Array) -> None:
    """Add scale·decoded to `out`."""
    arguments = decoded, scale, out, out.size
    launch_striding(device_with(decoded), "arithmetic", "add_scaled", out.size, *arguments)
