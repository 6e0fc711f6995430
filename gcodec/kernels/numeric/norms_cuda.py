"""Launchers of norms.cu; see `gcodec.kernels.numeric.norms`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.norms import Norm, norm_error
from gcodec.kernels.numeric.reduce import LANES
from gcodec.kernels.numeric.reduce_cuda import tiles
from gcodec.runtime.cuda_grid import THREADS, blocks, device_with, reported, striding_blocks
from gcodec.runtime.device import placed

_U32 = np.uint32


def norms(x: Any, bucket: int, kind: Norm) -> Any:
    """Norms of the buckets, which stay on the device."""
    device, n = device_with(x), x.size
    bucket = min(bucket, max(n, 1))
    count, parts = -(-n // bucket), tiles(bucket)
    bits, sizes = x.view(_U32), [np.int64(n), np.int64(bucket)]
    if parts == 1:  # a warp does a bucket
        sizes, grid, block = [*sizes, np.int64(count)], blocks(32 * count), THREADS
    else:  # a block does a tile of one
        sizes, grid, block = [*sizes, np.int64(parts)], count * parts, LANES
    if kind == "max":
        found = device.zeros(count, np.uint32)
        name = "largest_small" if parts == 1 else "largest_tiles"
        device.launch("norms", name, grid, block, bits, *sizes, found)
        return found.view(np.float32)
    sums = device.empty(count * parts, np.float64)
    name = "small_squares" if parts == 1 else "tile_squares"
    device.launch("norms", name, grid, block, bits, *sizes, sums)
    while parts > 1:
        above = tiles(parts)
        folded = device.empty(count * above, np.float64)
        lengths = np.int64(parts), np.int64(above)
        device.launch("norms", "bucket_sums", count * above, LANES, sums, *lengths, folded)
        sums, parts = folded, above
    found = device.empty(count, np.uint32)
    arguments = sums, np.int64(count), found
    device.launch("norms", "roots", striding_blocks(count), THREADS, *arguments)
    return found.view(np.float32)


def write_norms(found: Any, data: Any) -> None:
    """Write norms, of the device or the host, big-endian, to the first bytes of `data`."""
    found, count = placed(found, data), found.size
    arguments = found.view(_U32), np.int64(count), data[: 4 * count]
    grid = striding_blocks(4 * count)
    device_with(data).launch("norms", "write_norms", grid, THREADS, *arguments)


def read_norms(data: Any) -> Any:
    """Read what `write_norms` wrote."""
    device, count = device_with(data), data.size // 4
    found, wrong = device.empty(count, np.uint32), device.zeros(1, np.uint64)
    arguments = data, np.int64(count), found, wrong
    device.launch("norms", "read_norms", striding_blocks(count), THREADS, *arguments)

    def told(at: int | None) -> None:
        if at is not None:
            raise norm_error(at)

    reported(device, wrong, told)
    return found.view(np.float32)
