"""The dominant subspace of a matrix, found by random projections and power iterations.

A `Subspace` contains w orthonormal rows Q of m values, which span most of the columns of an (m, k)
matrix M, and their projections B = Q·M. Then Qᵀ·B is the projection of M onto the subspace, and
the energy that it lacks is ‖M‖² − ‖B‖². Rotating the rows of B until they are orthogonal yields
the principal components: products of singular values and right singular vectors.

All products are exact, so the result depends on neither the processor nor the threads; see
`gcodec.kernels.numeric.products`.

Source: N. Halko, P. G. Martinsson and J. A. Tropp, "Finding structure with randomness", SIAM
Review 53, 2011, algorithms 4.2 and 4.4.
"""

from __future__ import annotations

import math

import numpy as np

from gcodec.kernels.numeric import low_rank
from gcodec.kernels.numeric.norms import norms
from gcodec.kernels.numeric.reduce import Moments, fold, max_abs_bits, moments
from gcodec.runtime.deferred import resolved
from gcodec.runtime.device import host
from gcodec.runtime.memory import flattened

STREAM = 3  # of the random words
_POINT_PARTS = 512  # points with the step 1 are multiples of 1/512
_EXACT = 2.0**53  # integers up to this are exact in float64


class Matrix:
    """A matrix with the numbers that all of its products need.

    Parameters
    ----------
    values : (m, k) float32 array
        Finite values, not all 0.
    statistics : Moments, optional
        Statistics of the values, if they are known.

    Attributes
    ----------
    top : int
        Bit pattern of the largest magnitude.
    energy : float
        Sum of squares.
    rows : float
        Effective number of rows; see `_effective_count`.
    """

    def __init__(self, values: np.ndarray, statistics: Moments | None = None) -> None:
        flat = flattened(values)
        known = resolved(moments(flat)) if statistics is None else statistics
        self.top, self.energy = known.largest, known.squares
        self._prepared = low_rank.prepared(values, self.top)
        self.rows = _effective_count(host(norms(flat, values.shape[1], "l2")).astype(np.float64))

    @property
    def sizes(self) -> tuple[int, int]:
        """Return m and k."""
        m, k = self._prepared.shape
        return m, k

    def projected(self, rows: np.ndarray) -> np.ndarray:
        """Return the (r, m) products of (r, k) float64 rows, rounded to 16 bits, with its rows."""
        return low_rank.times_transposed(self._prepared, low_rank.fixed(rows), self.top)

    def projected_exactly(self, rows: np.ndarray) -> np.ndarray:
        """Return the (r, m) products of (r, k) float64 rows with the rows of the matrix."""
        return _products(self._prepared, rows, self.top)

    def combined(self, factors: low_rank.Fixed) -> np.ndarray:
        """Return the (r, k) sums of the rows of the matrix, times (r, m) factors."""
        return low_rank.times(self._prepared, factors, self.top)


class Subspace:
    """A subspace of the columns of a matrix, and the principal components inside it.

    Parameters
    ----------
    matrix : Matrix

    Attributes
    ----------
    components : (w, k) float64 array
        Orthogonal rows in the order of their energies, the largest first.
    energies : (w,) float64 array
        Squared norms of the components.
    sizes : (float, float)
        Effective numbers of rows and columns of the matrix.
    """

    def __init__(self, matrix: Matrix) -> None:
        m, k = matrix.sizes
        self.matrix = matrix
        self._basis = np.empty((0, m))
        self.components = np.empty((0, k))
        self.energies = np.empty(0)
        self.sizes = matrix.rows, float(k)

    @property
    def width(self) -> int:
        """Number of dimensions."""
        return len(self._basis)

    def extend(self, rows: np.ndarray) -> None:
        """Add the images M·row of (r, k) float64 rows to the subspace."""
        width = self.width
        self._basis = np.concatenate([self._basis, self.matrix.projected(rows)])
        low_rank.orthonormalize(self._basis, kept=width)
        added = low_rank.fixed(self._basis[width:])
        projections = self.matrix.combined(added)
        np.multiply(added.integers, added.units, out=self._basis[width:])
        self._rotate(np.concatenate([self.components, projections]))

    def end(self) -> None:
        """Free the memory of the basis; nothing can be added to the subspace any more."""
        self._basis = self._basis[:0].copy()

    def at_random(self, count: int, seed: int) -> np.ndarray:
        """Return `count` random rows; those for other dimensions than the next ones differ."""
        return low_rank.start(seed, count, self.components.shape[1], STREAM, self.width)

    def _rotate(self, rows: np.ndarray) -> None:
        """Set the components to (w, k) rows, rotated until they are orthogonal."""
        rounded = rows.astype(np.float32)
        gram = low_rank.times_transposed(rounded, low_rank.fixed(rows))
        rotation = low_rank.diagonalize((gram + gram.T) / 2)
        self.components = low_rank.times(rounded, low_rank.fixed(rotation))
        self.energies = low_rank.energies(self.components)
        order = np.argsort(-self.energies, kind="stable")
        self.components, self.energies = self.components[order], self.energies[order]
        columns = np.sqrt((self.components * self.components).sum(axis=0))
        self.sizes = self.matrix.rows, _effective_count(columns)


def gram_of(points: np.ndarray) -> np.ndarray:
    """Return the (r, r) float64 inner products of (r, k) rows of points with the step 1."""
    wide = points.astype(np.float64)
    if (float(np.abs(points).max()) * _POINT_PARTS) ** 2 * wide.shape[1] < _EXACT:
        return wide @ wide.T  # sums of integers, which are exact in any order
    gram: np.ndarray = _products(points, wide, int(max_abs_bits(points.reshape(-1))))
    return (gram + gram.T) / 2


def _products(matrix: np.ndarray, rows: np.ndarray, top: int) -> np.ndarray:
    """Multiply rows by the rows of a matrix; integers of up to 32 bits are not rounded."""
    leading = low_rank.fixed(rows)
    products: np.ndarray = low_rank.times_transposed(matrix, leading, top)
    rest = rows - leading.values
    is_rounded = rest.any(axis=1)
    if is_rounded.any():
        rest = low_rank.fixed(rest[is_rounded])
        products[is_rounded] += low_rank.times_transposed(matrix, rest, top)
    return products


def _effective_count(norms: np.ndarray) -> float:
    """Return the number n of norms, less where a few of them contain most of the energy.

    For energies e, (Σ e)²/Σ e² is n if all are equal, and k if only k of them are not 0. The
    geometric mean of this number and n predicts the bits of factors best, on gradients of
    transformers, recurrent networks and embeddings.
    """
    energies = norms * norms
    count = fold(energies) ** 2 / max(fold(energies * energies), 2.0**-1000)
    return max(math.sqrt(count * norms.size), 1.0)
