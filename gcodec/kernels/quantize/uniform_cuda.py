"""Launchers of uniform.cu; see `gcodec.kernels.quantize.uniform`."""

from __future__ import annotations

import numpy as np

from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, factor_to_add, launch_striding

_GROUP = 8  # elements, whose codes end on a byte


def quantize(
    x: Array,
    ranges: Array,
    bucket: int,
    bits: int,
    seed: int | None,
    out: Array,
    leaves_errors: bool = False,
    rounded_to: int = 0,
) -> None:
    """Quantize and pack the codes."""
    n = x.size
    arguments = x, n, seed or 0, seed is not None, ranges, bucket, bits, out, out.size
    device = device_with(x)
    launch_striding(device, "uniform", "quantize_tiles", n, *arguments, per_thread=_GROUP)


def dequantize(
    data: Array,
    ranges: Array,
    bucket: int,
    bits: int,
    out: Array,
    add: np.float32 | None = None,
) -> None:
    """Write the values of packed codes, or add a multiple of them."""
    device, n = device_with(data), out.size
    arguments = data, data.size, ranges, bucket, bits, *factor_to_add(add), out, n
    launch_striding(device, "uniform", "dequantize_tiles", n, *arguments, per_thread=_GROUP)
