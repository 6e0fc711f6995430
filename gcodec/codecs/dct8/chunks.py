"""Chunks of a tensor: runs of its elements, or tiles of a matrix.

Both are taken out and put back in parts of several chunks, so that a part stays in a cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gcodec.kernels.transform.dct_inverse import Sizes

PART = 1 << 18  # elements, at most where a chunk has no more


@dataclass(frozen=True)
class Runs:
    """Chunks of elements that follow one another; the last one is filled up.

    Attributes
    ----------
    n : int
        Elements of the tensor.
    sizes : (int, int, int)
        Of a chunk.
    edge : bool
        Whether the tensor's last element fills up, or else 0.
    """

    n: int
    sizes: Sizes
    edge: bool

    @property
    def size(self) -> int:
        """Elements of a chunk."""
        return self.sizes[0] * self.sizes[1] * self.sizes[2]

    @property
    def count(self) -> int:
        """How many chunks there are."""
        return -(-self.n // self.size)

    def parts(self) -> list[tuple[int, int]]:
        """Return ranges of chunks, the same for any number of threads."""
        step = max(PART // self.size, 1)
        return [(at, min(at + step, self.count)) for at in range(0, self.count, step)]

    def take(self, values: np.ndarray, first: int, stop: int) -> np.ndarray:
        """Return a part of (n,) values as (stop - first, *sizes)."""
        part = values[first * self.size : stop * self.size]
        missing = (stop - first) * self.size - part.size
        if missing:
            part = np.append(part, np.full(missing, part[-1] if self.edge else 0, part.dtype))
        return part.reshape(-1, *self.sizes)

    def room(self, out: np.ndarray, first: int, stop: int) -> np.ndarray | None:
        """Return where in (n,) values a part can be made, flat; None: elsewhere, then `put`."""
        part = out[first * self.size : stop * self.size]
        return part if part.size == (stop - first) * self.size else None

    def put(self, made: np.ndarray, out: np.ndarray, first: int, stop: int) -> None:
        """Put a part into (n,) values."""
        part = out[first * self.size : stop * self.size]
        part[:] = made[: part.size]


@dataclass(frozen=True)
class Tiles:
    """Tiles of a matrix, which its last row and column fill up; in the order of their rows.

    Attributes
    ----------
    rows, columns : int
        Of the matrix.
    sizes : (1, int, int)
        Of a tile.
    """

    rows: int
    columns: int
    sizes: Sizes

    @property
    def size(self) -> int:
        """Elements of a tile."""
        return self.sizes[1] * self.sizes[2]

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return -(-self.rows // self.sizes[1]) * self._across

    @property
    def _across(self) -> int:
        return -(-self.columns // self.sizes[2])

    def parts(self) -> list[tuple[int, int]]:
        """Return ranges of tiles: of whole rows of them, or all of one row."""
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
        """Return a part of (n,) values as (stop - first, *sizes)."""
        _, a, b = self.sizes
        down, across, strip = self._strip(values, first, stop)
        missing = down * a - strip.shape[0], across * b - strip.shape[1]
        if any(missing):
            strip = np.pad(strip, [(0, missing[0]), (0, missing[1])], mode="edge")
        return strip.reshape(down, a, across, b).swapaxes(1, 2).reshape(-1, 1, a, b)

    def room(self, out: np.ndarray, first: int, stop: int) -> None:
        """Return None: a tile does not lie in one piece."""

    def put(self, made: np.ndarray, out: np.ndarray, first: int, stop: int) -> None:
        """Put a part into (n,) values."""
        _, a, b = self.sizes
        down, across, strip = self._strip(out, first, stop)
        tiles = made.reshape(down, across, a, b).swapaxes(1, 2)
        if strip.shape == (down * a, across * b):
            strip.reshape(down, a, across, b)[:] = tiles  # a view: axes are only split
        else:
            strip[:] = tiles.reshape(down * a, across * b)[: strip.shape[0], : strip.shape[1]]

    def _strip(self, values: np.ndarray, first: int, stop: int) -> tuple[int, int, np.ndarray]:
        """Return how many tiles a part has down and across, and what of the matrix it covers."""
        _, a, b = self.sizes
        across = min(stop - first, self._across)
        down = (stop - first) // across
        row, column = first // self._across * a, first % self._across * b
        matrix = values.reshape(self.rows, self.columns)
        return down, across, matrix[row : row + down * a, column : column + across * b]


Chunks = Runs | Tiles


def flat(n: int, chunk: tuple[int, ...]) -> Runs:
    """Return the chunks of layout=flat: of n elements, zeros behind them."""
    return Runs(n, _three(chunk), edge=False)


def tiles(n: int, columns: int | None, chunk: tuple[int, ...], most: int) -> Chunks:
    """Return the chunks of layout=tiles.

    Parameters
    ----------
    n : int
        Elements of the tensor.
    columns : int or None
        Of the matrix that it is; None: it is a vector.
    chunk : one or two int
        Of one, a matrix is taken as a vector.
    most : int
        Elements of a chunk of a vector.
    """
    if columns is None or len(chunk) == 1 or n == 0:
        length = min(int(np.prod(chunk)), most, max(n, 1))
        return Runs(n, (1, 1, length), edge=True)
    rows, (a, b) = n // columns, chunk
    return Tiles(rows, columns, (1, min(a, rows), min(b, columns)))


def _three(chunk: tuple[int, ...]) -> Sizes:
    a, b, c = (1,) * (3 - len(chunk)) + chunk
    return a, b, c
