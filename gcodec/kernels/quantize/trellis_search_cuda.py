"""Launchers of trellis_search.cu; see `gcodec.kernels.quantize.trellis_search`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.trellis_cuda import LANES_OF_BLOCK
from gcodec.kernels.quantize.trellis_search import ClassesOf
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding, striding_blocks
from gcodec.runtime.device import beside


def best_levels(
    x: Array,
    factor: np.float32,
    classes_of: ClassesOf,
    costs: np.ndarray,
    moved: np.ndarray,
    lanes: int,
    run_step: int,
    out: Array,
) -> None:
    """Find the best levels; a thread searches a lane of a run."""
    device, n = device_with(x), x.size
    classes = beside(classes_of(0, n, device.empty(n, np.uint8)), x)
    runs = -(-n // (RUN * run_step))
    room = min(runs * RUN, n)
    source = x, n, factor.view(np.uint32), classes
    rates = device.to_device(costs), *moved.view(np.uint32)
    scratch = device.empty(room, np.uint32), device.empty(room, np.uint8)
    arguments = *source, *rates, lanes, run_step, *scratch, out
    grid = striding_blocks(runs * lanes, 1, LANES_OF_BLOCK)
    device.launch("trellis_search", "search_paths", grid, LANES_OF_BLOCK, *arguments)


def errors_of(x: Array, factor: np.float32, run_step: int, symbols: Array) -> Errors:
    """Return the errors of symbols."""
    device, n = device_with(x), x.size
    sums, count = device.zeros(8, np.uint64), -(-n // run_step)
    arguments = x, n, factor.view(np.uint32), run_step, symbols, sums
    launch_striding(device, "trellis_search", "sum_path_errors", count, *arguments)
    return Errors.of(device.to_host(sums).view(np.int64))
