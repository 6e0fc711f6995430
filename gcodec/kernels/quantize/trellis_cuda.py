"""Launchers of trellis.cu; see `gcodec.kernels.quantize.trellis`."""

from __future__ import annotations

from functools import partial

import numpy as np

from gcodec.kernels.bits.listed_cuda import listed
from gcodec.kernels.context.class_map import TILE
from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.quantize.trellis import MODELS
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, launch_striding, striding_blocks

LANES_OF_BLOCK = 64  # threads of a block, each with a lane of a run
_BLOCKS = 1 << 11  # largest number of blocks


def add_quantizers(symbols: Array, lanes: int, models: Array) -> None:
    """Turn classes into models."""
    device, n = device_with(symbols), symbols.size
    grid, arguments = striding_blocks(-(-n // RUN) * lanes, 1, LANES_OF_BLOCK), (symbols, n, lanes)
    device.launch("trellis", "add_quantizers", grid, LANES_OF_BLOCK, *arguments, models)


def model_counts(symbols: Array, models: Array, sample: int) -> np.ndarray:
    """Count symbols by model; the counts are on the host."""
    device, n = device_with(symbols), symbols.size
    step, counts = max(1, n // sample) if sample else 1, device.zeros(MODELS * 256, np.uint64)
    arguments = symbols, models, n, step, counts
    grid = min(-(-n // (step * TILE)) + 1, _BLOCKS)
    device.launch("trellis", "count_models", grid, THREADS, *arguments)
    return device.to_host(counts).view(np.int64).reshape(MODELS, 256)


def escaped_symbols(
    symbols: Array, models: Array, has_symbol: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols that their models do not have."""
    device, n = device_with(symbols), symbols.size
    inputs = symbols, models, n, device.to_device(has_symbol)
    launch = partial(launch_striding, device, "trellis", "list_unknown_models", n, *inputs)
    return listed(device, launch)


def join_models(symbols: Array, models: Array, unknown: np.ndarray, out: Array) -> None:
    """Write words of models and symbols."""
    device, n, escapes = device_with(symbols), symbols.size, unknown.size
    launch_striding(device, "trellis", "join_models", n, symbols, models, n, out)
    if escapes:
        replaced = device.to_device(unknown), escapes, out, n
        launch_striding(device, "trellis", "join_model_escapes", escapes, *replaced)
