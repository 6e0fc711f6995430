"""Launchers of convert.cu; see `gcodec.kernels.numeric.convert`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.convert import INFINITIES, round_to
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, launch_striding
from gcodec.runtime.deferred import Deferred


def from_16_bits(bits: Array, dtype: str) -> Array:
    """Convert bit patterns of `dtype` to float32."""
    return _converted(f"from_{dtype}", bits, np.float32)


def to_16_bits(x: Array, dtype: str) -> Array:
    """Convert float32 to bit patterns of `dtype`."""
    return _converted(f"to_{dtype}", x, np.uint16)


def from_float64(x: Array) -> Array:
    """Convert float64 to float32."""
    return _converted("from_float64", x, np.float32)


def to_float64(x: Array) -> Array:
    """Convert float32 to float64."""
    return _converted("to_float64", x, np.float64)


def as_booleans(values: Array) -> Array:
    """Return bytes as booleans."""
    return _converted("as_booleans", values, np.uint8)


def finite_or_zero(x: Array) -> Array:
    """Replace NaN and infinity by 0."""
    return _converted("finite_or_zero", x, np.float32)


def finite_patterns(bits: Array, dtype: str) -> Array:
    """Replace the bit patterns of NaN and infinity by 0."""
    device, n, out = device_with(bits), bits.size, bits.copy()
    arguments = out.view(np.uint8), bits.itemsize, INFINITIES[dtype], n
    launch_striding(device, "convert", "clear_nonfinite", n, *arguments)
    return out


def round_number(value: Deferred, dtype: str) -> Deferred:
    """Round a number to `dtype`, as float32."""
    return Deferred(value.device, round_to(value.words, dtype))


def _converted(name: str, source: Array, dtype: Any) -> Array:
    device, n = device_with(source), source.size
    out = device.empty(n, dtype)
    launch_striding(device, "convert", name, n, source, n, out)
    return out
