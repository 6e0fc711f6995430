"""Launchers of rated levels, in scalar_quantize.cu; see `gcodec.kernels.quantize.rated_levels`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.context.class_map import ScalesOf
from gcodec.kernels.context.class_map_cuda import map_classes
from gcodec.kernels.context.scale_logs import scales_of_sums
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.scalar_quantize import inverse, plain_sums
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks


def rated_levels(x: Any, step: np.float32, of: ScalesOf, out: Any) -> Errors:
    """Quantise by the classes of elements."""
    classes = device_with(x).empty(x.size, np.uint8)
    map_classes(*of, 0, classes)
    sums = rated_by(x, step, classes, out)
    return Errors.of(device_with(x).to_host(sums).view(np.int64))


def rated_by(x: Any, step: np.float32, classes: Any, out: Any, wide: Any = None) -> Any:
    """Quantise given the classes; return the sums of `Errors`.

    There may be room for symbols that are not cut off, as uint32.
    """
    device, n = device_with(x), x.size
    sums = device.zeros(8, np.uint64)
    every = device.empty(0, np.uint32) if wide is None else wide
    told = x.view(np.uint32), np.int64(n), inverse(step).view(np.uint32), classes
    arguments = *told, out, every, np.int64(every.size), sums
    device.launch("scalar_quantize", "rated_levels", striding_blocks(n), THREADS, *arguments)
    return sums


def scaled_levels(
    x: Any, step: np.float32, matrix: tuple[int, int, int], ones: tuple[int, int], out: Any
) -> tuple[np.ndarray, np.ndarray, Errors]:
    """Quantise by the scales of plain levels."""
    width, group, _ = matrix
    rows, columns = scales_of_sums(x.size, matrix, ones, *plain_sums(x, step, width, group > 0))
    return rows, columns, rated_levels(x, step, (rows, columns, width), out)
