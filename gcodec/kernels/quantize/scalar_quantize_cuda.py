"""Launchers of scalar_quantize.cu.

See `gcodec.kernels.quantize.scalar_quantize` and `gcodec.kernels.quantize.rated_levels`.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.class_map import ScaleArrays
from gcodec.kernels.context.class_map_cuda import magnitude_sums, map_classes
from gcodec.kernels.numeric.reduce import LANES
from gcodec.kernels.numeric.reduce_cuda import fold, tiles
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.scalar_quantize import inverse
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding

_SOURCE = "scalar_quantize"


def plain_levels(x: Array, step: np.float32, out: Array) -> None:
    """Quantize magnitudes without their signs."""
    arguments = x, x.size, inverse(step).view(np.uint32), out
    launch_striding(device_with(x), _SOURCE, "plain_levels", x.size, *arguments)


def plain_sums(
    x: Array, step: np.float32, width: int, has_columns: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Sum the magnitudes of plain levels by row and by column."""
    symbols = device_with(x).empty(x.size, np.uint8)
    plain_levels(x, step, symbols)
    (sums,) = magnitude_sums(symbols, [(width, has_columns)])
    return sums


def rated_levels(x: Array, step: np.float32, scales: ScaleArrays, out: Array) -> Errors:
    """Quantize by the classes of elements."""
    device = device_with(x)
    classes = device.empty(x.size, np.uint8)
    map_classes(*scales, 0, classes)
    return Errors.of(device.to_host(rated_by(x, step, classes, out)).view(np.int64))


def rated_by(
    x: Array, step: np.float32, classes: Array, out: Array, wide: Array | None = None
) -> Array:
    """Quantize by given classes; return the (8,) sums of `Errors` as uint64.

    `wide` gets the symbols as uint32, not limited by the escape symbol.
    """
    device, n = device_with(x), x.size
    sums = device.zeros(8, np.uint64)
    target = device.empty(0, np.uint32) if wide is None else wide
    source = x, n, inverse(step).view(np.uint32), classes
    launch_striding(device, _SOURCE, "rated_levels", n, *source, out, target, target.size, sums)
    return sums


def random_squares(x: Array, step: np.float32) -> int:
    """Return the expected squared error of stochastic rounding."""
    device, n = device_with(x), x.size
    total = device.zeros(1, np.uint64)
    arguments = x, n, inverse(step).view(np.uint32), total
    launch_striding(device, _SOURCE, "random_squares", n, *arguments)
    return int(device.to_host(total)[0])


def exact_random_squares(x: Array, step: float) -> float:
    """Return the same in squares of the step, in float64 and a fixed order."""
    device, n = device_with(x), x.size
    sums = device.empty(tiles(n), np.float64)
    device.launch(_SOURCE, "exact_random_squares", tiles(n), LANES, x, n, step, sums)
    return float(fold(sums))


def put_points(symbols: Array, points: np.ndarray, out: Array, add: None = None) -> None:
    """Write the reconstruction points of symbols."""
    device, n = device_with(symbols), out.size
    launch_striding(device, _SOURCE, "put_points", n, symbols, n, device.to_device(points), out)


def put_wide(wide: Array, sums: Array, unit: float, out: Array) -> None:
    """Write the points of uint32 symbols that count `unit`, moved by the sums of `Errors`."""
    n = wide.size
    launch_striding(device_with(out), _SOURCE, "put_wide", n, wide, n, sums, unit / 256, out)
