"""Launchers of ranges.cu; see `gcodec.kernels.numeric.ranges`."""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.pack_cuda import launch_check_padding, padding_error
from gcodec.kernels.numeric.ranges import range_error
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import (
    THREADS,
    blocks,
    device_with,
    launch_striding,
    raise_reported,
)
from gcodec.runtime.deferred import Deferred

_LARGE = 1 << 12  # elements of the smallest bucket that several warps process
_PART = 1 << 13  # elements of a bucket that a block processes


def ranges(x: Array, bucket: int) -> tuple[Array, Deferred]:
    """Return the minimum and maximum of each bucket, and whether all values are finite."""
    device, n = device_with(x), x.size
    count = -(-n // bucket)
    keys = device.empty(2 * count, np.int32)
    if bucket < _LARGE:
        grid, sizes = blocks(32 * count), (n, bucket, count)
        device.launch("ranges", "ranges_small", grid, THREADS, x, *sizes, keys)
    else:
        parts = -(-bucket // _PART)
        launch_striding(device, "ranges", "no_ranges", count, count, keys)
        large = x, n, bucket, parts, _PART, keys
        device.launch("ranges", "ranges_large", count * parts, THREADS, *large)
    out, wrong = device.empty(2 * count, np.float32), device.zeros(1, np.uint64)
    launch_striding(device, "ranges", "range_values", 2 * count, keys, 2 * count, out, wrong)
    return out.reshape(count, 2), Deferred(device, wrong, lambda w: not w[0])


def write_ranges(ranges: Array, data: Array) -> None:
    """Write ranges as binary32, big-endian, to the first bytes of `data`."""
    _swap(ranges.reshape(-1), data[: ranges.nbytes].view(np.uint32))


def read_ranges(data: Array) -> Array:
    """Read the ranges that `write_ranges` wrote."""
    out = device_with(data).empty(data.size // 4, np.float32)
    _swap(data.view(np.uint32), out)
    return out.reshape(-1, 2)


def check_ranges(data: Array, size: int, nbits: int) -> None:
    """Raise `Corrupt` unless the first `size` bytes are valid ranges, and the padding is zero."""
    device = device_with(data)
    wrong = device.zeros(2, np.uint64)
    launch_check_padding(data, nbits, "msb", wrong[:1])
    ranges = read_ranges(data[:size])
    count = len(ranges)
    launch_striding(device, "ranges", "check_ranges", count, ranges, count, wrong[1:])

    def error(at: int) -> Corrupt:
        low, high = device.to_host(ranges[at])
        return range_error(low, high, at)

    raise_reported(device, wrong, lambda at: padding_error(at, nbits), error)


def _swap(source: Array, target: Array) -> None:
    n = source.size
    launch_striding(device_with(source), "ranges", "swapped", n, source, n, target)
