"""Launchers of trellis.cu; see `gcodec.kernels.quantize.trellis`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.bits.listed_cuda import listed
from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.quantize.trellis import MODELS
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks

LANES_OF_BLOCK = 64  # threads, each with a lane of a run
_TILE, _BLOCKS = 1 << 12, 1 << 11


def add_quantisers(symbols: Any, lanes: int, models: Any) -> None:
    """Make models of classes."""
    device, n = device_with(symbols), symbols.size
    grid = striding_blocks(-(-n // RUN) * lanes, 1, LANES_OF_BLOCK)
    arguments = symbols, np.int64(n), np.int32(lanes), models
    device.launch("trellis", "add_quantisers", grid, LANES_OF_BLOCK, *arguments)


def model_counts(symbols: Any, models: Any, sample: int) -> np.ndarray:
    """Count symbols by their models; the counts are on the host."""
    device, n = device_with(symbols), symbols.size
    step, counts = max(1, n // sample) if sample else 1, device.zeros(MODELS * 256, np.uint64)
    arguments = symbols, models, np.int64(n), np.int64(step), counts
    grid = min(-(-n // (step * _TILE)) + 1, _BLOCKS)
    device.launch("trellis", "count_models", grid, THREADS, *arguments)
    return device.to_host(counts).view(np.int64).reshape(MODELS, 256)


def unknown_places(symbols: Any, models: Any, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols that their models do not have."""
    device, n = device_with(symbols), symbols.size
    what = symbols, models, np.int64(n), device.to_device(known)

    def launch(out: Any, room: np.int64) -> None:
        grid = striding_blocks(n)
        device.launch("trellis", "list_unknown_models", grid, THREADS, *what, out, room)

    return listed(device, launch)


def join_models(symbols: Any, models: Any, unknown: np.ndarray, out: Any) -> None:
    """Write models above symbols."""
    device, n, some = device_with(symbols), np.int64(symbols.size), unknown.size
    arguments = symbols, models, n, out
    device.launch("trellis", "join_models", striding_blocks(n.item()), THREADS, *arguments)
    if some:
        places = device.to_device(unknown), np.int64(some)
        grid = striding_blocks(some)
        device.launch("trellis", "join_model_escapes", grid, THREADS, *places, out, n)
