"""The transform: from values to the largest coefficients of each chunk, and back.

Both are kernels with the same result everywhere, except that the forward transform of axes of more
than 256 points is SciPy's DCT, whose last bits depend on the library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from gcodec.codecs.dct8.chunks import PART, Chunks, take
from gcodec.kernels.numeric.arithmetic import ResidualUpdate, add_residual
from gcodec.kernels.transform import basis
from gcodec.kernels.transform.dct_forward import (
    SKIPPED,
    batch_of,
    folded_table,
    folds_of,
    forward,
)
from gcodec.kernels.transform.dct_inverse import TABLED, Sizes, inverse
from gcodec.kernels.transform.dct_select import largest, largest_of_transforms
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
    selected = _room(chunks, k)

    def selects(folded: bool) -> bool:
        if _are_direct(chunks, other):
            return _select_runs(values, chunks, selected, other, folded)
        parts = chunks.parts()

        def task(start: int, stop: int) -> bool:
            forward = Forward(chunks.sizes, other, folded=folded)
            return all(
                forward.select(take(chunks, values, *part), *_part(selected, *part))
                for part in parts[start // PART : -(-stop // PART)]
            )

        return all(pool.run(task, PART * len(parts), PART))

    # Sums of two values may exceed float32 where no coefficient does.
    is_finite = selects(folded=True) or selects(folded=False)
    return selected if is_finite else None


def select_of_sums(
    x: np.ndarray, chunks: Chunks, k: int, update: ResidualUpdate
) -> tuple[np.ndarray, np.ndarray] | None:
    """Do what `select` does for x + decay·residual on the host, and write the sums.

    The sums become the new residual of the update; an update in place saves the residual. The
    result is None if a coefficient may not be finite, or, without a sum, if chunks are no runs, or
    their transform is not the kernel's.
    """
    if not _are_direct(chunks, None):
        return None
    selected = _room(chunks, k)
    return selected if _select_runs(x, chunks, selected, update=update) else None


def _are_direct(chunks: Chunks, other: Basis | None) -> bool:
    """Return whether a kernel selects from chunks where they are."""
    return chunks.are_runs and Forward(chunks.sizes, other).is_kernel


def _select_runs(
    x: np.ndarray,
    chunks: Chunks,
    selected: tuple[np.ndarray, np.ndarray],
    other: Basis | None = None,
    folded: bool = True,
    update: ResidualUpdate | None = None,
) -> bool:
    """Do what `select` does for runs that a kernel transforms, or for the sums of an update."""
    size, end = chunks.size, x.size - x.size % chunks.size

    def task(start: int, stop: int) -> bool:
        first, last = start // size, stop // size
        values = x[start:stop].reshape(last - first, *chunks.sizes)
        own = update if update is None else update.part(start, stop)
        forward = Forward(chunks.sizes, other, folded=folded)
        return forward.select(values, *_part(selected, first, last), own)

    is_finite = all(pool.run(task, end, size, x))
    if end < x.size:  # a run that is filled up
        values = x
        if update is not None:
            add_residual(x[end : x.size], update.part(end, x.size))
            values = update.new_residual
        run = take(chunks, values, chunks.count - 1, chunks.count)
        own = _part(selected, chunks.count - 1, chunks.count)
        is_finite &= Forward(chunks.sizes, other, folded=folded).select(run, *own)
    return is_finite


def _room(chunks: Chunks, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return memory for the result of `select`."""
    shape = chunks.count, k
    return np.empty(shape, np.int32), np.empty(shape, np.float32)


def _part(
    selected: tuple[np.ndarray, np.ndarray], first: int, stop: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the part of a result of `select` for a range of chunks."""
    return selected[0][first:stop], selected[1][first:stop]


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
        self._is_trivial = max(self._folds) == SKIPPED
        self.is_kernel = not (self._by_scipy or self._is_trivial)

    def select(
        self,
        x: np.ndarray,
        positions: np.ndarray,
        coefficients: np.ndarray,
        update: ResidualUpdate | None = None,
    ) -> bool:
        """Select coefficients of (m, *sizes) values; see `dct_select.largest_of_transforms`.

        Only with `is_kernel`, there may be an update.
        """
        k = positions.shape[1]
        with np.errstate(all="ignore"):
            if not self.is_kernel:
                return largest(self(x), k, positions, coefficients)
            transform = self.sizes, self._tables, self._folds, self._memory(batch_of(self.sizes))
            selected = k, positions, coefficients
            return largest_of_transforms(x.reshape(-1), *transform, *selected, update)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the coefficients of (m, *sizes) float32 values, as (m, a·b·c)."""
        for axis in self._by_scipy:
            from scipy import fft

            x = fft.dct(x, axis=axis, norm="ortho")
        if self._is_trivial:
            return x.reshape(len(x), -1)
        out = self._memory(x.size)
        forward(x.reshape(-1), self.sizes, self._tables, self._folds, out)
        return out.reshape(len(x), -1)

    def _memory(self, size: int) -> np.ndarray:
        """Return memory that the next call reuses."""
        if self._buffer.size < size:
            self._buffer = aligned_empty(size, np.float32)
        return self._buffer[:size]


@functools.lru_cache(maxsize=32)
def _axis(n: int, other: Basis | None, folded: bool) -> tuple[np.ndarray, int]:
    """Return the table and the folds of an axis; see `dct_forward.forward`."""
    if n == 1 or (n > TABLED and other is None):
        return np.ones(1, np.float32), SKIPPED
    folds = folds_of(n) if folded and other is None else 0
    return folded_table((other or basis.basis)(n), folds), folds
