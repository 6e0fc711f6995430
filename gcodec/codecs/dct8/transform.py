"""The transform: from values to the largest coefficients of each chunk, and back.

Both are kernels with the same result everywhere, except that the forward transform of axes of more
than 256 points is SciPy's DCT, whose last bits depend on the library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from gcodec.codecs.dct8.chunks import PART, Chunks, take
from gcodec.kernels.transform import basis
from gcodec.kernels.transform.dct_forward import SKIPPED, folded_table, folds_of, forward
from gcodec.kernels.transform.dct_inverse import TABLED, Sizes, inverse
from gcodec.kernels.transform.dct_select import largest
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import aligned_empty

Basis = Callable[[int], np.ndarray]  # returns the rows, one for each frequency, for n points


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

    def selects(folded: bool) -> bool:
        def task(start: int, stop: int) -> bool:
            transform = Forward(chunks.sizes, other, folded=folded)
            with np.errstate(all="ignore"):  # in each thread
                for first, end in parts[start // PART : -(-stop // PART)]:
                    y = transform(take(chunks, values, first, end))
                    if not largest(y, k, positions[first:end], coefficients[first:end]):
                        return False
            return True

        return all(pool.run(task, PART * len(parts), PART))

    # Sums of two values may exceed float32 where no coefficient does.
    is_finite = selects(folded=True) or selects(folded=False)
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
    """The forward transform of chunks; a call may overwrite what the last one returned."""

    def __init__(self, sizes: Sizes, other: Basis | None = None, *, folded: bool = True) -> None:
        self.sizes = sizes
        self._buffer = np.empty(0, np.float32)
        a, b, c = (_axis(n, other, folded) for n in sizes)
        self._tables, self._folds = (a[0], b[0], c[0]), (a[1], b[1], c[1])
        is_own = other is None
        self._by_scipy = [axis for axis, n in enumerate(sizes, 1) if n > TABLED and is_own]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the coefficients of (m, *sizes) float32 values, as (m, a·b·c)."""
        for axis in self._by_scipy:
            from scipy import fft

            x = fft.dct(x, axis=axis, norm="ortho")
        if max(self._folds) == SKIPPED:
            return x.reshape(len(x), -1)
        if self._buffer.size < x.size:
            self._buffer = aligned_empty(x.size, np.float32)
        out = self._buffer[: x.size]
        forward(x.reshape(-1), self.sizes, self._tables, self._folds, out)
        return out.reshape(len(x), -1)


@functools.lru_cache(maxsize=32)
def _axis(n: int, other: Basis | None, folded: bool) -> tuple[np.ndarray, int]:
    """Return the table and the folds of an axis; see `dct_forward.forward`."""
    if n == 1 or (n > TABLED and other is None):
        return np.ones(1, np.float32), SKIPPED
    folds = folds_of(n) if folded and other is None else 0
    return folded_table((other or basis.basis)(n), folds), folds
