"""Fits of a normal, a Laplace and a generalized normal distribution to a tensor.

All three have the density β / (2αΓ(1/β)) exp(−|x/α|^β) around 0, with β = 2, β = 1 and any β. The
generalized normal distribution is fitted twice: by maximum likelihood, which follows the many
small values, and by moments, which follow the few large ones. Two distances measure a fit: the
2-Wasserstein distance, which is the root mean square difference of values and quantiles, and the
Kolmogorov–Smirnov distance, which is the largest difference of the distribution functions.

Sources: Chen et al., "Convert, compress, correct", arXiv 2203.09044, Figure 2 (the distance);
Varanasi and Aazhang, "Parametric generalized Gaussian density estimation", 1989 (the likelihood).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from gcodec.analysis.stats import Values, widened

LEAST = 16
"""Smallest number of values that a distribution is fitted to."""

_BETAS = (0.15, 4.0)
_NEAR_ZERO = 2.0**-12  # smaller magnitudes, as multiples of the rms, do not count for the shape
_STEPS = 64  # bins per octave of magnitudes
_PRECISION, _FLAT = 1e-6, 1e-9  # tolerances of β and of the slope
_SINGLE, _GROUPS = 32, 120  # number of single ranks at each end, and of groups up to the middle
_RANKS = 1024  # number of ranks at which distribution functions are compared
_BINS, _QUANTILES = 48, 60  # numbers of bins and of quantiles of a picture
_SPANS = (4.0, 16.0)  # least and largest reach of the histogram of a picture, in units of the rms
_INSIDE = 0.9995  # share of the values within the histogram, unless its reach is larger


class Shape(NamedTuple):
    """A distribution around 0.

    Attributes
    ----------
    beta : float
        Shape parameter β.
    alpha : float
        Scale parameter α, in the unit of the values.
    """

    beta: float
    alpha: float

    @property
    def sigma(self) -> float:
        """The standard deviation."""
        logs = special.gammaln(3 / self.beta) - special.gammaln(1 / self.beta)
        return self.alpha * math.exp(float(logs) / 2)

    def density(self, x: np.ndarray) -> np.ndarray:
        """Return the density at (n,) values."""
        log = math.log(self.beta / (2 * self.alpha)) - float(special.gammaln(1 / self.beta))
        return np.asarray(np.exp(log - (np.abs(x) / self.alpha) ** self.beta))

    def quantiles(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the quantiles at (n,) probabilities."""
        tail = np.minimum(probabilities, 1 - probabilities)
        power = special.gammainccinv(1 / self.beta, 2 * tail)
        return np.asarray(np.sign(probabilities - 0.5) * self.alpha * power ** (1 / self.beta))


class Fit(NamedTuple):
    """A distribution that was fitted to a tensor.

    Attributes
    ----------
    name : str
        "normal", "laplace" or "gennorm".
    method : str
        "likelihood" or "moments".
    shape : Shape
    w2 : float
        2-Wasserstein distance, as a multiple of the rms of the values.
    ks : float
        Largest difference of the distribution functions, accurate to 1/1024.
    """

    name: str
    method: str
    shape: Shape
    w2: float
    ks: float


class RankedValues(NamedTuple):
    """What the distances of a tensor from any distribution need.

    Ranks are grouped for one distance, and sampled for the other.

    Attributes
    ----------
    size : int
        Number of values.
    share, mean, deviation : (groups,) float64 array
        Share of the values, their mean and their standard deviation, for each group of ranks.
    sampled : (k,) float64 array
        Values at some of the ranks, in increasing order.
    below, upto : (k,) float64 array
        Shares of the values that are below each of these, and not above it.
    """

    size: int
    share: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    sampled: np.ndarray
    below: np.ndarray
    upto: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> RankedValues:
        """Group and sample (n,) float64 values in increasing order."""
        edges = _groups(x.size)
        sizes = np.diff(edges)
        mean = np.add.reduceat(x, edges[:-1]) / sizes
        spread = np.add.reduceat((x - np.repeat(mean, sizes)) ** 2, edges[:-1])
        count = min(x.size, _RANKS)
        sampled = x[np.arange(count) * (x.size - 1) // max(count - 1, 1)]
        below, upto = (np.searchsorted(x, sampled, side) / x.size for side in ("left", "right"))
        return cls(x.size, sizes / x.size, mean, np.sqrt(spread / sizes), sampled, below, upto)

    def wasserstein(self, shape: Shape) -> float:
        """Return the 2-Wasserstein distance from a distribution.

        The distance is exact for few values. Otherwise a group of ranks is represented by its mean
        and its standard deviation.
        """
        unit_mean, unit_square = (
            np.diff(moment) / self.share for moment in _partial_moments(self.size, shape.beta)
        )
        fit_mean = shape.alpha * unit_mean
        fit_deviation = np.sqrt(np.maximum(shape.alpha**2 * unit_square - fit_mean**2, 0))
        squares = (self.mean - fit_mean) ** 2 + (self.deviation - fit_deviation) ** 2
        return math.sqrt(float((self.share * squares).sum()))

    def kolmogorov(self, shape: Shape) -> float:
        """Return the largest difference of the distribution functions at the sampled values."""
        powers = (np.abs(self.sampled) / shape.alpha) ** shape.beta
        inside = special.gammainc(1 / shape.beta, powers)
        expected = (1 + np.sign(self.sampled) * inside) / 2
        return float(np.max(np.maximum(expected - self.below, self.upto - expected)))


class Picture(NamedTuple):
    """A fine histogram and quantiles of the finite values other than 0, for diagrams.

    Attributes
    ----------
    values : int
        Number of these values.
    zeros : int
        Number of exact zeros, which are left out.
    rms : float
        Root mean square of the values, the unit of all following fields.
    edges : (49,) float64 array
        Edges of the bins.
    density : (48,) float64 array
        Share of the values per unit in each bin.
    outside : int
        Number of values outside of all bins.
    probabilities : (60,) float64 array
        Probabilities from 0 to 1, dense at both ends.
    quantiles : (60,) float64 array
        Quantiles of the values at these probabilities.
    """

    values: int
    zeros: int
    rms: float
    edges: np.ndarray
    density: np.ndarray
    outside: int
    probabilities: np.ndarray
    quantiles: np.ndarray

    @classmethod
    def of(cls, values: Values) -> Picture | None:
        """Return the picture of a tensor; None if it has too few values for a fit."""
        normalized = _normalized(values)
        if normalized is None:
            return None
        x, rms = normalized
        inside = float(np.quantile(np.abs(x), _INSIDE))
        span = min(max(_SPANS[0], 1.05 * inside), _SPANS[1])
        edges = np.linspace(-span, span, _BINS + 1)
        counts = np.histogram(x, edges)[0]
        # Quantiles of a normal distribution at these probabilities have equal distances.
        reach = float(special.ndtri(1 - 0.5 / x.size))
        probabilities = special.ndtr(np.linspace(-reach, reach, _QUANTILES))
        return cls(
            values=x.size,
            zeros=values.size - int(np.count_nonzero(values)),
            rms=rms,
            edges=edges,
            density=counts / (x.size * (edges[1] - edges[0])),
            outside=x.size - int(counts.sum()),
            probabilities=probabilities,
            quantiles=np.quantile(x, probabilities),
        )


def fit_all(values: Values) -> tuple[Fit, ...]:
    """Fit each distribution to the finite nonzero values of a tensor, the nearest first.

    Zeros are left out because no such distribution contains any, and unused layers leave many.

    Parameters
    ----------
    values : array
        Values of any shape and any float dtype.

    Returns
    -------
    tuple of Fit
        Fits; empty if there are fewer than `LEAST` such values.
    """
    normalized = _normalized(values)
    if normalized is None:
        return ()
    x, rms = normalized
    magnitudes = np.abs(x)
    mean = float(np.mean(magnitudes))
    shapes = (
        ("normal", "likelihood", Shape(2.0, math.sqrt(2))),
        ("laplace", "likelihood", Shape(1.0, mean)),
        ("gennorm", "likelihood", _most_likely(magnitudes)),
        ("gennorm", "moments", fit_moments(mean)),
    )
    ranked = RankedValues.of(x)
    fits = [
        Fit(
            name,
            method,
            s._replace(alpha=s.alpha * rms),
            ranked.wasserstein(s),
            ranked.kolmogorov(s),
        )
        for name, method, s in shapes
    ]
    return tuple(sorted(fits, key=lambda fit: fit.w2))


def fit_moments(mean: float) -> Shape:
    """Return the distribution with this mean magnitude and the root mean square 1.

    `gcodec.codecs.minifloat.gennorm.fit_moments` reads the same distribution from a table, since
    messages depend on it; this function uses special functions.
    """

    def excess(beta: float) -> float:
        logs = special.gammaln(np.arange(1, 4) / beta)
        return math.log(mean) - float(logs[1] - (logs[0] + logs[2]) / 2)

    beta = _root(excess, *_BETAS)
    return Shape(beta, 1 / Shape(beta, 1.0).sigma)


def _normalized(values: Values) -> tuple[np.ndarray, float] | None:
    """Return the sorted finite nonzero values over their rms, and the rms; None for few values."""
    x = widened(values.reshape(-1))
    x = np.sort(x[np.isfinite(x) & (x != 0)])
    if x.size < LEAST:
        return None
    largest = max(-float(x[0]), float(x[-1]))
    x /= largest
    rms = math.sqrt(float(np.mean(x * x)))
    x /= rms
    return x, rms * largest


def _most_likely(magnitudes: np.ndarray) -> Shape:
    """Fit the most likely distribution to magnitudes whose root mean square is 1.

    Magnitudes below 2^-12 of the root mean square are left out, because remainders of error
    feedback would pull β close to 0. The likelihood is that of magnitudes above this bound, in
    bins of 1/64 of an octave.
    """
    bound = _NEAR_ZERO
    octaves = np.log2(magnitudes[magnitudes >= bound].astype(np.float32))
    places = ((octaves - np.float32(math.log2(bound))) * np.float32(_STEPS)).astype(np.intp)
    counts = np.bincount(places)
    filled = np.flatnonzero(counts)
    shares = counts[filled] / octaves.size
    logs = math.log(2) * np.bincount(places, octaves)[filled] / counts[filled]

    def slope(beta: float) -> float:
        alpha = _alpha(beta, shares, logs, bound)
        # The derivative of the log-likelihood by β: that of the densities, and, by a difference,
        # that of the share above the bound.
        inner = logs - math.log(alpha)
        powers = np.exp(beta * inner)
        of_values = (1 + float(special.digamma(1 / beta)) / beta) / beta
        step = 1e-4 * beta
        ends = [_log_above(bound / alpha, beta + side) for side in (-step, step)]
        return of_values - float((shares * powers * inner).sum()) - (ends[1] - ends[0]) / 2 / step

    beta = _root(slope, *_BETAS)
    return Shape(beta, _alpha(beta, shares, logs, bound))


def _alpha(beta: float, shares: np.ndarray, logs: np.ndarray, bound: float) -> float:
    """Return the most likely α for a β, given the logarithms and shares of magnitudes."""
    total = beta * float((shares * np.exp(beta * logs)).sum())
    power, before = total, math.inf
    bound_power, log_gamma = bound**beta, float(special.gammaln(1 / beta))
    while abs(power - before) > _PRECISION * power:
        y = bound_power / power
        above = float(special.gammaincc(1 / beta, y))
        log = math.log(y) / beta - y - log_gamma
        before, power = power, total / (1 + beta * math.exp(log) / above)
    return math.exp(math.log(power) / beta)


def _log_above(bound: float, beta: float) -> float:
    """Return the logarithm of the probability of magnitudes above a bound, for α = 1."""
    return math.log(float(special.gammaincc(1 / beta, bound**beta)))


@functools.lru_cache(maxsize=64)
def _groups(n: int) -> np.ndarray:
    """Return the edges of groups of ranks: single ranks at both ends, large groups in between."""
    middle = n // 2
    half = np.arange(min(_SINGLE, middle) + 1)
    if middle > _SINGLE:
        steps = np.geomspace(_SINGLE, middle, _GROUPS).round().astype(np.int64)
        half = np.unique(np.concatenate([half, steps]))
    return np.unique(np.concatenate([half, n - half]))


@functools.lru_cache(maxsize=64)  # every tensor of n values needs those of β = 1 and β = 2
def _partial_moments(n: int, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Return E(x; x < q) and E(x²; x < q) at the quantiles q of the group edges, for α = 1."""
    u = _groups(n) / n
    half = u[: (u.size + 1) // 2]  # edges are symmetric
    t = special.gammainccinv(1 / beta, 2 * half)
    log_of = special.gammaln(np.arange(1, 4) / beta)
    first = -math.exp(log_of[1] - log_of[0]) / 2 * special.gammaincc(2 / beta, t)
    whole = math.exp(log_of[2] - log_of[0])
    second = whole / 2 * special.gammaincc(3 / beta, t)
    mirrored = slice(u.size // 2 - 1, None, -1)
    return (
        np.concatenate([first, first[mirrored]]),
        np.concatenate([second, whole - second[mirrored]]),
    )


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a falling function, or the nearer end, by the Illinois algorithm."""
    at_low, at_high = falling(low), falling(high)
    if at_low <= 0 or at_high >= 0:
        return low if at_low <= 0 else high
    side = 0
    while high - low > _PRECISION * low:
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        value = falling(middle)
        if abs(value) < _FLAT:
            return middle
        if value > 0:
            low, at_low = middle, value
            at_high /= 2 if side > 0 else 1
            side = 1
        else:
            high, at_high = middle, value
            at_low /= 2 if side < 0 else 1
            side = -1
    return (low + high) / 2
