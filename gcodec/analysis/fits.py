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

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from gcodec.analysis.stats import Values

LEAST = 16
"""Values without which a fit says nothing."""

_BETAS = (0.15, 4.0)
_NEAR_ZERO = 2.0**-12  # times the rms: what is below is no part of the shape
_STEPS = 64  # bins of an octave of magnitudes
_PRECISION, _FLAT = 1e-6, 1e-9  # of β, and of the slope
_SINGLE, _GROUPS = 32, 120  # ranks taken one by one at each end; groups up to the middle
_RANKS = 1024  # at which distribution functions are compared
_BINS, _QUANTILES = 48, 60  # of a picture
_SPANS = (4.0, 16.0)  # least and largest reach of the histogram of a picture, in units of the rms
_INSIDE = 0.9995  # share of the values within the histogram, unless its reach is larger


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
        Largest difference of the distribution functions, found up to 1/1024.
    """

    name: str
    method: str
    shape: Shape
    w2: float
    ks: float


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
            zeros=int(np.count_nonzero(values == 0)),
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
    fits = (
        Fit(name, method, Shape(s.beta, s.alpha * rms), wasserstein(x, s), kolmogorov(x, s))
        for name, method, s in shapes
    )
    return tuple(sorted(fits, key=lambda fit: fit.w2))


def fit_moments(mean: float) -> Shape:
    """Fit the distribution of a mean magnitude, where the root mean square is 1.

    `gcodec.codecs.minifloat.gennorm.fit_moments` finds the same in a table, since messages depend
    on it; here it is found by special functions.
    """

    def excess(beta: float) -> float:
        logs = special.gammaln(np.arange(1, 4) / beta)
        return math.log(mean) - float(logs[1] - (logs[0] + logs[2]) / 2)

    beta = _root(excess, *_BETAS)
    return Shape(beta, 1 / Shape(beta, 1.0).sigma)


def _normalized(values: Values) -> tuple[np.ndarray, float] | None:
    """Return the sorted finite nonzero values over their rms, and the rms; None for few values."""
    x = values.reshape(-1).astype(np.float64)
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
        powers, inner = np.exp(beta * (logs - math.log(alpha))), logs - math.log(alpha)
        of_values = (1 + float(special.digamma(1 / beta)) / beta) / beta
        step = 1e-4 * beta
        ends = [_log_above(bound / alpha, beta + side) for side in (-step, step)]
        return of_values - float((shares * powers * inner).sum()) - (ends[1] - ends[0]) / 2 / step

    beta = _root(slope, *_BETAS)
    return Shape(beta, _alpha(beta, shares, logs, bound))


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
    sizes = np.diff(edges)
    share = sizes / x.size
    mean = np.add.reduceat(x, edges[:-1]) / sizes
    spread = np.add.reduceat((x - np.repeat(mean, sizes)) ** 2, edges[:-1])
    deviation = np.sqrt(spread / sizes)
    wanted, square = (np.diff(part) / share for part in _partial_moments(x.size, shape.beta))
    wanted = shape.alpha * wanted
    other = np.sqrt(np.maximum(shape.alpha**2 * square - wanted**2, 0))
    return math.sqrt(float((share * ((mean - wanted) ** 2 + (deviation - other) ** 2)).sum()))


def kolmogorov(x: np.ndarray, shape: Shape) -> float:
    """Largest difference of the distribution functions, at some of (n,) rising values."""
    count = min(x.size, _RANKS)
    ranked = x[np.arange(count) * (x.size - 1) // max(count - 1, 1)]
    inside = special.gammainc(1 / shape.beta, (np.abs(ranked) / shape.alpha) ** shape.beta)
    below = (1 + np.sign(ranked) * inside) / 2
    low, high = (np.searchsorted(x, ranked, side) / x.size for side in ("left", "right"))
    return float(np.max(np.maximum(below - low, high - below)))


@functools.lru_cache(maxsize=64)
def _groups(n: int) -> np.ndarray:
    """Edges of groups of ranks: single ones at both ends, and the larger the nearer the middle."""
    middle = n // 2
    half = np.arange(min(_SINGLE, middle) + 1)
    if middle > _SINGLE:
        steps = np.geomspace(_SINGLE, middle, _GROUPS).round().astype(np.int64)
        half = np.unique(np.concatenate([half, steps]))
    return np.unique(np.concatenate([half, n - half]))


@functools.lru_cache(maxsize=64)  # that of a normal or a Laplace is asked for again and again
def _partial_moments(n: int, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """E(x; x < q) and E(x²; x < q) for the quantiles q of the edges of groups, for α = 1."""
    u = _groups(n) / n
    half = u[: (u.size + 1) // 2]  # edges lie as far from one end as from the other
    t = special.gammainccinv(1 / beta, 2 * half)
    log_of = special.gammaln(np.arange(1, 4) / beta)
    first = -math.exp(log_of[1] - log_of[0]) / 2 * special.gammaincc(2 / beta, t)
    whole = math.exp(log_of[2] - log_of[0])
    second = whole / 2 * special.gammaincc(3 / beta, t)
    rest = slice(u.size // 2 - 1, None, -1)
    return np.concatenate([first, first[rest]]), np.concatenate([second, whole - second[rest]])


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
