"""The encoder's search: components, rank, step and levels that meet an error with few bits.

1. `Subspace` finds the principal components of a matrix, from the right factor of the preceding
   step or from random rows, until they suffice for the target.
2. `allocate` gives the rank and the step that all factors share. The right factor R contains the
   components in units of the step. Its levels are quantized first.
3. The left factor L is the least-squares solution for these levels, so it makes up for a part of
   their error. Its own step is set such that the error of the product meets the target: it is
   computed exactly, as ‖M − LᵀR‖² = ‖M‖² − 2·⟨L, R·Mᵀ⟩ + ⟨L·Lᵀ, R·Rᵀ⟩.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gcodec.codecs.lowrank import message
from gcodec.codecs.lowrank.allocation import Allocation, allocate, beside_residual, rank_at
from gcodec.codecs.lowrank.subspace import Matrix, Subspace, gram_of
from gcodec.kernels.numeric import low_rank
from gcodec.kernels.numeric.reduce import fold
from gcodec.wire.kinds import binary32

_FIRST_WIDTH = 16  # random dimensions of the first subspace
_PROMISING = {32: 0.5, 128: 0.8}  # least share of the energy, from a number of dimensions on
_MOST_WIDTH = 256  # dimensions; a residual is shorter where more are necessary
_SPARE = 4  # dimensions beyond the rank, so that the subspace contains the components
_LEAST_NBITS = 0.8  # of a value of a factor, at least
_FOUND_EARLY = 0.5  # random rows find less than the components that remain
_SURE = 0.9985  # of a target, because the matrix is rounded for products
_TOLERANCE = 0.985  # of the squared error that the left factor may add
_CLOSE = 0.97  # of a target, for an estimate of the error
_FINER = 0.85  # of a step, where the right factor leaves nothing to the left one
_MOST_TRIALS = 6  # quantizations of a factor
_SLOPE = 1.7  # approximate octaves of the error for each octave of the step
_STEP_SQUARES = 10.0  # squared steps of a dead-zone quantizer for each unit of its squared error
_DEPENDENT = 2.0**-20  # share of a squared norm that is independent of the preceding rows
_LARGEST_LEVEL = 2.0**20  # in units of the step, far below the limit of ecsq


class Factors(NamedTuple):
    """The factors of a matrix.

    Attributes
    ----------
    step : float
        Float32 number that scales the factors; see `message.scales`.
    exponents : (r,) int64 array
        Exponents of the components.
    right, left : object
        Symbols of the factors, as ecsq returns them.
    right_points, left_points : (r, k) and (r, m) float32 arrays
        Decoded factors, without scales.
    error : float
        Squared error of the product.
    """

    step: float
    exponents: np.ndarray
    right: Any
    left: Any
    right_points: np.ndarray
    left_points: np.ndarray
    error: float


class Factorizer:
    """Factors of one matrix, for any target.

    Parameters
    ----------
    matrix : Matrix
    trellis : {"no", "yes"}
    seed : int
        Seed of the random rows.
    prior : (r, k) float64 array or None
        Right factor of the preceding step.
    """

    def __init__(
        self, matrix: Matrix, trellis: str, seed: int, prior: np.ndarray | None = None
    ) -> None:
        self.matrix, self._trellis, self._seed = matrix, trellis, seed
        self.subspace = Subspace(matrix)
        self._is_refined = prior is not None
        if prior is not None:
            spare = min(max(_SPARE, len(prior) // 8), self._most_width - len(prior))
            self.subspace.extend(np.concatenate([prior, self.subspace.at_random(spare, seed)]))

    def find(self, target: float, most_nbits: float) -> Allocation | None:
        """Find the components for a squared error; None if factors need more than `most_nbits`."""
        while True:
            allocation = self._allocate(target)
            is_met = allocation.error <= target
            if is_met and allocation.rank + _SPARE <= self.subspace.width:
                break
            if self.subspace.width >= self._most_width:
                break
            if self._least_nbits(target) > most_nbits or not self._is_promising(target):
                return None
            self._widen(max(2 * self.subspace.width, _FIRST_WIDTH))
        if not self._is_refined and is_met and allocation.rank:
            self._refine(allocation.rank)
            allocation = self._allocate(target)
        return allocation if allocation.rank and allocation.error <= target else None

    def _is_promising(self, target: float) -> bool:
        """Return whether the known components have so much energy that more are worth a search."""
        share = math.fsum(self.subspace.energies) / (self.matrix.energy - target)
        width = self.subspace.width
        return all(share >= least for first, least in _PROMISING.items() if width >= first)

    def _least_nbits(self, target: float) -> float:
        """Return the approximate least number of bits, given the components that are known."""
        energies = self.subspace.energies
        if not energies.size or not energies[-1]:
            return 0.0
        least, sizes = float(energies[-1]), self.subspace.sizes
        missing = self.matrix.energy - math.fsum(energies) - target
        rank = energies.size + max(missing / least, 0.0) * _FOUND_EARLY
        distortion = target / (rank * sum(sizes))
        ratio = max(least / (max(sizes) * distortion), 1.0)
        return rank * sum(sizes) * max(math.log2(ratio) / 2, _LEAST_NBITS)

    def meet(self, allocation: Allocation, target: float) -> Factors | None:
        """Return factors whose squared error is at most, and nearly, `target`."""
        step = math.sqrt(_STEP_SQUARES * allocation.distortion)
        energies, (m, k) = self.subspace.energies, self.subspace.sizes
        right = None
        for _ in range(_MOST_TRIALS):
            if (right := self._quantize_right(allocation.rank, step)) is None:
                return None
            points = right[1]
            difference = self.subspace.components[: len(points)] - points * step
            error = max(self.matrix.energy - math.fsum(energies[: len(points)]), 0.0)
            error += sum(map(low_rank.energy, difference)) * (1 + m / k)
            if _CLOSE * target <= error <= target:
                break
            octaves = math.log2((1 + _CLOSE) / 2 * target / max(error, 1e-300)) / _SLOPE
            step *= 2.0 ** max(min(octaves, 0.5), -1.0)
        for _ in range(_MOST_TRIALS):
            if right is None:
                return None
            left = self._left(*right)
            factors = None if left is None else left.meet(step, target * _SURE)
            if factors is not None:
                return factors
            step *= _FINER
            right = self._quantize_right(allocation.rank, step)
        return None

    def at_step(self, step: float, rank: int | None) -> Factors | None:
        """Return factors with a step, and with the components that pay if `rank` is None.

        None if no component pays, or if a level would be too large.
        """
        distortion = step * step / _STEP_SQUARES
        while True:
            known = self.subspace.energies
            wanted = rank_at(distortion, known, self.subspace.sizes) if rank is None else rank
            if wanted + _SPARE <= self.subspace.width or self.subspace.width >= self._most_width:
                break
            self._widen(max(2 * self.subspace.width, _FIRST_WIDTH))
        if wanted and not self._is_refined:
            self._refine(wanted)
        return self._both(min(wanted, self._most_width), step)

    def with_residual(self, target: float) -> Factors | None:
        """Return factors for a residual that is coded, too, with the squared error `target`."""
        energies, sizes = self.subspace.energies, self.subspace.sizes
        allocation = beside_residual(energies, self.matrix.energy, sizes, target)
        step = math.sqrt(_STEP_SQUARES * allocation.distortion)
        return self._both(allocation.rank, step)

    @property
    def _most_width(self) -> int:
        """Largest number of dimensions: factors must have fewer values than the matrix."""
        m, k = self.matrix.sizes
        return min((m * k - 1) // (m + k), _MOST_WIDTH)

    def _allocate(self, target: float) -> Allocation:
        subspace = self.subspace
        return allocate(subspace.energies, self.matrix.energy, subspace.sizes, target)

    def _widen(self, width: int) -> None:
        """Add random dimensions up to a width."""
        count = min(width, self._most_width) - self.subspace.width
        if count > 0:
            self.subspace.extend(self.subspace.at_random(count, self._seed))

    def _refine(self, rank: int) -> None:
        """Repeat the projection from the components that were found: a power iteration."""
        rows = self.subspace.components[: rank + max(_SPARE, rank // 8)]
        self.subspace = Subspace(self.matrix)
        self.subspace.extend(rows)
        self._is_refined = True

    def _quantize_right(self, rank: int, step: float) -> tuple[Any, np.ndarray] | None:
        """Return symbols and points of the right factor; None if all of its levels are 0."""
        wide = self.subspace.components[:rank] / step
        if not wide.size or np.abs(wide).max() > _LARGEST_LEVEL:
            return None
        rows = wide.astype(np.float32)
        symbols, points = quantized(rows, self._trellis)
        nonzero = points.any(axis=1)
        if not nonzero.all():
            if not nonzero.any():
                return None
            symbols, points = quantized(rows[nonzero], self._trellis)
        return (symbols, points) if points.any(axis=1).all() else None

    def _both(self, rank: int, step: float) -> Factors | None:
        """Return both factors with a step."""
        right = self._quantize_right(rank, step)
        left = None if right is None else self._left(*right)
        return None if left is None else left.at(step)

    def _left(self, symbols: Any, points: np.ndarray) -> _LeftFactor | None:
        """Return the left factor; None if the rows of the right factor depend on each other."""
        inverse = _inverse(gram_of(points))
        if inverse is None:
            return None
        return _LeftFactor(self.matrix, symbols, points, inverse, self._trellis)


def quantized(rows: np.ndarray, trellis: str) -> tuple[Any, np.ndarray]:
    """Quantize (r, k) float32 rows with the step 1; return symbols and points."""
    codec = message.factor_codec(trellis, rows.shape)
    symbols = codec._quantize(np.ascontiguousarray(rows).reshape(-1), 0, None)
    return symbols, message.points_of(codec, symbols, rows.shape)


class _LeftFactor:
    """The left factor for the levels of a right factor.

    Parameters
    ----------
    matrix : Matrix
    right : object
        Symbols of the right factor.
    points : (r, k) float32 array
        Points of the right factor.
    inverse : (r, r) float64 array
        Inverse of the inner products of the points.
    trellis : {"no", "yes"}
    """

    def __init__(
        self, matrix: Matrix, right: Any, points: np.ndarray, inverse: np.ndarray, trellis: str
    ) -> None:
        self._matrix, self._right, self._points, self._trellis = matrix, right, points, trellis
        self._images = matrix.projected_exactly(points.astype(np.float64))
        self._gram = gram_of(points)
        self._exponents = message.exponents_of(np.sqrt(np.diagonal(self._gram)))
        images = self._images.astype(np.float32)
        self._solution = low_rank.times(images, low_rank.fixed(inverse))

    def meet(self, step: float, target: float) -> Factors | None:
        """Return the factors whose squared error is nearest below `target`; start at a step."""
        octave, best = math.log2(step), None
        low, high = -math.inf, math.inf
        floor = self._matrix.energy - _sum(self._solution * self._images)
        if floor >= target:
            return None
        for _ in range(_MOST_TRIALS):
            factors = self.at(2.0**octave)
            if factors is None:
                return best
            added = max(factors.error - floor, 1e-300)
            if factors.error <= target:
                low = octave
                if best is None or factors.error > best.error:
                    best = factors
                if factors.error >= target * _TOLERANCE or added >= _TOLERANCE * (target - floor):
                    break
            else:
                high = octave
            move = math.log2((target - floor) * 0.994 / added) / _SLOPE
            octave += max(min(move, 1.0), -1.0)
            if not low < octave < high:
                octave = (low + high) / 2
        return best

    def at(self, step: float) -> Factors | None:
        """Return the left factor with a step; None if its levels would be too large."""
        step = binary32(step)
        factors = message.scales(step, self._exponents).astype(np.float64)[:, np.newaxis]
        if not factors.all():
            return None
        rows = self._solution / factors
        if np.abs(rows).max() > _LARGEST_LEVEL:
            return None
        symbols, points = quantized(rows.astype(np.float32), self._trellis)
        if symbols.scales is None:
            return None
        values = points * factors
        product = factors * gram_of(points) * factors.T
        error = self._matrix.energy - 2 * _sum(values * self._images) + _sum(product * self._gram)
        return Factors(
            step, self._exponents, self._right, symbols, self._points, points, float(error)
        )


def _sum(values: np.ndarray) -> float:
    """Return the sum of float64 values, in the order of `fold`."""
    return fold(np.ascontiguousarray(values).reshape(-1))


def _inverse(matrix: np.ndarray) -> np.ndarray | None:
    """Return the inverse of a symmetric (r, r) matrix; None if it is not positive definite.

    Elimination by element-wise operations gives the same bits everywhere; a library's solver does
    not.
    """
    r = len(matrix)
    tableau = np.concatenate([matrix, np.eye(r)], axis=1)
    for j in range(r):
        if not tableau[j, j] > _DEPENDENT * matrix[j, j]:
            return None
        tableau[j] /= tableau[j, j]
        factors = tableau[:, j].copy()
        factors[j] = 0.0
        tableau -= factors[:, np.newaxis] * tableau[j]
    return np.ascontiguousarray(tableau[:, r:])
