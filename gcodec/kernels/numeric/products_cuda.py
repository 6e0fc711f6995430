"""Launcher of products.cu; see `gcodec.kernels.numeric.products`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks


def put_product(p: Any, q: Any, out: Any) -> None:
    """Set values to PᵀQ."""
    device, arguments = device_with(out), (*factors_of(p, q), out.view(np.uint32))
    grid = striding_blocks(p.shape[1] * q.shape[1])
    device.launch("products", "put_products", grid, THREADS, *arguments)


def factors_of(p: Any, q: Any) -> tuple[Any, Any, np.int64, np.int64, np.int64]:
    """Return factors and their sizes, as kernels take them."""
    both = (part.reshape(-1).view(np.uint32) for part in (p, q))
    first, second = both
    return first, second, np.int64(p.shape[0]), np.int64(p.shape[1]), np.int64(q.shape[1])
