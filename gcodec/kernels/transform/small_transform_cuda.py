"""Launcher of small_transform.cu; see `gcodec.kernels.transform.small_transform`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.transform.small_transform import Matrices, Sizes
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding


def transform(x: Array, sizes: Sizes, matrices: Matrices, out: Array) -> None:
    """Transform chunks."""
    device, n = device_with(x), x.size
    table = device.to_device(np.frombuffer(b"".join(matrices), np.uint32))
    launch_striding(device, "small_transform", "transform", n, x, n, *sizes, table, out)
