"""Launchers of draw.cu; see `gcodec.kernels.numeric.draw`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gcodec.kernels.bits.bit_list_cuda import bits_before, blocks
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.device import Device

_FEW = 1 << 10  # that are missing, about, when one block goes on alone


def draw(n: int, k: int, seed: int, beside: Any = None) -> Any:
    """Draw k of n positions."""
    device, others = device_with(beside), 2 * k > n
    words, count = -(-n // 32), n - k if others else k
    marks = device.zeros(words, np.uint32)
    _mark(device, n, count, seed, marks)
    given = marks, np.int64(words), np.int64(n), np.int32(others)
    before = bits_before(device, "draw", "count_marks", words, *given)
    out = device.empty(k, np.int64)
    arguments = *given, before, out, np.int64(k)
    device.launch("draw", "list_marks", blocks(words), THREADS, *arguments)
    return out


def _mark(device: Device, n: int, count: int, seed: int, marks: Any) -> None:
    """Mark as many different draws."""
    state = device.zeros(3, np.uint64)
    if not count:
        return
    what = np.uint64(seed), np.uint64(n), np.int64(count), state
    # Of draws that are missing, about the share count / n is drawn again.
    rounds = 1 + math.ceil(max(math.log2(count / _FEW), 0) / math.log2(n / count))
    for _ in range(rounds):
        grid = striding_blocks(-(-count // 2) + 1)
        device.launch("draw", "mark_draws", grid, THREADS, *what, marks)
        device.launch("draw", "go_on", 1, 1, np.int64(count), state)
    device.launch("draw", "mark_rest", 1, THREADS, *what, marks)
