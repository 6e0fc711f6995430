"""Sent elements of tiles: from the order of the tiles to that of the tensor.

The tensor is a matrix, cut into tiles of equal size that send equally many elements. The position
of an element is its number if all tiles follow one another, each of them row by row.
"""

from __future__ import annotations

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.jit import kernel


def sends(positions: np.ndarray, size: int, each: int) -> bool:
    """Return whether each tile of `size` elements has `each` of the (m·each,) int64 positions."""
    return all(
        pool.run(
            lambda start, stop: bool(_sends(positions[start:stop], start // each, size, each)),
            positions.size,
            each,
        )
    )


def in_tensor(
    positions: np.ndarray, values: np.ndarray, sides: tuple[int, int, int], each: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements at positions, ascending, and their values.

    Parameters
    ----------
    positions : (m,) int64 array
        Ascending; each tile has `each` of them, see `sends`.
    values : (m,) float32 array
    sides : (columns, height, width)
        Tiles beside each other, and rows and columns of a tile.
    each : int

    Returns
    -------
    elements : (m,) int64 array
    values : (m,) float32 array
    """
    columns, height, _ = sides
    elements, sorted_values = np.empty_like(positions), np.empty_like(values)

    def task(start: int, stop: int) -> None:
        band = start // (columns * each)
        own = elements[start:stop], sorted_values[start:stop]
        rows = np.empty(height, np.int64)
        _sort(positions[start:stop], values[start:stop], band, *sides, each, rows, *own)

    pool.run(task, positions.size, columns * each)
    return elements, sorted_values


@kernel("in int64[], int64, int64, int64")
def _sends(positions, first, size, each):
    for tile in range(positions.size // each):
        low, wrong = (first + tile) * size, False
        for j in range(tile * each, (tile + 1) * each):
            wrong |= np.uint64(positions[j] - low) >= np.uint64(size)
        if wrong:
            return False
    return True


@kernel(
    "in int64[], in float32[], int64, int64, int64, int64, int64, out int64[], out int64[], "
    "out float32[]",
    vectorized=False,
)
def _sort(positions, values, first, columns, height, width, each, rows, elements, sorted_values):
    # Sorts the elements of each band of tiles by row, which keeps those of a row in order.
    # positions.size == values.size == elements.size == sorted_values.size is a multiple of
    # columns * each; all positions are in their tiles, so rows below `height`, rows.size.
    size = height * width
    for band in range(positions.size // (columns * each)):
        begin = band * columns * each
        low = (first + band) * columns * size
        rows[:] = 0
        for tile in range(columns):
            for j in range(begin + tile * each, begin + (tile + 1) * each):
                inside = np.uint32(positions[j] - low - tile * size)
                rows[np.int64(inside // np.uint32(width))] += 1
        place = begin
        for row in range(height):
            rows[row], place = place, place + rows[row]
        for tile in range(columns):
            for j in range(begin + tile * each, begin + (tile + 1) * each):
                inside = np.uint32(positions[j] - low - tile * size)
                row = np.int64(inside // np.uint32(width))
                column = np.int64(inside) - row * width
                elements[rows[row]] = low + (row * columns + tile) * width + column
                sorted_values[rows[row]] = values[j]
                rows[row] += 1
