"""Stream twins: kernels with the loads and stores of a real one, and no work in between.

They tell what the memory of this host allows, where a memcpy tells what its library does.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.jit import inline, kernel
from gcodec.kernels.memory import prefetch

_TILE, _AHEAD, _LINE = 128, 512, 16


@inline
def _fetch(array, start):
    for i in range(start + _AHEAD, start + _AHEAD + _TILE, _LINE):
        prefetch(array, i)


@kernel("in float32[], out float32[], out uint8[], int64")
def quantize_residual(x, residual, out, width):
    """Read x, read and write residual, write `width` bits per element."""
    for start in range(0, x.size - _TILE + 1, _TILE):
        _fetch(x, start)
        _fetch(residual, start)
        values = x[start : start + _TILE]
        error = residual[start : start + _TILE]
        for i in range(_TILE):
            error[i] += values[i]
        packed = out[start * width // 8 : (start + _TILE) * width // 8]
        for i in range(packed.size):
            packed[i] = np.uint8(i)


@kernel("in uint8[], out float32[], int64, boolean")
def dequantize(data, out, width, add):
    """Read `width` bits per element; write out, or read and write it."""
    for start in range(0, out.size - _TILE + 1, _TILE):
        _fetch(out, start)
        value = np.float32(data[start * width // 8])
        values = out[start : start + _TILE]
        if add:
            for i in range(_TILE):
                values[i] += value
        else:
            for i in range(_TILE):
                values[i] = value


@kernel("in float32[], out float32[]")
def read(x, lanes):
    """Read x."""
    for start in range(0, x.size - _TILE + 1, _TILE):
        _fetch(x, start)
        values = x[start : start + _TILE]
        for i in range(_TILE):
            lanes[i] += values[i]
