"""Launchers of reduce.cu; see `gcodec.kernels.reduce`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.grid import THREADS, device_with, striding_blocks
from gcodec.kernels.device import Device
from gcodec.kernels.reduce import INFINITY_BITS, LANES, TILE, Moments


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


def fold(sums: Any) -> float:
    """Reduce the sums of tiles."""
    device = device_with(sums)
    return float(device.to_host(folded(device, sums))[0])


def moments(x: Any) -> Moments:
    """Sum, sum of squares and largest absolute value."""
    device, n = device_with(x), x.size
    sums, squares = (device.empty(tiles(n), np.float64) for _ in range(2))
    found = device.zeros(3, np.float64)
    largest = found[2:].view(np.uint32)[:1]
    device.launch(
        "reduce", "tile_moments", tiles(n), LANES, x, np.int64(n), sums, squares, largest
    )
    found[:1], found[1:2] = folded(device, sums), folded(device, squares)
    told = device.to_host(found)
    return Moments(float(told[0]), float(told[1]), int(told[2:].view(np.uint32)[0]))


def sum_squares(x: Any) -> float:
    """Sum of squares."""
    return moments(x).squares


def max_abs_bits(x: Any) -> int:
    """Bit pattern of the largest magnitude."""
    device, n = device_with(x), x.size
    largest = device.zeros(1, np.uint32)
    grid = striding_blocks(n, per_thread=16)
    device.launch("reduce", "max_abs_bits", grid, THREADS, x.view(np.uint32), np.int64(n), largest)
    return int(device.to_host(largest)[0])


def all_finite(x: Any) -> bool:
    """Whether there is neither NaN nor infinity."""
    return max_abs_bits(x) < INFINITY_BITS


def all_finite_corrected(x: Any, residual: Any, decay: np.float32) -> bool:
    """Whether x + decay·residual holds neither NaN nor infinity."""
    device, n = device_with(x), x.size
    largest, arrays = device.zeros(1, np.uint32), (x.view(np.uint32), residual.view(np.uint32))
    grid = striding_blocks(n, per_thread=16)
    name = "max_abs_bits_corrected"
    device.launch("reduce", name, grid, THREADS, *arrays, decay, np.int64(n), largest)
    return int(device.to_host(largest)[0]) < INFINITY_BITS
