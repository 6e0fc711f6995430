"""Launchers of convert.cu; see `gcodec.kernels.numeric.convert`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.convert import round_to
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.deferred import Deferred


def from_16_bits(bits: Any, dtype: str) -> Any:
    """Bit patterns of `dtype` as float32."""
    return _converted(f"from_{dtype}", bits, np.uint32).view(np.float32)


def to_16_bits(x: Any, dtype: str) -> Any:
    """float32 as the bit patterns of `dtype`."""
    return _converted(f"to_{dtype}", x.view(np.uint32), np.uint16)


def from_float64(x: Any) -> Any:
    """float64 as float32."""
    return _converted("from_float64", x, np.uint32).view(np.float32)


def to_float64(x: Any) -> Any:
    """float32 as float64."""
    return _converted("to_float64", x.view(np.uint32), np.float64)


def finite_or_zero(x: Any) -> Any:
    """float32, with 0 in the place of NaN and infinity."""
    return _converted("finite_or_zero", x.view(np.uint32), np.uint32).view(np.float32)


def round_number(value: Deferred, dtype: str) -> Deferred:
    """Round a number to `dtype`, as float32."""
    return Deferred(value.device, round_to(value.words, dtype))


def _converted(name: str, source: Any, dtype: Any) -> Any:
    device, n = device_with(source), source.size
    out = device.empty(n, dtype)
    device.launch("convert", name, striding_blocks(n), THREADS, source, np.int64(n), out)
    return out
