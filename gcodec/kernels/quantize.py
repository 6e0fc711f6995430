"""Quantisers that write packed codes directly, and their inverses: MXNet's 2-bit and 1-bit.

One pass over memory. The arithmetic is MXNet's: v = x + decay·residual, compare, residual = v −
what will be decoded, each step rounded once to float32. Quantising goes by blocks of 32 elements
in vector IR (`kernels/threshold.py`), dequantising by tiles of 128 through a scratch of codes that
stays in the first-level cache. The lines that later tiles need are already on their way: what the
processor prefetches by itself costs a quarter of the speed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.kernels import pool
from gcodec.kernels.jit import Kernel, inline, kernel
from gcodec.kernels.memory import aligned_empty, prefetch
from gcodec.kernels.pack import FieldLayout, split
from gcodec.kernels.threshold import BLOCK, threshold_block_1bit, threshold_block_2bit

TWO_BIT = FieldLayout(width=2, align=4)
ONE_BIT = FieldLayout(width=1, align=4)

_TILE = 128  # elements; a multiple of BLOCK, and whole words in both layouts
_AHEAD = 512  # elements between a tile and what is prefetched for a later one
_LINE = 16  # float32 elements in a cache line
_ZERO, _ONE = np.float32(0), np.float32(1)
_POSITIVE, _NEGATIVE = np.uint8(3), np.uint8(2)


def quantize_2bit(x: np.ndarray, threshold: np.float32) -> np.ndarray:
    """Codes of a (n,) float32 array: 11 for x ≥ t, 10 for x ≤ −t, else 00; packed bytes."""
    return _quantize(_quantize_2bit, TWO_BIT, x, None, _ZERO, threshold, threshold)


def quantize_2bit_residual(
    x: np.ndarray,
    residual: np.ndarray,
    decay: np.float32,
    threshold: np.float32,
    level: np.float32,
) -> np.ndarray:
    """Quantise v = x + decay·residual by `threshold`; residual becomes v − (±level or 0)."""
    return _quantize(_quantize_2bit, TWO_BIT, x, residual, decay, threshold, level)


def quantize_1bit(x: np.ndarray, threshold: np.float32) -> np.ndarray:
    """Codes of a (n,) float32 array: 1 for x > t, else 0; packed bytes."""
    return _quantize(_quantize_1bit, ONE_BIT, x, None, _ZERO, threshold, _ONE)


def quantize_1bit_residual(
    x: np.ndarray, residual: np.ndarray, decay: np.float32, threshold: np.float32
) -> np.ndarray:
    """Quantise v = x + decay·residual by `threshold`; residual becomes v − (±1)."""
    return _quantize(_quantize_1bit, ONE_BIT, x, residual, decay, threshold, _ONE)


def dequantize_2bit(data: np.ndarray, level: np.float32, out: np.ndarray, add: bool) -> None:
    """Write, or add, level for 11, −level for 10 and 0 for the others to (n,) float32 `out`."""
    _dequantize(_dequantize_2bit, TWO_BIT, data, level, out, add)


def dequantize_1bit(data: np.ndarray, level: np.float32, out: np.ndarray, add: bool) -> None:
    """Write, or add, level for 1 and −level for 0 to (n,) float32 `out`."""
    _dequantize(_dequantize_1bit, ONE_BIT, data, level, out, add)


def has_code_01(data: np.ndarray) -> bool:
    """Whether any 2-bit field of the bytes is 01, which no encoder writes."""
    return bool(_code_01_bits(data))


def _quantize(
    loop: Kernel,
    layout: FieldLayout,
    x: np.ndarray,
    residual: np.ndarray | None,
    *scalars: np.float32,
) -> np.ndarray:
    """Run a quantising kernel over `x`; return the packed codes, padded with zero bits."""
    n = x.size
    width = layout.width
    out = aligned_empty(layout.nbytes(n), np.uint8)

    def blocks(start: int, stop: int) -> None:
        part = out[start * width // 8 : stop * width // 8]
        if residual is None:
            nothing, spare = np.zeros(BLOCK, np.float32), np.empty(BLOCK, np.float32)
            loop(x[start:stop], nothing, spare, 0, *scalars, part)
        else:
            error = residual[start:stop]
            loop(x[start:stop], error, error, 1, *scalars, part)

    def padded(start: int, stop: int) -> None:
        # NaN reaches no threshold, so the bits of the padding are zero.
        some = np.full(_TILE, np.nan, np.float32)
        some[: stop - start] = x[start:stop]
        error = np.zeros(_TILE, np.float32)
        if residual is not None:
            error[: stop - start] = residual[start:stop]
        packed = np.empty(_TILE * width // 8, np.uint8)
        loop(some, error, error, 1, *scalars, packed)
        if residual is not None:
            residual[start:stop] = error[: stop - start]
        at = start * width // 8
        size = out.size - at if stop == n else (stop - start) * width // 8
        out[at : at + size] = packed[:size]

    _cover(blocks, padded, x if residual is None else residual, 8 // width)
    return out


def _dequantize(
    loop: Kernel,
    layout: FieldLayout,
    data: np.ndarray,
    level: np.float32,
    out: np.ndarray,
    add: bool,
) -> None:
    """Run a dequantising kernel over `out`."""
    width = layout.width

    def tiles(start: int, stop: int) -> None:
        part = data[start * width // 8 : stop * width // 8]
        loop(part, level, add, aligned_empty(_TILE, np.uint8), out[start:stop])

    def padded(start: int, stop: int) -> None:
        packed = np.zeros(_TILE * width // 8, np.uint8)
        part = data[start * width // 8 : -(-stop * width // 8)]
        packed[: part.size] = part
        some = np.zeros(_TILE, np.float32)
        some[: stop - start] = out[start:stop]
        loop(packed, level, add, aligned_empty(_TILE, np.uint8), some)
        out[start:stop] = some[: stop - start]

    _cover(tiles, padded, out, 8 // width)


def _cover(
    tiles: Callable[[int, int], None],
    padded: Callable[[int, int], None],
    stream: np.ndarray,
    step: int,
) -> None:
    """Cover a float32 stream: whole tiles on the pool, the two ends in a padded tile each.

    The first whole tile starts on a cache line of `stream` where a multiple of `step` elements
    reaches one: stores across two lines cost a tenth of the speed.
    """
    head = -(stream.ctypes.data // stream.itemsize) % _LINE
    if head % step or head > stream.size:
        head = 0
    stop = stream.size - (stream.size - head) % _TILE
    if head:
        padded(0, head)
    pool.run(lambda start, end: tiles(head + start, head + end), stop - head)
    if stop < stream.size:
        padded(stop, stream.size)


@inline
def _fetch(array, start):
    for i in range(start + _AHEAD, start + _AHEAD + _TILE, _LINE):
        prefetch(array, i)


@inline
def _value_2bit(code, level):
    return level if code == _POSITIVE else (-level if code == _NEGATIVE else _ZERO)


# In the kernels below x and out are whole tiles (a multiple of _TILE elements and the packed
# bytes of as many codes), and codes.size == _TILE. So every slice has its full length, and the
# loops over a block, over _TILE and over the lanes of a tile stay inside it. before and after are
# as long as x where stride is 1, and BLOCK long where it is 0.


@kernel("in float32[], in float32[], out float32[], int64, float32, float32, float32, out uint8[]")
def _quantize_2bit(x, before, after, stride, decay, threshold, level, out):
    for i in range(0, x.size, BLOCK):
        j = i * stride
        threshold_block_2bit(x, i, before, after, j, decay, threshold, level, out, i // 4)


@kernel("in float32[], in float32[], out float32[], int64, float32, float32, float32, out uint8[]")
def _quantize_1bit(x, before, after, stride, decay, threshold, level, out):
    for i in range(0, x.size, BLOCK):
        j = i * stride
        threshold_block_1bit(x, i, before, after, j, decay, threshold, level, out, i // 8)


@kernel("in uint8[], float32, boolean, out uint8[], out float32[]")
def _dequantize_2bit(data, level, add, codes, out):
    lanes = codes.view(np.uint32)
    for start in range(0, out.size, _TILE):
        _fetch(out, start)
        packed = data[start // 4 : start // 4 + _TILE // 4]
        for i in range(_TILE // 4):
            lanes[i] = np.uint32(split(split(np.uint64(packed[i]), 4, 16, True), 2, 8, True))
        values = out[start : start + _TILE]
        if add:
            for i in range(_TILE):
                values[i] += _value_2bit(codes[i], level)
        else:
            for i in range(_TILE):
                values[i] = _value_2bit(codes[i], level)


@kernel("in uint8[], float32, boolean, out uint8[], out float32[]")
def _dequantize_1bit(data, level, add, codes, out):
    lanes = codes.view(np.uint64)
    for start in range(0, out.size, _TILE):
        _fetch(out, start)
        packed = data[start // 8 : start // 8 + _TILE // 8]
        for i in range(_TILE // 8):
            x8 = split(split(np.uint64(packed[i]), 4, 32, True), 2, 16, True)
            lanes[i] = split(x8, 1, 8, True)
        values = out[start : start + _TILE]
        if add:
            for i in range(_TILE):
                values[i] += level if codes[i] else -level
        else:
            for i in range(_TILE):
                values[i] = level if codes[i] else -level


@kernel("in uint8[]")
def _code_01_bits(data):
    # The low bit of a field set without its high bit, gathered over all bytes.
    found = np.uint8(0)
    for i in range(data.size):
        found |= np.uint8(data[i] & np.uint8(~np.uint8(data[i] >> np.uint8(1))) & np.uint8(0x55))
    return found
