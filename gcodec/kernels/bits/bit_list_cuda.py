"""Offsets for kernels that list the one bits of words; see ``bit_list.cuh``."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, striding_blocks
from gcodec.runtime.device import Device

_PART = 512  # words that a warp processes


def blocks(words: int) -> int:
    """Return the number of blocks that list the bits of `words` words."""
    return striding_blocks(-(-words // _PART), 1, THREADS // 32)


def bits_before(device: Device, source: str, name: str, words: int, *args: Any) -> Array:
    """Return the number of one bits preceding each part, and in all parts, as int64.

    The kernel `name` counts the bits of each part; see ``count_bits`` in ``bit_list.cuh``.
    """
    parts = -(-words // _PART)
    counts, before = device.empty(parts, np.int64), device.empty(parts + 1, np.int64)
    device.launch(source, name, blocks(words), THREADS, *args, counts)
    sums_before(device, counts, before)
    return before
