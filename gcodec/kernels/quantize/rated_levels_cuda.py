"""Launchers of rated levels, in scalar_quantize.cu; see `gcodec.kernels.quantize.rated_levels`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.class_map import ScaleArrays
from gcodec.kernels.context.class_map_cuda import map_classes
from gcodec.kernels.context.scale_logs import scales_of_sums
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.scalar_quantize import inverse, plain_sums
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks


def rated_levels(x: Array, step: np.float32, of: ScaleArrays, out: Array) -> Errors:
    """Quantize by the classes of elements."""
    device = device_with(x)
    classes = device.empty(x.size, np.uint8)
    map_classes(*of, 0, classes)
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
    source = x.view(np.uint32), np.int64(n), inverse(step).view(np.uint32), classes
    arguments = *source, out, target, np.int64(target.size), sums
    device.launch("scalar_quantize", "rated_levels", striding_blocks(n), THREADS, *arguments)
    return sums


def scaled_levels(
    x: Array, step: np.float32, matrix: tuple[int, int, int], ones: tuple[int, int], out: Array
) -> tuple[np.ndarray, np.ndarray, Errors]:
    """Quantize by the classes that the plain levels of the same elements have."""
    width, group, _ = matrix
    rows, columns = scales_of_sums(x.size, matrix, ones, *plain_sums(x, step, width, group > 0))
    return rows, columns, rated_levels(x, step, (rows, columns, width), out)
