"""Low-rank factors of matrices, by one step of the power method, with the same bits everywhere.

M of (m, k) values is told by P of (r, m) and Q of (r, k): its rows are columns of what is
usually written, so that M is about PᵀQ. One step makes P = orthonormal(Q·Mᵀ), then Q = P·M.

Products are those of integers, times powers of two; see `kernels.products`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.arrays.intake import size_of
from gcodec.kernels.numeric import philox, products
from gcodec.kernels.numeric.products import FACTOR_NBITS, unit_of
from gcodec.kernels.numeric.reduce import fold, max_abs_bits
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import flattened

STREAM = 2  # of random bits

_PRODUCT = 1 << 15  # values that are decoded at a time
_DEPENDENT = 2.0**-40  # of a square: what is left of a row that is one of those before


class Fixed(NamedTuple):
    """Rows of numbers of 16 bits and a sign, times a power of two for each row.

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
        made: np.ndarray = self.integers * self.units
        return made


def matrix_shape(shape: tuple[int, ...], rank: int) -> tuple[int, int] | None:
    """Return (m, k), the first size and the product of the others; None if factors are no shorter.

    They are (m + k)·rank values in place of m·k. So vectors have none.
    """
    if len(shape) < 2:
        return None
    m, k = shape[0], size_of(shape[1:])
    return (m, k) if (m + k) * rank < m * k else None


def start(seed: int, rank: int, k: int, stream: int = STREAM) -> np.ndarray:
    """Return (rank, k) float64 random integers from −510 to 510, about normally distributed."""
    words = philox.words(seed, 0, rank * k, stream)
    sums = words.view(np.uint8).reshape(rank, k, 4).sum(axis=2, dtype=np.int32)
    made: np.ndarray = (sums - 510).astype(np.float64)
    return made


@dispatched("gcodec.kernels.numeric.products_cuda")
def step(
    matrix: np.ndarray, rank: int, seed: int, stream: int, before: np.ndarray | None, top: Any
) -> np.ndarray:
    """Find factors of a matrix by one step of the power method.

    Parameters
    ----------
    matrix : (m, k) float32 array
        Finite.
    rank : int
    seed, stream : int
        Of random rows, from which it starts where no others are known.
    before : (r, k) float32 array or None
        Q of the step before; of its rows those that are 0 are not taken.
    top : int
        The bits of the largest magnitude.

    Returns
    -------
    (r·m + r·k,) float32 array
        P, row after row, then Q, in which what passes float32 is infinite.
    """
    rows = start(seed, rank, matrix.shape[1], stream)
    if before is not None:
        known = before.any(axis=1)
        rows[known] = before[known]
    p = fixed(orthonormal(times_transposed(matrix, fixed(rows), top)))
    with np.errstate(over="ignore"):
        factors = [part.astype(np.float32) for part in (p.values, times(matrix, p, top))]
    return np.concatenate([part.reshape(-1) for part in factors])


def fixed(rows: np.ndarray) -> Fixed:
    """Round (r, m) finite float64 numbers to 16 bits and a sign, half to even."""
    _, exponents = np.frexp(np.abs(rows).max(axis=1, initial=0, keepdims=True))
    units = np.ldexp(1.0, exponents - FACTOR_NBITS)
    return Fixed(np.rint(rows / units) + 0.0, units)  # without −0


def times_transposed(matrix: np.ndarray, q: Fixed, top: int | None = None) -> np.ndarray:
    """Return Q·Mᵀ, (r, m) float64, of (m, k) finite float32 values.

    `top` has the bits of the largest magnitude, where these are known.
    """
    return _scaled(products.along_rows, matrix, q, top)


def times(matrix: np.ndarray, p: Fixed, top: int | None = None) -> np.ndarray:
    """Return P·M, (r, k) float64; see `times_transposed`."""
    return _scaled(products.along_columns, matrix, p, top)


def orthonormal(rows: np.ndarray) -> np.ndarray:
    """Make (r, m) float64 rows orthonormal, by Gram and Schmidt, one after the other.

    A row that is a sum of those before, but for 2^-20 of itself, becomes 0.
    """
    made = np.empty_like(rows)
    for j, row in enumerate(rows):
        rest = row.copy()
        for other in made[:j]:
            rest -= fold(other * rest) * other
        squares = fold(rest * rest)
        kept = squares > fold(row * row) * _DEPENDENT
        made[j] = rest / np.sqrt(squares) if kept else 0.0
    return made


def _most(p: np.ndarray, q: np.ndarray) -> float:
    """Return a bound of the magnitudes of PᵀQ."""
    largest = [np.abs(rows).max(axis=1, initial=0).astype(np.float64) for rows in (p, q)]
    return float((largest[0] * largest[1]).sum())


@dispatched("gcodec.kernels.numeric.products_cuda")
def passes_float32(p: np.ndarray, q: np.ndarray) -> bool:
    """Tell whether some value of PᵀQ, or of the sums on the way, is not finite."""
    if _most(p, q) < 2.0**127:
        return False
    step = max(_PRODUCT // q.shape[1], 1)
    for at in range(0, p.shape[1], step):
        part = p[:, at : at + step]
        made = np.empty(part.shape[1] * q.shape[1], np.float32)
        products.put_product(part, q, made)
        if not np.isfinite(made).all():
            return True
    return False


def _scaled(
    multiply: Callable[..., np.ndarray], matrix: np.ndarray, factors: Fixed, top: int | None
) -> np.ndarray:
    """Return sums of products of values and factors."""
    bits = max_abs_bits(flattened(matrix)) if top is None else top
    sums = multiply(matrix, bits, factors.integers)
    return sums * (factors.units * unit_of(bits))
