"""Launchers of uniform.cu; see `gcodec.kernels.quantize.uniform`."""

from __future__ import annotations

import numpy as np

from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks

_GROUP = 8  # elements, whose codes end on a byte


def quantize(
    x: Array, ranges: Array, bucket: int, bits: int, seed: int | None, out: Array
) -> None:
    """Quantize and pack the codes."""
    n = x.size
    source = x.view(np.uint32), np.int64(n), np.uint64(seed or 0), np.int32(seed is not None)
    flat = ranges.reshape(-1).view(np.uint32)
    target = np.int64(bucket), np.int32(bits), out, np.int64(out.size)
    grid = striding_blocks(n, _GROUP)
    device_with(x).launch("uniform", "quantize_tiles", grid, THREADS, *source, flat, *target)


def dequantize(data: Array, ranges: Array, bucket: int, bits: int, out: Array) -> None:
    """Decode packed codes."""
    _dequantize(data, ranges, bucket, bits, None, out)


def dequantize_add(
    data: Array, ranges: Array, bucket: int, bits: int, scale: np.float32, out: Array
) -> None:
    """Decode packed codes, and add `scale` times their values."""
    _dequantize(data, ranges, bucket, bits, scale, out)


def _dequantize(
    data: Array, ranges: Array, bucket: int, bits: int, scale: np.float32 | None, out: Array
) -> None:
    n = out.size
    source = data, np.int64(data.size), ranges.reshape(-1).view(np.uint32), np.int64(bucket)
    factor = np.int32(bits), np.float32(1 if scale is None else scale), np.int32(scale is not None)
    arguments = *source, *factor, out.view(np.uint32), np.int64(n)
    grid = striding_blocks(n, _GROUP)
    device_with(data).launch("uniform", "dequantize_tiles", grid, THREADS, *arguments)
