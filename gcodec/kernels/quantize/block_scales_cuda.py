"""Launchers of block_scales.cu; see `gcodec.kernels.quantize.block_scales`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks, word
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import placed

_U32 = np.uint32
_WARP = 32


def scales_of(scale: Any, factors: Array) -> Array:
    """Return the scales of blocks."""
    device, n = device_with(factors), factors.size
    out = device.empty(n, np.float32)
    arguments = word(device, scale), factors, np.int64(n), out.view(_U32)
    device.launch("block_scales", "scales_of", striding_blocks(n), THREADS, *arguments)
    return out


def largest_scale(bits: Deferred, top: np.float32) -> Deferred:
    """Return the scale by which the largest magnitude becomes about the last level."""
    device, out = bits.device, bits.device.empty(1, np.float32)
    arguments = bits.words, top.view(_U32), out.view(_U32)
    device.launch("block_scales", "largest_scale", 1, 1, *arguments)
    return Deferred(device, out)


def choose_factors(
    values: Array, length: int, scale: Any, top: np.float32, mantissa: int
) -> Array:
    """Choose the factor of each block."""
    device, n = device_with(values), values.size
    count = -(-n // length)
    factors, length = device.empty(count, np.uint8), min(length, max(n, 1))
    rule = word(device, scale), np.float32(top).view(_U32), _U32(mantissa)
    arguments = values.view(_U32), np.int64(n), np.int64(length), *rule, factors
    grid = striding_blocks(count, 1, THREADS // _WARP)
    device.launch("block_scales", "choose", grid, THREADS, *arguments)
    return factors


def divide(x: Array, first: int, length: int, scales: Array, out: Array) -> Array:
    """Divide elements by the scales of their blocks."""
    quotients = out[: x.size]
    _launch("divide", x, first, length, scales, quotients.view(_U32))
    return quotients


def multiply(
    values: Array,
    first: int,
    length: int,
    scales: Array,
    out: Array,
    add: np.float32 | None = None,
) -> None:
    """Multiply elements by the scales of their blocks, or add multiples of the products."""
    factor = np.float32(1 if add is None else add).view(_U32), np.bool_(add is not None)
    _launch("multiply", values, first, length, scales, *factor, out.view(_U32))


def _launch(name: str, x: Array, first: int, length: int, scales: Array, *more: Any) -> None:
    n, own = x.size, placed(scales, x).view(_U32)
    arguments = x.view(_U32), np.int64(n), np.int64(first), np.int64(length), own, *more
    device_with(x).launch("block_scales", name, striding_blocks(n), THREADS, *arguments)
