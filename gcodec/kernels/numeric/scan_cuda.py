"""Sums before each of many numbers on a device, or maxima; see ``scan.cu``."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.runtime.device import Device

_THREADS = 256
_TILE = 8 * _THREADS  # numbers that a block of threads scans


def sums_before(device: Device, numbers: Any, sums: Any) -> None:
    """Write the sum of the numbers before each of (n,) int64 `numbers`, and of all: (n + 1,)."""
    _scan(device, numbers, sums, "sum_tiles", "sums_before")


def maxima_before(device: Device, numbers: Any, maxima: Any) -> None:
    """Write the largest number before each of them, and of all; −2^63 where there is none."""
    _scan(device, numbers, maxima, "max_tiles", "maxima_before")


def _scan(device: Device, numbers: Any, out: Any, reduce: str, scan: str) -> None:
    n, tiles = np.int64(numbers.size), max(-(-numbers.size // _TILE), 1)
    before = numbers
    if tiles > 1:
        totals, before = device.empty(tiles, np.int64), device.empty(tiles + 1, np.int64)
        device.launch("scan", reduce, tiles, _THREADS, numbers, n, totals)
        _scan(device, totals, before, reduce, scan)
    device.launch("scan", scan, tiles, _THREADS, numbers, n, before, out)
