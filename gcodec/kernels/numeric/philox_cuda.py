"""Launcher of philox.cu; see `gcodec.kernels.numeric.philox`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.numeric.philox import ROUNDING
from gcodec.runtime.cuda_grid import THREADS, striding_blocks
from gcodec.runtime.device import Device


def words(device: Device, seed: int, start: int, count: int, stream: int = ROUNDING) -> Any:
    """Random words of `count` elements from `start` on, on a device."""
    lead = start % 4
    n = lead + count
    out = device.empty(n, np.uint32)
    arguments = *map(np.uint64, (seed, start - lead, stream)), np.int64(n), out
    device.launch("philox", "words", striding_blocks(n), THREADS, *arguments)
    return out[lead:]
