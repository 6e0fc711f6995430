"""Reductions whose result does not depend on threads or device.

Sums follow one written order: tiles of 4096 elements; in a tile, lane t of 256 adds elements t,
t + 256, … in float64; the lanes are added by a binary tree (128, 64, … 1); the tile sums are
reduced by the same rule until one is left. Squares of float32 are exact in float64, so a device
that fuses multiply and add gets the same bits.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels import pool
from gcodec.kernels.jit import inline, kernel
from gcodec.kernels.memory import float_bits

TILE = 4096
LANES = 256
_INFINITY_BITS = 0x7F800000


def sum_squares(x: np.ndarray) -> float:
    """Sum of squares of a (n,) float32 array, in float64 by the fixed order."""
    sums = np.empty(-(-x.size // TILE), np.float64)

    def task(start: int, stop: int) -> None:
        _tile_sums_of_squares(
            x[start:stop], np.empty(LANES), sums[start // TILE : -(-stop // TILE)]
        )

    pool.run(task, x.size)
    while sums.size > 1:
        above = np.empty(-(-sums.size // TILE), np.float64)
        _tile_sums(sums, np.empty(LANES), above)
        sums = above
    return float(sums[0]) if sums.size else 0.0


def max_abs_bits(x: np.ndarray) -> int:
    """Bit pattern of the largest |x| of a (n,) float32 array; NaN counts above infinity."""
    bits = x.view(np.uint32)
    largest = np.zeros(-(-x.size // pool.SEGMENT) + 1, np.uint32)

    def task(start: int, stop: int) -> None:
        _max_abs_bits(bits[start:stop], largest[start // pool.SEGMENT :])

    pool.run(task, x.size)
    return int(largest.max())


def all_finite(x: np.ndarray) -> bool:
    """Whether a (n,) float32 array holds neither NaN nor infinity."""
    return max_abs_bits(x) < _INFINITY_BITS


def all_finite_corrected(x: np.ndarray, residual: np.ndarray, decay: np.float32) -> bool:
    """Whether x + decay·residual of (n,) float32 arrays holds neither NaN nor infinity."""
    largest = np.zeros(-(-x.size // pool.SEGMENT) + 1, np.uint32)

    def task(start: int, stop: int) -> None:
        part = largest[start // pool.SEGMENT :]
        _max_abs_bits_corrected(x[start:stop], residual[start:stop], decay, part)

    pool.run(task, x.size)
    return int(largest.max()) < _INFINITY_BITS


@inline
def _add_lanes(lanes):
    width = LANES // 2
    while width >= 1:
        for t in range(width):  # t + width < 2 * width <= LANES
            lanes[t] += lanes[t + width]
        width //= 2
    return lanes[0]


@kernel("in float32[], out float64[], out float64[]")
def _tile_sums_of_squares(x, lanes, sums):
    # sums.size == ceil(x.size / TILE); lanes.size == LANES
    for tile in range(sums.size):
        values = x[tile * TILE : tile * TILE + TILE]
        lanes[:] = 0.0
        rows = values.size // LANES
        for row in range(rows):
            line = values[row * LANES : row * LANES + LANES]
            for t in range(LANES):  # line.size == LANES
                value = np.float64(line[t])
                lanes[t] += value * value
        rest = values[rows * LANES :]
        for t in range(rest.size):  # rest.size < LANES
            value = np.float64(rest[t])
            lanes[t] += value * value
        sums[tile] = _add_lanes(lanes)


@kernel("in float64[], out float64[], out float64[]")
def _tile_sums(x, lanes, sums):
    # sums.size == ceil(x.size / TILE); lanes.size == LANES
    for tile in range(sums.size):
        values = x[tile * TILE : tile * TILE + TILE]
        lanes[:] = 0.0
        for i in range(values.size):  # i % LANES < LANES
            lanes[i % LANES] += values[i]
        sums[tile] = _add_lanes(lanes)


@kernel("in float32[], in float32[], float32, out uint32[]")
def _max_abs_bits_corrected(x, residual, decay, largest):
    # x.size == residual.size; largest.size >= 1
    top = np.uint32(0)
    for i in range(x.size):
        value = np.uint32(float_bits(x[i] + decay * residual[i]) & np.uint32(0x7FFFFFFF))
        top = max(top, value)
    largest[0] = top


@kernel("in uint32[], out uint32[]")
def _max_abs_bits(bits, largest):
    # largest.size >= 1
    top = np.uint32(0)
    for i in range(bits.size):
        value = np.uint32(bits[i] & np.uint32(0x7FFFFFFF))
        top = max(top, value)
    largest[0] = top
