"""Launchers of scalar_quantize.cu; see `gcodec.kernels.scalar_quantize`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.grid import THREADS, device_with, striding_blocks
from gcodec.cuda.reduce import fold, tiles
from gcodec.kernels.device import placed
from gcodec.kernels.reduce import LANES
from gcodec.kernels.scalar_quantize import ClassesOf, Errors, inverse


def plain_levels(x: Any, step: np.float32, out: Any) -> None:
    """Quantise without signs."""
    device, n = device_with(x), x.size
    arguments = x.view(np.uint32), np.int64(n), inverse(step).view(np.uint32), out
    device.launch("scalar_quantize", "plain_levels", striding_blocks(n), THREADS, *arguments)


def rated_levels(x: Any, step: np.float32, classes_of: ClassesOf, out: Any) -> Errors:
    """Quantise by the classes of elements."""
    device, n = device_with(x), x.size
    classes = placed(classes_of(0, n, device.empty(n, np.uint8)), x)
    sums = device.zeros(8, np.uint64)
    arguments = x.view(np.uint32), np.int64(n), inverse(step).view(np.uint32), classes, out, sums
    device.launch("scalar_quantize", "rated_levels", striding_blocks(n), THREADS, *arguments)
    total = device.to_host(sums).view(np.int64)
    return Errors.of(total)


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


def _launch(name: str, symbols: Any, points: np.ndarray, out: Any) -> None:
    device, n = device_with(symbols), out.size
    table = device.to_device(points.view(np.uint32))
    arguments = symbols, np.int64(n), table, out.view(np.uint32)
    device.launch("scalar_quantize", name, striding_blocks(n), THREADS, *arguments)
