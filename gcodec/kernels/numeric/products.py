"""Products of a matrix with few rows of factors, with the same bits everywhere.

Which order a matrix product adds in is up to the library and the processor. So what is multiplied
are integers: of a matrix up to 2^24, of factors up to 2^16; no more than 2^13 products are added
at a time, so that these sums are exact in float64, in any order. The sums of blocks of so many
are added one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.device import dispatched

VALUE_NBITS, FACTOR_NBITS = 24, 16
SUM = 1 << 53 - VALUE_NBITS - FACTOR_NBITS  # products that are added at a time

_BLOCK = 1 << 18  # values that become float64 at a time
_PRODUCT = 1 << 15  # values that are decoded at a time


def block_of(columns: int) -> tuple[int, int]:
    """Return how many rows and columns the blocks of a matrix have, whatever is added up."""
    width = min(columns, SUM)
    return min(max(_BLOCK // max(width, 1), 1), SUM), width


def unit_of(top: int) -> float:
    """Return what integers count, of which the largest value has as many as are exact.

    It is a power of two; `top` has the bits of the value, a float32.
    """
    _, exponent = np.frexp(float(np.array([int(top)], np.uint32).view(np.float32)[0]))
    return float(np.ldexp(1.0, int(exponent) - VALUE_NBITS))


def along_rows(matrix: np.ndarray, top: int, factors: np.ndarray) -> np.ndarray:
    """Return the sums of products with each row of a matrix, as (r, m) float64.

    Parameters
    ----------
    matrix : (m, k) float32 array
        Finite.
    top : int
        The bits of the largest magnitude. Values are as many units as the nearest integer says;
        see `unit_of`.
    factors : (r, k) float64 array
        Integers.
    """
    made = np.zeros((matrix.shape[0], len(factors)))
    turned = np.ascontiguousarray(factors.T)
    for rows, columns, block in _blocks(matrix, unit_of(top)):
        made[rows] += block @ turned[columns]
    return np.ascontiguousarray(made.T)


def along_columns(matrix: np.ndarray, top: int, factors: np.ndarray) -> np.ndarray:
    """Return the same with each column and (r, m) factors, as (r, k); see `along_rows`."""
    made = np.zeros((matrix.shape[1], len(factors)))
    turned = np.ascontiguousarray(factors.T)
    for rows, columns, block in _blocks(matrix, unit_of(top)):
        made[columns] += block.T @ turned[rows]
    return np.ascontiguousarray(made.T)


@dispatched("gcodec.kernels.numeric.products_cuda", by="out")
def put_product(p: np.ndarray, q: np.ndarray, out: np.ndarray) -> None:
    """Set (m·k,) float32 `out` to PᵀQ: products, and sums in the order of rows, each rounded.

    Of (r, m) and (r, k) float32 arrays, which lie where `out` does, r being 1 at least.
    """
    m, k = p.shape[1], q.shape[1]
    matrix = out.reshape(m, k)
    step = max(_PRODUCT // max(k, 1), 1)

    def task(first: int, behind: int) -> None:
        scratch = np.empty((step, k), np.float32)
        for at in range(first // k, behind // k, step):
            part = matrix[at : min(at + step, behind // k)]
            for j in range(len(p)):
                factor = p[j, at : at + len(part), np.newaxis]
                if j == 0:
                    np.multiply(factor, q[j], out=part)
                else:
                    part += np.multiply(factor, q[j], out=scratch[: len(part)])

    with np.errstate(all="ignore"):
        pool.run(task, m * k, k)


def _blocks(matrix: np.ndarray, unit: float) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Cut a matrix into blocks of integers; each overwrites the last."""
    m, k = matrix.shape
    height, width = block_of(k)
    room = np.empty((height, width))
    for row in range(0, m, height):
        for column in range(0, k, width):
            rows, columns = slice(row, row + height), slice(column, column + width)
            some = matrix[rows, columns]
            block = room[: some.shape[0], : some.shape[1]]
            np.multiply(some, 1 / unit, out=block, dtype=np.float64)
            yield rows, columns, np.rint(block, out=block)
