"""Products of a matrix with few rows of factors, with the same bits on all devices.

Libraries and processors differ in the order in which a matrix product sums. So both operands are
rounded to integers: matrix values up to 2^24, factors up to 2^16. A block sums at most 2^13
products, so these sums are exact in float64, in any order. The sums of blocks are added one after
the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.device import dispatched

VALUE_NBITS, FACTOR_NBITS = 24, 16
SUM = 1 << 53 - VALUE_NBITS - FACTOR_NBITS  # products that a block sums

_BLOCK = 1 << 18  # values that are converted to float64 at a time
_PRODUCT = 1 << 15  # values that are decoded at a time


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
    matrix = out.reshape(m, k)
    step = max(_PRODUCT // max(k, 1), 1)

    def task(start: int, stop: int) -> None:
        scratch = np.empty((step, k), np.float32)
        for at in range(start // k, stop // k, step):
            part = matrix[at : min(at + step, stop // k)]
            for j in range(len(p)):
                factor = p[j, at : at + len(part), np.newaxis]
                if j == 0:
                    np.multiply(factor, q[j], out=part)
                else:
                    part += np.multiply(factor, q[j], out=scratch[: len(part)])

    with np.errstate(all="ignore"):
        pool.run(task, m * k, k)


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
