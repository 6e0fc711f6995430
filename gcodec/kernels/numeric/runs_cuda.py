"""Launcher of runs.cu; see `gcodec.kernels.numeric.runs`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks


def take_runs(values: Any, chosen: np.ndarray, length: int) -> Any:
    """Return the elements of some runs of float32 values."""
    device, size = device_with(values), chosen.size * length
    out = device.empty(size, np.float32)
    what = values.view(np.uint32), np.int64(values.size), device.to_device(chosen)
    sizes = np.int64(chosen.size), np.int64(length)
    arguments = *what, *sizes, out.view(np.uint32)
    device.launch("runs", "take_runs", striding_blocks(size), THREADS, *arguments)
    return out
