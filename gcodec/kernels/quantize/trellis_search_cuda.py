"""Launchers of trellis_search.cu; see `gcodec.kernels.quantize.trellis_search`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.trellis_cuda import LANES_OF_BLOCK
from gcodec.kernels.quantize.trellis_search import ClassesOf
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.device import placed

_U32 = np.uint32


def best_levels(
    x: Any,
    factor: np.float32,
    classes_of: ClassesOf,
    costs: np.ndarray,
    moved: np.ndarray,
    lanes: int,
    every: int,
    out: Any,
) -> None:
    """Find levels; a thread searches a lane of a run."""
    device, n = device_with(x), x.size
    classes = placed(classes_of(0, n, device.empty(n, np.uint8)), x)
    runs = -(-n // (RUN * every))
    room = min(runs * RUN, n)
    device.launch(
        *("trellis_search", "search_paths"),
        *(striding_blocks(runs * lanes, 1, LANES_OF_BLOCK), LANES_OF_BLOCK),
        *(x.view(_U32), np.int64(n), factor.view(_U32), classes),
        *(device.to_device(costs.view(_U32)), *moved.view(_U32), np.int32(lanes), np.int64(every)),
        *(device.empty(room, np.uint32), device.empty(room, np.uint8), out),
    )


def errors_of(x: Any, factor: np.float32, every: int, symbols: Any) -> Errors:
    """Return what symbols leave over."""
    device, n = device_with(x), x.size
    sums, grid = device.zeros(8, np.uint64), striding_blocks(-(-n // every))
    arguments = x.view(_U32), np.int64(n), factor.view(_U32), np.int64(every), symbols, sums
    device.launch("trellis_search", "sum_path_errors", grid, THREADS, *arguments)
    total = device.to_host(sums).view(np.int64)
    return Errors.of(total)
