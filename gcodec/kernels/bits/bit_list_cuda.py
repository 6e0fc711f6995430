"""Counts of bits before each part of words, for kernels that list them; see ``bit_list.cuh``."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.runtime.cuda_grid import THREADS, striding_blocks
from gcodec.runtime.device import Device

_PART = 512  # words of a warp


def blocks(words: int) -> int:
    """Return how many blocks list the bits of so many words."""
    return striding_blocks(-(-words // _PART), 1, THREADS // 32)


def bits_before(device: Device, source: str, name: str, words: int, *args: Any) -> Any:
    """Return how many bits come before each part, and how many there are, as int64."""
    parts = -(-words // _PART)
    counts, before = device.empty(parts, np.int64), device.empty(parts + 1, np.int64)
    device.launch(source, name, blocks(words), THREADS, *args, counts)
    sums_before(device, counts, before)
    return before
