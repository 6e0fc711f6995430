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
from typing import NamedTuple

import numpy as np

from gcodec.codec import Symbols
from gcodec.codecs.lowrank import message
from gcodec.codecs.lowrank.allocation import Allocation, allocate, beside_residual, rank_at
from gcodec.codecs.lowrank.allocation import nbits as factor_nbits
from gcodec.codecs.lowrank.subspace import Matrix, Subspace, gram_of
from gcodec.kernels.numeric import low_rank
from gcodec.kernels.numeric.reduce import fold
from gcodec.wire.kinds import binary32

_FIRST_WIDTH = 16  # random dimensions of the first subspace
_PROMISING = {32: 0.5, 128: 0.8}  # least share of the energy, from a number of dimensions on
_DOUBTFUL = 0.5  # of the energy that noise would lack, where the preceding step had no factors
_MOST_WIDTH = 256  # dimensions; a residual is shorter where more are necessary
_SPARE = 4  # dimensions beyond the rank, so that the subspace contains the components
LEAST_NBITS = 0.8  # of a value of a factor, at least
_TABLE_NBITS = 300  # of the table of a residual
_EXCESS = 1.2  # bits of factors, in relation to the estimate
_FOUND_EARLY = 0.5  # random rows find less than the components that remain
_SURE = 0.9985  # of a target, because the matrix is rounded for products
_TOLERANCE = 0.983  # of a target, for the error of the product
_CLOSE = 0.96  # of a target, for an estimate of the error
_SIMILAR = 0.6  # ratio of the steps of consecutive messages, at least
_FINER = 0.85  # of a step, where the right factor leaves nothing to the left one
_MOST_TRIALS = 8  # quantizations of a factor
_SLOPE = 2.2  # approximate octaves of the error that a step adds, for each octave of the step
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
    right: Symbols
    left: Symbols
    right_points: np.ndarray
    left_points: np.ndarray
    error: float


class PriorFactors(NamedTuple):
    """The factors of the preceding step, from which a search starts.

    Attributes
    ----------
    right : (r, k) float64 array
        Points of the right factor.
    right_energy : float
        Squared norm of the right factor, in squared steps.
    energy : float
        Squared norm of the product, in squared steps of the message.
    """

    right: np.ndarray
    right_energy: float
    energy: float

    @classmethod
    def of(cls, left: np.ndarray, right: np.ndarray, exponents: np.ndarray) -> PriorFactors:
        """Return the factors with (r, m) and (r, k) float32 points."""
        left_energies, right_energies = (
            low_rank.energies(points.astype(np.float64)) for points in (left, right)
        )
        units = message.scales(1.0, exponents).astype(np.float64)
        energy = math.fsum(units * units * left_energies * right_energies)
        return cls(right.astype(np.float64), math.fsum(right_energies), energy)


class Factorizer:
    """Factors of one matrix, for any target.

    Parameters
    ----------
    matrix : Matrix
    trellis : {"no", "yes"}
    seed : int
        Seed of the random rows.
    prior : PriorFactors or None
        Factors of the preceding step.
    is_doubtful : bool
        Whether the preceding step had no factors, if `prior` is None. The search then ends early.
    """

    def __init__(
        self,
        matrix: Matrix,
        trellis: str,
        seed: int,
        prior: PriorFactors | None = None,
        *,
        is_doubtful: bool = False,
    ) -> None:
        self.matrix, self._trellis, self._seed = matrix, trellis, seed
        self.subspace, self._prior = Subspace(matrix), prior
        self._is_refined = prior is not None
        self._is_doubtful = is_doubtful and prior is None
        if prior is not None:
            rank = len(prior.right)
            spare = min(max(_SPARE, rank // 8), self._most_width - rank)
            rows = self.subspace.at_random(spare, seed)
            self.subspace.extend(np.concatenate([prior.right, rows]))

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
            self._widen()
        if not self._is_refined and is_met and allocation.rank:
            self._refine(allocation.rank)
            allocation = self._allocate(target)
        return allocation if allocation.rank and allocation.error <= target else None

    def _is_promising(self, target: float) -> bool:
        """Return whether the known components have so much energy that more are worth a search."""
        energy, width = math.fsum(self.subspace.energies), self.subspace.width
        if self._is_doubtful and width:
            lacking = 1 - energy / self.matrix.energy
            if lacking > _DOUBTFUL * (1 - width / min(self.matrix.sizes)):
                return False
        share = energy / (self.matrix.energy - target)
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
        return rank * sum(sizes) * max(math.log2(ratio) / 2, LEAST_NBITS)

    def meet(self, allocation: Allocation, target: float) -> Factors | None:
        """Return factors whose squared error is at most, and nearly, `target`."""
        energies, (m, k) = self.subspace.energies, self.subspace.sizes
        step, right = math.sqrt(_STEP_SQUARES * allocation.distortion), None
        if self._prior is not None:
            kept = (
                math.fsum(energies[: allocation.rank])
                - allocation.rank * k * allocation.distortion
            )
            step = _like_before(step, kept, self._prior.right_energy)
        for _ in range(_MOST_TRIALS):
            if (right := self._quantize_right(allocation.rank, step)) is None:
                return None
            points = right[1]
            difference = self.subspace.components[: len(points)] - points * step
            missing = max(self.matrix.energy - math.fsum(energies[: len(points)]), 0.0)
            added = math.fsum(low_rank.energies(difference)) * (1 + m / k)
            if _CLOSE * target <= missing + added <= target:
                break
            step *= 2.0 ** _move((1 + _CLOSE) / 2 * target - missing, added)
        for _ in range(_MOST_TRIALS):
            if right is None:
                return None
            left = self._left(*right)
            start = step
            if self._prior is not None:
                start = _like_before(step, self.matrix.energy - target, self._prior.energy)
            factors = None if left is None else left.meet(start, target * _SURE)
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
            self._widen()
        if wanted and not self._is_refined:
            self._refine(wanted)
        self.subspace.end()
        return self._both(min(wanted, self._most_width), step)

    def with_residual(self, target: float, plain_nbits: float, nbits: float) -> Factors | None:
        """Return factors for a residual that is coded, too, with the squared error `target`.

        None if that probably takes no fewer bits than ecsq alone, `plain_nbits`, or than factors
        alone, `nbits`, which is infinite if they cannot meet the target. The residual takes as
        many bits for each octave of the error as the matrix does.
        """
        if not self._is_promising(target):
            return None
        energies, sizes, whole = self.subspace.energies, self.subspace.sizes, self.matrix.energy
        allocation = beside_residual(energies, whole, sizes, target)
        lacking = max(whole - math.fsum(energies[: allocation.rank]), 0.0)
        lacking += allocation.rank * sum(sizes) * allocation.distortion
        octaves = max(math.log2(lacking / target), 0.0)
        expected = plain_nbits * octaves / math.log2(whole / target) + _TABLE_NBITS
        excess = _EXCESS
        if nbits < math.inf:
            excess = max(nbits / factor_nbits(self._allocate(target), energies, sizes), 1.0)
        expected += excess * factor_nbits(allocation, energies, sizes)
        if expected >= min(plain_nbits, nbits):
            return None
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

    def _widen(self) -> None:
        """Double the dimensions by random ones, up to the largest width."""
        width = max(2 * self.subspace.width, _FIRST_WIDTH)
        count = min(width, self._most_width) - self.subspace.width
        if count > 0:
            self.subspace.extend(self.subspace.at_random(count, self._seed))

    def _refine(self, rank: int) -> None:
        """Repeat the projection from the components that were found: a power iteration."""
        rows = self.subspace.components[: rank + max(_SPARE, rank // 8)]
        self.subspace = Subspace(self.matrix)
        self.subspace.extend(rows)
        self._is_refined = True

    def _quantize_right(self, rank: int, step: float) -> tuple[Symbols, np.ndarray] | None:
        """Return symbols and points of the right factor; None if all of its levels are 0."""
        wide = self.subspace.components[:rank] / step
        if not wide.size or np.abs(wide).max() > _LARGEST_LEVEL:
            return None
        with np.errstate(under="ignore"):
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

    def _left(self, symbols: Symbols, points: np.ndarray) -> _LeftFactor | None:
        """Return the left factor; None if the rows of the right factor depend on each other."""
        inverse = _inverse(gram_of(points))
        if inverse is None:
            return None
        return _LeftFactor(self.matrix, symbols, points, inverse, self._trellis)


def quantized(rows: np.ndarray, trellis: str) -> tuple[Symbols, np.ndarray]:
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
        self, matrix: Matrix, right: Symbols, points: np.ndarray, inverse: np.ndarray, trellis: str
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
        below, above = (-math.inf, 0.0), (math.inf, 0.0)
        floor = self._matrix.energy - _sum(self._solution * self._images)
        if floor >= target:
            return None
        wanted = max((1 + _TOLERANCE) / 2 * target, (floor + target) / 2) - floor
        for trial in range(_MOST_TRIALS):
            factors = self.at(2.0**octave)
            if factors is None:
                return best
            added = max(factors.error - floor, 1e-300)
            if factors.error <= target:
                below = octave, added
                if best is None or factors.error > best.error:
                    best = factors
                if factors.error >= target * _TOLERANCE:
                    break
            else:
                above = octave, added
            width = above[0] - below[0]
            if width < math.inf:
                share = (wanted - below[1]) / max(above[1] - below[1], 1e-300)
                octave = below[0] + max(min(share, 0.9), 0.1) * width
            else:
                octave += max(trial, 1) * _move(wanted, added)  # errors may hardly change
        return best

    def at(self, step: float) -> Factors | None:
        """Return the left factor with a step; None if its levels would be too large."""
        step = binary32(step)
        factors = message.scales(step, self._exponents).astype(np.float64)[:, np.newaxis]
        if not factors.all():
            return None
        rows = self._solution / factors
        if max(rows.max(), -rows.min()) > _LARGEST_LEVEL:
            return None
        rows = rows.astype(np.float32)  # frees memory
        symbols, points = quantized(rows, self._trellis)
        del rows
        if symbols.scales is None:
            return None
        product = factors * gram_of(points) * factors.T
        across = points * factors
        across *= self._images
        error = self._matrix.energy - 2 * _sum(across) + _sum(product * self._gram)
        return Factors(
            step, self._exponents, self._right, symbols, self._points, points, float(error)
        )


def _like_before(step: float, energy: float, units: float) -> float:
    """Return the step with which points have the squared norm of those of the preceding step.

    `energy` is the squared norm of the values without the quantization error, and `units` that of
    the preceding points, in squared steps. If that is far from the estimate `step`, as after a
    change of the target, the estimate is better.
    """
    if not energy > 0 or not units > 0:
        return step
    like_before = math.sqrt(energy / units)
    return like_before if _SIMILAR * step < like_before < step / _SIMILAR else step


def _move(wanted: float, added: float) -> float:
    """Return by how many octaves to change a step, given the errors that it shall add and adds."""
    ratio = max(wanted, 1e-300) / max(added, 1e-300)  # 0 for a huge error
    octaves = math.log2(max(ratio, 1e-300))
    return max(min(octaves / _SLOPE, 1.0), -1.0)


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
