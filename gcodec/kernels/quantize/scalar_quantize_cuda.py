"""Launchers of scalar_quantize.cu; see `gcodec.kernels.quantize.scalar_quantize`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.class_map_cuda import magnitude_sums
from gcodec.kernels.numeric.reduce import LANES
from gcodec.kernels.numeric.reduce_cuda import fold, tiles
from gcodec.kernels.quantize.scalar_quantize import inverse
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks

_SOURCE = "scalar_quantize"


def plain_levels(x: Array, step: np.float32, out: Array) -> None:
    """Quantize magnitudes without their signs."""
    n = x.size
    arguments = x.view(np.uint32), np.int64(n), inverse(step).view(np.uint32), out
    device_with(x).launch(_SOURCE, "plain_levels", striding_blocks(n), THREADS, *arguments)


def plain_sums(
    x: Array, step: np.float32, width: int, has_columns: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Sum the magnitudes of plain levels by row and by column."""
    symbols = device_with(x).empty(x.size, np.uint8)
    plain_levels(x, step, symbols)
    (sums,) = magnitude_sums(symbols, [(width, has_columns)])
    return sums


def random_squares(x: Array, step: np.float32) -> int:
    """Return the expected squared error of stochastic rounding."""
    device, n = device_with(x), x.size
    total = device.zeros(1, np.uint64)
    arguments = x.view(np.uint32), np.int64(n), inverse(step).view(np.uint32), total
    device.launch(_SOURCE, "random_squares", striding_blocks(n), THREADS, *arguments)
    return int(device.to_host(total)[0])


def exact_random_squares(x: Array, step: float) -> float:
    """Return the same in squares of the step, in float64 and a fixed order."""
    device, n = device_with(x), x.size
    sums = device.empty(tiles(n), np.float64)
    arguments = x.view(np.uint32), np.int64(n), np.float64(step), sums
    device.launch(_SOURCE, "exact_random_squares", tiles(n), LANES, *arguments)
    return float(fold(sums))


def put_points(symbols: Array, points: np.ndarray, out: Array) -> None:
    """Write the reconstruction points of symbols."""
    device, n = device_with(symbols), out.size
    table = device.to_device(points.view(np.uint32))
    arguments = symbols, np.int64(n), table, out.view(np.uint32)
    device.launch(_SOURCE, "put_points", striding_blocks(n), THREADS, *arguments)


def put_wide(wide: Array, sums: Array, unit: float, out: Array) -> None:
    """Write the points of uint32 symbols that count `unit`, moved by the sums of `Errors`."""
    n = wide.size
    arguments = wide, np.int64(n), sums.view(np.int64), np.float64(unit / 256), out.view(np.uint32)
    device_with(out).launch(_SOURCE, "put_wide", striding_blocks(n), THREADS, *arguments)
