"""Launchers of reduce.cu; see `gcodec.kernels.numeric.reduce`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.reduce import INFINITY_BITS, LANES, TILE, Moments
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import Device


def tiles(n: int) -> int:
    """Return how many tiles n elements have."""
    return -(-n // TILE)


def folded(device: Device, sums: Any) -> Any:
    """Return the sum of (n,) float64 sums of tiles as a (1,) array, which stays on the device."""
    if not sums.size:
        return device.zeros(1, np.float64)
    while sums.size > 1:
        above = device.empty(tiles(sums.size), np.float64)
        device.launch("reduce", "tile_sums", above.size, LANES, sums, np.int64(sums.size), above)
        sums = above
    return sums


def fold(sums: Any) -> Deferred:
    """Reduce the sums of tiles."""
    device = device_with(sums)
    return Deferred(device, folded(device, sums))


def moments(x: Any) -> Moments:
    """Sum, sum of squares and largest absolute value."""
    device, n = device_with(x), x.size
    sums, squares = (device.empty(tiles(n), np.float64) for _ in range(2))
    largest = device.zeros(1, np.uint32)
    device.launch(
        "reduce", "tile_moments", tiles(n), LANES, x, np.int64(n), sums, squares, largest
    )
    return Moments(fold(sums), fold(squares), Deferred(device, largest))  # type: ignore[arg-type]


def sum_squares(x: Any) -> Any:
    """Sum of squares."""
    return moments(x).squares


def max_abs_bits(x: Any) -> Deferred:
    """Bit pattern of the largest magnitude."""
    device, n = device_with(x), x.size
    largest = device.zeros(1, np.uint32)
    grid = striding_blocks(n, per_thread=16)
    device.launch("reduce", "max_abs_bits", grid, THREADS, x.view(np.uint32), np.int64(n), largest)
    return Deferred(device, largest)


def max_abs_bits_corrected(x: Any, residual: Any, decay: np.float32) -> Deferred:
    """Bit pattern of the largest magnitude of x + decay·residual."""
    device, n = device_with(x), x.size
    largest, arrays = device.zeros(1, np.uint32), (x.view(np.uint32), residual.view(np.uint32))
    grid = striding_blocks(n, per_thread=16)
    name = "max_abs_bits_corrected"
    device.launch("reduce", name, grid, THREADS, *arrays, decay, np.int64(n), largest)
    return Deferred(device, largest)


def newly_infinite(values: Any, x: Any, residual: Any, decay: np.float32) -> Deferred:
    """Whether values hold NaN or infinity, and x + decay·residual does not."""
    device = device_with(values)
    tops = device.empty(2, np.uint32)
    tops[:1] = max_abs_bits(values).words
    tops[1:] = max_abs_bits_corrected(x, residual, decay).words
    return Deferred(device, tops, lambda top: bool(top[0] >= INFINITY_BITS > top[1]))
