"""Launchers of scalar_quantize.cu; see `gcodec.kernels.quantize.scalar_quantize`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.context.class_map_cuda import magnitude_sums
from gcodec.kernels.numeric.reduce import LANES
from gcodec.kernels.numeric.reduce_cuda import fold, tiles
from gcodec.kernels.quantize.scalar_quantize import inverse
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks


def plain_levels(x: Any, step: np.float32, out: Any) -> None:
    """Quantise without signs."""
    device, n = device_with(x), x.size
    arguments = x.view(np.uint32), np.int64(n), inverse(step).view(np.uint32), out
    device.launch("scalar_quantize", "plain_levels", striding_blocks(n), THREADS, *arguments)


def plain_sums(
    x: Any, step: np.float32, width: int, has_columns: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Add up the magnitudes of plain levels of each row and of each column."""
    symbols = device_with(x).empty(x.size, np.uint8)
    plain_levels(x, step, symbols)
    (sums,) = magnitude_sums(symbols, [(width, has_columns)])
    return sums


def random_squares(x: Any, step: np.float32) -> int:
    """Return the sum of what levels at random are expected to leave over."""
    device, n = device_with(x), x.size
    total = device.zeros(1, np.uint64)
    arguments = x.view(np.uint32), np.int64(n), inverse(step).view(np.uint32), total
    device.launch("scalar_quantize", "random_squares", striding_blocks(n), THREADS, *arguments)
    return int(device.to_host(total)[0])


def exact_random_squares(x: Any, step: float) -> float:
    """Return that in squares of the step, in float64 by the fixed order."""
    device, n = device_with(x), x.size
    sums = device.empty(tiles(n), np.float64)
    arguments = x.view(np.uint32), np.int64(n), np.float64(step), sums
    device.launch("scalar_quantize", "random_rests", tiles(n), LANES, *arguments)
    return float(fold(sums))


def put_points(symbols: Any, points: np.ndarray, out: Any) -> None:
    """Write the points that symbols stand for."""
    _launch("put_points", symbols, points, out)


def add_points(symbols: Any, points: np.ndarray, out: Any) -> None:
    """Add the points that symbols stand for."""
    _launch("add_points", symbols, points, out)


def put_wide(wide: Any, sums: Any, unit: float, out: Any) -> None:
    """Write the points of uint32 symbols, given the sums of errors and what symbols count."""
    arguments = wide, np.int64(wide.size), sums.view(np.int64), np.float64(unit / 256)
    grid = striding_blocks(out.size)
    device_with(out).launch(
        "scalar_quantize", "put_wide", grid, THREADS, *arguments, out.view(np.uint32)
    )


def _launch(name: str, symbols: Any, points: np.ndarray, out: Any) -> None:
    device, n = device_with(symbols), out.size
    table = device.to_device(points.view(np.uint32))
    arguments = symbols, np.int64(n), table, out.view(np.uint32)
    device.launch("scalar_quantize", name, striding_blocks(n), THREADS, *arguments)
