"""Whether a matrix is of so low a rank that factors take fewer bits than levels do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec import low_rank

_FIRST_RANK, _MOST_RANK = 8, 64  # that are tried
_NBITS = 32  # of a number of a factor
_LEAST_ERROR = 1e-4  # below it the rounding of sums is felt
_MARGIN = 1e-3  # of an error
_ROWS = 4  # for each of the rank: few enough to be quick, more than are always of that rank
_HOPE = 1.5  # times the error: what some rows may have


def least_rank(
    x: np.ndarray, error: float, seed: int, estimate: float, count: Callable[[], float]
) -> int | None:
    """Return the least rank that has the error and takes fewer bits than levels.

    Parameters
    ----------
    x : float32 array
        Not 0.
    error : float
        ‖x − x̂‖²/‖x‖².
    seed : int
        Of the random rows that the step begins with.
    estimate : float
        About how many bits levels take, or more.
    count : callable
        Returns how many they do take, or nearly.
    """
    limit = _affordable(x, estimate)
    if not _may_have(x, error, seed, limit):
        return None
    rank = _FIRST_RANK
    while True:
        errors = low_rank.errors_of_ranks(_matrix(x), min(rank, limit), seed)
        fine = np.flatnonzero(errors <= error * (1 - _MARGIN))
        if fine.size:
            least = int(fine[0]) + 1
            return least if _nbits(x, least) < count() else None
        if rank >= limit:
            return None
        rank *= 4


def best_rank(
    x: np.ndarray, error: float, seed: int, room: float, find: Callable[[], float]
) -> int | None:
    """Return the largest rank that there is room for, if its error is less than that of levels.

    Parameters
    ----------
    x : float32 array
        Not 0.
    error : float
        About that of levels, or more.
    seed : int
    room : float
        Bits.
    find : callable
        Returns that of levels.
    """
    rank = _affordable(x, room)
    if not _may_have(x, error, seed, rank):
        return None
    found = low_rank.errors_of_ranks(_matrix(x), rank, seed)[-1]
    return rank if found < find() * (1 - _MARGIN) else None


def _matrix(x: np.ndarray) -> np.ndarray:
    return x.reshape(x.shape[0], -1)


def _affordable(x: np.ndarray, nbits: float) -> int:
    """Return the largest rank whose factors take at most so many bits, up to _MOST_RANK; or 0."""
    if x.ndim < 2:
        return 0
    rank = min(int(nbits / _nbits(x, 1)), _MOST_RANK)
    return rank if rank and low_rank.matrix_shape(x.shape, rank) else 0


def _nbits(x: np.ndarray, rank: int) -> int:
    """Return the bits of factors."""
    return _NBITS * rank * sum(map(int, _matrix(x).shape))


def _may_have(x: np.ndarray, error: float, seed: int, rank: int) -> bool:
    """Tell whether some rows, evenly spread, have about that error with factors of a rank."""
    if error < _LEAST_ERROR or not rank:
        return False
    matrix = _matrix(x)
    some = np.ascontiguousarray(matrix[:: max(len(matrix) // (_ROWS * rank), 1)])
    if len(some) == len(matrix) or not some.any():
        return True
    return bool(low_rank.errors_of_ranks(some, rank, seed)[-1] <= _HOPE * error)
