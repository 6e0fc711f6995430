"""The transform: from values to the largest coefficients of each chunk, and back.

The forward transform uses BLAS up to 64 points and SciPy's DCT beyond, so its last bits depend on
the library. BLAS gets matrices of at most 64 rows and columns, one at a time, so that the order of
its sums depends neither on gcodec's threads nor on those of the library. The inverse transform is
one kernel with the same result everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from gcodec.codecs.dct8.chunks import PART, Chunks, take
from gcodec.kernels.transform import basis
from gcodec.kernels.transform.dct_inverse import TABLED, Sizes, inverse
from gcodec.kernels.transform.dct_select import largest
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched

Basis = Callable[[int], np.ndarray]  # returns the rows, one for each frequency, for n points

_BLAS = 64  # most points for which BLAS is used, and rows or columns of its matrices


@dispatched("gcodec.codecs.dct8.transform_cuda")
def select(
    values: np.ndarray, chunks: Chunks, k: int, other: Basis | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the k largest coefficients of each chunk, or None if a coefficient is not finite.

    `other` is a basis that replaces the exact one.

    Returns
    -------
    positions : (count, k) int32 array
        Positions in the chunk, in ascending order.
    coefficients : (count, k) float32 array
    """
    positions = np.empty((chunks.count, k), np.int32)
    coefficients = np.empty((chunks.count, k), np.float32)
    parts = chunks.parts()

    def task(start: int, stop: int) -> bool:
        forward = Forward(chunks.sizes, other)
        with np.errstate(all="ignore"):  # in each thread
            for first, end in parts[start // PART : -(-stop // PART)]:
                y = forward(take(chunks, values, first, end))
                if not largest(y, k, positions[first:end], coefficients[first:end]):
                    return False
        return True

    is_finite = all(pool.run(task, PART * len(parts), PART))
    return (positions, coefficients) if is_finite else None


@dispatched("gcodec.codecs.dct8.transform_cuda", by="out")
def restore(
    starts: np.ndarray,
    positions: np.ndarray,
    coefficients: np.ndarray,
    chunks: Chunks,
    out: np.ndarray,
    other: Basis | None = None,
    add: np.float32 | None = None,
) -> None:
    """Write the (n,) values of coefficients, or add a multiple of them on the host.

    See `select` and `dct_inverse.inverse`.
    """
    a, b, c = chunks.sizes
    bases = _table(a, other), _table(b, other), _table(c, other)

    def task(start: int, stop: int) -> None:
        first, end = start // chunks.size, stop // chunks.size
        own = starts[first : end + 1], positions, coefficients
        inverse(*own, chunks.sizes, bases, other is None, chunks.layout, first, out, add)

    pool.run(task, chunks.count * chunks.size, chunks.size)


def _table(n: int, other: Basis | None) -> np.ndarray:
    return basis.table(n) if other is None or n > TABLED else other(n).reshape(-1)


class Forward:
    """The forward transform of chunks; a call overwrites the array that the last one returned."""

    def __init__(self, sizes: Sizes, other: Basis | None = None) -> None:
        self.sizes = sizes
        self.other = other
        self._buffers = np.empty((2, 0), np.float32)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the coefficients of (m, *sizes) float32 values, as (m, a·b·c)."""
        m, (a, b, c) = x.shape[0], self.sizes
        if self._buffers.shape[1] < x.size:
            self._buffers = np.empty((2, x.size), np.float32)
        for shape in ((m * a * b, c, 1), (m * a, b, c), (m, a, b * c)):
            if shape[1] > 1:
                out = self._buffers[0, : x.size].reshape(shape)
                _transform(x.reshape(shape), out, self.other)
                x, self._buffers = out, self._buffers[::-1]
        return x.reshape(m, -1)


def _transform(x: np.ndarray, out: np.ndarray, other: Basis | None) -> None:
    """Transform (m, n, inner) values along the second axis."""
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
                transposed = _transposed(other or basis.basis, n)
                np.matmul(part.reshape(shape), transposed, out=out[rows].reshape(shape))


@functools.lru_cache(maxsize=32)
def _transposed(rows: Basis, n: int) -> np.ndarray:
    return np.ascontiguousarray(rows(n).T)
