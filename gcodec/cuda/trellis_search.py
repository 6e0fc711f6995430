"""Launchers of trellis_search.cu; see `gcodec.kernels.trellis_search`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.grid import THREADS, device_with, striding_blocks
from gcodec.cuda.trellis import LANES_OF_BLOCK
from gcodec.kernels.device import placed
from gcodec.kernels.lane_order import RUN
from gcodec.kernels.rated_levels import Errors
from gcodec.kernels.trellis_search import ClassesOf

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
