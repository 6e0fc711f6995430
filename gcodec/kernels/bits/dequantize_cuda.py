"""Launchers of dequantize.cu; see `gcodec.kernels.bits.dequantize`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.bits.dequantize import (
    LEVELS_1BIT,
    LEVELS_2BIT,
    LEVELS_IN_BYTES,
    LEVELS_LOW_FIRST,
    LEVELS_STRIDED,
    LevelCode,
)
from gcodec.runtime.cuda_grid import THREADS, blocks, device_with, word
from gcodec.runtime.device import Device

_NAMES = {
    LEVELS_1BIT: "dequantize_1bit",
    LEVELS_2BIT: "dequantize_2bit",
    LEVELS_LOW_FIRST: "dequantize_low_first",
    LEVELS_IN_BYTES: "dequantize_in_bytes",
} | dict.fromkeys(LEVELS_STRIDED, "dequantize_strided")


def dequantize(
    data: Any, code: LevelCode, level: np.float32, out: Any, add: np.float32 | None = None
) -> None:
    """Write to `out` what the fields of `data` stand for, or add a multiple of it."""
    device, n = device_with(data), out.size
    arguments = data, np.int64(n), np.int32(code.shift), *level_to_add(device, level, add)
    grid = blocks(n, per_thread=4)
    device.launch("dequantize", _NAMES[code], grid, THREADS, *arguments, out.view(np.uint32))


def level_to_add(device: Device, level: Any, add: np.float32 | None) -> tuple[Any, ...]:
    """Return a level, the multiple of it to add, and whether to, as kernels take them."""
    return word(device, level), np.float32(1) if add is None else add, np.int32(add is not None)
