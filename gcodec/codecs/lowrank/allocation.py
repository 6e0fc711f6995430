"""The allocation of bits to components, by reverse water-filling.

Let a component of an (m, k) matrix have the energy E: its left factor has m values of variance
E/m, and its right factor k values of variance E/k. At a mean squared error D of each value, they
take m/2·log2(E/(m·D)) + k/2·log2(E/(k·D)) bits, and the matrix has the error (m + k)·D instead of
E. All values of all factors have the same D, because then one bit reduces the error by the same
amount wherever it is spent: by 2·ln 2·D. A component pays if it reduces the error by more than its
bits would elsewhere.

Source: T. Cover and J. Thomas, "Elements of information theory", 2nd edition, section 10.3.3.
"""

from __future__ import annotations

import bisect
import functools
import math
from typing import NamedTuple

import numpy as np

_HALVINGS = 30  # of the interval of the logarithm of D
_OCTAVES = 60  # initial length of this interval
OVERHEAD = 0.25  # bits of a coded value beyond the Gaussian rate


class Allocation(NamedTuple):
    """The precision of all factors, and the components that pay.

    Attributes
    ----------
    rank : int
        Number of components.
    distortion : float
        Mean squared error D of each value of a factor.
    error : float
        Expected squared error of the matrix.
    """

    rank: int
    distortion: float
    error: float


def allocate(
    energies: np.ndarray, energy: float, sizes: tuple[float, float], target: float
) -> Allocation:
    """Return the coarsest allocation whose expected squared error is at most `target`.

    Parameters
    ----------
    energies : (w,) float64 array
        Energies of the known components, in descending order.
    energy : float
        Energy of the matrix.
    sizes : (float, float)
        m and k, or the effective numbers of rows and columns.
    target : float
    """
    ascending, least, total = energies[::-1].tolist(), _least_energy(sizes), sum(sizes)

    @functools.cache
    def missing(rank: int) -> float:
        return max(energy - math.fsum(ascending[len(ascending) - rank :]), 0.0)

    def at(octave: float) -> Allocation:
        distortion = 2.0**octave
        rank = len(ascending) - bisect.bisect_right(ascending, distortion * least)
        return Allocation(rank, distortion, missing(rank) + rank * total * distortion)

    high = math.log2(max(energy / total, 2.0**-1000))
    low = high - _OCTAVES
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if at(middle).error > target:
            high = middle
        else:
            low = middle
    return at(low)


def rank_at(distortion: float, energies: np.ndarray, sizes: tuple[float, float]) -> int:
    """Return the number of components that pay; their energies are in descending order."""
    return int(np.count_nonzero(energies > distortion * _least_energy(sizes)))


def nbits(allocation: Allocation, energies: np.ndarray, sizes: tuple[float, float]) -> float:
    """Return the approximate number of bits of both factors."""
    total = 0.0
    for energy in energies[: allocation.rank].tolist():
        for size in sizes:
            ratio = energy / (size * allocation.distortion)
            total += size * (max(math.log2(ratio) / 2, 0.0) + OVERHEAD)
    return total


def beside_residual(
    energies: np.ndarray, energy: float, sizes: tuple[float, float], target: float
) -> Allocation:
    """Return the allocation for factors whose residual is coded, too, with the error `target`.

    Each value of the residual then has the variance v + D, where v is the energy that the factors
    lack per value, and D is the target per value. A component with the energy E therefore saves
    about E/(2·ln 2·(v + D)) bits, so v + D takes the place of D.
    """
    rank, left, n = 0, energy, math.prod(sizes)
    least = _least_energy(sizes)
    for component in energies.tolist():
        remaining = max(left - component, 0.0)
        if component <= least * (remaining + target) / n:
            break
        rank, left = rank + 1, remaining
    return Allocation(rank, (left + target) / n, target)


@functools.lru_cache(maxsize=64)
def _least_energy(sizes: tuple[float, float]) -> float:
    """Return the energy from which on a component pays, where D is 1."""
    low = high = max(sizes)  # where the smaller variance is D
    while not _pays(high, sizes):
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _pays(middle, sizes) else (middle, high)
    return high


def _pays(energy: float, sizes: tuple[float, float]) -> bool:
    """Return whether a component reduces the error by more than its bits would, where D is 1."""
    nats = sum(size * math.log(energy / size) for size in sizes)
    return energy - sum(sizes) > nats
