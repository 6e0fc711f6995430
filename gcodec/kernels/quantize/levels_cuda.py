"""Launchers of levels.cu; see `gcodec.kernels.quantize.levels`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.quantize.levels import Scale, levels_error
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, reported, striding_blocks
from gcodec.runtime.device import placed


def quantize(x: Array, scale: Scale, seed: int, first: int, out: Array) -> None:
    """Quantize a part of a tensor from element `first` on, a multiple of 4."""
    n = x.size
    source = x.view(np.uint32), np.int64(n), np.uint64(seed), np.uint64(first)
    _launch("quantize_part", n, *source, *_part(scale, first, x), *_any_width(out))


def dequantize(
    symbols: Array,
    scale: Scale,
    first: int,
    out: Array,
    add: np.float32 | None = None,
    *,
    stream: bool = False,
) -> None:
    """Write the values of a part of the symbols, or add a multiple of them."""
    n = out.size
    source = *_any_width(symbols), np.int64(n), *_part(scale, first, symbols)
    factor = np.float32(1) if add is None else add, np.int32(add is not None)
    _launch("dequantize_part", n, *source, *factor, out.view(np.uint32))


def check(symbols: Array, s: int) -> None:
    """Raise `ParameterError` unless all symbols are those of levels up to s."""
    device, n = device_with(symbols), symbols.size
    wrong = device.zeros(1, np.uint64)
    _launch("check_levels", n, *_any_width(symbols), np.int64(n), np.uint32(s), wrong)

    def raise_error(position: int | None) -> None:
        if position is not None:
            raise levels_error(s)

    reported(device, wrong, raise_error)


def _part(scale: Scale, first: int, beside: Array) -> tuple[Any, ...]:
    """Return the arguments of `Scale.part`; the norms may be on the host."""
    norms, phase, bucket, s = scale.part(first)
    return placed(norms, beside).view(np.uint32), np.int64(phase), np.int64(bucket), s


def _any_width(symbols: Array) -> tuple[Array, np.int32]:
    """Return the bytes of symbols, and the bytes of one symbol."""
    return symbols.view(np.uint8), np.int32(symbols.itemsize)


def _launch(name: str, n: int, first: Array, *arguments: Any) -> None:
    grid = striding_blocks(n)
    device_with(first).launch("levels", name, grid, THREADS, first, *arguments)
