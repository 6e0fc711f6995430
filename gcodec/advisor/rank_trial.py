"""Trials of low-rank factors: the errors of all ranks of ``powersgd`` up to a bound, in one step.

A trial costs about as much as an encode with ``ecsq``. Its work is bounded in advance, and evenly
spaced rows of the matrix serve as a sample that excludes most matrices.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gcodec.kernels.numeric import low_rank
from gcodec.kernels.numeric.reduce import sum_squares

MAX_WORK = 120.0
"""Multiply-adds per value in a trial; an encode with ``ecsq`` takes as long as 100 to 200."""

_MAX_RANK = 64
_NBITS = 32  # of one number of a factor
_MIN_ERROR = 1e-4  # the rounding of sums matters below this error
_RANK_MARGIN = 1e-3  # relative to the error
_PRODUCT_ROUNDING = 2e-6  # error of float32 sums relative to the sums of the encoder
_DEPENDENT = 2.0**-40  # as in `low_rank.orthonormal`
_DOUBLE = 2.0  # float32 multiply-adds that take as long as one in float64
_DRAW = 600.0  # float32 multiply-adds that take as long as drawing one random number
_TILE, _WIDTH = 1 << 18, 64  # multiply-adds of a tile, and its columns
_ROWS_PER_RANK, _MIN_SAMPLE = 4, 1 / 8  # rows of a sample, per rank and relative to all rows
_MAX_SAMPLE = 1 / 3  # of the rows; a larger sample saves too little
_SLACK = 1.5  # factor by which a sample may exceed the error, and the energy of its factors differ
_SURE = 0.5  # fraction of the error that a sample must reach for a trial that must not be wasted
_RANK_FACTOR, _RANK_OFFSET = 1.5, 4  # from the rank of a sample to the largest rank to try


class Factors(NamedTuple):
    """Result of a trial.

    Attributes
    ----------
    rank : int
    error : float
        ‖x − x̂‖²/‖x‖² of that rank.
    nbits : int
        Bits of the factors.
    work : float
        Multiply-adds per value that the trial took.
    """

    rank: int
    error: float
    nbits: int
    work: float


def smallest_rank(
    x: np.ndarray, error: float, seed: int, norm: float, max_nbits: float
) -> Factors | None:
    """Return the smallest rank that reaches an error, or None if no affordable rank does.

    Parameters
    ----------
    x : float32 array
        Nonzero tensor.
    error : float
        Largest ‖x − x̂‖²/‖x‖².
    seed : int
        Seed of the random rows from which the trial starts.
    norm : float
        ‖x‖.
    max_nbits : float
        Largest number of bits of the factors.
    """
    max_rank = affordable_rank(x, max_nbits, MAX_WORK)
    errors = _errors(x, error, seed, norm, max_rank, stop_early=True)
    if errors is None:
        return None
    (sufficient,) = np.nonzero(errors <= error * (1 - _RANK_MARGIN) - _PRODUCT_ROUNDING)
    return _factors(x, int(sufficient[0]) + 1, errors) if sufficient.size else None


def largest_rank(
    x: np.ndarray,
    error: float,
    seed: int,
    norm: float,
    max_nbits: float,
    max_work: float,
    max_wasted: float,
) -> Factors | None:
    """Return the largest affordable rank, or None if a sample of the rows has a larger error.

    If the trial of that rank is too long to be wasted, and the matrix has too few rows for a
    sample, the function tries the largest rank whose trial may be wasted.

    Parameters
    ----------
    x : float32 array
        Nonzero tensor.
    error : float
        Approximate error that the factors must reach.
    seed : int
        Seed of the random rows from which the trial starts.
    norm : float
        ‖x‖.
    max_nbits : float
        Largest number of bits of the factors.
    max_work : float
        Most multiply-adds per value; see `trial_work`.
    max_wasted : float
        Most work of a trial that may find a larger error. A longer trial requires a sample with
        at most half the error.
    """
    rank, short_rank = (affordable_rank(x, max_nbits, work) for work in (max_work, max_wasted))
    errors = _errors(x, error, seed, norm, rank, short_rank=short_rank)
    return None if errors is None else _factors(x, errors.size, errors)


def affordable_rank(x: np.ndarray, max_nbits: float, max_work: float) -> int:
    """Return the largest rank whose factors stay within the bits and the work; 0 if none does.

    Parameters
    ----------
    x : float32 array
    max_nbits : float
    max_work : float
        Most multiply-adds per value; see `trial_work`.
    """
    if x.ndim < 2:
        return 0
    rank = min(int(max_nbits / _factor_nbits(x, 1)), _MAX_RANK)
    while rank and trial_work(_matrix(x).shape, rank) > max_work:
        rank -= 1
    return rank if rank and low_rank.matrix_shape(x.shape, rank) else 0


def trial_work(shape: tuple[int, int], rank: int) -> float:
    """Return the work of a trial, converted to float32 multiply-adds per value."""
    m, k = shape
    return 2 * rank + _DRAW * rank / m + _DOUBLE * rank**2 * (3 * m + k) / (m * k)


def start_rows(matrix: np.ndarray, rank: int, seed: int) -> np.ndarray:
    """Return the random rows from which a trial starts: (rank, k) float32, shorter than 1.

    They are the rows of ``powersgd`` times a power of two, so that no sum exceeds float32.
    """
    rows = low_rank.start(seed, rank, matrix.shape[1])
    _, exponent = np.frexp(np.sqrt((rows**2).sum(axis=1).max(initial=1.0)))
    return np.asarray(np.ldexp(rows, -exponent), np.float32)


def errors_of_ranks(matrix: np.ndarray, rows: np.ndarray, norm: float) -> np.ndarray:
    """Return ‖M − M̂‖²/‖M‖² of all ranks up to r, after one step from random rows.

    Parameters
    ----------
    matrix : (m, k) float32 array
        Nonzero matrix whose norm is within float32.
    rows : (r, k) float32 array
        See `start_rows`.
    norm : float
        ‖M‖.

    Returns
    -------
    (r,) float64 array
        Errors, within 2e-6 of the errors of ``powersgd``; they may therefore be below 0.
    """
    sketch = _product(rows, matrix.T).astype(np.float64) / norm
    p = low_rank.fixed(_orthonormal(sketch)).values
    # The numbers of p have 17 bits, so float32 stores them exactly.
    q = _product(p.astype(np.float32), matrix).astype(np.float64) / norm
    shared = _product(p, p.T) * _product(q, q.T)
    energies = shared.cumsum(axis=0).cumsum(axis=1).diagonal()
    return np.asarray(1 - (2 * (q * q).sum(axis=1).cumsum() - energies))


def _orthonormal(rows: np.ndarray) -> np.ndarray:
    """Make (r, m) rows orthonormal by the Cholesky factor of their products.

    A row that is a sum of the preceding rows, except for 2^-20 of itself, becomes 0.
    """
    remainder, count = _product(rows, rows.T), len(rows)
    smallest = remainder.diagonal() * _DEPENDENT
    lower = np.eye(count)
    is_independent = np.zeros(count, bool)
    for j in range(count):
        pivot = remainder[j, j]
        is_independent[j] = pivot > smallest[j]
        if is_independent[j]:
            lower[j:, j] = remainder[j:, j] / np.sqrt(pivot)
            column = lower[j + 1 :, j]
            remainder[j + 1 :, j + 1 :] -= np.multiply.outer(column, column)
    orthonormal = _product(np.linalg.inv(lower), rows)
    orthonormal[~is_independent] = 0
    return orthonormal


def _product(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return the product of an (r, m) and an (m, k) array, in tiles of at most `_TILE`."""
    (r, m), k = rows.shape, matrix.shape[1]
    depth, tiled = max(_TILE // (r * _WIDTH), 1), k // _WIDTH * _WIDTH
    tiles = np.zeros((tiled // _WIDTH, r, _WIDTH), rows.dtype)
    last = np.zeros((r, k - tiled), rows.dtype)
    scratch = np.empty_like(tiles)
    for start in range(0, m, depth):
        left, right = rows[:, start : start + depth], matrix[start : start + depth]
        parts = right[:, :tiled].reshape(len(right), -1, _WIDTH).transpose(1, 0, 2)
        with np.errstate(under="ignore"):
            tiles += np.matmul(left, parts, out=scratch)
            last += left @ right[:, tiled:]
    return np.concatenate([tiles.transpose(1, 0, 2).reshape(r, tiled), last], axis=1)


def _factors(x: np.ndarray, rank: int, errors: np.ndarray) -> Factors:
    work = trial_work(_matrix(x).shape, errors.size)
    return Factors(rank, float(errors[rank - 1]), _factor_nbits(x, rank), work)


def _matrix(x: np.ndarray) -> np.ndarray:
    return x.reshape(x.shape[0], -1)


def _factor_nbits(x: np.ndarray, rank: int) -> int:
    return _NBITS * rank * sum(map(int, _matrix(x).shape))


def _errors(
    x: np.ndarray,
    error: float,
    seed: int,
    norm: float,
    rank: int,
    *,
    stop_early: bool = False,
    short_rank: int | None = None,
) -> np.ndarray | None:
    """Return the errors of all ranks up to `rank`; None if a sample of the rows has a larger one.

    With `stop_early`, the sample also limits the ranks to try. A trial of more ranks than
    `short_rank` requires a sample with a far smaller error; without a sample, it tries
    `short_rank` ranks.
    """
    if error < _MIN_ERROR or not rank:
        return None
    matrix = _matrix(x)
    rows = start_rows(matrix, rank, seed)
    count = max(_ROWS_PER_RANK * rank, int(_MIN_SAMPLE * len(matrix)))
    if count <= _MAX_SAMPLE * len(matrix):
        sample = np.ascontiguousarray(matrix[:: len(matrix) // count])
        length = math.sqrt(sum_squares(sample.reshape(-1)))
        sampled = errors_of_ranks(sample, rows, length) if length else np.zeros(1)
        factor = _SLACK if short_rank in (None, rank) else _SURE
        if sampled[-1] > factor * error or _SLACK * (1 - sampled[-1]) < 1 - error:
            return None
        if stop_early:
            (sufficient,) = np.nonzero(sampled <= error)
            if sufficient.size:
                rank = min(rank, int(_RANK_FACTOR * (sufficient[0] + 1)) + _RANK_OFFSET)
    elif short_rank is not None:
        rank = short_rank
    return errors_of_ranks(matrix, rows[:rank], norm) if rank else None
