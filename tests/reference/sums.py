"""Sums of float32 data in a fixed order (``docs/wire-format.md``, rule E2).

All arithmetic is float64. A tile is 4096 elements. Lane t of 256 starts from 0 and adds elements
t, t + 256, ... of the tile in this order; then lane t adds lane t + 128, then t + 64, ... t + 1.
The sums of the tiles are summed by the same rule until a single sum remains. Missing elements of a
short tile add nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TILE = 4096
LANES = 256


def _tile_sum(tile: NDArray[np.float64]) -> np.float64:
    """Return the sum of one tile."""
    lanes = np.zeros(LANES)
    for start in range(0, len(tile), LANES):
        row = tile[start : start + LANES]
        lanes[: len(row)] += row
    half = LANES // 2
    while half >= 1:
        lanes[:half] += lanes[half : 2 * half]
        half //= 2
    return np.float64(lanes[0])


def tree_sum(values: NDArray[np.float64]) -> np.float64:
    """Return the sum of ``values`` in the fixed order; 0.0 for none."""
    values = np.asarray(values, np.float64)
    if len(values) == 0:
        return np.float64(0.0)
    with np.errstate(all="ignore"):
        while True:
            starts = range(0, len(values), TILE)
            values = np.array([_tile_sum(values[s : s + TILE]) for s in starts], np.float64)
            if len(values) == 1:
                return np.float64(values[0])


def sum_squares(x: NDArray[np.float32]) -> np.float64:
    """Return the sum of the squares of ``x``; each square is exact in float64."""
    with np.errstate(all="ignore"):
        wide = np.asarray(x, np.float32).astype(np.float64)
        return tree_sum(wide * wide)


def sum_abs(x: NDArray[np.float32]) -> np.float64:
    """Return the sum of the magnitudes of ``x``."""
    with np.errstate(all="ignore"):
        return tree_sum(np.abs(np.asarray(x, np.float32).astype(np.float64)))


def sum_values(x: NDArray[np.float32]) -> np.float64:
    """Return the sum of ``x``."""
    return tree_sum(np.asarray(x, np.float32).astype(np.float64))
