"""Launchers of block_scales.cu; see `gcodec.kernels.quantize.block_scales`."""

from __future__ import annotations

import numpy as np

from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, factor_to_add, launch_striding, word
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import beside

_WARP = 32
_Scale = float | np.float32 | Deferred


def scales_of(scale: _Scale, factors: Array) -> Array:
    """Return the scales of blocks."""
    device, n = device_with(factors), factors.size
    out = device.empty(n, np.float32)
    launch_striding(device, "block_scales", "scales_of", n, word(device, scale), factors, n, out)
    return out


def largest_scale(bits: Deferred, top: np.float32) -> Deferred:
    """Return the scale by which the largest magnitude becomes about the last level."""
    device, out = bits.device, bits.device.empty(1, np.float32)
    device.launch("block_scales", "largest_scale", 1, 1, bits, top.view(np.uint32), out)
    return Deferred(device, out)


def choose_factors(
    values: Array, length: int, scale: _Scale, top: np.float32, mantissa: int
) -> Array:
    """Choose the factor of each block."""
    device, n = device_with(values), values.size
    count = -(-n // length)
    factors, length = device.empty(count, np.uint8), min(length, max(n, 1))
    rule = word(device, scale), np.float32(top).view(np.uint32), mantissa
    arguments = values, n, length, *rule, factors
    launch_striding(device, "block_scales", "choose", _WARP * count, *arguments, per_thread=1)
    return factors


def divide(x: Array, first: int, length: int, scales: Array, out: Array) -> Array:
    """Divide elements by the scales of their blocks."""
    quotients = out[: x.size]
    _launch("divide", x, first, length, scales, quotients)
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
    _launch("multiply", values, first, length, scales, *factor_to_add(add), out)


def _launch(name: str, x: Array, first: int, length: int, scales: Array, *target: object) -> None:
    arguments = x, x.size, first, length, beside(scales, x), *target
    launch_striding(device_with(x), "block_scales", name, x.size, *arguments)
