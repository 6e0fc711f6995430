"""Launcher of dequantize.cu; see `gcodec.kernels.bits.dequantize`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.dequantize import LevelCode
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, blocks, device_with, factor_to_add, word
from gcodec.runtime.deferred import Deferred

_MEANINGS = {"sent-plus": 0, "minus-plus": 1, "shifted": 2}


def dequantize(
    data: Array,
    code: LevelCode,
    level: np.float32 | Deferred,
    out: Array,
    add: np.float32 | None = None,
) -> None:
    """Write the values of the fields of `data` to `out`, or add a multiple of them."""
    device, n = device_with(data), out.size
    layout = code.width, code.order == "lsb", code.spread, code.shift, _MEANINGS[code.meaning]
    arguments = data, n, *layout, word(device, level), *factor_to_add(add), out
    device.launch("dequantize", "dequantize_codes", blocks(n, per_thread=4), THREADS, *arguments)
