"""Launcher of signs.cu; see `gcodec.kernels.bits.signs`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.signs import SIGNS
from gcodec.kernels.numeric.reduce import LANES
from gcodec.kernels.numeric.reduce_cuda import fold, tiles
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred


def quantize(x: Array, squares: bool) -> tuple[Array, Deferred]:
    """Return signs, and a sum."""
    device, n = device_with(x), x.size
    words, sums = device.empty(-(-n // 32), np.uint32), device.empty(tiles(n), np.float64)
    device.launch("signs", "sign_tiles", tiles(n), LANES, x, n, squares, sums, words)
    return words.view(np.uint8)[: SIGNS.nbytes(n)], fold(sums)
