"""How well a normal, a Laplace and a generalised normal distribution describe a tensor.

All three have the density β / (2αΓ(1/β)) exp(−|x/α|^β) around 0, with β = 2, β = 1 and any β. That
is fitted twice: by maximum likelihood, which asks for the shape of the many small values, and by
the moments, which ask for that of the few large ones. How far the values are from them is told by
the 2-Wasserstein distance, the root mean square by which values and quantiles differ, and by the
largest difference of the distribution functions (Kolmogorov and Smirnov).

Sources: Chen et al., "Convert, compress, correct", arXiv 2203.09044, Figure 2 (the distance);
Varanasi and Aazhang, "Parametric generalized Gaussian density estimation", 1989 (the likelihood).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from gcodec.gennorm import fit_moments
from gcodec.gradients import stats
from gcodec.kernels.log_histogram import FINITE, log_histogram
from gcodec.kernels.scale_errors import bin_edges, moments

MOST = 1 << 20
"""Values that are looked at; of a tensor of more, a sample. A distance needs no more."""
LEAST = 16
"""Values without which a fit says nothing."""

_BETAS = (0.15, 4.0)
_NEAR_ZERO = 2.0**-12  # times the rms: what is below is no part of the shape
_PRECISION, _FLAT = 1e-6, 1e-9  # of β, and of the slope
_SINGLE, _GROUPS = 64, 500  # ranks taken one by one at each end; groups up to the middle
_RANKS = 4096  # at which distribution functions are compared


class Shape(NamedTuple):
    """A distribution around 0.

    Attributes
    ----------
    beta : float
    alpha : float
        In the unit of the values.
    """

    beta: float
    alpha: float

    @property
    def sigma(self) -> float:
        """The standard deviation."""
        logs = special.gammaln(3 / self.beta) - special.gammaln(1 / self.beta)
        return self.alpha * math.exp(float(logs) / 2)


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
        Largest difference of the distribution functions, found up to 1/4096.
    """

    name: str
    method: str
    shape: Shape
    w2: float
    ks: float


def fit_all(values: stats.Values, seed: int = 0) -> tuple[Fit, ...]:
    """Fit each distribution to the finite values of a tensor that are not 0, the nearest first.

    Zeros are left out, as no such distribution has any: layers that were not used leave many.

    Parameters
    ----------
    values : array
        Of any shape and any float dtype.
    seed : int
        Of the sample of a tensor of more than `MOST` values.

    Returns
    -------
    tuple of Fit
        Empty where there are less than `LEAST` such values.
    """
    x = stats.sample(values, MOST, seed).astype(np.float64).reshape(-1)
    x = np.sort(x[np.isfinite(x) & (x != 0)])
    if x.size < LEAST:
        return ()
    largest = float(np.max(np.abs(x)))
    x /= largest
    rms = math.sqrt(float(np.mean(x * x)))
    x /= rms  # whatever unit they came in
    narrow = x.astype(np.float32)
    model = fit_moments(log_histogram(narrow))
    shapes = (
        ("normal", "likelihood", Shape(2.0, math.sqrt(2))),
        ("laplace", "likelihood", Shape(1.0, float(np.mean(np.abs(x))))),
        ("gennorm", "likelihood", fit_likelihood(narrow)),
        ("gennorm", "moments", Shape(model.beta, model.alpha)),
    )
    unit = rms * largest
    fits = (
        Fit(name, how, Shape(s.beta, s.alpha * unit), wasserstein(x, s), kolmogorov(x, s))
        for name, how, s in shapes
    )
    return tuple(sorted(fits, key=lambda fit: fit.w2))


def fit_likelihood(values: np.ndarray) -> Shape:
    """Fit the most likely distribution to the log-histogram of a tensor.

    Left out are infinity, NaN and magnitudes below 2^-12 of the root mean square: exact zeros and
    what error feedback has left of them would have any β come out near 0. The likelihood is that
    of magnitudes above this bound.

    Parameters
    ----------
    values : (n,) float32 array

    Returns
    -------
    Shape
        With β from 0.15 to 4; where no value is left, β = 2 and α = 0.
    """
    counts = log_histogram(values)
    n = int(counts[:FINITE].sum())
    squares = moments(counts)[1]
    if not squares:
        return Shape(2.0, 0.0)
    rms = math.sqrt(squares / n)
    first = int(np.searchsorted(bin_edges(), _NEAR_ZERO * rms))
    places = first + np.flatnonzero(counts[first:FINITE])
    shares = counts[places] / counts[places].sum()
    logs = np.log((bin_edges()[places] + bin_edges()[places + 1]) / (2 * rms))
    bound = float(bin_edges()[first]) / rms

    def slope(beta: float) -> float:
        alpha = _alpha(beta, shares, logs, bound)
        powers, inner = np.exp(beta * (logs - math.log(alpha))), logs - math.log(alpha)
        of_values = (1 + float(special.digamma(1 / beta)) / beta) / beta
        step = 1e-4 * beta
        ends = [_log_above(bound / alpha, beta + side) for side in (-step, step)]
        return of_values - float((shares * powers * inner).sum()) - (ends[1] - ends[0]) / 2 / step

    beta = _root(slope, *_BETAS)
    return Shape(beta, rms * _alpha(beta, shares, logs, bound))


def _alpha(beta: float, shares: np.ndarray, logs: np.ndarray, bound: float) -> float:
    """Most likely α for a β, of magnitudes above a bound with these logarithms and shares."""
    total = beta * float((shares * np.exp(beta * logs)).sum())
    power, before = total, math.inf
    while abs(power - before) > _PRECISION * power:
        y = bound**beta / power
        above = float(special.gammaincc(1 / beta, y))
        log = math.log(y) / beta - y - float(special.gammaln(1 / beta))
        before, power = power, total / (1 + beta * math.exp(log) / above)
    return math.exp(math.log(power) / beta)


def _log_above(bound: float, beta: float) -> float:
    """Logarithm of the probability of magnitudes above a bound, for α = 1."""
    return math.log(float(special.gammaincc(1 / beta, bound**beta)))


def wasserstein(x: np.ndarray, shape: Shape) -> float:
    """2-Wasserstein distance of values from a distribution.

    It is exact where no values are in groups; where they are, a group counts by its mean and its
    standard deviation, and what is left out is how its two quantile functions bend differently.

    Parameters
    ----------
    x : (n,) float64 array
        Rising.
    shape : Shape
    """
    edges = _groups(x.size)
    share = np.diff(edges) / x.size
    mean = np.add.reduceat(x, edges[:-1]) / np.diff(edges)
    spread = np.add.reduceat((x - np.repeat(mean, np.diff(edges))) ** 2, edges[:-1])
    deviation = np.sqrt(spread / np.diff(edges))
    wanted, square = (np.diff(part) / share for part in _partial_moments(edges / x.size, shape))
    other = np.sqrt(np.maximum(square - wanted**2, 0))
    return math.sqrt(float((share * ((mean - wanted) ** 2 + (deviation - other) ** 2)).sum()))


def kolmogorov(x: np.ndarray, shape: Shape) -> float:
    """Largest difference of the distribution functions, at some of (n,) rising values."""
    ranks = np.unique(np.linspace(0, x.size - 1, min(x.size, _RANKS)).astype(np.int64))
    some = x[ranks]
    inside = special.gammainc(1 / shape.beta, (np.abs(some) / shape.alpha) ** shape.beta)
    below = (1 + np.sign(some) * inside) / 2
    low, high = (np.searchsorted(x, some, side) / x.size for side in ("left", "right"))
    return float(np.max(np.maximum(below - low, high - below)))


def _groups(n: int) -> np.ndarray:
    """Edges of groups of ranks: single ones at both ends, and the larger the nearer the middle."""
    middle = n // 2
    half = np.arange(min(_SINGLE, middle) + 1)
    if middle > _SINGLE:
        steps = np.geomspace(_SINGLE, middle, _GROUPS).round().astype(np.int64)
        half = np.unique(np.concatenate([half, steps]))
    return np.unique(np.concatenate([half, n - half]))


def _partial_moments(u: np.ndarray, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """E(x; x < q) and E(x²; x < q) for the quantiles q of (k,) probabilities u."""
    beta, alpha = shape
    # Of the nearer end: there are the digits.
    t = special.gammainccinv(1 / beta, 2 * np.minimum(u, 1 - u))
    log_of = special.gammaln(np.arange(1, 4) / beta)
    first = -alpha / 2 * math.exp(log_of[1] - log_of[0]) * special.gammaincc(2 / beta, t)
    whole = alpha**2 * math.exp(log_of[2] - log_of[0])
    second = whole / 2 * special.gammaincc(3 / beta, t)
    return first, np.where(u < 0.5, second, whole - second)


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a function falls through 0, by regula falsi with halved ends; else the nearer end."""
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
