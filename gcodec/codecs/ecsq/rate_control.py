"""The step with which an error or a number of bits is met, and the matrix with the fewest bits.

Some targets no step meets: an error below that of the finest step; fewer bits than lists and
tables take, as of small tensors; or more bits than levels of the finest step have. Then `Found`
has the nearest: the finest step; or for too few bits, the coarsest one with which feedback
converges, as some levels are not 0, or a finer one that takes no more bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.codecs.ecsq.quantizer import Quantizer
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels, largest, point, points
from gcodec.codecs.ecsq.root_finding import Met, search
from gcodec.entropy.context import models, table_choice
from gcodec.entropy.context.scale_model import RowLayout, apart, matrices, some_rows, thinned
from gcodec.entropy.context.table_choice import best_matrix
from gcodec.errors import ParameterError
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.reduce import sum_squares
from gcodec.kernels.quantize import scalar_quantize
from gcodec.payload import MissedTarget
from gcodec.runtime.device import host
from gcodec.runtime.memory import empty_beside, flattened
from gcodec.wire.kinds import binary32

_EXPONENTS = 1 << 14  # elements whose exponents tell where a search of bits begins
_ABOVE = 2.2  # bits that values take above the octaves of steps in them, on average
_MOST_NBITS = 24  # of a value that is not 0
_SPARSE = 0.4  # octaves of steps for one of the bits, where most levels are 0


def about(nmse: float, bits: float, x: np.ndarray, top: float) -> float:
    """Return about which step (n,) values up to `top`, not all 0, meet bits with, or an error."""
    if bits:
        return float(2.0 ** -Spread.of(x, top, 1).fineness(bits))
    return step_of_error(nmse, sum_squares(x) / x.size)


def step_of_error(target: float, power: float) -> float:
    """Return about which step has a relative error, of values of this mean square."""
    return math.sqrt(12 * target * power)


def step_alike(prior: QuantizedLevels, power: float) -> float | None:
    """Return the step with which points of this mean square have levels as large as others.

    None where those are 0.
    """
    unit = 0.5 if prior.lanes else 1.0
    known = points(unit, prior.centroids)[: models.least_escape(prior.lanes > 0)]
    counts = host(byte_counts(prior.symbols))[: known.size]
    # Rounded once, so that it is the same everywhere.
    squares = math.fsum((counts * np.square(known, dtype=np.float64)).tolist())
    squares += sum_squares(point(prior.beyond, unit, prior.centroids))
    return math.sqrt(power * prior.symbols.size / squares) if squares else None


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

    def octaves(self, nbits: float) -> float:
        """Return about how many octaves of steps lie between some step and one of so many bits."""
        each = nbits / self.share
        return each + _SPARSE * math.log2(each)


_LOG2_LEVELS = 22  # of the most that there may be: float32 holds them, and their rests, exactly
_LOWEST, _HIGHEST = 125, 127  # octaves of steps whose inverses are normal
_SAMPLE = 1 << 14  # elements on which a step is guessed
_SAMPLE_ROWS = 16  # and rows, so that lists of the scales of columns do not count for too much
_TOLERANCE = 0.015  # octaves of a target: 1 %
_ROUGHLY = 0.04  # octaves of the step, on a sample
_ERROR_SLOPE = 2.2  # octaves of the error for one of the step, about
_SURE = 0.996  # of an error, so that what sums in 1024ths of a step leave out does not pass it
_NONE = 1e-300  # in place of an error of 0, which has no logarithm
_APART = 2.0**-7  # octaves of steps between which there is a jump, until scales are held
_NEAR = 2.0**-10  # and where they are held
_ALIKE = 0.25  # and from that of a tensor before, whose matrix is kept
_HELD = 0.75  # of a slope, where scales are held
_REACH = 2  # times as far as scales are as good, to where they may be held
_LEAST = 2.0**-149  # of float32
_TOLD = 0.005  # of a number: what three digits may leave out
_CLOSE = 2.0**-4  # octaves of a step that is the nearest to a target
_FINER = 3  # octaves above the finest step to try, as rounding may give a coarser step less error


def matrix_for(x: np.ndarray, step: float, shape: tuple[int, ...]) -> RowLayout:
    """Return the matrix with which levels of (n,) values, n > 0, probably take the fewest bits."""
    every = matrices(shape)
    some = some_rows(x, every[0].width, table_choice.SAMPLE)
    symbols = empty_beside(some.size, np.uint8, some)
    scalar_quantize.plain_levels(some, np.float32(step), symbols)
    return best_matrix(symbols, every, x.size // some.size)


def check_step(top: float, step: float) -> None:
    """Refuse a step of which there would be too many levels of values up to `top`, above 0."""
    least = 2.0 ** _octaves(top)[0]
    if step < least:
        raise ParameterError.of("step", binary32(step), f"at least {least:.3g} for this tensor")


class _Start(NamedTuple):
    """What a search is told of a tensor before.

    Attributes
    ----------
    at : float
        The u to begin with.
    before : float
        That of the step with which its target was met.
    matrix : Matrix
        What it was cut into.
    """

    at: float
    before: float
    matrix: RowLayout


class _Aim(NamedTuple):
    """What a search is told: u is the octave of a step, or of its inverse.

    Attributes
    ----------
    trial : callable
        Returns off(u), for values in a matrix that are quantised in some way.
    slope : float
        About how much it rises with 1.
    tolerance : float
        Good enough is from -tolerance to 0.
    bounds : (float, float)
        The least u, and the largest.
    ahead : float
        By about how much more u is than that of a quicker way.
    sign : int
        Of u beside the octave of the step.
    drift : callable, optional
        Returns how much more u is than that of some values, in rows of a width.
    """

    trial: Callable[[Quantizer, np.ndarray, RowLayout], Callable[[float], float]]
    slope: float
    tolerance: float
    bounds: tuple[float, float]
    ahead: float
    sign: int = 1
    drift: Callable[[np.ndarray, int], float] | None = None


class Found(NamedTuple):
    """What a search ends with.

    Attributes
    ----------
    step : float
        As float32.
    matrix : Matrix
        What to cut the tensor into.
    missed : MissedTarget or None
        Where no step meets the target, what this one takes.
    """

    step: float
    matrix: RowLayout
    missed: MissedTarget | None = None


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
    strict : bool
        Whether a target that no step meets is refused.
    """

    def __init__(
        self,
        x: np.ndarray,
        shape: tuple[int, ...],
        way: Quantizer,
        lift: float = 1.0,
        period: int = 1,
        top: float | None = None,
        strict: bool = True,
    ) -> None:
        self.x, self.shape, self.way, self.lift, self.period = x, shape, way, lift, period
        self._strict = strict
        self._power = float(sum_squares(x)) / x.size
        self._top = largest(x) if top is None else top

    def step_for_error(self, target: float, prior: QuantizedLevels | None = None) -> Found:
        """Find the step of which the relative error is the target, or less where it has jumps.

        Parameters
        ----------
        target : float
            ‖x − x̂‖²/‖x‖².
        prior : Levels, optional
            Of a tensor like this one: the search begins where levels are as large as those, and
            keeps the matrix if it ends near.

        Returns
        -------
        Found

        Raises
        ------
        ParameterError
            Where no step reaches it, and the search is strict.
        """

        def trial(
            way: Quantizer, values: np.ndarray, matrix: RowLayout
        ) -> Callable[[float], float]:
            # Of some rows too: most of the energy may be in few others, but not of what is left.
            norm = self._power * values.size

            def off(octave: float) -> float:
                size = self._size(octave)
                squares = way.squares(values, size, matrix)
                return math.log2(max(squares * size**2 / norm, _NONE) / (_SURE * target))

            return off

        first = math.log2(step_of_error(target, self._power))
        bounds = self._octaves()
        habits = self.way.habits()
        aim = _Aim(trial, _ERROR_SLOPE, _TOLERANCE, bounds, habits.ahead)
        start = self._start(aim, prior)
        if start is not None and prior is not None:
            alike = step_alike(prior, self._power * (1 + habits.grown * target))
            start = start._replace(at=math.log2(alike)) if alike else None
        met, matrix = self._search(aim, first, start)
        if met is not None:
            return self._found(met.at, matrix)
        self.way.release()
        off = trial(self.way, self.x, matrix)
        octaves = (min(bounds[0] + finer, bounds[1]) for finer in range(_FINER))
        excess, octave = min((off(octave), octave) for octave in octaves)
        if excess <= 0:
            return self._found(octave, matrix)
        if self._strict:
            raise ParameterError.of("nmse", target, _least(target * 2**excess))
        missed = MissedTarget("nmse", target, _SURE * target * 2**excess)
        return self._found(octave, matrix)._replace(missed=missed)

    def step_for_bits(self, target: float, prior: QuantizedLevels | None = None) -> Found:
        """Find the step with which a value takes so many bits on the average, or fewer.

        See `step_for_error`.
        """

        def trial(
            way: Quantizer, values: np.ndarray, matrix: RowLayout
        ) -> Callable[[float], float]:
            def off(finer: float) -> float:
                nbits = way.nbits(values, self._size(-finer), matrix)
                return spread.octaves(nbits / values.size) - wanted

            return off

        least, most = self._octaves()
        ahead = -self.way.habits().ahead_of_bits
        bounds = -most, -least
        spread = self._spread(self.x, matrices(self.shape)[0].width)
        first, wanted = spread.fineness(target), spread.octaves(target)
        tolerance = wanted - spread.octaves(target * 2**-_TOLERANCE)

        def drift(some: np.ndarray, width: int) -> float:
            # Where some rows and columns are larger than most are, their steps are, too.
            return self._spread(some, width).octave - spread.octave

        aim = _Aim(trial, 1.0, tolerance, bounds, ahead, -1, drift)
        met, matrix = self._search(aim, first, self._start(aim, prior))
        if met is not None and (met.at != -least or met.off >= -tolerance):
            return self._found(-met.at, matrix)
        octave = most if met is None else least
        if self._strict:
            allowed = _least if met is None else _most
            raise ParameterError.of("bits", target, allowed(self._bits(octave, matrix)))
        if met is None:
            octave = self._fewest_bits(matrix)
        missed = MissedTarget("bits", target, self._bits(octave, matrix))
        return self._found(octave, matrix)._replace(missed=missed)

    def _found(self, octave: float, matrix: RowLayout) -> Found:
        return Found(binary32(self._size(octave) / self.lift), matrix)

    def _bits(self, octave: float, matrix: RowLayout) -> float:
        """Return about how many bits a value takes with a step."""
        return self.way.nbits(self.x, self._size(octave), matrix) / self.x.size

    def _fewest_bits(self, matrix: RowLayout) -> float:
        """Return the octave of the finest of the shortest steps with which feedback converges."""
        self.way.release()
        least, most = self._octaves()

        def arrives(octave: float) -> bool:
            return not self.way.is_lost(self.x, self._size(octave), matrix)

        def is_short(octave: float) -> bool:
            return self._bits(octave, matrix) <= fewest and arrives(octave)

        coarse = math.log2(self._top) - 1
        while coarse > least and not arrives(coarse):
            coarse -= 1
        coarse = _last(arrives, max(coarse, least), most)
        fewest, move = self._bits(coarse, matrix), 1.0
        while coarse - move > least and is_short(coarse - move):
            coarse, move = coarse - move, 2 * move
        return _last(is_short, coarse, max(coarse - move, least))

    def _octaves(self) -> tuple[float, float]:
        """Return the bounds of steps, which are also those of float32 when they are not lifted."""
        least, most = _octaves(self._top)
        return least, min(most, _HIGHEST + math.log2(self.lift))

    def _spread(self, values: np.ndarray, width: int) -> Spread:
        return Spread.of(values, self._top, width, self.period)

    def _start(self, aim: _Aim, prior: QuantizedLevels | None) -> _Start | None:
        """Return where to begin, with the step of a tensor before."""
        if prior is None or prior.scales is None:
            return None
        before = aim.sign * math.log2(prior.step * self.lift)
        return _Start(before, before, prior.scales.told)

    def _size(self, octave: float) -> float:
        """Return the step of an octave."""
        return max(float(np.float32(2.0**octave / self.lift)), _LEAST) * self.lift

    def _search(
        self, aim: _Aim, first: float, start: _Start | None
    ) -> tuple[Met | None, RowLayout]:
        """Search from what met the target before, or from what meets it on some rows.

        Where the step is another by far, another matrix may be best.
        """
        slope = aim.slope
        met: Met | None = None
        if start is not None:
            met = self._closely(aim, start.matrix, start.at, slope)
            if met is not None and abs(met.at - start.before) <= _ALIKE:
                return met, start.matrix
        if met is None:
            first, slope = self._guess(aim, first)
        else:
            first = met.at
        matrix = matrix_for(self.x, self._size(aim.sign * first), self.shape)
        if met is not None and start is not None and matrix == start.matrix:
            return met, matrix
        return self._closely(aim, matrix, first, slope), matrix

    def _guess(self, aim: _Aim, first: float) -> tuple[float, float]:
        """Return about where the target is met, and the slope there."""
        matrix = matrices(self.shape)[0]
        most = max(_SAMPLE, _SAMPLE_ROWS * matrix.width)
        some, width = thinned(self.x, matrix.width, most, self.period)
        if some is not self.x and not largest(some):
            return first, aim.slope
        guess = self._roughly(aim, some, matrix._replace(width=width), first)
        if guess is None:
            return aim.bounds[0], aim.slope  # by which a matrix is chosen that takes less
        drift = 0.0 if aim.drift is None or some is self.x else aim.drift(some, width)
        return guess.at + drift, guess.slope

    def _roughly(
        self, aim: _Aim, values: np.ndarray, matrix: RowLayout, first: float
    ) -> Met | None:
        """Search on some values, the quicker way."""
        rough = self.way.habits().rough
        rough.release()
        window = -_ROUGHLY * aim.slope, _ROUGHLY * aim.slope
        of = aim.trial(rough, values, matrix)
        met = search(of, first - aim.ahead, aim.slope, window, aim.bounds, _APART)
        return met._replace(at=met.at + aim.ahead) if met else None

    def _closely(self, aim: _Aim, matrix: RowLayout, first: float, slope: float) -> Met | None:
        """Search on all values.

        Each step has scales of its own until they are about those of the step that is looked for.
        Then they are held, as what is measured with others has jumps; but where those of one step
        do not fit steps beside it, each has its own to the end.
        """
        x, way, same = self.x, self.way, self.way.habits().same
        of, held, fine = aim.trial(way, x, matrix), math.nan, (-aim.tolerance, 0.0)

        def anew(at: float) -> float:
            nonlocal held
            way.hold(x, self._size(aim.sign * at), matrix)
            held = at
            return of(at)

        about = -same * slope, same * slope
        for window, distance in ((about, same), (fine, _APART)):
            near = search(anew, first, slope, window, aim.bounds, distance)
            if near is None:
                return None
            first, slope = near.at, near.slope
            off = near.off if first == held else anew(first)
            least, most = first - _REACH * same, first + _REACH * same
            around = max(least, aim.bounds[0]), min(most, aim.bounds[1])
            met = search(of, first, _HELD * slope, fine, around, _NEAR, off)
            if (met is not None and met.at < around[1]) or near.off < window[0]:
                break
        return met or search(of, first, _HELD * slope, fine, aim.bounds, _NEAR)


def _last(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return a number near the end of those that a test holds for, between one and another."""
    if holds(outside):
        return outside
    while abs(outside - inside) > _CLOSE:
        middle = (inside + outside) / 2
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside


def _least(target: float) -> str:
    """Say which target can be had; rounded up, so that what is told is."""
    return f"at least {target * (1 + _TOLD):.3g} for this tensor"


def _most(target: float) -> str:
    return f"at most {target * (1 - _TOLD):.3g} for this tensor"


def _octaves(top: float) -> tuple[float, float]:
    """Return the octaves of the least step that levels allow, and of one where all are 0."""
    octave = math.log2(top)
    return max(octave - _LOG2_LEVELS, -_LOWEST), min(octave + 2, _HIGHEST)
