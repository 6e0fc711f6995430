"""Launchers of levels.cu; see `gcodec.kernels.quantize.levels`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.quantize.levels import Scale, levels_error
from gcodec.runtime.cuda_grid import THREADS, device_with, reported, striding_blocks
from gcodec.runtime.device import placed

_U32 = np.uint32


def quantize(x: Any, scale: Scale, seed: int, first: int, out: Any) -> None:
    """Quantise a part of a tensor from element `first` on, a multiple of 4."""
    n = x.size
    part = _part(scale, first, x)
    arguments = x.view(_U32), np.int64(n), np.uint64(seed), np.uint64(first), *part, out
    name, grid = f"quantize_part_{out.dtype.name}", striding_blocks(n)
    device_with(x).launch("levels", name, grid, THREADS, *arguments)


def dequantize(
    symbols: Any,
    scale: Scale,
    first: int,
    out: Any,
    add: np.float32 | None = None,
    *,
    stream: bool = False,
) -> None:
    """Write what a part of the symbols stands for, or add a multiple of it."""
    n = out.size
    part = _part(scale, first, symbols)
    factor = np.float32(1) if add is None else add, np.int32(add is not None)
    arguments = symbols, np.int64(n), *part, *factor, out.view(_U32)
    name, grid = f"dequantize_part_{symbols.dtype.name}", striding_blocks(n)
    device_with(symbols).launch("levels", name, grid, THREADS, *arguments)


def check(symbols: Any, s: int) -> None:
    """Raise `ParameterError` unless all symbols are those of levels up to s."""
    device, n = device_with(symbols), symbols.size
    wrong, name = device.zeros(1, np.uint64), f"check_levels_{symbols.dtype.name}"
    arguments = symbols, np.int64(n), np.uint32(s), wrong
    device.launch("levels", name, striding_blocks(n), THREADS, *arguments)

    def told(at: int | None) -> None:
        if at is not None:
            raise levels_error(s)

    reported(device, wrong, told)


def _part(scale: Scale, first: int, beside: Any) -> tuple[Any, ...]:
    """Return norms from element `first` on, which may be on the host, and the rest of a scale."""
    norms, phase, bucket, s = scale.part(first)
    return placed(norms, beside).view(_U32), np.int64(phase), np.int64(bucket), s
