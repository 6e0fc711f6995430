"""Chunks of a tensor: runs of consecutive elements, or tiles of a matrix.

The codec processes parts of several chunks, so that a part stays in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gcodec.kernels.numeric.arithmetic import add_scaled
from gcodec.kernels.transform.dct_inverse import Sizes

PART = 1 << 18  # most elements of a part, unless a single chunk has more


@dataclass(frozen=True)
class Runs:
    """Chunks of consecutive elements, the last of which is padded.

    Attributes
    ----------
    n : int
        Number of elements of the tensor.
    sizes : (int, int, int)
        Dimensions of a chunk.
    edge : bool
        Whether the padding repeats the tensor's last element; else it is 0.
    """

    n: int
    sizes: Sizes
    edge: bool

    @property
    def size(self) -> int:
        """Number of elements of a chunk."""
        return self.sizes[0] * self.sizes[1] * self.sizes[2]

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.n // self.size)

    def parts(self) -> list[tuple[int, int]]:
        """Return ranges of chunks, which do not depend on the number of threads."""
        step = max(PART // self.size, 1)
        return [(at, min(at + step, self.count)) for at in range(0, self.count, step)]

    def take(self, values: np.ndarray, first: int, stop: int) -> np.ndarray:
        """Return the chunks of a part of (n,) values as (stop - first, *sizes)."""
        part = values[first * self.size : stop * self.size]
        missing = (stop - first) * self.size - part.size
        if missing:
            part = np.append(part, np.full(missing, part[-1] if self.edge else 0, part.dtype))
        return part.reshape(-1, *self.sizes)

    def room(self, out: np.ndarray, first: int, stop: int) -> np.ndarray | None:
        """Return the flat view of `out` that a part fills, or None if the part needs `put`."""
        part = out[first * self.size : stop * self.size]
        return part if part.size == (stop - first) * self.size else None

    def put(
        self, part: np.ndarray, out: np.ndarray, first: int, stop: int, add: np.float32 | None
    ) -> None:
        """Copy the elements of a part to (n,) values, without the padding, or add a multiple."""
        target = out[first * self.size : stop * self.size]
        if add is None:
            target[:] = part[: target.size]
        else:
            add_scaled(part[: target.size], add, target)


@dataclass(frozen=True)
class Tiles:
    """Tiles of a matrix in row-major order, padded with its last row and column.

    Attributes
    ----------
    rows, columns : int
        Dimensions of the matrix.
    sizes : (1, int, int)
        Dimensions of a tile.
    """

    rows: int
    columns: int
    sizes: Sizes

    @property
    def size(self) -> int:
        """Number of elements of a tile."""
        return self.sizes[1] * self.sizes[2]

    @property
    def count(self) -> int:
        """Number of tiles."""
        return -(-self.rows // self.sizes[1]) * self._across

    @property
    def _across(self) -> int:
        return -(-self.columns // self.sizes[2])

    def parts(self) -> list[tuple[int, int]]:
        """Return ranges of tiles: several whole rows of tiles, or a piece of one row."""
        step, across = max(PART // self.size, 1), self._across
        if across <= step:
            step -= step % across
            return [(at, min(at + step, self.count)) for at in range(0, self.count, step)]
        return [
            (row + at, row + min(at + step, across))
            for row in range(0, self.count, across)
            for at in range(0, across, step)
        ]

    def take(self, values: np.ndarray, first: int, stop: int) -> np.ndarray:
        """Return the chunks of a part of (n,) values as (stop - first, *sizes)."""
        _, a, b = self.sizes
        down, across, strip = self._strip(values, first, stop)
        missing = down * a - strip.shape[0], across * b - strip.shape[1]
        if any(missing):
            strip = np.pad(strip, [(0, missing[0]), (0, missing[1])], mode="edge")
        return strip.reshape(down, a, across, b).swapaxes(1, 2).reshape(-1, 1, a, b)

    def room(self, out: np.ndarray, first: int, stop: int) -> None:
        """Return None, because the elements of a tile are not contiguous."""

    def put(
        self, part: np.ndarray, out: np.ndarray, first: int, stop: int, add: np.float32 | None
    ) -> None:
        """Copy the elements of a part to (n,) values, without the padding, or add a multiple."""
        _, a, b = self.sizes
        down, across, strip = self._strip(out, first, stop)
        if add is not None:
            part *= add
        tiles = part.reshape(down, across, a, b).swapaxes(1, 2)
        target, source = strip, tiles
        if strip.shape == (down * a, across * b):
            target = strip.reshape(down, a, across, b)  # a view
        else:
            source = tiles.reshape(down * a, across * b)[: strip.shape[0], : strip.shape[1]]
        if add is None:
            target[:] = source
        else:
            target += source

    def _strip(self, values: np.ndarray, first: int, stop: int) -> tuple[int, int, np.ndarray]:
        """Return the number of tiles of a part in each direction, and the submatrix it covers."""
        _, a, b = self.sizes
        across = min(stop - first, self._across)
        down = (stop - first) // across
        row, column = first // self._across * a, first % self._across * b
        matrix = values.reshape(self.rows, self.columns)
        return down, across, matrix[row : row + down * a, column : column + across * b]


Chunks = Runs | Tiles


def flat(n: int, chunk: tuple[int, ...]) -> Runs:
    """Return the chunks of ``layout=flat``: n elements, padded with zeros."""
    return Runs(n, _three(chunk), edge=False)


def tiles(n: int, columns: int | None, chunk: tuple[int, ...], most: int) -> Chunks:
    """Return the chunks of ``layout=tiles``.

    Parameters
    ----------
    n : int
        Number of elements of the tensor.
    columns : int or None
        Columns of the matrix; None for a vector.
    chunk : tuple of one or two int
        Dimensions of a tile. With one, a matrix is treated as a vector.
    most : int
        Largest number of elements of a chunk of a vector.
    """
    if columns is None or len(chunk) == 1 or n == 0:
        length = min(int(np.prod(chunk)), most, max(n, 1))
        return Runs(n, (1, 1, length), edge=True)
    rows, (a, b) = n // columns, chunk
    return Tiles(rows, columns, (1, min(a, rows), min(b, columns)))


def _three(chunk: tuple[int, ...]) -> Sizes:
    a, b, c = (1,) * (3 - len(chunk)) + chunk
    return a, b, c
