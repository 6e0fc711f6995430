"""Launcher of signs.cu; see `gcodec.kernels.bits.signs`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.bits.signs import SIGNS
from gcodec.kernels.numeric.reduce import LANES
from gcodec.kernels.numeric.reduce_cuda import fold, tiles
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred


def quantize(x: Any, squares: bool) -> tuple[Any, Deferred]:
    """Signs, and a sum."""
    device, n = device_with(x), x.size
    words, sums = device.empty(-(-n // 32), np.uint32), device.empty(tiles(n), np.float64)
    arguments = x, np.int64(n), np.int32(squares), sums, words
    device.launch("signs", "sign_tiles", tiles(n), LANES, *arguments)
    return words.view(np.uint8)[: SIGNS.nbytes(n)], fold(sums)
