"""Chunks of a tensor: runs of consecutive elements, or tiles of a matrix.

The codec processes parts of several chunks, so that a part stays in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gcodec.kernels.transform.chunk_layout import Layout, gather
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

    @property
    def layout(self) -> Layout:
        """Chunks as rows of a matrix."""
        return Layout(self.size, 1, self.size, self.edge)


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

    @property
    def layout(self) -> Layout:
        """Tiles of the matrix."""
        return Layout(self.columns, *self.sizes[1:], edge=True)


Chunks = Runs | Tiles


def take(chunks: Chunks, values: np.ndarray, first: int, stop: int) -> np.ndarray:
    """Return chunks of (n,) values as (stop - first, *sizes); a view of whole runs."""
    start, end = first * chunks.size, stop * chunks.size
    if isinstance(chunks, Runs) and end <= values.size:
        part = values[start:end]
    else:
        part = np.empty(end - start, np.float32)
        gather(values, chunks.layout, first, part)
    return part.reshape(-1, *chunks.sizes)


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
