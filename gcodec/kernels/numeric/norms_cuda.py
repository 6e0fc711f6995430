"""Launchers of norms.cu; see `gcodec.kernels.numeric.norms`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.norms import Norm
from gcodec.kernels.numeric.reduce import LANES
from gcodec.kernels.numeric.reduce_cuda import folded, tiles
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, blocks, device_with, launch_striding
from gcodec.runtime.device import beside


def norms(x: Array, bucket: int, kind: Norm) -> Array:
    """Return the norms of the buckets, which stay on the device."""
    device, n = device_with(x), x.size
    bucket = min(bucket, max(n, 1))
    count, parts = -(-n // bucket), tiles(bucket)
    if kind == "max":
        names, result = ("largest_small", "largest_tiles"), device.zeros(count, np.float32)
    else:
        names = "small_squares", "tile_squares"
        result = device.empty(count * parts, np.float64)
    if parts == 1:  # a warp processes a bucket
        arguments = x, n, bucket, count, result
        device.launch("norms", names[0], blocks(32 * count), THREADS, *arguments)
    else:  # a block processes a tile of a bucket
        device.launch("norms", names[1], count * parts, LANES, x, n, bucket, parts, result)
    if kind == "max":
        return result
    out, sums = device.empty(count, np.float32), folded(device, result, count)
    launch_striding(device, "norms", "roots", count, sums, count, out)
    return out


def write_norms(norms: Array, data: Array) -> None:
    """Write norms, of the device or the host, big-endian, to the first bytes of `data`."""
    nbytes = 4 * norms.size
    arguments = beside(norms, data), norms.size, data[:nbytes]
    launch_striding(device_with(data), "norms", "write_norms", nbytes, *arguments)
