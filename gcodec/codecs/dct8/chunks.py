"""Chunks of a tensor: runs of consecutive elements, or tiles of a matrix.

The codec processes parts of several chunks, so that a part stays in the cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gcodec.kernels.numeric.convert import ConvertedArray, selected
from gcodec.kernels.transform.chunk_layout import Layout, gather
from gcodec.kernels.transform.dct_inverse import Sizes

PART = 1 << 18  # most elements of a part, unless a single chunk has more


@dataclass(frozen=True)
class Chunks:
    """Chunks of a tensor in row-major order.

    Attributes
    ----------
    n : int
        Number of elements of the tensor.
    layout : Layout
        Where the chunks are; a run is a whole row of a matrix.
    sizes : (int, int, int)
        Dimensions of a chunk.
    """

    n: int
    layout: Layout
    sizes: Sizes

    @classmethod
    def runs(cls, n: int, sizes: Sizes, *, edge: bool) -> Chunks:
        """Return runs of n elements, which are padded with the last element if `edge`, or with 0.

        `sizes` contains the dimensions of a run as a chunk.
        """
        size = math.prod(sizes)
        return cls(n, Layout(size, 1, size, edge), sizes)

    @classmethod
    def tiles(cls, rows: int, columns: int, height: int, width: int) -> Chunks:
        """Return the tiles of a matrix, which is padded with its last row and column."""
        return cls(rows * columns, Layout(columns, height, width, edge=True), (1, height, width))

    @property
    def size(self) -> int:
        """Number of elements of a chunk."""
        return self.layout.height * self.layout.width

    @property
    def count(self) -> int:
        """Number of chunks."""
        columns, height, width, _ = self.layout
        rows = -(-self.n // columns)
        return -(-rows // height) * -(-columns // width)

    @property
    def are_runs(self) -> bool:
        """Whether each chunk consists of consecutive elements."""
        return self.layout.height == 1 and self.layout.width == self.layout.columns

    def parts(self) -> list[tuple[int, int]]:
        """Return ranges of chunks, which do not depend on the number of threads.

        A part consists of several whole rows of tiles, or is a piece of one row.
        """
        count, step = self.count, max(PART // self.size, 1)
        across = -(-self.layout.columns // self.layout.width)
        if across <= step:
            step -= step % across
            return [(at, min(at + step, count)) for at in range(0, count, step)]
        return [
            (row + at, row + min(at + step, across))
            for row in range(0, count, across)
            for at in range(0, across, step)
        ]


def take(chunks: Chunks, values: np.ndarray | ConvertedArray, first: int, stop: int) -> np.ndarray:
    """Return chunks of (n,) values as (stop - first, *sizes); a view of whole runs."""
    start, end = first * chunks.size, stop * chunks.size
    if chunks.are_runs and end <= values.size:
        part = values[start:end]
    else:
        part = np.empty(end - start, np.float32)
        if isinstance(values, ConvertedArray):
            _gather_converted(chunks, values, first, stop, part)
        else:
            gather(values, chunks.layout, first, part)
    return part.reshape(-1, *chunks.sizes)


def _gather_converted(
    chunks: Chunks, values: ConvertedArray, first: int, stop: int, out: np.ndarray
) -> None:
    """Write the chunks of a part to `out`, and convert no other elements than theirs."""
    columns, height, width, edge = chunks.layout
    across = -(-columns // width)
    above, left = divmod(first, across)
    band = slice(above * height * columns, -(-stop // across) * height * columns)
    if left == 0 and stop % across == 0:
        gather(values[band], chunks.layout, 0, out)
        return
    end = min((left + stop - first) * width, columns)

    def rectangle(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array[band].reshape(-1, columns)[:, left * width : end])

    part = selected(values, lambda array: rectangle(array).reshape(-1))
    gather(part, Layout(end - left * width, height, width, edge), 0, out)


def flat(n: int, chunk: tuple[int, ...]) -> Chunks:
    """Return the chunks of ``layout=flat``: n elements, padded with zeros."""
    a, b, c = (1,) * (3 - len(chunk)) + chunk
    return Chunks.runs(n, (a, b, c), edge=False)


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
        return Chunks.runs(n, (1, 1, min(math.prod(chunk), most, max(n, 1))), edge=True)
    rows, (height, width) = n // columns, chunk
    return Chunks.tiles(rows, columns, min(height, rows), min(width, columns))
