"""The step with which an error or a number of bits is met, and the matrix with the fewest bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.contexts import string_plans
from gcodec.contexts.best_matrix import best_matrix
from gcodec.contexts.scales import Matrix, apart, matrices, some_rows, thinned
from gcodec.errors import ParameterError
from gcodec.kernels import scalar_quantize
from gcodec.kernels.device import host
from gcodec.kernels.memory import empty_beside, flattened
from gcodec.kernels.reduce import sum_squares
from gcodec.kinds import binary32
from gcodec.scalar_levels import Way, largest
from gcodec.step_search import Met, search

_LOG2_LEVELS = 22  # of the most that there may be: float32 holds them, and their rests, exactly
_LOWEST, _HIGHEST = 125, 127  # octaves of steps whose inverses are normal
_SAMPLE = 1 << 16  # elements on which a step is guessed
_SAMPLE_ROWS = 64  # and rows, so that lists of the scales of columns do not count for too much
_TOLERANCE = 0.015  # octaves of a target: 1 %
_ROUGHLY = 0.04  # octaves of it, on a sample
_EXPONENTS = 1 << 14  # elements whose exponents tell where a search of bits begins
_ABOVE = 2.2  # bits that values take above the octaves of steps in them, on average
_MOST_NBITS = 24  # of a value that is not 0
_ERROR_SLOPE = 1.5  # octaves of the error for one of the step, about
_SURE = 0.996  # of an error, so that what sums in 1024ths of a step leave out does not pass it
_NONE = 1e-300  # in place of an error of 0, which has no logarithm
_MOST_HELD = 2  # times that scales are found
_MOST_SETTLED = 3  # and where they have to settle
_APART = 2.0**-7  # octaves of steps between which there is a jump, until scales are held
_LEAST = 2.0**-149  # of float32


class Start(NamedTuple):
    """What met the target before.

    Attributes
    ----------
    step : float
    matrix : Matrix
    """

    step: float
    matrix: Matrix


def matrix_for(x: np.ndarray, step: float, shape: tuple[int, ...]) -> Matrix:
    """Return the matrix with which levels of (n,) values, n > 0, probably take the fewest bits."""
    every = matrices(shape)
    some = some_rows(x, every[0].width, string_plans.SAMPLE)
    symbols = empty_beside(some.size, np.uint8, some)
    scalar_quantize.plain_levels(some, np.float32(step), symbols)
    return best_matrix(symbols, every, x.size // some.size).matrix


def check_step(top: float, step: float) -> None:
    """Refuse a step of which there would be too many levels of values up to `top`, above 0."""
    least = 2.0 ** _octaves(top)[0]
    if step < least:
        raise ParameterError.of("step", binary32(step), f"at least {least:.3g} for this tensor")


def about(nmse: float, bits: float, x: np.ndarray, top: float) -> float:
    """Return about which step (n,) values up to `top`, not all 0, meet bits with, or an error."""
    if bits:
        return float(2.0 ** -Spread.of(x, top, 1).fineness(bits))
    return _step_of_error(nmse, sum_squares(x) / x.size)


def _step_of_error(target: float, power: float) -> float:
    """Return about which step has a relative error, of values of this mean square."""
    return math.sqrt(12 * target * power)


class Spread(NamedTuple):
    """What some of a tensor's values are like.

    Attributes
    ----------
    octave : float
        The mean of log2 of their magnitudes, rounded up, but for zeros.
    share : float
        Of them that are not 0.
    """

    octave: float
    share: float

    @classmethod
    def of(cls, x: np.ndarray, top: float, width: int, period: int = 1) -> Spread:
        """Look at some of (n,) values up to `top`, from all places of a row."""
        some = host(flattened(x[:: apart(max(x.size // _EXPONENTS, 1), width * period)]))
        _, exponents = np.frexp(some[some != 0])
        if not exponents.size:
            return cls(math.log2(top), 1.0)
        return cls(float(exponents.mean()), exponents.size / some.size)

    def fineness(self, nbits: float) -> float:
        """Return about how many octaves below 1 the step is with which a value takes so many."""
        # Of values that have scales each, whatever these are, when steps are small; about.
        return min(nbits / self.share, _MOST_NBITS) - self.octave - _ABOVE


class Target:
    """What is looked for in a tensor.

    Parameters
    ----------
    x : (n,) float32 array
        Finite, not all zero.
    shape : tuple of int
    way : Way
        It holds the scales by which the step that is found meets the target.
    lift : float
        Steps are those of float32, times this.
    period : int
        With which scales of elements repeat, if they do.
    top : float, optional
        The largest magnitude, where it is known.
    """

    def __init__(
        self,
        x: np.ndarray,
        shape: tuple[int, ...],
        way: Way,
        lift: float = 1.0,
        period: int = 1,
        top: float | None = None,
    ) -> None:
        self.x, self.shape, self.way, self.lift, self.period = x, shape, way, lift, period
        self._power = float(sum_squares(x)) / x.size
        self._top = largest(x) if top is None else top
        self._sizes: dict[float, float] = {}

    def step_for_error(self, target: float, start: Start | None = None) -> tuple[float, Matrix]:
        """Find the step of which the relative error is the target, or less where it has jumps.

        Parameters
        ----------
        target : float
            ‖x − x̂‖²/‖x‖².
        start : Start, optional
            Of a tensor like this one: the search begins there, and keeps the matrix if it ends
            near.

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

        def trial(way: Way, values: np.ndarray, matrix: Matrix) -> Callable[[float], float]:
            # Of some rows too: most of the energy may be in few others, but not of what is left.
            norm = self._power * values.size

            def off(octave: float) -> float:
                size = self._size(octave)
                squares = way.squares(values, size, matrix)
                return math.log2(max(squares * size**2 / norm, _NONE) / (_SURE * target))

            return off

        first = math.log2(_step_of_error(target, self._power))
        bounds = _octaves(self._top)
        ahead = self.way.habits().ahead
        met, matrix = self._search(trial, first, _ERROR_SLOPE, bounds, ahead, start)
        if met is None:
            reached = target * 2 ** trial(self.way, self.x, matrix)(bounds[0])
            raise ParameterError.of("nmse", target, f"at least {reached:.3g} for this tensor")
        return self._size(met.at) / self.lift, matrix

    def step_for_bits(self, target: float, start: Start | None = None) -> tuple[float, Matrix]:
        """Find the step with which a value takes so many bits on the average, or fewer.

        See `step_for_error`.
        """

        def trial(way: Way, values: np.ndarray, matrix: Matrix) -> Callable[[float], float]:
            def off(finer: float) -> float:
                nbits = way.nbits(values, self._size(-finer), matrix)
                return math.log2(nbits / (target * values.size))

            return off

        least, most = _octaves(self._top)
        ahead = -self.way.habits().ahead_of_bits
        bounds = -most, -least
        spread = self._spread(self.x, matrices(self.shape)[0].width)
        first, slope = spread.fineness(target), spread.share / target

        def drift(some: np.ndarray, width: int) -> float:
            # Where some rows and columns are larger than most are, their steps are, too.
            return self._spread(some, width).octave - spread.octave

        met, matrix = self._search(trial, first, slope, bounds, ahead, start, -1, drift)
        if met is None or (met.at == -least and met.off < -_TOLERANCE):
            end, off = (-most, "at least") if met is None else (-least, "at most")
            reached = target * 2 ** trial(self.way, self.x, matrix)(end)
            raise ParameterError.of("bits", target, f"{off} {reached:.3g} for this tensor")
        return self._size(-met.at) / self.lift, matrix

    def _spread(self, values: np.ndarray, width: int) -> Spread:
        return Spread.of(values, self._top, width, self.period)

    def _size(self, octave: float) -> float:
        """Return the step of an octave."""
        if (found := self._sizes.get(octave)) is None:
            found = max(binary32(2.0**octave / self.lift), _LEAST) * self.lift
            self._sizes[octave] = found
        return found

    def _search(
        self,
        trial: Callable[[Way, np.ndarray, Matrix], Callable[[float], float]],
        first: float,
        slope: float,
        bounds: tuple[float, float],
        ahead: float,
        start: Start | None,
        sign: int = 1,
        drift: Callable[[np.ndarray, int], float] | None = None,
    ) -> tuple[Met | None, Matrix]:
        """Search on some rows, and from there on all; the sign is that of the step's octave.

        What is found on some rows, of their own width, is moved by `drift`.
        """
        x, way, habits = self.x, self.way, self.way.habits()

        def roughly(values: np.ndarray, matrix: Matrix, first: float) -> Met | None:
            habits.rough.release()
            of = trial(habits.rough, values, matrix)
            met = search(of, first - ahead, slope, _ROUGHLY, bounds, _APART)
            return met._replace(at=met.at + ahead) if met else None

        def settled(matrix: Matrix, first: float, slope: float) -> Met | None:
            of, least, before = trial(way, x, matrix), slope / 2, None
            for left in reversed(range(_MOST_SETTLED)):
                way.hold(x, self._size(sign * first), matrix)
                off = of(first)
                if before is not None and first != before.at:
                    rise = (off - before.off) / (first - before.at)
                    slope = min(max(rise, least), 4 * least)
                move = -(off + _TOLERANCE / 2) / slope
                if abs(move) <= habits.same or not left:
                    break
                before = Met(first, off, slope)
                first += min(max(move, -habits.close), habits.close)
                first = min(max(first, bounds[0]), bounds[1])
            return search(of, first, slope, _TOLERANCE, bounds)

        def closely(matrix: Matrix, first: float, slope: float) -> Met | None:
            if habits.settles:
                return settled(matrix, first, slope)
            for _ in range(_MOST_HELD):
                way.hold(x, self._size(sign * first), matrix)
                met = search(trial(way, x, matrix), first, slope, _TOLERANCE, bounds)
                if met is None or abs(met.at - first) > habits.close:
                    return None
                if abs(met.at - first) <= habits.same:
                    break
                first, slope = met.at, met.slope
            return met

        if start is not None:
            before = sign * math.log2(start.step)
            if met := closely(start.matrix, before, slope):
                return met, start.matrix
        matrix = matrices(self.shape)[0]
        most = max(_SAMPLE, _SAMPLE_ROWS * matrix.width)
        some, width = thinned(x, matrix.width, most, self.period)
        live = some is x or largest(some) > 0
        guess = roughly(some, matrix._replace(width=width), first) if live else None
        if guess is not None:
            first, slope = guess.at, guess.slope
            if drift is not None and some is not x:
                first += drift(some, width)
        matrix = matrix_for(x, self._size(sign * first), self.shape)
        if met := closely(matrix, first, slope):
            return met, matrix
        found = roughly(x, matrix, first)
        if found is not None and (met := closely(matrix, found.at, found.slope)):
            return met, matrix
        way.release()
        if found is not None:
            first, slope = found.at, found.slope
        return search(trial(way, x, matrix), first, slope, _TOLERANCE, bounds), matrix


def _octaves(top: float) -> tuple[float, float]:
    """Return the octaves of the least step that levels allow, and of one where all are 0."""
    octave = math.log2(top)
    return max(octave - _LOG2_LEVELS, -_LOWEST), min(octave + 2, _HIGHEST)
