"""Launchers of uniform.cu; see `gcodec.kernels.quantize.uniform`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks

_U32 = np.uint32
_GROUP = 8  # elements, whose codes end on a byte


def quantize(x: Any, found: Any, bucket: int, bits: int, seed: int | None, out: Any) -> None:
    """Quantise and pack the codes."""
    n = x.size
    ends = found.reshape(-1).view(_U32), np.int64(bucket), np.int32(bits), out, np.int64(out.size)
    arguments = x.view(_U32), np.int64(n), np.uint64(seed or 0), np.int32(seed is not None), *ends
    grid = striding_blocks(n, _GROUP)
    device_with(x).launch("uniform", "quantize_tiles", grid, THREADS, *arguments)


def dequantize(data: Any, found: Any, bucket: int, bits: int, out: Any) -> None:
    """Write what packed codes stand for."""
    _dequantize(data, found, bucket, bits, None, out)


def dequantize_add(
    data: Any, found: Any, bucket: int, bits: int, scale: np.float32, out: Any
) -> None:
    """Add `scale` times that."""
    _dequantize(data, found, bucket, bits, scale, out)


def _dequantize(
    data: Any, found: Any, bucket: int, bits: int, scale: np.float32 | None, out: Any
) -> None:
    n = out.size
    source = data, np.int64(data.size), found.reshape(-1).view(_U32), np.int64(bucket)
    factor = np.int32(bits), np.float32(1 if scale is None else scale), np.int32(scale is not None)
    arguments = *source, *factor, out.view(_U32), np.int64(n)
    grid = striding_blocks(n, _GROUP)
    device_with(data).launch("uniform", "dequantize_tiles", grid, THREADS, *arguments)
