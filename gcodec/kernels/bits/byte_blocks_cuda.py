"""Launchers of byte_blocks.cu; see `gcodec.kernels.bits.byte_blocks`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.byte_blocks import LARGEST_STEP, SIZE
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with, striding_blocks

_LARGEST_STEP_BITS = LARGEST_STEP.view(np.uint32)


def quantize(values: Array) -> tuple[Array, Array]:
    """Return the steps and the codes."""
    device, n = device_with(values), values.size
    steps, codes = device.empty(-(-n // SIZE), np.float32), device.empty(n, np.uint8)
    arguments = values, n, _LARGEST_STEP_BITS, steps, codes
    device.launch("byte_blocks", "quantize_bytes", striding_blocks(n, SIZE), SIZE, *arguments)
    return steps, codes


def dequantize(steps: Array, codes: Array) -> Array:
    """Return the values."""
    device, n = device_with(codes), codes.size
    out = device.empty(n, np.float32)
    arguments = steps, codes, n, out
    device.launch("byte_blocks", "dequantize_bytes", striding_blocks(n, SIZE), SIZE, *arguments)
    return out
