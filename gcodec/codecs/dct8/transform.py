"""From values to the largest coefficients of each chunk, and back.

The way there is BLAS up to 64 points, and SciPy's DCT beyond: its last bits are those of the
library. BLAS gets matrices of at most 64 in each direction, one by one, so that no number of
threads, neither of gcodec nor of the library, decides what is added up in which order. The way
back is one kernel, the same everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from gcodec.codecs.dct8.chunks import PART, Chunks
from gcodec.kernels.transform import basis
from gcodec.kernels.transform.dct_inverse import TABLED, Sizes, inverse
from gcodec.kernels.transform.dct_select import largest
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched

Basis = Callable[[int], np.ndarray]  # of so many points, a row for each frequency

_BLAS = 64  # points up to which BLAS is used, and rows or columns that it gets at a time


@dispatched("gcodec.codecs.dct8.transform_cuda")
def select(
    values: np.ndarray, chunks: Chunks, k: int, other: Basis | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the k largest coefficients of each chunk, or None where one is not finite.

    `other` is the basis to use in place of the exact one.

    Returns
    -------
    places : (count, k) int32 array
        In their chunk, rising.
    coefficients : (count, k) float32 array
    """
    places = np.empty((chunks.count, k), np.int32)
    coefficients = np.empty((chunks.count, k), np.float32)
    parts = chunks.parts()

    def task(start: int, stop: int) -> bool:
        forward = Forward(chunks.sizes, other)
        for first, behind in parts[start // PART : -(-stop // PART)]:
            y = forward(chunks.take(values, first, behind))
            if not largest(y, k, places[first:behind], coefficients[first:behind]):
                return False
        return True

    with np.errstate(all="ignore"):
        finite = all(pool.run(task, PART * len(parts), PART))
    return (places, coefficients) if finite else None


@dispatched("gcodec.codecs.dct8.transform_cuda", by="out")
def restore(
    starts: np.ndarray,
    places: np.ndarray,
    coefficients: np.ndarray,
    chunks: Chunks,
    out: np.ndarray,
    other: Basis | None = None,
) -> None:
    """Set (n,) values to what coefficients stand for; see `select`, `dct_inverse.inverse`."""
    a, b, c = chunks.sizes
    bases = _table(a, other), _table(b, other), _table(c, other)
    parts = chunks.parts()

    def task(start: int, stop: int) -> None:
        for first, behind in parts[start // PART : -(-stop // PART)]:
            room = chunks.room(out, first, behind)
            made = np.empty((behind - first) * chunks.size, np.float32) if room is None else room
            where = starts[first : behind + 1], places, coefficients
            inverse(*where, chunks.sizes, bases, made)
            if room is None:
                chunks.put(made, out, first, behind)

    pool.run(task, PART * len(parts), PART)


def _table(n: int, other: Basis | None) -> np.ndarray:
    return basis.table(n) if other is None or n > TABLED else other(n).reshape(-1)


class Forward:
    """The transform of chunks of these sizes; what it returns, the next call overwrites."""

    def __init__(self, sizes: Sizes, other: Basis | None = None) -> None:
        self.sizes = sizes
        self.other = other
        self._made = np.empty((2, 0), np.float32)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the coefficients of (m, *sizes) float32 values, as (m, a·b·c)."""
        m, (a, b, c) = x.shape[0], self.sizes
        if self._made.shape[1] < x.size:
            self._made = np.empty((2, x.size), np.float32)
        for shape in ((m * a * b, c, 1), (m * a, b, c), (m, a, b * c)):
            if shape[1] > 1:
                out = self._made[0, : x.size].reshape(shape)
                _transform(x.reshape(shape), out, self.other)
                x, self._made = out, self._made[::-1]
        return x.reshape(m, -1)


def _transform(x: np.ndarray, out: np.ndarray, other: Basis | None) -> None:
    """Transform (m, n, inner) values along their second axis."""
    m, n, inner = x.shape
    if n > _BLAS and other is None:
        from scipy import fft

        out[:] = fft.dct(x, axis=1, norm="ortho")
    elif inner > 1:
        for at in range(0, inner, _BLAS):
            np.matmul(
                (other or basis.basis)(n), x[:, :, at : at + _BLAS], out=out[:, :, at : at + _BLAS]
            )
    else:
        whole = m - m % _BLAS
        for rows in (slice(whole), slice(whole, m)):
            part = x[rows, :, 0]
            if part.size:
                shape = -1, min(_BLAS, part.shape[0]), n
                turned = _turned(other or basis.basis, n)
                np.matmul(part.reshape(shape), turned, out=out[rows].reshape(shape))


@functools.lru_cache(maxsize=32)
def _turned(rows: Basis, n: int) -> np.ndarray:
    return np.ascontiguousarray(rows(n).T)
