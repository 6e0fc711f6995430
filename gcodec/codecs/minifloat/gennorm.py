"""Scales of minifloats: the generalized normal distribution, and the least squared error.

GenNorm has the density β / (2αΓ(1/β)) exp(−|x/α|^β). It is normal for β = 2 and Laplace for β = 1;
its tails are heavier for smaller β. σ is its standard deviation.

This module uses only sums, products, quotients and square roots of the log-histogram of a tensor,
so a tensor has the same scale on every machine. Values of special functions are in
``gennorm_tables.txt``, which ``tools/gennorm_tables.py`` writes.

Sources: Chen et al., "Convert, compress, correct: Three steps toward communication-efficient DNN
training", arXiv 2203.09044, Eq. (9); Mallat, "A theory for multiresolution signal decomposition",
1989, for the ratio of moments.
"""

from __future__ import annotations

import bisect
import functools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.arrays.sampling import sample
from gcodec.errors import ParameterError
from gcodec.kernels.numeric.convert import whole
from gcodec.kernels.numeric.log_histogram import FINITE, SHIFT, log_histogram
from gcodec.kernels.numeric.select import take_at_least
from gcodec.kernels.quantize import scale_errors
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.scale_errors import Binned, Grid, Ladder, Overview, Rounding

Rule = Literal["histogram", "gennorm", "co3"]
RULES = ("histogram", "gennorm", "co3")

_CO3 = MiniFloat("e2m1", "ieee")
_LARGEST = float(np.finfo(np.float32).max)
_NORMAL, _LEAST = 2.0**-126, 2.0**-149
_FINE = 16  # least ratio of rms to smallest level; below it, the scale may be subnormal
ENOUGH = 1 << 18
"""Nonzero elements that a sample needs to be representative."""

_FEW = 1 << 18  # most elements of a tensor whose last candidates are compared exactly
_TOP = 1 << 12  # largest elements of a larger tensor that are evaluated exactly,
_SCARCE, _NEAR = 1 << 10, 1 << 7  # if at most _SCARCE lie in the top _NEAR bins, two octaves
_MOMENTS = 1 << 12  # elements from which moments determine a distribution
SMALL_SAMPLE = 1 << 14, 16
"""Number of elements of a small sample, and of a cache line."""

_STEPS = 32  # scales that are evaluated in each octave
_ROOTS = 24  # repeated square roots of 2 in a power of 2
_LIFT = 2.0**64  # factor that makes the smallest subnormal a normal number


class GenNorm(NamedTuple):
    """A generalized normal distribution with mean 0.

    Attributes
    ----------
    beta : float
        Shape.
    sigma : float
        Standard deviation.
    """

    beta: float
    sigma: float

    @property
    def alpha(self) -> float:
        """Scale parameter of the density."""
        return self.sigma * power_of_two(_at_beta("alphas", self.beta))


def fit_moments(overview: Overview) -> GenNorm:
    """Fit a distribution to a log-histogram by E|x| and σ² = E(x²).

    Parameters
    ----------
    overview : Overview
        Sums of the log-histogram; infinity and NaN are ignored.

    Returns
    -------
    GenNorm
        With β from 0.15 to 4, and σ = 0 if all values are zero.
    """
    if not overview.squares:
        return GenNorm(2.0, 0.0)
    n, sigma = overview.size, math.sqrt(overview.squares / overview.size)
    return GenNorm(_interpolated(overview.total / n / sigma, row("ratios"), row("betas")), sigma)


def scale_of(
    values: np.ndarray, fmt: MiniFloat, rule: Rule, counts: np.ndarray | None = None
) -> float:
    """Choose the scale of a tensor of minifloats.

    Parameters
    ----------
    values : (n,) float32 array or ConvertedArray
    fmt : MiniFloat
    rule : "histogram", "gennorm" or "co3"
        "histogram" searches for the least squared error. "gennorm" takes the scale of the GenNorm
        with the same moments from a table, and improves it once by least squares; tensors of few
        values are searched. "co3" is Δ = α / 2p(β), with the polynomial p of Eq. (9) but at least
        0.0009, as in the authors' code. It applies to ``e2m1`` with style ``ieee``, because the
        authors' levels are half as large.
    counts : (2**14,) int64 array, optional
        Log-histogram of the values, if it is known.

    Returns
    -------
    float
        A binary32 number with which the largest magnitude of the format stays finite. It is
        positive, and normal unless that would be too coarse for tiny values; or 0.0 if all values
        are 0.

    Raises
    ------
    ParameterError
        For NaN and Inf, and for "co3" with any other format.
    """
    if rule == "co3" and fmt != _CO3:
        raise ParameterError.of("scale", rule, "histogram or gennorm, except with e2m1 and ieee")
    counts = log_histogram(values) if counts is None else counts
    overview, unit = Overview.of(counts), 1.0
    if overview.last >= FINITE:
        raise nonfinite_error(values)
    if overview.last < _place(1 / _LIFT):  # in this unit, all values are normal numbers
        unit = 1 / _LIFT
        values = whole(values) * np.float32(_LIFT)
        counts = log_histogram(values)
        overview = Overview.of(counts)
        if overview.last < 1:
            return 0.0
    model, ladder = fit_moments(overview), ladder_of(fmt)
    fine = _NORMAL * ladder.levels[1] * _FINE <= model.sigma * unit
    rounding = Rounding(unit, _NORMAL if fine else _LEAST, largest_scale(ladder))
    if rule == "co3":
        scale = model.alpha / (2 * max(_polynomial(model.beta), 0.0009))
    else:
        log = _at_beta(f"scales {fmt.format} {fmt.style}", model.beta)
        binned = Binned(counts, whole(sample(values, *SMALL_SAMPLE)), overview)
        scale = binned.improved(model.sigma * power_of_two(log), ladder)
        if rule == "histogram" or values.size < _MOMENTS:
            scale = _searched(values, counts, overview, binned, ladder, rounding, scale)
    return float(rounding.rounded(np.array([scale]))[0]) * unit


def _searched(
    values: np.ndarray,
    counts: np.ndarray,
    overview: Overview,
    binned: Binned,
    ladder: Ladder,
    rounding: Rounding,
    first: float,
) -> float:
    """Return the largest scale within the tolerance of the least squared error.

    The errors are exact for a small tensor, and for the largest elements of a tensor that has few
    of them. Elsewhere they are those of the bins. `first` is the first candidate; see
    `Binned.candidates`.
    """
    grid = _grid(ladder, binned.total / values.size, overview)
    tried, errors = binned.candidates(grid, ladder, rounding, first)
    if values.size <= _FEW:
        tried, errors = _measured(values, tried, errors, ladder)
    elif counts[max(overview.last - _NEAR, 0) :].sum() <= _SCARCE:
        tried, errors = _with_largest(values, counts, overview, ladder, rounding, tried)
    return _largest(tried, errors)


def _grid(ladder: Ladder, mean: float, overview: Overview) -> Grid:
    """Return the candidate scales for a tensor with this mean magnitude.

    At the best Δ, Δ·Σc² = Σ|x|c. No c exceeds the last level, so Δ times the last level is at
    least the mean. Beyond the Δ whose smallest level covers the largest magnitude, the error only
    grows.
    """
    largest = float(scale_errors.bin_edges()[overview.last + 1])
    low = math.frexp(mean / ladder.levels[-1])[1] - 1
    high = math.frexp(largest / ladder.levels[1])[1]
    return Grid(math.ldexp(1.0, low), max(high + 1 - low, 0), fractions())


def _measured(
    values: np.ndarray, tried: np.ndarray, errors: np.ndarray, ladder: Ladder
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best candidates for a small tensor, and the one to choose, with exact errors."""
    best = np.argsort(errors, kind="stable")[: max(_FEW // values.size, 1)]
    tried = np.concatenate([[tried[0], _largest(tried, errors)], tried[best]])
    return tried, scale_errors.squared_errors(whole(values), tried, ladder)


def _with_largest(
    values: np.ndarray,
    counts: np.ndarray,
    overview: Overview,
    ladder: Ladder,
    rounding: Rounding,
    tried: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return candidates and others near the best, with errors exact for the largest elements."""
    above = np.cumsum(counts[::-1])[::-1]
    first = int(np.argmax(above <= _TOP))
    selected = take_at_least(values, np.float32(scale_errors.bin_edges()[first]))
    assert selected is not None, "values must be finite"
    _, top = selected
    below = Binned(counts, top[:0], overview, first)

    def errors_of(scales: np.ndarray) -> np.ndarray:
        exact = scale_errors.squared_errors(top, scales, ladder)
        return below.sums(scales, ladder).errors + exact

    errors = errors_of(tried)
    best = tried[np.argsort(errors, kind="stable")[: scale_errors.LOCAL // 2]]
    nearby = rounding.rounded(np.outer(best, steps_near_one()).ravel())
    return np.append(tried, nearby), np.append(errors, errors_of(nearby))


def _largest(scales: np.ndarray, errors: np.ndarray) -> float:
    """Return the largest scale whose error is near the least and at most that of the first."""
    least = float(errors.min())
    limit = min(least + scale_errors.TOLERANCE * abs(least), max(float(errors[0]), least))
    return float(scales[errors <= limit].max())


def _polynomial(beta: float) -> float:
    """Return the polynomial of Eq. (9)."""
    return 0.46 + beta * (-2.85 + beta * (5.37 + beta * (-2.85 + beta * 0.52)))


def _place(value: float) -> int:
    """Return the bin of a magnitude in a log-histogram."""
    return int(np.float32(value).view(np.uint32)) >> SHIFT


@functools.cache
def ladder_of(fmt: MiniFloat) -> Ladder:
    """Return the levels of a format."""
    return Ladder.of(fmt.magnitudes(), fmt.mantissa)


def largest_scale(ladder: Ladder) -> float:
    """Return the largest scale with which no level exceeds float32.

    The quotient is rounded down for all formats.
    """
    return float(np.float32(_LARGEST / ladder.levels[-1]))


@functools.lru_cache(maxsize=1)
def fractions() -> np.ndarray:
    """Return the candidate scales of the octave that begins at 1."""
    return np.array([power_of_two(i / _STEPS) for i in range(_STEPS)])


@functools.lru_cache(maxsize=1)
def steps_near_one() -> tuple[float, ...]:
    """Return the ratios of additional candidates to the best scales."""
    return tuple(power_of_two(k / (4 * _STEPS)) for k in (-3, -2, -1, 1, 2, 3))


def power_of_two(log: float) -> float:
    """Return 2^log as a product of repeated square roots of 2, the same on every machine."""
    whole = math.floor(log)
    rest, power = log - whole, 1.0
    for root in roots():
        rest *= 2
        if rest >= 1:
            rest, power = rest - 1, power * root
    return math.ldexp(power, whole)


@functools.lru_cache(maxsize=1)
def roots() -> tuple[float, ...]:
    """Return the repeated square roots of 2 that `power_of_two` multiplies."""
    roots = [math.sqrt(2.0)]
    while len(roots) < _ROOTS:
        roots.append(math.sqrt(roots[-1]))
    return tuple(roots)


def _at_beta(name: str, beta: float) -> float:
    """Interpolate a row of the tables, whose values are almost linear in 1/β."""
    return _interpolated(-1 / beta, inverse_betas(), row(name))


def _interpolated(x: float, knots: Sequence[float], values: Sequence[float]) -> float:
    """Interpolate between ascending knots, and extrapolate with the outer values."""
    if not knots[0] < x < knots[-1]:
        return values[0] if x <= knots[0] else values[-1]
    i = bisect.bisect_left(knots, x)
    return values[i - 1] + (x - knots[i - 1]) / (knots[i] - knots[i - 1]) * (
        values[i] - values[i - 1]
    )


@functools.lru_cache(maxsize=1)
def inverse_betas() -> tuple[float, ...]:
    """Return −1/β of all β of the tables."""
    return tuple(-1 / beta for beta in row("betas"))


@functools.cache
def row(name: str) -> tuple[float, ...]:
    """Return a row of the tables."""
    return tuple(map(float, _tables()[name].split()))


@functools.lru_cache(maxsize=1)
def _tables() -> dict[str, str]:
    """Return the numbers of each line of the file by the words that precede them."""
    text = Path(__file__).with_name("gennorm_tables.txt").read_text("ascii")
    parts = (re.match(r"([a-z][a-z0-9 ]*?) (-?[0-9].*)", line) for line in text.splitlines())
    return {part[1]: part[2] for part in parts if part}
