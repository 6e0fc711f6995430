"""Low-rank factors of matrices, by one step of the power method, with the same bits everywhere.

A matrix M of shape (m, k) is approximated by PᵀQ, with P of shape (r, m) and Q of shape (r, k);
the literature writes the transposes of both. One step computes P = orthonormal(Q·Mᵀ) and then
Q = P·M.

Products are computed on integers times powers of two; see `gcodec.kernels.numeric.products`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.source import size_of
from gcodec.kernels.numeric import philox, products
from gcodec.kernels.numeric.products import FACTOR_NBITS, unit_of
from gcodec.kernels.numeric.reduce import fold, max_abs_bits
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import flattened

STREAM = 2  # of the random words

_PRODUCT = 1 << 15  # values that are decoded together
_DEPENDENT = 2.0**-40  # remaining share of the energy of a row that depends on the others


class Fixed(NamedTuple):
    """Rows of integers of 16 bits and a sign, with a power of two for each row.

    Attributes
    ----------
    integers : (r, m) float64 array
    units : (r, 1) float64 array
    """

    integers: np.ndarray
    units: np.ndarray

    @property
    def values(self) -> np.ndarray:
        """The (r, m) float64 numbers, each of which is a float32."""
        values: np.ndarray = self.integers * self.units
        return values


def matrix_shape(shape: tuple[int, ...], rank: int) -> tuple[int, int] | None:
    """Return (m, k), the first size and the product of the others.

    Returns
    -------
    (int, int) or None
        None if factors, (m + k)·rank values, are not fewer than m·k, as for vectors.
    """
    if len(shape) < 2:
        return None
    m, k = shape[0], size_of(shape[1:])
    return (m, k) if (m + k) * rank < m * k else None


def start(seed: int, rank: int, k: int, stream: int = STREAM) -> np.ndarray:
    """Return (rank, k) float64 random integers, −510 to 510, approximately normal."""
    words = philox.words(seed, 0, rank * k, stream)
    sums = words.view(np.uint8).reshape(rank, k, 4).sum(axis=2, dtype=np.int32)
    rows: np.ndarray = (sums - 510).astype(np.float64)
    return rows


@dispatched("gcodec.kernels.numeric.products_cuda")
def step(
    matrix: np.ndarray, rank: int, seed: int, stream: int, before: np.ndarray | None, top: Any
) -> np.ndarray:
    """Compute the factors of a matrix by one step of the power method.

    Parameters
    ----------
    matrix : (m, k) float32 array
        Finite.
    rank : int
    seed, stream : int
        Seed and stream of the random rows that replace missing rows of Q.
    before : (r, k) float32 array or None
        Q of the preceding step. Its zero rows count as missing.
    top : int
        Bits of the largest magnitude.

    Returns
    -------
    (r·m + r·k,) float32 array
        P, row after row, then Q. Values of Q beyond float32 are infinite.
    """
    rows = start(seed, rank, matrix.shape[1], stream)
    if before is not None:
        nonzero = before.any(axis=1)
        rows[nonzero] = before[nonzero]
    p = fixed(orthonormal(times_transposed(matrix, fixed(rows), top)))
    with np.errstate(over="ignore"):
        factors = [part.astype(np.float32) for part in (p.values, times(matrix, p, top))]
    return np.concatenate([part.reshape(-1) for part in factors])


def fixed(rows: np.ndarray) -> Fixed:
    """Round (r, m) finite float64 numbers to 16 bits and a sign, ties to even."""
    _, exponents = np.frexp(np.abs(rows).max(axis=1, initial=0, keepdims=True))
    units = np.ldexp(1.0, exponents - FACTOR_NBITS)
    return Fixed(np.rint(rows / units) + 0.0, units)  # without −0


def times_transposed(matrix: np.ndarray, q: Fixed, top: int | None = None) -> np.ndarray:
    """Return Q·Mᵀ as (r, m) float64, for (m, k) finite float32 values.

    `top` contains the bits of the largest magnitude, if they are known.
    """
    return _scaled(products.along_rows, matrix, q, top)


def times(matrix: np.ndarray, p: Fixed, top: int | None = None) -> np.ndarray:
    """Return P·M as (r, k) float64; see `times_transposed`."""
    return _scaled(products.along_columns, matrix, p, top)


def orthonormal(rows: np.ndarray) -> np.ndarray:
    """Orthonormalize (r, m) float64 rows by the Gram–Schmidt process.

    A row becomes 0 if less than 2^-20 of its norm is independent of the preceding rows.
    """
    basis = np.empty_like(rows)
    for j, row in enumerate(rows):
        remainder = row.copy()
        for other in basis[:j]:
            remainder -= fold(other * remainder) * other
        squares = fold(remainder * remainder)
        is_independent = squares > fold(row * row) * _DEPENDENT
        basis[j] = remainder / np.sqrt(squares) if is_independent else 0.0
    return basis


def _most(p: np.ndarray, q: np.ndarray) -> float:
    """Return an upper bound of the magnitudes of PᵀQ."""
    largest = [np.abs(rows).max(axis=1, initial=0).astype(np.float64) for rows in (p, q)]
    return float((largest[0] * largest[1]).sum())


@dispatched("gcodec.kernels.numeric.products_cuda")
def passes_float32(p: np.ndarray, q: np.ndarray) -> bool:
    """Tell whether a value of PᵀQ, or a partial sum, exceeds float32."""
    if _most(p, q) < 2.0**127:
        return False
    step = max(_PRODUCT // q.shape[1], 1)
    for at in range(0, p.shape[1], step):
        part = p[:, at : at + step]
        product = np.empty(part.shape[1] * q.shape[1], np.float32)
        products.put_product(part, q, product)
        if not np.isfinite(product).all():
            return True
    return False


def _scaled(
    multiply: Callable[..., np.ndarray], matrix: np.ndarray, factors: Fixed, top: int | None
) -> np.ndarray:
    """Return sums of products of values and factors."""
    bits = max_abs_bits(flattened(matrix)) if top is None else top
    sums = multiply(matrix, bits, factors.integers)
    return sums * (factors.units * unit_of(bits))
