"""Scales of minifloats: the generalised normal distribution, and the least squared error.

GenNorm has the density β / (2αΓ(1/β)) exp(−|x/α|^β): it is normal for β = 2, Laplace for β = 1,
and the smaller β, the heavier its tails. Its standard deviation is σ.

Everything here is found from the log-histogram of a tensor by sums, products, quotients and square
roots, so that a tensor has the same scale everywhere. What takes special functions is in
``gennorm_tables.txt``, which ``tools/gennorm_tables.py`` makes.

Sources: Chen et al., "Convert, compress, correct: Three steps toward communication-efficient DNN
training", arXiv 2203.09044, Eq. (9); Mallat, "A theory for multiresolution signal decomposition",
1989, for the ratio of moments.
"""

from __future__ import annotations

import bisect
import functools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from gcodec.arrays.intake import nonfinite_error
from gcodec.arrays.sampling import sample
from gcodec.errors import ParameterError
from gcodec.kernels.numeric.log_histogram import FINITE, SHIFT, log_histogram
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.kernels.quantize.scale_errors import Binned, Ladder, bin_edges, moments, squared_error

Rule = Literal["histogram", "gennorm", "co3"]
RULES = ("histogram", "gennorm", "co3")

TOLERANCE = 1e-3
"""Of the least squared error: the largest scale within it is taken. It codes in fewer bits, and
for formats with many exponents it may be some octaves above the best one."""

_CO3 = MiniFloat("e2m1", "ieee")
_LARGEST = float(np.finfo(np.float32).max)
_NORMAL, _LEAST = 2.0**-126, 2.0**-149
_FINE = 16  # times the least level the rms is at least, or else the scale may be subnormal
ENOUGH = 1 << 18
"""Elements that are not 0, with fewer of which a sample tells too little."""

_FEW = 1 << 18  # elements that are all looked at, for the last choice
_TOP = 1 << 12  # of more, the largest ones are, where few values make much of the error:
_SCARCE, _NEAR = 1 << 10, 1 << 7  # where there are no more in so many bins, two octaves
_MOMENTS = 1 << 12  # elements by which moments tell a distribution
SMALL_SAMPLE = 1 << 14, 16
"""Elements of a small sample, and of a cache line."""

_PART = 1 << 16  # elements that stay in a cache
_STEPS = 32  # scales that are tried in an octave
_LOCAL = 8  # of the lowest of them are made better
_ROUNDS = 3
_LARGE = 4  # of the largest ones within the tolerance are tried
_LIFT = 2.0**64  # brings the least subnormal far into the normal numbers


class GenNorm(NamedTuple):
    """A generalised normal distribution around 0.

    Attributes
    ----------
    beta : float
        Its shape.
    sigma : float
        Its standard deviation.
    """

    beta: float
    sigma: float

    @property
    def alpha(self) -> float:
        """Its scale in the density."""
        return self.sigma * power_of_two(_at_beta("alphas", self.beta))


def fit_moments(counts: np.ndarray) -> GenNorm:
    """Fit a distribution to a log-histogram by E|x| and σ² = E(x²).

    Parameters
    ----------
    counts : (2**14,) int64 array
        Of `gcodec.kernels.numeric.log_histogram.log_histogram`; infinity and NaN are left out.

    Returns
    -------
    GenNorm
        With a β from 0.15 to 4. Where all is zero, σ is.
    """
    n = int(counts[:FINITE].sum())
    total, squares = moments(counts)
    if not squares:
        return GenNorm(2.0, 0.0)
    sigma = math.sqrt(squares / n)
    return GenNorm(_interpolated(total / n / sigma, row("ratios"), row("betas")), sigma)


def scale_of(values: np.ndarray, fmt: MiniFloat, rule: Rule) -> float:
    """Choose the scale of a tensor of minifloats.

    Parameters
    ----------
    values : (n,) float32 array
    fmt : MiniFloat
    rule : "histogram", "gennorm" or "co3"
        The least squared error, found by search; that of the GenNorm of the same moments, from a
        table, and then once by least squares; or Δ = α / 2p(β), p the polynomial of Eq. (9) but at
        least 0.0009, as the authors' code has it. That is for ``e2m1`` with style ``ieee``: their
        levels are half as large. Of few values moments tell too little, and "gennorm" searches.

    Returns
    -------
    float
        A value of binary32 by which the largest magnitude of the format stays finite. It is
        above 0, and normal unless that would be too coarse for a tensor of tiny values; but 0.0
        where all of them are.

    Raises
    ------
    ParameterError
        For NaN and Inf, and for "co3" with another format.
    """
    if rule == "co3" and fmt != _CO3:
        raise ParameterError.of("scale", rule, "histogram or gennorm, except with e2m1 and ieee")
    counts = log_histogram(values)
    if counts[FINITE:].any():
        raise nonfinite_error(values)
    unit = 1.0
    if not counts[_place(1 / _LIFT) :].any():
        unit = 1 / _LIFT
        values = values * np.float32(_LIFT)
        counts = log_histogram(values)
        if not counts[1:].any():
            return 0.0
    model = fit_moments(counts)
    if rule == "co3":
        wanted = model.alpha / (2 * max(_polynomial(model.beta), 0.0009))
    else:
        log = _at_beta(f"scales {fmt.format} {fmt.style}", model.beta)
        wanted = model.sigma * power_of_two(log)
    largest = float(bin_edges()[np.flatnonzero(counts)[-1] + 1])
    grid = _Grid(fmt, largest, model.sigma, unit)
    if rule != "co3":
        found = Binned(counts, sample(values, *SMALL_SAMPLE))
        wanted = _fitted(found, grid, wanted)
        if rule == "histogram" or values.size < _MOMENTS:
            wanted = _least_error(values, counts, found, grid, wanted)
    return float(grid.rounded(np.array([wanted]))[0]) * unit


class _Grid:
    """The scales that a tensor may have; those inside of this module are in units of `unit`.

    Parameters
    ----------
    fmt : MiniFloat
    largest, rms : float
        Upper bound of the magnitudes of the tensor, and their root mean square, in units.
    unit : float
        A power of two.
    """

    def __init__(self, fmt: MiniFloat, largest: float, rms: float, unit: float) -> None:
        self.ladder = ladder_of(fmt)
        self._largest = largest
        self._unit = unit
        self._most = most_of(self.ladder)
        fine = _NORMAL * self.ladder.levels[1] * _FINE <= rms * unit
        self._least = _NORMAL if fine else _LEAST

    def rounded(self, scales: np.ndarray) -> np.ndarray:
        """Bring scales to values of binary32 that the wire may have."""
        inside = np.clip(scales * self._unit, self._least, self._most)
        return inside.astype(np.float32).astype(np.float64) / self._unit

    def all(self, mean: float) -> np.ndarray:
        """List the scales that may be best for a tensor with this mean of magnitudes.

        At the best Δ, Δ·Σc² = Σ|x|c. There no level is above the last, so that Δ times the last is
        not below the mean; and above a Δ for which the least level serves the largest magnitude,
        there is only more of the same error.
        """
        low = math.frexp(mean / self.ladder.levels[-1])[1] - 1
        high = math.frexp(self._largest / self.ladder.levels[1])[1]
        octaves = np.ldexp(1.0, np.arange(low, high + 1))
        scales: np.ndarray = octaves[:, None] * fractions()
        return scales.ravel()


def _fitted(found: Binned, grid: _Grid, scale: float) -> float:
    """Return the scale that is best for the levels that a scale gives, if that is better."""
    fitted = float(found.sums(np.array([scale]), grid.ladder).fitted[0])
    before, after = found.sums(np.array([scale, fitted]), grid.ladder).errors
    return fitted if fitted > 0 and after < before else scale


def _least_error(
    values: np.ndarray, counts: np.ndarray, found: Binned, grid: _Grid, from_table: float
) -> float:
    """Search the largest scale with about the least error, not above that of the table."""
    scales = grid.all(found.total / values.size)
    errors = found.sums(scales, grid.ladder).errors
    around = np.concatenate([[np.inf], errors, [np.inf]])
    lowest = np.flatnonzero((errors <= around[:-2]) & (errors < around[2:]))
    lowest = lowest[np.argsort(errors[lowest], kind="stable")[:_LOCAL]]
    large = np.flatnonzero(errors <= (1 + TOLERANCE) * errors.min())[-_LARGE:]
    candidates = [scales[np.concatenate([lowest, large])]]
    for _ in range(_ROUNDS):
        candidates.append(found.sums(candidates[-1], grid.ladder).fitted)
    tried = grid.rounded(np.concatenate([[from_table], *candidates]))
    last = int(np.flatnonzero(counts)[-1])
    if values.size > _FEW and counts[max(last - _NEAR, 0) :].sum() <= _SCARCE:
        errors_of = _large_as_they_are(values, counts, grid.ladder)
        errors = errors_of(tried)
        best = tried[np.argsort(errors, kind="stable")[: _LOCAL // 2]]
        nearby = grid.rounded(np.outer(best, steps_near_one()).ravel())
        tried, errors = np.append(tried, nearby), np.append(errors, errors_of(nearby))
    elif values.size > _FEW:
        errors = found.sums(tried, grid.ladder).errors
    else:
        errors = found.sums(tried, grid.ladder).errors
        # These can be measured: those that seem best, at least with the one that would be taken.
        best = np.argsort(errors, kind="stable")[: max(_FEW // values.size, 1)]
        tried = np.concatenate([tried[[0, _largest(tried, errors)]], tried[best]])
        errors = np.array([squared_error(values, scale, grid.ladder) for scale in tried])
    return float(tried[_largest(tried, errors)])


def _large_as_they_are(
    values: np.ndarray, counts: np.ndarray, ladder: Ladder
) -> Callable[[np.ndarray], np.ndarray]:
    """Return what finds squared errors of scales, the largest elements not being in bins."""
    above = np.cumsum(counts[::-1])[::-1]
    first = int(np.argmax(above <= _TOP))
    edge = np.float32(bin_edges()[first])
    parts = [values[at : at + _PART] for at in range(0, values.size, _PART)]
    top = np.concatenate([part[np.abs(part) >= edge] for part in parts])
    rest = Binned(np.where(np.arange(counts.size) < first, counts, 0), top[:0])

    def errors_of(scales: np.ndarray) -> np.ndarray:
        exact = [squared_error(top, scale, ladder) for scale in scales]
        errors: np.ndarray = rest.sums(scales, ladder).errors + np.array(exact)
        return errors

    return errors_of


def _largest(scales: np.ndarray, errors: np.ndarray) -> int:
    """Place of the largest scale within the tolerance, and not above the error of the first."""
    least = float(errors.min())
    limit = min(least + TOLERANCE * abs(least), max(float(errors[0]), least))
    return int(np.where(errors <= limit, scales, 0.0).argmax())


def _polynomial(beta: float) -> float:
    """Eq. (9)."""
    return 0.46 + beta * (-2.85 + beta * (5.37 + beta * (-2.85 + beta * 0.52)))


def _place(value: float) -> int:
    """Bin of a magnitude in a log-histogram."""
    return int(np.float32(value).view(np.uint32)) >> SHIFT


@functools.cache
def ladder_of(fmt: MiniFloat) -> Ladder:
    """Return the levels of a format."""
    return Ladder.of(fmt.magnitudes(), fmt.mantissa)


def most_of(ladder: Ladder) -> float:
    """Return the largest scale by which no level passes float32."""
    most = np.float32(_LARGEST / ladder.levels[-1])
    if float(most) * ladder.levels[-1] > _LARGEST:
        most = np.nextafter(most, np.float32(0))
    return float(most)


@functools.lru_cache(maxsize=1)
def fractions() -> np.ndarray:
    """Return the scales that are tried of the octave from 1 on."""
    return np.array([power_of_two(i / _STEPS) for i in range(_STEPS)])


def steps_near_one() -> list[float]:
    """Return by how much scales near the best ones differ from these."""
    return [power_of_two(k / (4 * _STEPS)) for k in (-3, -2, -1, 1, 2, 3)]


def power_of_two(log: float) -> float:
    """2^log, the same everywhere: a product of roots of 2 that are roots of roots."""
    whole = math.floor(log)
    rest, power, root = log - whole, 1.0, 2.0
    for _ in range(24):
        rest, root = 2 * rest, math.sqrt(root)
        if rest >= 1:
            rest, power = rest - 1, power * root
    return math.ldexp(power, whole)


def _at_beta(name: str, beta: float) -> float:
    """Look up a row of the tables. What is in it is almost linear in 1/β."""
    return _interpolated(-1 / beta, inverse_betas(), row(name))


def _interpolated(x: float, knots: Sequence[float], values: Sequence[float]) -> float:
    """Interpolate between rising knots; outside of them the last value stays."""
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
    """Lines of the file: numbers, by the words before them."""
    text = Path(__file__).with_name("gennorm_tables.txt").read_text("ascii")
    parts = (re.match(r"([a-z][a-z0-9 ]*?) (-?[0-9].*)", line) for line in text.splitlines())
    return {part[1]: part[2] for part in parts if part}
