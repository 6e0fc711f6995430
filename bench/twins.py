"""Stream twins: kernels with the loads and stores of a real kernel, and no arithmetic.

A stream twin measures the limit set by the memory of the host; a memcpy measures the host's C
library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from gcodec.kernels.numeric.cache_lines import prefetch
from gcodec.runtime.jit import inline, kernel
from gcodec.runtime.lanes import Emitter, block, fence, lanes
from gcodec.runtime.memory import aligned_zeros

_TILE, _AHEAD, _LINE = 128, 512, 16
_LINE_NBYTES = 4 * _LINE
_GROUP = 64  # words of 32 bits that the stream reads or writes at a time


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
    arrays = [aligned_zeros(n * bits // 32, np.int32) for bits in (read_bits, write_bits)]
    return lambda: _stream(*arrays, np.zeros(_GROUP, np.int32))


@block("source", "i", "sums")
def _read_group(e: Emitter) -> None:
    values = e.fetched(e.address("source", "i"), lanes(32, _GROUP))
    so_far = e.load(e.args["sums"], lanes(32, _GROUP))
    e.store(e.builder.xor(values, so_far), e.args["sums"])


@block("target", "i")
def _write_group(e: Emitter) -> None:
    e.store(lanes(32, _GROUP)([1] * _GROUP), e.address("target", "i"), streaming=True)


@kernel("in int32[], out int32[], out int32[]")
def _stream(source, target, sums):
    """Read source, and write target past the cache, both at the same pace."""
    reads, writes = source.size // _GROUP, target.size // _GROUP
    steps, read, written = max(reads, writes), 0, 0
    for step in range(1, steps + 1):
        while read * steps < step * reads:
            _read_group(source, read * _GROUP, sums)
            read += 1
        while written * steps < step * writes:
            _write_group(target, written * _GROUP)
            written += 1
    fence()
