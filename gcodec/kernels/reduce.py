"""Reductions whose result does not depend on threads or device.

Sums follow one written order: tiles of 4096 elements; in a tile, lane t of 256 adds elements t,
t + 256, … in float64; the lanes are added by a binary tree (128, 64, … 1); the tile sums are
reduced by the same rule until one is left. Squares of float32 are exact in float64, so a device
that fuses multiply and add gets the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels import pool
from gcodec.kernels.jit import inline, kernel
from gcodec.kernels.lanes import BLOCK, Emitter, block, doubles, floats, lanes
from gcodec.kernels.memory import float_bits

TILE = 4096
LANES = 256
INFINITY_BITS = 0x7F800000  # of a float32; those of NaN are above


class Moments(NamedTuple):
    """What one pass over an array of n float32 elements tells.

    Attributes
    ----------
    total, squares : float
        Sums of the values and of their squares, in float64 by the fixed order.
    largest : int
        Bit pattern of the largest absolute value; NaN counts above infinity.
    """

    total: float
    squares: float
    largest: int


def moments(x: np.ndarray) -> Moments:
    """Sum, sum of squares and largest absolute value of a (n,) float32 array."""
    tiles = -(-x.size // TILE)
    sums, squares = np.empty(tiles, np.float64), np.empty(tiles, np.float64)

    def task(start: int, stop: int) -> int:
        part = slice(start // TILE, -(-stop // TILE))
        scratch = np.empty(2 * LANES), np.zeros(BLOCK, np.uint32), np.zeros(BLOCK, np.float32)
        return int(_tile_moments(x[start:stop], *scratch, sums[part], squares[part]))

    largest = max(pool.run(task, x.size, TILE))
    return Moments(fold(sums), fold(squares), largest)


def sum_squares(x: np.ndarray) -> float:
    """Sum of squares of a (n,) float32 array, in float64 by the fixed order."""
    sums = np.empty(-(-x.size // TILE), np.float64)

    def task(start: int, stop: int) -> None:
        part = sums[start // TILE : -(-stop // TILE)]
        _tile_squares(x[start:stop], np.empty(LANES), np.zeros(BLOCK, np.float32), part)

    pool.run(task, x.size, TILE)
    return fold(sums)


def fold(sums: np.ndarray) -> float:
    """Reduce the (n,) float64 sums of tiles by the rule of tiles."""
    while sums.size > 1:
        above = np.empty(-(-sums.size // TILE), np.float64)
        _tile_sums(sums, np.empty(LANES), above)
        sums = above
    return float(sums[0]) if sums.size else 0.0


def max_abs_bits(x: np.ndarray) -> int:
    """Bit pattern of the largest |x| of a (n,) float32 array; NaN counts above infinity."""
    bits = x.view(np.uint32)
    return max(pool.run(lambda i, j: int(_max_abs_bits(bits[i:j])), x.size))


def all_finite(x: np.ndarray) -> bool:
    """Whether a (n,) float32 array holds neither NaN nor infinity."""
    return max_abs_bits(x) < INFINITY_BITS


def all_finite_corrected(x: np.ndarray, residual: np.ndarray, decay: np.float32) -> bool:
    """Whether x + decay·residual of (n,) float32 arrays holds neither NaN nor infinity."""

    def task(start: int, stop: int) -> int:
        return int(_max_abs_bits_corrected(x[start:stop], residual[start:stop], decay))

    return max(pool.run(task, x.size)) < INFINITY_BITS


@inline
def add_lanes(lanes):
    """Sum of LANES float64 lanes, by a binary tree."""
    width = LANES // 2
    while width >= 1:
        for t in range(width):  # t + width < 2 * width <= LANES
            lanes[t] += lanes[t + width]
        width //= 2
    return lanes[0]


def emit_accumulate(e: Emitter, values: Any, lanes_at: Any) -> None:
    """Emit the addition of 32 float64 values to the lanes at an address."""
    e.store(e.builder.fadd(e.load(lanes_at, doubles(), 8), values), lanes_at, 8)


@block("x", "i", "sums", "squares", "t", "largest", "zero")
def _add_moments(e: Emitter) -> None:
    """Add 32 elements of x from i, and their squares, to lanes from t; raise `largest`."""
    builder = e.builder
    source = e.address("x", "i")
    e.fetch(source)
    x = e.load(source, floats())
    wide = builder.fpext(x, doubles())
    emit_accumulate(e, wide, e.address("sums", "t"))
    emit_accumulate(e, builder.fmul(wide, wide), e.address("squares", "t"))
    bits = builder.and_(builder.bitcast(x, lanes(32)), lanes(32)([0x7FFFFFFF] * BLOCK))
    at = e.address("largest", "zero")
    top = e.load(at, lanes(32))
    e.store(builder.select(builder.icmp_unsigned(">", bits, top), bits, top), at)


@block("x", "i", "squares", "t")
def _add_squares(e: Emitter) -> None:
    """Add the squares of 32 elements of x from i to lanes from t."""
    source = e.address("x", "i")
    e.fetch(source)
    wide = e.builder.fpext(e.load(source, floats()), doubles())
    emit_accumulate(e, e.builder.fmul(wide, wide), e.address("squares", "t"))


# In the next two, sums.size == ceil(x.size / TILE), and the BLOCK elements of rest are zeros,
# which complete the last block: adding 0 changes no lane. A block's lanes begin at a multiple of
# BLOCK below LANES, so they lie inside.


@kernel("in float32[], out float64[], out uint32[], out float32[], out float64[], out float64[]")
def _tile_moments(x, scratch, top, rest, sums, squares):
    # scratch.size == 2 * LANES; top is BLOCK zeros
    lanes_1, lanes_2 = scratch[:LANES], scratch[LANES:]
    for tile in range(sums.size):
        scratch[:] = 0.0
        values = x[tile * TILE : tile * TILE + TILE]
        whole = values.size - values.size % BLOCK
        for i in range(0, whole, BLOCK):
            _add_moments(values, i, lanes_1, lanes_2, i % LANES, top, 0)
        if whole < values.size:
            for i in range(values.size - whole):  # fewer than BLOCK
                rest[i] = values[whole + i]
            _add_moments(rest, 0, lanes_1, lanes_2, whole % LANES, top, 0)
        sums[tile], squares[tile] = add_lanes(lanes_1), add_lanes(lanes_2)
    return top.max()


@kernel("in float32[], out float64[], out float32[], out float64[]")
def _tile_squares(x, lanes, rest, sums):
    # lanes.size == LANES
    for tile in range(sums.size):
        lanes[:] = 0.0
        values = x[tile * TILE : tile * TILE + TILE]
        whole = values.size - values.size % BLOCK
        for i in range(0, whole, BLOCK):
            _add_squares(values, i, lanes, i % LANES)
        if whole < values.size:
            for i in range(values.size - whole):  # fewer than BLOCK
                rest[i] = values[whole + i]
            _add_squares(rest, 0, lanes, whole % LANES)
        sums[tile] = add_lanes(lanes)


@kernel("in float64[], out float64[], out float64[]")
def _tile_sums(x, lanes, sums):
    # sums.size == ceil(x.size / TILE); lanes.size == LANES
    for tile in range(sums.size):
        values = x[tile * TILE : tile * TILE + TILE]
        lanes[:] = 0.0
        for i in range(values.size):  # i % LANES < LANES
            lanes[i % LANES] += values[i]
        sums[tile] = add_lanes(lanes)


@kernel("in float32[], in float32[], float32")
def _max_abs_bits_corrected(x, residual, decay):
    # x.size == residual.size
    top = np.uint32(0)
    for i in range(x.size):
        value = np.uint32(float_bits(x[i] + decay * residual[i]) & np.uint32(0x7FFFFFFF))
        top = max(top, value)
    return top


@kernel("in uint32[]")
def _max_abs_bits(bits):
    top = np.uint32(0)
    for i in range(bits.size):
        value = np.uint32(bits[i] & np.uint32(0x7FFFFFFF))
        top = max(top, value)
    return top
