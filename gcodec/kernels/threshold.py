"""Quantisers that write packed codes directly, and their inverses: MXNet's 2-bit and 1-bit.

One pass over memory, by the blocks of `kernels/blocks.py`. The arithmetic is MXNet's: v = x +
decay·residual, compare, residual = v − what will be decoded, each step rounded once to float32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.kernels import pool
from gcodec.kernels.blocks import (
    BLOCK,
    add_1bit_block,
    add_2bit_block,
    fence,
    quantize_1bit_block,
    quantize_2bit_block,
    stream_1bit_block,
    stream_2bit_block,
    write_1bit_block,
    write_2bit_block,
)
from gcodec.kernels.jit import Kernel, kernel
from gcodec.kernels.memory import aligned_empty
from gcodec.kernels.pack import FieldLayout

TWO_BIT = FieldLayout(width=2, align=4)
ONE_BIT = FieldLayout(width=1, align=4)

_LINE = 64  # bytes in a cache line
_STREAMING = 1 << 22  # elements from which a result is too large to be found in a cache again
_WRITE, _STREAM, _ADD = 0, 1, 2
_ZERO, _ONE = np.float32(0), np.float32(1)


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
    out[-(-n * width // 8) :] = 0

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
        some = np.full(BLOCK, np.nan, np.float32)
        some[: stop - start] = x[start:stop]
        error = np.zeros(BLOCK, np.float32)
        if residual is not None:
            error[: stop - start] = residual[start:stop]
        packed = np.empty(BLOCK * width // 8, np.uint8)
        loop(some, error, error, 1, *scalars, packed)
        if residual is not None:
            residual[start:stop] = error[: stop - start]
        at, size = start * width // 8, -(-(stop - start) * width // 8)
        out[at : at + size] = packed[:size]

    head = _to_cache_line(x if residual is None else residual, 8 // width)
    _cover(blocks, padded, head, n)
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
    head = _to_cache_line(out, 8 // width)
    store = _ADD if add else _WRITE
    if not add and out.size >= _STREAMING and out[head:].ctypes.data % _LINE == 0:
        store = _STREAM

    def blocks(start: int, stop: int) -> None:
        part = data[start * width // 8 : stop * width // 8]
        loop(part, level, store, out[start:stop])

    def padded(start: int, stop: int) -> None:
        packed = np.zeros(BLOCK * width // 8, np.uint8)
        part = data[start * width // 8 : -(-stop * width // 8)]
        packed[: part.size] = part
        some = np.zeros(BLOCK, np.float32)
        some[: stop - start] = out[start:stop]
        loop(packed, level, _ADD if add else _WRITE, some)
        out[start:stop] = some[: stop - start]

    _cover(blocks, padded, head, out.size)


def _cover(
    blocks: Callable[[int, int], None],
    padded: Callable[[int, int], None],
    head: int,
    n: int,
) -> None:
    """Cover n elements: whole blocks from `head` on the pool, each end in a padded block."""
    stop = n - (n - head) % BLOCK
    if head:
        padded(0, head)
    pool.run(lambda start, end: blocks(head + start, head + end), stop - head)
    if stop < n:
        padded(stop, n)


def _to_cache_line(stream: np.ndarray, step: int) -> int:
    """Elements before the first cache line of a float32 stream, if a multiple of `step`, else 0.

    Stores across two lines cost a tenth of the speed. Packed bytes hold `step` elements each.
    """
    head = -(stream.ctypes.data // stream.itemsize) % (_LINE // stream.itemsize)
    return 0 if head % step or head > stream.size else head


# In the kernels below x and out are whole blocks: a multiple of BLOCK elements, and the packed
# bytes of as many codes. before and after are as long as x where stride is 1, and BLOCK long where
# it is 0. So each block lies inside its arrays.
#
# Blocks are taken from the two halves in turn: two streams keep more of the memory busy than one,
# which gains a tenth. An odd block in the middle comes last.


@kernel("in float32[], in float32[], out float32[], int64, float32, float32, float32, out uint8[]")
def _quantize_2bit(x, before, after, stride, decay, threshold, level, out):
    half = x.size // (2 * BLOCK) * BLOCK
    for i in range(0, half, BLOCK):
        for k in (i, half + i):
            j = k * stride
            quantize_2bit_block(x, k, before, after, j, decay, threshold, level, out, k // 4)
    for k in range(2 * half, x.size, BLOCK):
        j = k * stride
        quantize_2bit_block(x, k, before, after, j, decay, threshold, level, out, k // 4)


@kernel("in float32[], in float32[], out float32[], int64, float32, float32, float32, out uint8[]")
def _quantize_1bit(x, before, after, stride, decay, threshold, level, out):
    half = x.size // (2 * BLOCK) * BLOCK
    for i in range(0, half, BLOCK):
        for k in (i, half + i):
            j = k * stride
            quantize_1bit_block(x, k, before, after, j, decay, threshold, level, out, k // 8)
    for k in range(2 * half, x.size, BLOCK):
        j = k * stride
        quantize_1bit_block(x, k, before, after, j, decay, threshold, level, out, k // 8)


@kernel("in uint8[], float32, int64, out float32[]")
def _dequantize_2bit(data, level, store, out):
    half = out.size // (2 * BLOCK) * BLOCK
    if store == _STREAM:
        for k in range(0, out.size, BLOCK):
            stream_2bit_block(data, k // 4, level, out, k)
        fence()
    elif store == _ADD:
        for i in range(0, half, BLOCK):
            for k in (i, half + i):
                add_2bit_block(data, k // 4, level, out, k)
        for k in range(2 * half, out.size, BLOCK):
            add_2bit_block(data, k // 4, level, out, k)
    else:
        for i in range(0, half, BLOCK):
            for k in (i, half + i):
                write_2bit_block(data, k // 4, level, out, k)
        for k in range(2 * half, out.size, BLOCK):
            write_2bit_block(data, k // 4, level, out, k)


@kernel("in uint8[], float32, int64, out float32[]")
def _dequantize_1bit(data, level, store, out):
    half = out.size // (2 * BLOCK) * BLOCK
    if store == _STREAM:
        for k in range(0, out.size, BLOCK):
            stream_1bit_block(data, k // 8, level, out, k)
        fence()
    elif store == _ADD:
        for i in range(0, half, BLOCK):
            for k in (i, half + i):
                add_1bit_block(data, k // 8, level, out, k)
        for k in range(2 * half, out.size, BLOCK):
            add_1bit_block(data, k // 8, level, out, k)
    else:
        for i in range(0, half, BLOCK):
            for k in (i, half + i):
                write_1bit_block(data, k // 8, level, out, k)
        for k in range(2 * half, out.size, BLOCK):
            write_1bit_block(data, k // 8, level, out, k)


@kernel("in uint8[]")
def _code_01_bits(data):
    # The low bit of a field set without its high bit, gathered over all bytes. Masked at the end,
    # and every step cut to 8 bits, so that the loop runs on byte lanes.
    found = np.uint8(0)
    for i in range(data.size):
        high = np.uint8(data[i] >> np.uint8(1))
        found = np.uint8(found | np.uint8(data[i] & np.uint8(~high)))
    return found & np.uint8(0x55)
