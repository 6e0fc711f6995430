"""Levels of a step by what a scale model expects: to the nearest, at random, or for a target.

To the nearest, levels are found twice: plain ones, from which the scales of rows and columns are
taken, and by these the ones that are sent; see `kernels.scalar_quantize`. At random, a level is
floor(y), or one more as often as the rest says, so that the expectation is the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from gcodec.contexts import strings
from gcodec.contexts.scales import Matrix, Scales, matrices, some_rows
from gcodec.errors import ParameterError
from gcodec.kernels import levels, pool, scalar_quantize
from gcodec.kernels.levels import Scale
from gcodec.kernels.memory import aligned_empty
from gcodec.kernels.reduce import max_abs_bits, sum_squares
from gcodec.kernels.scalar_quantize import ESCAPE, FINE, Errors
from gcodec.kinds import binary32
from gcodec.step_search import Met, search

CENTRE = 128  # a centroid in the middle: 256ths of a step, above this
_LOG2_LEVELS = 22  # of the most that there may be: float32 holds them, and their rests, exactly
_LOWEST, _HIGHEST = 125, 127  # octaves of steps whose inverses are normal
_SAMPLE = 1 << 15  # elements on which a step is guessed
_TOLERANCE = 0.015  # octaves of a target: 1 %
_ROUGHLY = 0.04  # octaves of it, on a sample
_ERROR_SLOPE = 1.5  # octaves of the error for one of the step, about
_SURE = 0.996  # of an error, so that what sums in 1024ths of a step leave out does not pass it
_NONE = 1e-300  # in place of an error of 0, which has no logarithm
_CHUNK = 1 << 18


class Levels(NamedTuple):
    """What a tensor becomes.

    Attributes
    ----------
    step : float
        As float32; 0 where all is zero.
    centroids : (3,) uint8 array
        Of the magnitudes 1, 2, and those above: how far from the level they lie, in 256ths of a
        step, plus `CENTRE`.
    symbols : (n,) uint8 array
        Twice the magnitude of the level, plus 1 where it is negative; `ESCAPE` from 127 on.
    beyond : (k,) int64 array
        The same of those, in order.
    scales : Scales or None
        None where all is zero, or nothing.
    lanes : int
        With a trellis, the states that take turns, and symbols are in halves of a step; see
        `kernels.trellis`. Else 0.
    """

    step: float
    centroids: np.ndarray
    symbols: np.ndarray
    beyond: np.ndarray
    scales: Scales | None
    lanes: int = 0


def largest(x: np.ndarray) -> float:
    """Return the largest magnitude of (n,) float32 values, 0 of none; not finite where one is."""
    bits = max_abs_bits(x) if x.size else 0
    return float(np.array([bits], np.uint32).view(np.float32)[0])


def nothing(n: int) -> Levels:
    """Return the levels of n zeros."""
    return Levels(0.0, _middle(), np.zeros(n, np.uint8), np.empty(0, np.int64), None)


class Way(Protocol):
    """How levels are found."""

    def quantize(self, x: np.ndarray, step: float, matrix: Matrix) -> Levels:
        """Quantise (n,) float32 values, n > 0, in rows of a matrix; the step is above 0."""

    def squares(self, x: np.ndarray, step: float, matrix: Matrix) -> float:
        """Return ‖x − x̂‖² in squares of the step; at random, the expectation."""

    def nbits(self, x: np.ndarray, step: float, matrix: Matrix) -> int:
        """Return about how many bits the string takes."""


class Kept:
    """Levels that a search of bits and error finds, the last ones kept; see `Way`."""

    halves: ClassVar[int] = 1  # that a step has, where errors are counted in parts of one

    def __init__(self) -> None:
        self._last: tuple[Any, Levels, Errors] | None = None

    def quantize(self, x: np.ndarray, step: float, matrix: Matrix) -> Levels:
        """Quantise."""
        return self._found(x, step, matrix)[0]

    def squares(self, x: np.ndarray, step: float, matrix: Matrix) -> float:
        """Return what is left over."""
        return squares_of(self._found(x, step, matrix)[1]) / self.halves**2

    def nbits(self, x: np.ndarray, step: float, matrix: Matrix) -> int:
        """Return about how many bits the string takes."""
        found, _ = self._found(x, step, matrix)
        assert found.scales is not None
        return strings.plan(found.symbols, found.scales, sample=0, lanes=found.lanes).nbits

    def _found(self, x: np.ndarray, step: float, matrix: Matrix) -> tuple[Levels, Errors]:
        key = x.size, step, matrix  # of a tensor, and of some of its rows
        if self._last is None or self._last[0] != key:
            self._last = key, *self.find(x, step, matrix)
        return self._last[1:]

    def find(self, x: np.ndarray, step: float, matrix: Matrix) -> tuple[Levels, Errors]:
        """Find levels, and what they leave over."""
        raise NotImplementedError


class Nearest(Kept):
    """Levels that are best for bits and error of each element alone; see `Way`."""

    def find(self, x: np.ndarray, step: float, matrix: Matrix) -> tuple[Levels, Errors]:
        """Find levels, and what they leave over, in steps."""
        size, symbols = np.float32(step), aligned_empty(x.size, np.uint8)
        scalar_quantize.plain_levels(x, size, symbols)
        scales = Scales.of(symbols, matrix)
        errors = scalar_quantize.rated_levels(x, size, scales.classes, symbols)
        beyond = _beyond(x, size, symbols, scales, errors)
        return Levels(step, centroids_of(errors), symbols, beyond, scales), errors


class AtRandom(NamedTuple):
    """Levels at random, unbiased; see `Way`."""

    seed: int

    def quantize(self, x: np.ndarray, step: float, matrix: Matrix) -> Levels:
        """Quantise."""
        return at_random(x, step, matrix, self.seed)

    def squares(self, x: np.ndarray, step: float, matrix: Matrix) -> float:
        """Return what is left over, as expected."""
        return scalar_quantize.random_squares(x, np.float32(step)) / FINE**2

    def nbits(self, x: np.ndarray, step: float, matrix: Matrix) -> int:
        """Return about how many bits the string takes."""
        found = at_random(x, step, matrix, 0)
        assert found.scales is not None
        return strings.plan(found.symbols, found.scales, sample=0).nbits


def at_random(x: np.ndarray, step: float, matrix: Matrix, seed: int) -> Levels:
    """Quantise (n,) float32 values, n > 0, in rows of a matrix; the step is above 0."""
    size = np.float32(step)
    # Not below the largest level: a power of two, so that the norm is exact.
    s = 1 << int(largest(x) / float(size) + 1).bit_length()
    with np.errstate(over="ignore"):
        norm = np.float32(s) * size
    if not np.isfinite(norm):
        raise ParameterError.of("step", binary32(step), "less for values near the end of float32")
    scale, symbols = Scale(np.array([norm]), x.size, s), aligned_empty(x.size, np.uint8)

    def task(start: int, stop: int) -> np.ndarray:
        told = [np.empty(0, np.int64)]
        for at in range(start, stop, _CHUNK):
            part = x[at : min(at + _CHUNK, stop)]
            wide = np.empty(part.size, levels.symbol_dtype(s))
            levels.quantize(part, scale, seed, at, wide)
            symbols[at : at + part.size] = np.minimum(wide, ESCAPE)
            told.append(wide[wide >= ESCAPE].astype(np.int64))
        return np.concatenate(told)

    beyond = np.concatenate(pool.run(task, x.size, _CHUNK))
    return Levels(step, _middle(), symbols, beyond, Scales.of(symbols, matrix))


def points(step: float, centroids: np.ndarray) -> np.ndarray:
    """Return what each symbol stands for, as (256,) float32; see `point`."""
    return point(np.arange(256), step, centroids)


def point(symbols: np.ndarray, step: float, centroids: np.ndarray) -> np.ndarray:
    """Return what symbols stand for: f32((k + d)·step), the product rounded once; 0 for k = 0."""
    k = symbols >> 1
    moved = (centroids.astype(np.int64) - CENTRE)[np.clip(k, 1, 3) - 1]
    with np.errstate(over="ignore"):
        size = ((256 * k + moved) * (float(np.float32(step)) / 256)).astype(np.float32)
    return np.where(k == 0, np.float32(0), np.where(symbols & 1, -size, size))


def matrix_for(x: np.ndarray, step: float, shape: tuple[int, ...]) -> Matrix:
    """Return the matrix with which levels of (n,) values, n > 0, probably take the fewest bits."""
    every = matrices(shape)
    some = some_rows(x, every[0].width, strings.SAMPLE)
    symbols = np.empty(some.size, np.uint8)
    scalar_quantize.plain_levels(some, np.float32(step), symbols)
    return strings.best(symbols, every, x.size // some.size).matrix


def check_step(x: np.ndarray, step: float) -> None:
    """Refuse a step of which there would be too many levels."""
    least = 2.0 ** _octaves(x)[0]
    if step < least:
        raise ParameterError.of("step", binary32(step), f"at least {least:.3g} for this tensor")


def step_for_error(
    x: np.ndarray, target: float, shape: tuple[int, ...], way: Way
) -> tuple[float, Matrix]:
    """Find the step of which the relative error is the target, or less where it has jumps.

    Parameters
    ----------
    x : (n,) float32 array
        Finite, not all zero.
    target : float
        ‖x − x̂‖²/‖x‖².
    shape : tuple of int
    way : Way

    Returns
    -------
    step : float
        As float32.
    matrix : Matrix
        What to cut the tensor into.

    Raises
    ------
    ParameterError
        Where no step reaches it.
    """
    # Of some rows too: most of the energy may be in few others, but not of what is left over.
    power = sum_squares(x) / x.size

    def trial(values: np.ndarray, matrix: Matrix) -> Callable[[float], float]:
        norm = power * values.size

        def off(octave: float) -> float:
            step = binary32(2.0**octave)
            squares = way.squares(values, step, matrix)
            return math.log2(max(squares * step**2 / norm, _NONE) / (_SURE * target))

        return off

    first = math.log2(math.sqrt(12 * target * power))
    bounds = _octaves(x)
    met, matrix = _search(x, shape, trial, first, _ERROR_SLOPE, bounds, 1)
    if met is None:
        reached = target * 2 ** trial(x, matrix)(bounds[0])
        raise ParameterError.of("nmse", target, f"at least {reached:.3g} for this tensor")
    return binary32(2.0**met.at), matrix


def step_for_bits(
    x: np.ndarray, target: float, shape: tuple[int, ...], way: Way
) -> tuple[float, Matrix]:
    """Find the step with which a value takes so many bits on the average, or fewer.

    See `step_for_error`.
    """

    def trial(values: np.ndarray, matrix: Matrix) -> Callable[[float], float]:
        def off(finer: float) -> float:
            nbits = way.nbits(values, binary32(2.0**-finer), matrix)
            return math.log2(nbits / (target * values.size))

        return off

    first = -math.log2(4 * math.sqrt(sum_squares(x) / x.size)) + target
    least, most = _octaves(x)
    met, matrix = _search(x, shape, trial, first, 1 / target, (-most, -least), -1)
    if met is None or (met.at == -least and met.off < -_TOLERANCE):
        end, off = (-most, "at least") if met is None else (-least, "at most")
        reached = target * 2 ** trial(x, matrix)(end)
        raise ParameterError.of("bits", target, f"{off} {reached:.3g} for this tensor")
    return binary32(2.0**-met.at), matrix


def _search(
    x: np.ndarray,
    shape: tuple[int, ...],
    trial: Callable[[np.ndarray, Matrix], Callable[[float], float]],
    first: float,
    slope: float,
    bounds: tuple[float, float],
    sign: int,
) -> tuple[Met | None, Matrix]:
    """Search on some rows, and from there on all; the sign is that of the step's octave."""
    matrix = matrices(shape)[0]
    some = some_rows(x, matrix.width, _SAMPLE)
    if some.size < x.size and some.any():
        guess = search(trial(some, matrix), first, slope, _ROUGHLY, bounds)
        if guess is not None and guess.off >= -_ROUGHLY:
            first, slope = guess.at, guess.slope
        matrix = matrix_for(x, 2.0 ** (sign * first), shape)
    met = search(trial(x, matrix), first, slope, _TOLERANCE, bounds)
    if met is not None and some.size == x.size:
        better = matrix_for(x, 2.0 ** (sign * met.at), shape)
        if better != matrix:
            matrix = better
            met = search(trial(x, matrix), met.at, slope, _TOLERANCE, bounds)
    return met, matrix


def _octaves(x: np.ndarray) -> tuple[float, float]:
    """Return the octaves of the least step that levels allow, and of one where all are 0."""
    top = math.log2(largest(x))
    return max(top - _LOG2_LEVELS, -_LOWEST), min(top + 2, _HIGHEST)


def squares_of(errors: Errors) -> float:
    """Return ‖x − x̂‖² in squares of what errors are counted in."""
    moved = (centroids_of(errors).astype(np.int64) - CENTRE) * (FINE // 256)
    saved = 2 * (moved * errors.rests).sum() - (moved**2 * errors.counts).sum()
    return (errors.squares - int(saved)) / FINE**2


def centroids_of(errors: Errors) -> np.ndarray:
    """Return the mean of what each magnitude leaves over, in 256ths, rounded."""
    unit = FINE // 256
    counts = np.maximum(errors.counts, 1)
    means = (2 * errors.rests + unit * counts) // (2 * unit * counts)
    found: np.ndarray = np.clip(means + CENTRE, 0, 255).astype(np.uint8)
    return found


def _middle() -> np.ndarray:
    return np.full(3, CENTRE, np.uint8)


def _beyond(
    x: np.ndarray, step: np.float32, symbols: np.ndarray, scales: Scales, errors: Errors
) -> np.ndarray:
    """Return the symbols, not cut off, of what escapes."""
    if not errors.escapes:
        return np.empty(0, np.int64)
    places = np.flatnonzero(symbols == ESCAPE)
    classes = scales.classes_at(places)
    found = scalar_quantize.rated_magnitudes(x[places], step, classes)
    folded: np.ndarray = 2 * found + (x[places] < 0)
    return folded
