"""Low-rank factors of matrices, by one step of the power method, with the same bits everywhere.

A matrix M of shape (m, k) is approximated by PᵀQ, with P of shape (r, m) and Q of shape (r, k);
the literature writes the transposes of both. One step computes P = orthonormal(Q·Mᵀ) and then
Q = P·M.

Products are computed on integers times powers of two; see `gcodec.kernels.numeric.products`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.numeric import philox, products
from gcodec.kernels.numeric.products import FACTOR_NBITS, unit_of
from gcodec.kernels.numeric.reduce import LANES, TILE, add_lanes, max_abs_bits
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel, subroutine
from gcodec.runtime.memory import flattened

STREAM = 2  # of the random words
_EVEN_BYTES = 0x00FF00FF

_PRODUCT = 1 << 15  # values that are decoded together
_DEPENDENT = 2.0**-40  # remaining share of the energy of a row that depends on the others
_CORRELATED = 2.0**-20  # square of the correlation of two rows from which they are rotated
_MOST_SWEEPS = 12  # passes over all pairs of rows


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
        return self.integers * self.units


def matrix_shape(shape: tuple[int, ...], rank: int) -> tuple[int, int] | None:
    """Return (m, k), the first size and the product of the others.

    Returns
    -------
    (int, int) or None
        None if factors, (m + k)·rank values, are not fewer than m·k, as for vectors.
    """
    if len(shape) < 2:
        return None
    m, k = shape[0], math.prod(shape[1:])
    return (m, k) if (m + k) * rank < m * k else None


def start(seed: int, rank: int, k: int, stream: int = STREAM, first: int = 0) -> np.ndarray:
    """Return (rank, k) float64 random integers, −510 to 510, approximately normal.

    `first` is the number of rows that precede these.
    """
    words = philox.words(seed, first * k, rank * k, stream)
    pairs = (words & _EVEN_BYTES) + (words >> 8 & _EVEN_BYTES)
    sums = (pairs & 0xFFFF) + (pairs >> 16)  # of the four bytes of each word
    return sums.reshape(rank, k) - 510.0


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
    with np.errstate(over="ignore", under="ignore"):
        factors = [part.astype(np.float32) for part in (p.values, times(matrix, p, top))]
    return np.concatenate([part.reshape(-1) for part in factors])


def fixed(rows: np.ndarray) -> Fixed:
    """Round (r, m) finite float64 numbers to 16 bits and a sign, ties to even."""
    most, least = (each(axis=1, initial=0, keepdims=True) for each in (rows.max, rows.min))
    _, exponents = np.frexp(np.maximum(most, -least))
    units = np.ldexp(1.0, exponents - FACTOR_NBITS)
    integers = rows / units
    np.rint(integers, out=integers)
    integers += 0.0  # without −0
    return Fixed(integers, units)


@dispatched("gcodec.kernels.numeric.products_cuda")
def prepared(matrix: np.ndarray, top: int) -> np.ndarray:
    """Return what `times` and `times_transposed` take in place of a matrix, for many products."""
    return products.prepare(matrix, top)


@dispatched("gcodec.kernels.numeric.products_cuda")
def times_transposed(matrix: np.ndarray, q: Fixed, top: int | None = None) -> np.ndarray:
    """Return Q·Mᵀ as (r, m) float64, for (m, k) finite float32 values, or what `prepared` returns.

    `top` contains the bits of the largest magnitude, if they are known.
    """
    return _scaled(products.along_rows, matrix, q, top)


@dispatched("gcodec.kernels.numeric.products_cuda")
def times(matrix: np.ndarray, p: Fixed, top: int | None = None) -> np.ndarray:
    """Return P·M as (r, k) float64; see `times_transposed`."""
    return _scaled(products.along_columns, matrix, p, top)


def orthonormal(rows: np.ndarray) -> np.ndarray:
    """Orthonormalize (r, m) float64 rows by the Gram–Schmidt process.

    A row becomes 0 if less than 2^-20 of its norm is independent of the preceding rows.
    """
    basis = np.array(rows, np.float64, order="C")
    orthonormalize(basis)
    return basis


def orthonormalize(basis: np.ndarray, kept: int = 0) -> None:
    """Orthonormalize (r, m) contiguous float64 rows in place; see `orthonormal`.

    The first `kept` rows are orthonormal already, or 0.
    """
    sums = np.empty(max(-(-basis.shape[1] // TILE), 1))
    _orthonormalize(basis.reshape(-1), len(basis), kept, np.empty(LANES), sums)


@subroutine
def _dot(a, b, lanes, sums):
    """Return the sum of products in the order of `fold`."""
    # sums.size == max(ceil(a.size / TILE), 1); lanes.size == LANES
    count = sums.size
    for tile in range(count):
        part_a, part_b = a[tile * TILE : tile * TILE + TILE], b[tile * TILE : tile * TILE + TILE]
        lanes[:] = 0.0
        whole = part_a.size // LANES * LANES
        for start in range(0, whole, LANES):
            for t in range(LANES):
                lanes[t] += part_a[start + t] * part_b[start + t]
        for t in range(part_a.size - whole):
            lanes[t] += part_a[whole + t] * part_b[whole + t]
        sums[tile] = add_lanes(lanes)
    while count > 1:
        for tile in range((count + TILE - 1) // TILE):
            lanes[:] = 0.0
            for i in range(tile * TILE, min(tile * TILE + TILE, count)):
                lanes[i % LANES] += sums[i]
            sums[tile] = add_lanes(lanes)
        count = (count + TILE - 1) // TILE
    return sums[0]


@kernel("out float64[], int64, int64, out float64[], out float64[]")
def _orthonormalize(basis, r, kept, lanes, sums):
    # basis.size == r * m; lanes.size == LANES; sums.size == max(ceil(m / TILE), 1)
    m = basis.size // max(r, 1)
    for j in range(kept, r):
        row = basis[j * m : j * m + m]
        before = _dot(row, row, lanes, sums)
        for i in range(j):
            other = basis[i * m : i * m + m]
            factor = _dot(other, row, lanes, sums)
            for t in range(m):
                row[t] -= factor * other[t]
        squares = _dot(row, row, lanes, sums)
        independent = squares > before * _DEPENDENT
        root = np.sqrt(squares)
        for t in range(m):
            row[t] = row[t] / root if independent else 0.0


def diagonalize(gram: np.ndarray) -> np.ndarray:
    """Return an orthogonal (r, r) matrix W such that W·G·Wᵀ is nearly diagonal, largest first.

    The cyclic Jacobi method for a symmetric positive semidefinite (r, r) float64 matrix G. It ends
    when the correlations of all rows are below 2^-10. Source: Golub and Van Loan, "Matrix
    Computations", 4th edition, algorithm 8.5.3.
    """
    r = len(gram)
    matrix, vectors = np.array(gram, np.float64, order="C"), np.eye(r)
    _rotate_pairs(matrix.reshape(-1), vectors.reshape(-1), r)
    order = np.argsort(-np.diagonal(matrix), kind="stable")
    return np.ascontiguousarray(vectors[order])


@kernel("out float64[], out float64[], int64")
def _rotate_pairs(matrix, vectors, r):
    # matrix.size == vectors.size == r * r
    for _ in range(_MOST_SWEEPS):
        rotated = False
        for p in range(r - 1):
            for q in range(p + 1, r):
                across = matrix[p * r + q]
                product = matrix[p * r + p] * matrix[q * r + q]
                if across * across <= _CORRELATED * product or across == 0.0:
                    continue
                rotated = True
                ratio = (matrix[q * r + q] - matrix[p * r + p]) / (2.0 * across)
                tangent = 1.0 / (abs(ratio) + np.sqrt(ratio * ratio + 1.0))
                tangent = -tangent if ratio < 0.0 else tangent
                cosine = 1.0 / np.sqrt(tangent * tangent + 1.0)
                sine = tangent * cosine
                for array in (matrix, vectors):
                    first, second = array[p * r : p * r + r], array[q * r : q * r + r]
                    for t in range(r):
                        low, high = first[t], second[t]
                        first[t] = cosine * low - sine * high
                        second[t] = sine * low + cosine * high
                for t in range(r):
                    low, high = matrix[t * r + p], matrix[t * r + q]
                    matrix[t * r + p] = cosine * low - sine * high
                    matrix[t * r + q] = sine * low + cosine * high
        if not rotated:
            break


def energies(rows: np.ndarray) -> np.ndarray:
    """Return the sum of squares of each of (r, k) float64 rows, in the order of `fold`."""
    sums, totals = np.empty(max(-(-rows.shape[1] // TILE), 1)), np.empty(len(rows))
    _energies(np.ascontiguousarray(rows).reshape(-1), np.empty(LANES), sums, totals)
    return totals


@kernel("in float64[], out float64[], out float64[], out float64[]")
def _energies(rows, lanes, sums, totals):
    # rows.size == totals.size * k; lanes.size == LANES; sums.size == max(ceil(k / TILE), 1)
    k = rows.size // max(totals.size, 1)
    for j in range(totals.size):
        row = rows[j * k : j * k + k]
        totals[j] = _dot(row, row, lanes, sums)


@kernel("float64, in float64[], in int64[], out float32[]", vectorized=False)
def put_scales(step, factors, exponents, out):
    """Write f32(step·factors[e]) for each exponent e, where large ones have the last factor."""
    for j in range(out.size):  # out.size == exponents.size; factors.size > 0
        out[j] = np.float32(step * factors[min(max(exponents[j], 0), factors.size - 1)])


@kernel("in float32[], out float32[]")
def scale_rows(scales, rows):
    """Multiply rows of equal length by their scales; rows.size is a multiple of scales.size."""
    k = rows.size // max(scales.size, 1)
    for j in range(scales.size):
        row = rows[j * k : j * k + k]
        for t in range(row.size):
            row[t] *= scales[j]


def most(p: np.ndarray, q: np.ndarray) -> float:
    """Return an upper bound of the magnitudes of PᵀQ; NaN if a row of Inf meets one of zeros."""
    largest = [np.abs(rows).max(axis=1, initial=0).astype(np.float64) for rows in (p, q)]
    with np.errstate(invalid="ignore"):
        return float((largest[0] * largest[1]).sum())


@dispatched("gcodec.kernels.numeric.products_cuda")
def passes_float32(p: np.ndarray, q: np.ndarray) -> bool:
    """Return whether a value of PᵀQ, or a partial sum, exceeds float32."""
    if most(p, q) < 2.0**127:
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
    sums *= factors.units * unit_of(bits)
    return sums
