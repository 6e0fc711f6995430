"""Launchers of ranges.cu; see `gcodec.kernels.numeric.ranges`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.bits.pack_cuda import launch_check_padding, padding_error
from gcodec.kernels.numeric.ranges import range_error
from gcodec.runtime.cuda_grid import THREADS, blocks, device_with, reported, striding_blocks
from gcodec.runtime.deferred import Deferred

_LARGE = 1 << 12  # elements from which on more than a warp does a bucket
_PART = 1 << 13  # elements of a bucket that a block does


def ranges(x: Any, bucket: int) -> tuple[Any, Deferred]:
    """Least and largest value of each bucket, and whether all is finite."""
    device, n = device_with(x), x.size
    count = -(-n // bucket)
    bits, keys = x.view(np.int32), device.empty(2 * count, np.int32)
    if bucket < _LARGE:
        sizes = map(np.int64, (n, bucket, count))
        device.launch("ranges", "ranges_small", blocks(32 * count), THREADS, bits, *sizes, keys)
    else:
        parts, grid = -(-bucket // _PART), striding_blocks(count)
        device.launch("ranges", "no_ranges", grid, THREADS, np.int64(count), keys)
        sizes = map(np.int64, (n, bucket, parts, _PART))
        device.launch("ranges", "ranges_large", count * parts, THREADS, bits, *sizes, keys)
    found, wrong = device.empty(2 * count, np.uint32), device.zeros(1, np.uint64)
    arguments = keys, np.int64(2 * count), found, wrong
    device.launch("ranges", "range_values", striding_blocks(2 * count), THREADS, *arguments)
    return found.view(np.float32).reshape(count, 2), Deferred(device, wrong, lambda w: not w[0])


def write_ranges(found: Any, data: Any) -> None:
    """Write ranges as binary32, big-endian, to the first bytes of `data`."""
    _swap(found.reshape(-1).view(np.uint32), data[: found.nbytes].view(np.uint32))


def read_ranges(data: Any) -> Any:
    """Read what `write_ranges` wrote."""
    found = device_with(data).empty(data.size // 4, np.uint32)
    _swap(data.view(np.uint32), found)
    return found.view(np.float32).reshape(-1, 2)


def check_ranges(data: Any, size: int, nbits: int) -> None:
    """Raise `Corrupt` unless the first `size` bytes are ranges, and the padding is zero."""
    device, wrong = device_with(data), device_with(data).zeros(2, np.uint64)
    launch_check_padding(data, nbits, "msb", wrong[:1])
    found = read_ranges(data[:size])
    count = len(found)
    arguments = found.reshape(-1).view(np.uint32), np.int64(count), wrong[1:]
    device.launch("ranges", "check_ranges", striding_blocks(count), THREADS, *arguments)

    def told(padding: int | None, at: int | None) -> None:
        if padding is not None:
            raise padding_error(padding, nbits)
        if at is not None:
            low, high = device.to_host(found[at])
            raise range_error(low, high, at)

    reported(device, wrong, told)


def _swap(source: Any, target: Any) -> None:
    device, count = device_with(source), source.size
    arguments = source, np.int64(count), target
    device.launch("ranges", "swapped", striding_blocks(count), THREADS, *arguments)
