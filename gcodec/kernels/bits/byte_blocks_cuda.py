"""Launchers of byte_blocks.cu; see `gcodec.kernels.bits.byte_blocks`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.bits.byte_blocks import LARGEST_STEP, SIZE
from gcodec.runtime.cuda_grid import device_with, striding_blocks


def quantize(values: Any) -> tuple[Any, Any]:
    """Return the steps and the codes."""
    device, n = device_with(values), values.size
    steps, codes = device.empty(-(-n // SIZE), np.float32), device.empty(n, np.uint8)
    arguments = values.view(np.uint32), np.int64(n), LARGEST_STEP.view(np.uint32)
    grid = striding_blocks(n, SIZE)
    device.launch(
        "byte_blocks", "quantize_bytes", grid, SIZE, *arguments, steps.view(np.uint32), codes
    )
    return steps, codes


def dequantize(steps: Any, codes: Any) -> Any:
    """Return the values."""
    device, n = device_with(codes), codes.size
    out = device.empty(n, np.float32)
    arguments = steps.view(np.uint32), codes, np.int64(n), out.view(np.uint32)
    device.launch("byte_blocks", "dequantize_bytes", striding_blocks(n, SIZE), SIZE, *arguments)
    return out
