"""Levels of a step, and the ones that are best for bits and error by what scales expect.

Levels are found twice: plain ones, from which the scales of rows and columns are taken, and by
these the ones that are sent; see `kernels.scalar_quantize` and `kernels.rated_levels`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from gcodec.contexts import models, string_plans
from gcodec.contexts.class_tables import EXCEPTION_NBITS
from gcodec.contexts.exceptions import Exceptions
from gcodec.contexts.scales import ONES, Matrix, Scales
from gcodec.kernels import pool, scalar_quantize
from gcodec.kernels.arithmetic import add_scaled
from gcodec.kernels.bit_string import BitString
from gcodec.kernels.escapes import elements_from, symbols_from
from gcodec.kernels.memory import empty_beside
from gcodec.kernels.rated_levels import (
    Errors,
    rated_levels,
    rated_magnitudes,
    scaled_levels,
)
from gcodec.kernels.reduce import max_abs_bits, sum_squares
from gcodec.kernels.scalar_quantize import ESCAPE, FINE
from gcodec.kernels.scatter import replace

_MINUS_ZERO = 0x80000000
CENTRE = 128  # a centroid in the middle: 256ths of a step, above this
_MIDDLE = np.full(3, CENTRE, np.uint8)
_NONE = np.empty(0, np.int64)
_UNIT = FINE // 256
_FEW = 256  # elements to one that escapes, from which on it is enough to count these
COARSE = 2.0**-6  # squares of a step for an element, below which 1024ths tell too little


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
    transform : str
        "dct" where the levels are those of coefficients of `gcodec.taps`, else "none".
    places : (k,) int64 array or None
        Where those beyond are, if the host knows that of a device.
    there : optional
        Where a device found them and has not told all yet: what puts and writes them.
    """

    step: float
    centroids: np.ndarray
    symbols: np.ndarray
    beyond: np.ndarray
    scales: Scales | None
    lanes: int = 0
    transform: str = "none"
    places: np.ndarray | None = None
    there: Any = None


def largest(x: np.ndarray) -> float:
    """Return the largest magnitude of (n,) float32 values, 0 of none; not finite where one is."""
    bits = int(max_abs_bits(x)) if x.size else 0
    return float(np.uint32(bits).view(np.float32))


def lifted(x: np.ndarray, factor: float) -> np.ndarray:
    """Return (n,) float32 values times a factor."""
    found = empty_beside(x.size, np.float32, x)
    found.view(np.uint32)[:] = _MINUS_ZERO  # to which anything may be added
    add_scaled(x, np.float32(factor), found)
    return found


def nothing(n: int, beside: np.ndarray) -> Levels:
    """Return the levels of n zeros, where an array lies."""
    symbols = empty_beside(n, np.uint8, beside)
    symbols[:] = 0
    return Levels(0.0, middle(), symbols, np.empty(0, np.int64), None)


class Habits(NamedTuple):
    """What helps the search of a step.

    Attributes
    ----------
    rough : Way
        A quicker one, to begin with.
    ahead, ahead_of_bits : float
        By about how many octaves steps of the same error, and of as many bits, are larger than
        those of `rough`.
    same : float
        Octaves within which scales are as good as those of the step itself.
    """

    rough: Way
    ahead: float = 0.0
    ahead_of_bits: float = 0.0
    same: float = 0.06


class Way(Protocol):
    """How levels are found."""

    def habits(self) -> Habits:
        """Return what helps the search of a step."""

    def hold(self, x: np.ndarray, step: float, matrix: Matrix) -> None:
        """Take scales of this step for these values at other steps too.

        Scales that change from step to step make the error jump past a target.
        """

    def release(self) -> None:
        """Take scales of each step again."""

    def quantize(self, x: np.ndarray, step: float, matrix: Matrix) -> Levels:
        """Quantise (n,) float32 values, n > 0, in rows of a matrix; the step is above 0."""

    def squares(self, x: np.ndarray, step: float, matrix: Matrix) -> float:
        """Return ‖x − x̂‖² in squares of the step; at random, the expectation."""

    def nbits(self, x: np.ndarray, step: float, matrix: Matrix) -> int:
        """Return about how many bits the string takes."""


_By = TypeVar("_By")


class Kept(Generic[_By]):
    """Levels that a search of bits and error finds, the last ones kept; see `Way`.

    They are found by what a step leads to: scales, and maybe more.
    """

    halves: ClassVar[int] = 1  # that a step has, where errors are counted in parts of one

    def __init__(self) -> None:
        self._last: tuple[Any, _By, Levels, Errors] | None = None
        self._held: tuple[Any, _By] | None = None

    def hold(self, x: np.ndarray, step: float, matrix: Matrix) -> None:
        """Take scales of this step at other steps too."""
        key = x.size, step, matrix
        # Levels that were found by what is held are others.
        if self._held is not None or self._last is None or self._last[0] != key:
            self._last = key, *self.anew(x, step, matrix)  # whose errors are asked for next
        self._held = (x.size, matrix), self._last[1]

    def release(self) -> None:
        """Take scales of each step again."""
        self._last = self._held = None

    def quantize(self, x: np.ndarray, step: float, matrix: Matrix) -> Levels:
        """Quantise."""
        found, errors = self._found(x, step, matrix)
        return found._replace(centroids=centroids_of(errors))

    def squares(self, x: np.ndarray, step: float, matrix: Matrix) -> float:
        """Return what is left over."""
        _, errors = self._found(x, step, matrix)
        squares = squares_of(errors) / self.halves**2
        return squares if squares >= COARSE * x.size else self.left_over(x, step, matrix)

    def left_over(self, x: np.ndarray, step: float, matrix: Matrix) -> float:
        """Return what is left over, by all values that levels stand for."""
        left = empty_beside(x.size, np.float32, x)
        put(self.quantize(x, step, matrix), step / self.halves, left)
        add_scaled(x, np.float32(-1), left)
        return float(sum_squares(left)) / step**2

    def nbits(self, x: np.ndarray, step: float, matrix: Matrix) -> int:
        """Return about how many bits the string takes."""
        return nbits_of(self._found(x, step, matrix)[0])

    def _found(self, x: np.ndarray, step: float, matrix: Matrix) -> tuple[Levels, Errors]:
        key = x.size, step, matrix  # of a tensor, and of some of its rows
        if self._last is None or self._last[0] != key:
            if self._held is not None and self._held[0] == (x.size, matrix):
                by = self._held[1]
                self._last = key, by, *self.find(x, step, by)
            else:
                self._last = key, *self.anew(x, step, matrix)
        return self._last[2:]

    def anew(self, x: np.ndarray, step: float, matrix: Matrix) -> tuple[_By, Levels, Errors]:
        """Return what levels of a step are found by, and what is found."""
        by = self.prepare(x, step, matrix)
        return by, *self.find(x, step, by)

    def prepare(self, x: np.ndarray, step: float, matrix: Matrix) -> _By:
        """Return what levels of a step are found by."""
        raise NotImplementedError

    def find(self, x: np.ndarray, step: float, by: _By) -> tuple[Levels, Errors]:
        """Find levels, all but their centroids, and what they leave over."""
        raise NotImplementedError


class Nearest(Kept[Scales]):
    """Levels that are best for bits and error of each element alone; see `Way`."""

    def habits(self) -> Habits:
        """Return what helps the search of a step."""
        return Habits(self)

    def prepare(self, x: np.ndarray, step: float, matrix: Matrix) -> Scales:
        """Return the scales of plain levels."""
        return scales_at(x, step, matrix)

    def find(self, x: np.ndarray, step: float, by: Scales) -> tuple[Levels, Errors]:
        """Find levels, all but their centroids, and what they leave over, in steps."""
        symbols = empty_beside(x.size, np.uint8, x)
        errors = rated_levels(x, np.float32(step), by.arrays, symbols)
        return _rated(x, step, symbols, by, errors), errors

    def anew(self, x: np.ndarray, step: float, matrix: Matrix) -> tuple[Scales, Levels, Errors]:
        """Find the scales of plain levels, and levels by these."""
        symbols = empty_beside(x.size, np.uint8, x)
        *told, errors = scaled_levels(x, np.float32(step), matrix, ONES, symbols)
        by = Scales(matrix, *told)
        return by, _rated(x, step, symbols, by, errors), errors


def nbits_of(levels: Levels) -> int:
    """Return about how many bits the string of levels takes, of which some are not 0."""
    assert levels.scales is not None
    nbits = string_plans.plan(levels.symbols, levels.scales, 0, levels.lanes).all_nbits
    if levels.beyond.size * _FEW < levels.symbols.size:
        return nbits
    places, _ = symbols_from(levels.symbols, models.least_escape(levels.lanes > 0))
    return with_beyond(nbits, Exceptions(places, levels.beyond), levels.symbols.size)


def with_beyond(nbits: int, beyond: Exceptions, n: int) -> int:
    """Return the bits of the string of n levels, given those with a guess at what escapes."""
    if beyond.places.size * _FEW < n:
        return nbits
    told = BitString()
    beyond.put(told)
    return nbits + told.nbits - EXCEPTION_NBITS * beyond.places.size


def scales_at(x: np.ndarray, step: float, matrix: Matrix) -> Scales:
    """Return the scales of plain levels of (n,) float32 values, n > 0; the step is above 0."""
    told = matrix.width, matrix.group > 0
    return Scales.of_sums(x.size, matrix, *scalar_quantize.plain_sums(x, np.float32(step), *told))


def points(step: float, centroids: np.ndarray) -> np.ndarray:
    """Return what each symbol stands for, as (256,) float32; see `point`."""
    return scalar_quantize.points_of(float(np.float32(step)) / 256, _moves(centroids).tolist())


def put(levels: Levels, unit: float, out: np.ndarray) -> None:
    """Write the (n,) float32 values that levels stand for, where symbols count `unit`."""
    if levels.there is not None:
        levels.there.put(unit, out)
        return
    values = points(unit, levels.centroids)

    def task(start: int, stop: int) -> None:
        scalar_quantize.put_points(levels.symbols[start:stop], values, out[start:stop])

    pool.run(task, out.size, beside=out)
    if levels.beyond.size:
        places = levels.places
        if places is None:
            places, _ = symbols_from(levels.symbols, models.least_escape(levels.lanes > 0))
        replace(out, places, point(levels.beyond, unit, levels.centroids))


def point(symbols: np.ndarray, step: float, centroids: np.ndarray) -> np.ndarray:
    """Return what symbols stand for: f32((k + d)·step), the product rounded once; 0 for k = 0."""
    if not symbols.size:
        return np.empty(0, np.float32)
    k = symbols >> 1
    size = _sizes(k, step, centroids)
    return np.where(k == 0, np.float32(0), np.where(symbols & 1, -size, size))


def _sizes(k: np.ndarray, step: float, centroids: np.ndarray) -> np.ndarray:
    """Return what magnitudes above 0 stand for."""
    moved = _moves(centroids)[np.minimum(np.maximum(k, 1), 3) - 1]
    exact = (256 * k + moved) * (float(np.float32(step)) / 256)
    with np.errstate(over="ignore"):
        found: np.ndarray = exact.astype(np.float32)
    return found


def _moves(centroids: np.ndarray) -> np.ndarray:
    """Return how far points lie above levels of each magnitude, in 256ths of a step."""
    return centroids.astype(np.int64) - CENTRE


def squares_of(errors: Errors) -> float:
    """Return ‖x − x̂‖² in squares of what errors are counted in, with the best centroids."""
    counts, rests, squares, _ = errors
    for count, rest in zip(counts, rests, strict=True):
        if count:
            moved = _moved(count, rest) * _UNIT
            squares -= moved * (2 * rest - moved * count)
    return squares / FINE**2


def centroids_of(errors: Errors) -> np.ndarray:
    """Return the mean of what each magnitude leaves over, in 256ths, rounded."""
    moved = map(_moved, errors.counts, errors.rests)
    return np.array([CENTRE + part for part in moved], np.uint8)


def _moved(count: int, rest: int) -> int:
    """Return the mean of the rests of so many levels, in 256ths, rounded, within bounds."""
    if not count:
        return 0
    found = (2 * rest + _UNIT * count) // (2 * _UNIT * count)
    return -CENTRE if found < -CENTRE else 255 - CENTRE if found > 255 - CENTRE else found


def middle() -> np.ndarray:
    """Return centroids of levels that lie in their middle."""
    return _MIDDLE.copy()


def _rated(x: np.ndarray, step: float, symbols: np.ndarray, by: Scales, errors: Errors) -> Levels:
    """Return levels given their symbols, with those, not cut off, of what escapes."""
    beyond = _NONE
    if errors.escapes:
        places, some = elements_from(x, symbols, ESCAPE)
        found = rated_magnitudes(some, np.float32(step), by.classes_at(places))
        beyond = 2 * found + (some < 0)
    return Levels(step, _MIDDLE, symbols, beyond, by)
