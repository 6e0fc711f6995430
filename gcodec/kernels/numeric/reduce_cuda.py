"""Launchers of reduce.cu; see `gcodec.kernels.numeric.reduce`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.reduce import INFINITY_BITS, LANES, TILE, Moments
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import Device

_PER_THREAD = 16  # elements of which a thread finds the largest


def tiles(n: int) -> int:
    """Return the number of tiles of n elements."""
    return -(-n // TILE)


def folded(device: Device, sums: Array, count: int = 1) -> Array:
    """Reduce (count·m,) float64 sums of tiles to (count,) sums, which stay on the device."""
    if not sums.size:
        return device.zeros(count, np.float64)
    while (m := sums.size // count) > 1:
        out = device.empty(count * tiles(m), np.float64)
        device.launch("reduce", "tile_sums", out.size, LANES, sums, m, tiles(m), out)
        sums = out
    return sums


def fold(sums: Array) -> Deferred:
    """Reduce the sums of tiles to one number."""
    device = device_with(sums)
    return Deferred(device, folded(device, sums))


def moments(x: Array) -> Moments:
    """Return the sum, the sum of squares and the largest magnitude."""
    device, n = device_with(x), x.size
    sums, squares = (device.empty(tiles(n), np.float64) for _ in range(2))
    largest = device.zeros(1, np.uint32)
    device.launch("reduce", "tile_moments", tiles(n), LANES, x, n, sums, squares, largest)
    return Moments(fold(sums), fold(squares), Deferred(device, largest))  # type: ignore[arg-type]


def sum_squares(x: Array) -> Deferred:
    """Return the sum of squares."""
    return moments(x).squares  # type: ignore[return-value]


def max_abs_bits(x: Array) -> Deferred:
    """Return the bit pattern of the largest magnitude."""
    device, n = device_with(x), x.size
    largest = device.zeros(1, np.uint32)
    arguments = x, n, largest
    launch_striding(device, "reduce", "max_abs_bits", n, *arguments, per_thread=_PER_THREAD)
    return Deferred(device, largest)


def max_abs_bits_corrected(x: Array, residual: Array, decay: np.float32) -> Deferred:
    """Return the bit pattern of the largest magnitude of x + decay·residual."""
    device, n = device_with(x), x.size
    largest = device.zeros(1, np.uint32)
    name, arguments = "max_abs_bits_corrected", (x, residual, decay, n, largest)
    launch_striding(device, "reduce", name, n, *arguments, per_thread=_PER_THREAD)
    return Deferred(device, largest)


def newly_infinite(values: Array, x: Array, residual: Array, decay: np.float32) -> Deferred:
    """Return whether values contain NaN or infinity, and x + decay·residual does not."""
    device = device_with(values)
    tops = device.empty(2, np.uint32)
    tops[:1] = max_abs_bits(values).words
    tops[1:] = max_abs_bits_corrected(x, residual, decay).words
    return Deferred(device, tops, lambda top: bool(top[0] >= INFINITY_BITS > top[1]))
