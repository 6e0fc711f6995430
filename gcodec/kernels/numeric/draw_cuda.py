"""Launchers of draw.cu; see `gcodec.kernels.numeric.draw`."""

from __future__ import annotations

import math

import numpy as np

from gcodec.kernels.bits.bit_list_cuda import bits_before, blocks
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, launch_striding
from gcodec.runtime.device import Device

_FEW = 1 << 10  # approximate number of missing draws that a single block completes


def draw(n: int, k: int, seed: int, beside: Array = None) -> Array:
    """Draw k of n positions."""
    device, complement = device_with(beside), 2 * k > n
    words, count = -(-n // 32), n - k if complement else k
    marks = device.zeros(words, np.uint32)
    _mark(device, n, count, seed, marks)
    bitmap = marks, words, n, complement
    before = bits_before(device, "draw", "count_marks", words, *bitmap)
    out = device.empty(k, np.int64)
    device.launch("draw", "list_marks", blocks(words), THREADS, *bitmap, before, out, k)
    return out


def _mark(device: Device, n: int, count: int, seed: int, marks: Array) -> None:
    """Mark `count` different draws."""
    if not count:
        return
    state = device.zeros(3, np.uint64)
    arguments = seed, n, count, state, marks
    # Of the missing draws, a share of about count / n repeats earlier draws.
    rounds = 1 + math.ceil(max(math.log2(count / _FEW), 0) / math.log2(n / count))
    for _ in range(rounds):
        launch_striding(device, "draw", "mark_draws", -(-count // 2) + 1, *arguments)
        device.launch("draw", "go_on", 1, 1, count, state)
    device.launch("draw", "mark_rest", 1, THREADS, *arguments)
