"""Rate control: the step that meets a target error or rate, and the row layout for it.

Some targets cannot be met: an error below that of the finest step; fewer bits than scale lists and
tables take, as with small tensors; or more bits than levels of the finest step have. `StepChoice`
then contains the nearest possible setting. This is the finest step, or for too few bits the
coarsest step with which feedback converges, because some levels are nonzero, or a finer one that
takes no more bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.codecs.ecsq.quantizer import Quantizer
from gcodec.codecs.ecsq.reconstruction import QuantizedLevels, largest, point_table
from gcodec.codecs.ecsq.root_finding import Root, search
from gcodec.entropy.context import models, scale_model, table_choice
from gcodec.entropy.context.scale_model import RowLayout, row_layouts
from gcodec.entropy.context.table_choice import best_layout
from gcodec.errors import ParameterError
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.convert import selected
from gcodec.kernels.numeric.reduce import sum_squares
from gcodec.kernels.quantize import scalar_quantize
from gcodec.payload import MissedTarget
from gcodec.runtime.device import host
from gcodec.runtime.memory import empty_beside, flattened
from gcodec.wire.kinds import binary32

_EXPONENTS = 1 << 14  # elements whose exponents give the first step of a search for bits
_OVERHEAD = 2.2  # mean bits of a value beyond the octaves between it and the step
_MOST_NBITS = 24  # of a nonzero value
_SPARSE = 0.4  # octaves of the step for each octave of the bits, where most levels are 0

_LOG2_LEVELS = 22  # of the largest level; float32 represents levels and remainders exactly
_LOWEST, _HIGHEST = 125, 127  # octaves of steps whose inverses are normal numbers
_SAMPLE = 1 << 14  # elements on which the first step is guessed
_SAMPLE_ROWS = 16  # at least this many rows, so that column scales do not dominate the bits
_TOLERANCE = 0.015  # octaves of a target: 1 %
_ROUGH_TOLERANCE = 0.04  # octaves of the step, on a sample
_ERROR_SLOPE = 2.2  # approximate octaves of the error for each octave of the step
_SURE = 0.996  # of a target error, because sums in 1024ths of a step are inexact
_TINY_ERROR = 1e-300  # replaces an error of 0, which has no logarithm
_RESOLUTION = 2.0**-7  # octaves of the step, while scales follow the step
_HELD_RESOLUTION = 2.0**-10  # octaves of the step, while scales are held
_SIMILAR = 0.25  # octaves from the preceding step within which its row layout is kept
_HELD_SLOPE = 0.75  # factor of a slope while scales are held
_REACH = 2  # multiple of `SearchHints.hold_range` up to which scales may be held
_LEAST = 2.0**-149  # smallest positive float32
_MARGIN = 0.005  # relative margin of a bound that is printed with three digits
_CLOSE = 2.0**-4  # octaves of the step, for the nearest setting to a target that is missed
_FINEST_TRIALS = 3  # finest octaves to try, as rounding may give a coarser step less error


def approximate_step(nmse: float, bits: float, x: np.ndarray, top: float) -> float:
    """Return the approximate step for a number of bits if it is not 0, else for an error.

    `x` contains (n,) values up to `top`, not all 0.
    """
    if bits:
        return float(2.0 ** -Spread.of(x, top, 1).fineness(bits))
    return step_of_error(nmse, sum_squares(x) / x.size)


def step_of_error(target: float, power: float) -> float:
    """Return the approximate step for an nmse of values with this mean square."""
    return math.sqrt(12 * target * power)


def step_with_levels_of(prior: QuantizedLevels, power: float) -> float | None:
    """Return the step with which values of this mean square have levels as large as `prior`.

    None if all levels of `prior` are 0.
    """
    unit = 0.5 if prior.lanes else 1.0
    sizes = point_table(unit, prior.centroids)[: models.least_escape(prior.lanes > 0)]
    counts = host(byte_counts(prior.symbols))[: sizes.size]
    # A sum that is rounded once, so that it is the same everywhere.
    squares = math.fsum((counts * np.square(sizes, dtype=np.float64)).tolist())
    squares += sum_squares(scalar_quantize.points_of(prior.outliers, unit, prior.centroids))
    return math.sqrt(power * prior.symbols.size / squares) if squares else None


class Spread(NamedTuple):
    """Statistics of a sample of values.

    Attributes
    ----------
    octave : float
        Mean of log2 |x|, rounded up, over the nonzero values.
    share : float
        Share of nonzero values.
    """

    octave: float
    share: float

    @classmethod
    def of(cls, x: np.ndarray, top: float, width: int, period: int = 1) -> Spread:
        """Measure a sample of (n,) values up to `top` that covers all positions of a row."""
        stride = scale_model.coprime_stride(max(x.size // _EXPONENTS, 1), width * period)
        sample = host(selected(x, lambda values: flattened(values[::stride])))
        _, exponents = np.frexp(sample[sample != 0])
        if not exponents.size:
            return cls(math.log2(top), 1.0)
        return cls(float(exponents.mean()), exponents.size / sample.size)

    def fineness(self, nbits: float) -> float:
        """Return the octaves below 1 of the step with which a value takes about `nbits`."""
        # An approximation for small steps, where the bits depend on the octaves alone.
        return min(nbits / self.share, _MOST_NBITS) - self.octave - _OVERHEAD

    def octaves(self, nbits: float) -> float:
        """Return the approximate octaves between the step for `nbits` and a fixed step."""
        nonzero_nbits = nbits / self.share
        return nonzero_nbits + _SPARSE * math.log2(nonzero_nbits)


def layout_for(x: np.ndarray, step: float, shape: tuple[int, ...]) -> RowLayout:
    """Return the row layout with which levels of (n,) values probably take the fewest bits."""
    layouts = row_layouts(shape)
    sample = scale_model.sampled_rows(x, layouts[0].width, table_choice.SAMPLE)
    symbols = empty_beside(sample.size, np.uint8, sample)
    scalar_quantize.plain_levels(sample, np.float32(step), symbols)
    return best_layout(symbols, layouts, x.size // sample.size)


def check_step(top: float, step: float) -> None:
    """Refuse a step for which values up to `top`, above 0, would have too large levels."""
    least = 2.0 ** _octaves(top)[0]
    if step < least:
        raise ParameterError.of("step", binary32(step), f"at least {least:.3g} for this tensor")


class _Start(NamedTuple):
    """What the levels of a preceding tensor suggest for a search.

    Attributes
    ----------
    at : float
        Argument u to start from.
    preceding : float
        Argument of the preceding step.
    layout : RowLayout
        Row layout of the preceding tensor.
    """

    at: float
    preceding: float
    layout: RowLayout


class _Goal(NamedTuple):
    """A target as a root-finding problem. The argument u is the octave of a step, or minus it.

    Attributes
    ----------
    trial : callable
        Returns the excess function e(u) for a quantizer, values and their row layout.
    slope : float
        Approximate slope of e.
    tolerance : float
        Accepted excess: from -tolerance to 0.
    bounds : (float, float)
        Smallest and largest u.
    ahead : float
        Approximate distance from the u of the rough quantizer.
    sign : int
        1 if u is the octave of the step, -1 if it is minus the octave.
    drift : callable, optional
        Returns the distance of u from that of a sample, given the sample and the width of its
        rows.
    """

    trial: Callable[[Quantizer, np.ndarray, RowLayout], Callable[[float], float]]
    slope: float
    tolerance: float
    bounds: tuple[float, float]
    ahead: float
    sign: int = 1
    drift: Callable[[np.ndarray, int], float] | None = None


class StepChoice(NamedTuple):
    """Result of rate control.

    Attributes
    ----------
    step : float
        A float32 number.
    layout : RowLayout
        Row layout of the tensor.
    missed : MissedTarget or None
        Where no step meets the target, what this step gives instead.
    """

    step: float
    layout: RowLayout
    missed: MissedTarget | None = None


class Target:
    """The search for a step on one tensor.

    Parameters
    ----------
    x : (n,) float32 array
        Finite values, not all zero.
    shape : tuple of int
        Shape of the tensor.
    quantizer : Quantizer
        Afterwards it holds the scales with which the chosen step meets the target.
    lift : float
        Factor by which the values of the tensor have been multiplied. Octaves are those of lifted
        steps; the step that a message states is such a step divided by the factor.
    period : int
        Period with which the scales of elements repeat; 1 if they do not.
    top : float, optional
        Largest magnitude, if it is known.
    strict : bool
        Whether a target that no step meets raises an error.
    energy : float, optional
        Sum of the squares of the values, as `reduce.sum_squares` adds them up, if it is known.
    """

    def __init__(
        self,
        x: np.ndarray,
        shape: tuple[int, ...],
        quantizer: Quantizer,
        lift: float = 1.0,
        period: int = 1,
        top: float | None = None,
        strict: bool = True,
        energy: float | None = None,
    ) -> None:
        self.x, self.shape, self.lift, self.period = x, shape, lift, period
        self.quantizer = quantizer
        self._strict = strict
        self._top = largest(x) if top is None else top
        self._energy = energy

    @functools.cached_property
    def _power(self) -> float:
        """Mean square of the values."""
        energy = float(sum_squares(self.x)) if self._energy is None else self._energy
        return energy / self.x.size

    def step_for_error(self, target: float, prior: QuantizedLevels | None = None) -> StepChoice:
        """Find the step whose nmse is the target, or less where the error jumps.

        Parameters
        ----------
        target : float
            ‖x − x̂‖²/‖x‖².
        prior : QuantizedLevels, optional
            Levels of a similar tensor. The search starts where levels are as large as these, and
            keeps their row layout if it ends near.

        Raises
        ------
        ParameterError
            Where no step meets the target, and the search is strict.
        """

        def trial(
            quantizer: Quantizer, values: np.ndarray, layout: RowLayout
        ) -> Callable[[float], float]:
            # The power of the whole tensor, also for a sample: a few rows may contain most of the
            # energy, but not most of the error.
            norm = self._power * values.size

            def excess(octave: float) -> float:
                step = self._lifted_step(octave)
                squares = quantizer.squared_error(values, step, layout)
                return math.log2(max(squares * step**2 / norm, _TINY_ERROR) / (_SURE * target))

            return excess

        first = math.log2(step_of_error(target, self._power))
        bounds = self._octaves()
        hints = self.quantizer.hints()
        goal = _Goal(trial, _ERROR_SLOPE, _TOLERANCE, bounds, hints.ahead)
        start = self._start(goal, prior)
        if start is not None and prior is not None:
            energy_ratio = 1 + hints.error_coefficient * target  # of x̂ to x
            similar = step_with_levels_of(prior, self._power * energy_ratio)
            start = start._replace(at=math.log2(similar)) if similar else None
        root, layout = self._search(goal, first, start)
        if root is not None:
            return self._choice(root.at, layout)
        self.quantizer.release_scales()
        excess_of = trial(self.quantizer, self.x, layout)
        octaves = (min(bounds[0] + coarser, bounds[1]) for coarser in range(_FINEST_TRIALS))
        excess, octave = min((excess_of(octave), octave) for octave in octaves)
        if excess <= 0:
            return self._choice(octave, layout)
        if self._strict:
            raise ParameterError.of("nmse", target, _at_least(target * 2**excess))
        missed = MissedTarget("nmse", target, _SURE * target * 2**excess)
        return self._choice(octave, layout)._replace(missed=missed)

    def step_for_bits(self, target: float, prior: QuantizedLevels | None = None) -> StepChoice:
        """Find the step with which values take this many bits on average, or fewer.

        See `step_for_error`.
        """

        def trial(
            quantizer: Quantizer, values: np.ndarray, layout: RowLayout
        ) -> Callable[[float], float]:
            def excess(finer: float) -> float:
                nbits = quantizer.nbits(values, self._lifted_step(-finer), layout)
                return spread.octaves(nbits / values.size) - wanted

            return excess

        least, most = self._octaves()
        ahead = -self.quantizer.hints().ahead_of_bits
        bounds = -most, -least
        spread = self._spread(self.x, row_layouts(self.shape)[0].width)
        first, wanted = spread.fineness(target), spread.octaves(target)
        tolerance = wanted - spread.octaves(target * 2**-_TOLERANCE)

        def drift(sample: np.ndarray, width: int) -> float:
            # Where the rows and columns of the sample are larger than most, so is its step.
            return self._spread(sample, width).octave - spread.octave

        goal = _Goal(trial, 1.0, tolerance, bounds, ahead, -1, drift)
        root, layout = self._search(goal, first, self._start(goal, prior))
        if root is not None and (root.at != -least or root.excess >= -tolerance):
            return self._choice(-root.at, layout)
        octave = most if root is None else least
        if self._strict:
            allowed = _at_least if root is None else _at_most
            raise ParameterError.of("bits", target, allowed(self._bits(octave, layout)))
        if root is None:
            octave = self._fewest_bits(layout)
        missed = MissedTarget("bits", target, self._bits(octave, layout))
        return self._choice(octave, layout)._replace(missed=missed)

    def _choice(self, octave: float, layout: RowLayout) -> StepChoice:
        return StepChoice(binary32(self._lifted_step(octave) / self.lift), layout)

    def _bits(self, octave: float, layout: RowLayout) -> float:
        """Return the approximate bits for each value with a step."""
        return self.quantizer.nbits(self.x, self._lifted_step(octave), layout) / self.x.size

    def _fewest_bits(self, layout: RowLayout) -> float:
        """Return the finest octave with the fewest bits with which feedback converges."""
        self.quantizer.release_scales()
        least, most = self._octaves()

        def converges(octave: float) -> bool:
            return not self.quantizer.diverges(self.x, self._lifted_step(octave), layout)

        def is_short(octave: float) -> bool:
            return self._bits(octave, layout) <= fewest and converges(octave)

        coarse = math.log2(self._top) - 1
        while coarse > least and not converges(coarse):
            coarse -= 1
        coarse = _last(converges, max(coarse, least), most)
        fewest, move = self._bits(coarse, layout), 1.0
        while coarse - move > least and is_short(coarse - move):
            coarse, move = coarse - move, 2 * move
        return _last(is_short, coarse, max(coarse - move, least))

    def _octaves(self) -> tuple[float, float]:
        """Return the bounds of steps; without a lift, these are also bounds of float32."""
        least, most = _octaves(self._top)
        return least, min(most, _HIGHEST + math.log2(self.lift))

    def _spread(self, values: np.ndarray, width: int) -> Spread:
        return Spread.of(values, self._top, width, self.period)

    def _start(self, goal: _Goal, prior: QuantizedLevels | None) -> _Start | None:
        """Return where to start, with the step of the preceding tensor."""
        if prior is None or prior.scales is None:
            return None
        preceding = goal.sign * math.log2(prior.step * self.lift)
        return _Start(preceding, preceding, prior.scales.decoded_layout)

    def _lifted_step(self, octave: float) -> float:
        """Return the step of an octave, times the lift, as quantizers of lifted values take it."""
        return max(float(np.float32(2.0**octave / self.lift)), _LEAST) * self.lift

    def _search(
        self, goal: _Goal, first: float, start: _Start | None
    ) -> tuple[Root | None, RowLayout]:
        """Search from the preceding tensor's step, or from the result on a sample of rows.

        If the step differs much from the preceding one, another row layout may be best.
        """
        slope = goal.slope
        root: Root | None = None
        if start is not None:
            root = self._search_all(goal, start.layout, start.at, slope)
            if root is not None and abs(root.at - start.preceding) <= _SIMILAR:
                return root, start.layout
        if root is None:
            first, slope = self._guess(goal, first)
        else:
            first = root.at
        layout = layout_for(self.x, self._lifted_step(goal.sign * first), self.shape)
        if root is not None and start is not None and layout == start.layout:
            return root, layout
        return self._search_all(goal, layout, first, slope), layout

    def _guess(self, goal: _Goal, first: float) -> tuple[float, float]:
        """Return the approximate root, and the slope there, from a sample of rows."""
        layout = row_layouts(self.shape)[0]
        most = max(_SAMPLE, _SAMPLE_ROWS * layout.width)
        sample, width = scale_model.sampled_matrix(self.x, layout.width, most, self.period)
        if sample is not self.x and not largest(sample):
            return first, goal.slope
        guess = self._search_sample(goal, sample, layout._replace(width=width), first)
        if guess is None:
            return goal.bounds[0], goal.slope  # where a layout is chosen that takes fewer bits
        drift = 0.0 if goal.drift is None or sample is self.x else goal.drift(sample, width)
        return guess.at + drift, guess.slope

    def _search_sample(
        self, goal: _Goal, values: np.ndarray, layout: RowLayout, first: float
    ) -> Root | None:
        """Search on a sample with the rough quantizer."""
        rough = self.quantizer.hints().rough
        rough.release_scales()
        window = -_ROUGH_TOLERANCE * goal.slope, _ROUGH_TOLERANCE * goal.slope
        excess_of = goal.trial(rough, values, layout)
        root = search(excess_of, first - goal.ahead, goal.slope, window, goal.bounds, _RESOLUTION)
        return root._replace(at=root.at + goal.ahead) if root else None

    def _search_all(
        self, goal: _Goal, layout: RowLayout, first: float, slope: float
    ) -> Root | None:
        """Search on all values.

        Scales follow the step until they are close to those of the step in question. Then they
        are held, because the excess jumps whenever scales change. If the scales of one step do
        not suit its neighbors, they follow the step to the end.
        """
        x, quantizer, hold_range = self.x, self.quantizer, self.quantizer.hints().hold_range
        excess_of, held = goal.trial(quantizer, x, layout), math.nan
        fine_window = -goal.tolerance, 0.0

        def with_own_scales(at: float) -> float:
            nonlocal held
            quantizer.hold_scales(x, self._lifted_step(goal.sign * at), layout)
            held = at
            return excess_of(at)

        coarse_window = -hold_range * slope, hold_range * slope
        for window, resolution in ((coarse_window, hold_range), (fine_window, _RESOLUTION)):
            near = search(with_own_scales, first, slope, window, goal.bounds, resolution)
            if near is None:
                return None
            first, slope = near.at, near.slope
            excess = near.excess if first == held else with_own_scales(first)
            least, most = first - _REACH * hold_range, first + _REACH * hold_range
            around = max(least, goal.bounds[0]), min(most, goal.bounds[1])
            root = search(
                excess_of,
                first,
                _HELD_SLOPE * slope,
                fine_window,
                around,
                _HELD_RESOLUTION,
                excess,
            )
            if (root is not None and root.at < around[1]) or near.excess < window[0]:
                break
        return root or search(
            excess_of, first, _HELD_SLOPE * slope, fine_window, goal.bounds, _HELD_RESOLUTION
        )


def _last(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    """Bisect between a number for which a test holds and one for which it may not hold."""
    if holds(outside):
        return outside
    while abs(outside - inside) > _CLOSE:
        middle = (inside + outside) / 2
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside


def _at_least(target: float) -> str:
    """Say which targets are possible, rounded up so that the printed bound holds."""
    return f"at least {target * (1 + _MARGIN):.3g} for this tensor"


def _at_most(target: float) -> str:
    """Say which targets are possible, rounded down so that the printed bound holds."""
    return f"at most {target * (1 - _MARGIN):.3g} for this tensor"


def _octaves(top: float) -> tuple[float, float]:
    """Return the octaves of the smallest possible step, and of a step where all levels are 0."""
    octave = math.log2(top)
    return max(octave - _LOG2_LEVELS, -_LOWEST), min(octave + 2, _HIGHEST)
