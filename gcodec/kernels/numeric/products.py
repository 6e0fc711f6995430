"""Products of a matrix with few rows of factors, with the same bits on all devices.

Libraries and processors differ in the order in which a matrix product sums. So both operands are
rounded to integers: matrix values up to 2^24, factors up to 2^16. A block sums at most 2^13
products, so these sums are exact in float64, in any order. The sums of blocks are added one after
the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gcodec.kernels.numeric.arithmetic import add_scaled
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel

VALUE_NBITS, FACTOR_NBITS = 24, 16
SUM = 1 << 53 - VALUE_NBITS - FACTOR_NBITS  # products that a block sums

_BLOCK = 1 << 18  # values that are converted to float64 at a time
_PRODUCT = 1 << 15  # values that are decoded before they are added
_COLUMNS = 256  # columns of a tile, which stays in the nearest cache


def block_of(columns: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of the blocks of a matrix."""
    width = min(columns, SUM)
    return min(max(_BLOCK // max(width, 1), 1), SUM), width


def unit_of(top: int) -> float:
    """Return the unit of integers, a power of two, given the bits of the largest float32 value."""
    _, exponent = np.frexp(float(np.array([int(top)], np.uint32).view(np.float32)[0]))
    return float(np.ldexp(1.0, int(exponent) - VALUE_NBITS))


def along_rows(matrix: np.ndarray, top: int, factors: np.ndarray) -> np.ndarray:
    """Return the sums of products with each row of a matrix, as (r, m) float64.

    Parameters
    ----------
    matrix : (m, k) float32 array
        Finite values, which are rounded to multiples of the unit; see `unit_of`.
    top : int
        Bits of the largest magnitude.
    factors : (r, k) float64 array
        Integers.
    """
    sums = np.zeros((matrix.shape[0], len(factors)))
    transposed = np.ascontiguousarray(factors.T)
    for rows, columns, block in _blocks(matrix, unit_of(top)):
        sums[rows] += block @ transposed[columns]
    return np.ascontiguousarray(sums.T)


def along_columns(matrix: np.ndarray, top: int, factors: np.ndarray) -> np.ndarray:
    """Return the sums of products of each column with (r, m) factors, as (r, k) float64.

    See `along_rows`.
    """
    sums = np.zeros((matrix.shape[1], len(factors)))
    transposed = np.ascontiguousarray(factors.T)
    for rows, columns, block in _blocks(matrix, unit_of(top)):
        sums[columns] += block.T @ transposed[rows]
    return np.ascontiguousarray(sums.T)


@dispatched("gcodec.kernels.numeric.products_cuda", by="out")
def put_product(p: np.ndarray, q: np.ndarray, out: np.ndarray) -> None:
    """Set `out` to PᵀQ. Sums are in the order of rows; each product and each sum is rounded.

    Parameters
    ----------
    p, q : (r, m) and (r, k) float32 arrays
        Factors in the same memory as `out`; r is at least 1.
    out : (m·k,) float32 array
    """
    m, k = p.shape[1], q.shape[1]
    right = np.ascontiguousarray(q).reshape(-1)

    def task(start: int, stop: int) -> None:
        rows = slice(start // k, stop // k)
        left = np.ascontiguousarray(p[:, rows].T).reshape(-1)
        scratch = np.empty(len(p) * _COLUMNS, np.float32)
        _multiply(left, right, len(p), k, scratch, out[start:stop])

    pool.run(task, m * k, k)


@dispatched("gcodec.kernels.numeric.products_cuda", by="out")
def add_product(p: np.ndarray, q: np.ndarray, scale: np.float32, out: np.ndarray) -> None:
    """Add scale·PᵀQ to `out`; the product and each step are rounded. See `put_product`."""
    k = q.shape[1]
    height = max(_PRODUCT // max(k, 1), 1)

    def task(start: int, stop: int) -> None:
        scratch = np.empty(height * k, np.float32)
        for row in range(start // k, stop // k, height):
            part = p[:, row : min(row + height, stop // k)]
            values = out[row * k : (row + part.shape[1]) * k]
            put_product(part, q, scratch[: values.size])
            add_scaled(scratch[: values.size], scale, values)

    pool.run(task, out.size, k)


@kernel("in float32[], in float32[], int64, int64, out float32[], out float32[]")
def _multiply(left, right, ranks, k, scratch, out):
    # left.size == rows * ranks; right.size == ranks * k; out.size == rows * k; ranks > 0;
    # scratch.size == ranks * _COLUMNS
    rows = out.size // max(k, 1)
    for column in range(0, k, _COLUMNS):
        width = min(_COLUMNS, k - column)
        for j in range(ranks):
            for t in range(width):
                scratch[j * width + t] = right[j * k + column + t]
        for i in range(rows):
            values = out[i * k + column : i * k + column + width]
            factors = left[i * ranks : i * ranks + ranks]
            first = ranks % 4  # then four terms at a time
            for j in range(first):
                row = scratch[j * width : j * width + width]
                if j == 0:
                    for t in range(width):
                        values[t] = factors[0] * row[t]
                else:
                    for t in range(width):
                        values[t] += factors[j] * row[t]
            if first == 0:
                _put_four(factors, scratch, 0, width, values)
                first = 4
            for j in range(first, ranks, 4):
                _add_four(factors, scratch, j, width, values)


def _four_terms(adds: bool) -> Any:
    """Make the helper that writes or adds the terms j to j + 3 of each value of a row."""

    def terms(factors, scratch, j, width, values):
        row_0 = scratch[j * width : j * width + width]
        row_1 = scratch[(j + 1) * width : (j + 1) * width + width]
        row_2 = scratch[(j + 2) * width : (j + 2) * width + width]
        row_3 = scratch[(j + 3) * width : (j + 3) * width + width]
        factor_0, factor_1 = factors[j], factors[j + 1]
        factor_2, factor_3 = factors[j + 2], factors[j + 3]
        for t in range(width):  # width == values.size
            total = factor_0 * row_0[t]
            if adds:
                total = values[t] + total
            total += factor_1 * row_1[t]
            total += factor_2 * row_2[t]
            values[t] = total + factor_3 * row_3[t]

    return inline(terms)


_put_four = _four_terms(adds=False)
_add_four = _four_terms(adds=True)


def _blocks(matrix: np.ndarray, unit: float) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Cut a matrix into blocks of integers; each block overwrites the preceding one."""
    m, k = matrix.shape
    height, width = block_of(k)
    buffer = np.empty((height, width))
    for row in range(0, m, height):
        for column in range(0, k, width):
            rows, columns = slice(row, row + height), slice(column, column + width)
            part = matrix[rows, columns]
            block = buffer[: part.shape[0], : part.shape[1]]
            np.multiply(part, 1 / unit, out=block, dtype=np.float64)
            yield rows, columns, np.rint(block, out=block)
