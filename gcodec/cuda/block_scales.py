"""Launchers of block_scales.cu; see `gcodec.kernels.block_scales`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.grid import THREADS, device_with, striding_blocks
from gcodec.kernels.device import placed

_U32 = np.uint32
_WARP = 32


def choose_factors(
    values: Any, length: int, scale: np.float32, top: np.float32, mantissa: int
) -> np.ndarray:
    """Choose the factor of each block; these are on the host."""
    device, n = device_with(values), values.size
    count = -(-n // length)
    if scale == 0:
        return np.zeros(count, np.uint8)
    factors, length = device.empty(count, np.uint8), min(length, max(n, 1))
    rule = np.float32(scale).view(_U32), np.float32(top).view(_U32), _U32(mantissa)
    arguments = values.view(_U32), np.int64(n), np.int64(length), *rule, factors
    grid = striding_blocks(count, THREADS // _WARP)
    device.launch("block_scales", "choose", grid, THREADS, *arguments)
    return device.to_host(factors)


def divide(x: Any, first: int, length: int, scales: Any, out: Any) -> Any:
    """Divide elements by the scales of their blocks."""
    found = out[: x.size]
    _launch("divide", x, first, length, scales, found.view(_U32))
    return found


def multiply(
    values: Any, first: int, length: int, scales: Any, out: Any, add: np.float32 | None = None
) -> None:
    """Multiply elements by the scales of their blocks, or add multiples of that."""
    if add is None:
        _launch("multiply", values, first, length, scales, out.view(_U32))
    else:
        factor = np.float32(add).view(_U32)
        _launch("add_multiplied", values, first, length, scales, factor, out.view(_U32))


def _launch(name: str, x: Any, first: int, length: int, scales: Any, *rest: Any) -> None:
    each = placed(scales, x).view(_U32)
    where = np.int64(x.size), np.int64(first), np.int64(length), each
    grid = striding_blocks(x.size)
    device_with(x).launch("block_scales", name, grid, THREADS, x.view(_U32), *where, *rest)
