"""Exclusive prefix sums and maxima on a device; see ``scan.cu``."""

from __future__ import annotations

import numpy as np

from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS
from gcodec.runtime.device import Device

_TILE = 8 * THREADS  # numbers that a block scans


def sums_before(device: Device, numbers: Array, sums: Array) -> None:
    """Write the sum preceding each of (n,) int64 `numbers`, and the total, to (n + 1,) `sums`."""
    _scan(device, numbers, sums, maxima=False)


def maxima_before(device: Device, numbers: Array, maxima: Array) -> None:
    """Write the maximum preceding each number, and of all; −2^63 if no number precedes."""
    _scan(device, numbers, maxima, maxima=True)


def _scan(device: Device, numbers: Array, out: Array, *, maxima: bool) -> None:
    n = numbers.size
    tiles, before = max(-(-n // _TILE), 1), numbers
    if tiles > 1:
        totals, before = device.empty(tiles, np.int64), device.empty(tiles + 1, np.int64)
        device.launch("scan", "reduce_tiles", tiles, THREADS, numbers, n, maxima, totals)
        _scan(device, totals, before, maxima=maxima)
    device.launch("scan", "scan_tiles", tiles, THREADS, numbers, n, maxima, before, out)
