"""Launcher of small_transform.cu; see `gcodec.kernels.transform.small_transform`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.transform.small_transform import Matrices, Sizes
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks


def transform(x: Any, sizes: Sizes, matrices: Matrices, out: Any) -> None:
    """Transform chunks."""
    device, n = device_with(x), x.size
    table = device.to_device(np.frombuffer(b"".join(matrices), np.uint32))
    arguments = x.view(np.uint32), np.int64(n), *map(np.int32, sizes), table, out.view(np.uint32)
    device.launch("small_transform", "transform", striding_blocks(n), THREADS, *arguments)
