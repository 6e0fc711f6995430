"""Launchers of arithmetic.cu; see `gcodec.kernels.numeric.arithmetic`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.deferred import Deferred

_U32 = np.uint32


def corrected(x: Any, residual: Any, decay: np.float32) -> Any:
    """Return x + decay·residual."""
    out = device_with(x).empty(x.size, np.float32)
    correct(x, residual, decay, out)
    return out


def correct(x: Any, residual: Any, decay: np.float32, out: Any) -> Deferred:
    """Write x + decay·residual to `out`; return the bits of the largest magnitude."""
    device, n = device_with(x), x.size
    largest = device.zeros(1, np.uint32)
    arguments = x.view(_U32), residual.view(_U32), decay, np.int64(n), out.view(_U32), largest
    device.launch("arithmetic", "correct", striding_blocks(n), THREADS, *arguments)
    return Deferred(device, largest)


def add_scaled(decoded: Any, scale: np.float32, out: Any) -> None:
    """Add scale·decoded to `out`."""
    device, n = device_with(decoded), out.size
    arguments = decoded.view(_U32), scale, out.view(_U32), np.int64(n)
    device.launch("arithmetic", "add_scaled", striding_blocks(n), THREADS, *arguments)
