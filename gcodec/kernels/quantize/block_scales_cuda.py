"""Launchers of block_scales.cu; see `gcodec.kernels.quantize.block_scales`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks, word
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import placed

_U32 = np.uint32
_WARP = 32


def scales_of(scale: Any, factors: Any) -> Any:
    """Return the scales of blocks."""
    device, out = device_with(factors), device_with(factors).empty(factors.size, np.float32)
    arguments = word(device, scale), factors, np.int64(factors.size), out.view(_U32)
    grid = striding_blocks(factors.size)
    device.launch("block_scales", "scales_of", grid, THREADS, *arguments)
    return out


def largest_scale(bits: Deferred, top: np.float32) -> Deferred:
    """Return the scale by which the largest magnitude becomes about the last level."""
    device, out = bits.device, bits.device.empty(1, np.float32)
    given = bits.words, top.view(_U32), out.view(_U32)
    device.launch("block_scales", "largest_scale", 1, 1, *given)
    return Deferred(device, out)


def choose_factors(values: Any, length: int, scale: Any, top: np.float32, mantissa: int) -> Any:
    """Choose the factor of each block."""
    device, n = device_with(values), values.size
    count = -(-n // length)
    factors, length = device.empty(count, np.uint8), min(length, max(n, 1))
    rule = word(device, scale), np.float32(top).view(_U32), _U32(mantissa)
    arguments = values.view(_U32), np.int64(n), np.int64(length), *rule, factors
    grid = striding_blocks(count, THREADS // _WARP)
    device.launch("block_scales", "choose", grid, THREADS, *arguments)
    return factors


def divide(x: Any, first: int, length: int, scales: Any, out: Any) -> Any:
    """Divide elements by the scales of their blocks."""
    found = out[: x.size]
    _launch("divide", x, first, length, scales, found.view(_U32))
    return found


def multiply(
    values: Any, first: int, length: int, scales: Any, out: Any, add: np.float32 | None = None
) -> None:
    """Multiply elements by the scales of their blocks, or add multiples of that."""
    if add is None:
        _launch("multiply", values, first, length, scales, out.view(_U32))
    else:
        factor = np.float32(add).view(_U32)
        _launch("add_multiplied", values, first, length, scales, factor, out.view(_U32))


def _launch(name: str, x: Any, first: int, length: int, scales: Any, *rest: Any) -> None:
    each = placed(scales, x).view(_U32)
    where = np.int64(x.size), np.int64(first), np.int64(length), each
    grid = striding_blocks(x.size)
    device_with(x).launch("block_scales", name, grid, THREADS, x.view(_U32), *where, *rest)
