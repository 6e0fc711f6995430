"""Launchers of arithmetic.cu; see `gcodec.kernels.arithmetic`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.grid import THREADS, device_with, striding_blocks

_U32 = np.uint32


def corrected(x: Any, residual: Any, decay: np.float32) -> Any:
    """Return x + decay·residual."""
    device, n = device_with(x), x.size
    out = device.empty(n, np.float32)
    arguments = x.view(_U32), residual.view(_U32), decay, np.int64(n), out.view(_U32)
    device.launch("arithmetic", "corrected", striding_blocks(n), THREADS, *arguments)
    return out


def correct(x: Any, residual: Any, decay: np.float32) -> None:
    """Replace `residual` by x + decay·residual."""
    device, n = device_with(x), x.size
    arguments = x.view(_U32), residual.view(_U32), decay, np.int64(n)
    device.launch("arithmetic", "correct", striding_blocks(n), THREADS, *arguments)


def add_scaled(decoded: Any, scale: np.float32, out: Any) -> None:
    """Add scale·decoded to `out`."""
    device, n = device_with(decoded), out.size
    arguments = decoded.view(_U32), scale, out.view(_U32), np.int64(n)
    device.launch("arithmetic", "add_scaled", striding_blocks(n), THREADS, *arguments)
