"""Stream twins: kernels with the loads and stores of a real kernel, and no arithmetic.

A stream twin measures the limit set by the memory of the host; a memcpy measures the host's C
library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.runtime.jit import inline, intrinsic, kernel
from gcodec.runtime.memory import emit_prefetch

_TILE, _AHEAD, _LINE = 128, 512, 16
_LINE_NBYTES = 4 * _LINE


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of ``array[index]``; never faults, even beyond the end."""
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        emit_prefetch(builder, builder.gep(data, [args[1]]))
        return context.get_dummy_value()

    return types.void(array, index), generate


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


@kernel("in uint8[], out float32[], int64")
def dequantize(data, out, width):
    """Read `width` bits per element, and write out."""
    for start in range(0, out.size - _TILE + 1, _TILE):
        _fetch(out, start)
        value = np.float32(data[start * width // 8])
        values = out[start : start + _TILE]
        for i in range(_TILE):
            values[i] = value


@kernel("in uint8[], out float32[]")
def add(data, out):
    """Read all cache lines of data, read and write out."""
    tiles, lines = out.size // _TILE, data.size // _LINE_NBYTES
    for tile in range(tiles):
        start = tile * _TILE
        _fetch(out, start)
        byte = np.uint8(0)
        for line in range(tile * lines // tiles, (tile + 1) * lines // tiles):
            prefetch(data, line * _LINE_NBYTES + _AHEAD)
            byte ^= data[line * _LINE_NBYTES]
        value = np.float32(byte)
        values = out[start : start + _TILE]
        for i in range(_TILE):
            values[i] += value


@functools.cache  # so that rows share the memory
def stream(n: int, read_bits: int, write_bits: int) -> Callable[[], None]:
    """Return a twin that reads and writes the given number of bits per element."""
    source = np.ones(max(n * read_bits // 64, 1), np.uint64)
    target = np.ones(max(n * write_bits // 64, 1), np.uint64)
    # Words per 64 elements, and as many accumulators.
    lanes = np.zeros(read_bits, np.uint64)
    return lambda: _stream(source, target, read_bits, write_bits, n // 64, lanes)


@kernel("in uint64[], out uint64[], int64, int64, int64, out uint64[]")
def _stream(source, target, reads, writes, blocks, lanes):
    for b in range(blocks):
        words = source[b * reads : b * reads + reads]
        for i in range(words.size):
            lanes[i] ^= words[i]
        words = target[b * writes : b * writes + writes]
        for i in range(words.size):
            words[i] = np.uint64(b)
