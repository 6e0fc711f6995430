"""Launchers of levels.cu; see `gcodec.kernels.quantize.levels`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.quantize.levels import Scale, levels_error
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import (
    byte_view,
    device_with,
    factor_to_add,
    launch_striding,
    raise_reported,
)
from gcodec.runtime.device import beside


def quantize(
    x: Array,
    scale: Scale,
    seed: int,
    first: int,
    out: Array,
    leaves_errors: bool = False,
    rounded_to: int = 0,
) -> None:
    """Quantize a part of a tensor from element `first` on, a multiple of 4."""
    n = x.size
    arguments = x, n, seed, first, *_part(scale, first, x), *byte_view(out)
    launch_striding(device_with(x), "levels", "quantize_part", n, *arguments)


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
    arguments = *byte_view(symbols), n, *_part(scale, first, symbols), *factor_to_add(add), out
    launch_striding(device_with(symbols), "levels", "dequantize_part", n, *arguments)


def check(symbols: Array, s: int) -> None:
    """Raise `ParameterError` unless all symbols are those of levels up to s."""
    device, n = device_with(symbols), symbols.size
    wrong = device.zeros(1, np.uint64)
    launch_striding(device, "levels", "check_levels", n, *byte_view(symbols), n, s, wrong)
    raise_reported(device, wrong, lambda _: levels_error(s))


def _part(scale: Scale, first: int, like: Array) -> tuple[Array, int, int, np.uint32]:
    """Return `Scale.part`, with the norms on the device."""
    norms, phase, bucket, s = scale.part(first)
    return beside(norms, like), phase, bucket, s
