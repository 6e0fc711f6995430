"""What diagrams of a tensor are drawn of: a fine histogram and quantiles, in units of its rms."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from gcodec.analysis.fits import LEAST, Shape
from gcodec.analysis.stats import Values

_BINS = 48
_SPANS = (4.0, 16.0)  # how far a histogram reaches at least and at most, in units of the rms
_INSIDE = 0.9995  # share of the values that it holds, if that is not farther
_QUANTILES = 60


class Picture(NamedTuple):
    """Of the finite values of a sample that are not 0.

    Attributes
    ----------
    values : int
        How many these are.
    zeros : int
        Exact zeros beside them.
    rms : float
        Their root mean square, which is the unit of all that follows.
    edges : (49,) float64 array
    density : (48,) float64 array
        Share of the values per unit, in the bins between the edges.
    beyond : int
        Values outside of all bins.
    shares : (k,) float64 array
        From 0 to 1, dense at both ends.
    quantiles : (k,) float64 array
        Of the values.
    """

    values: int
    zeros: int
    rms: float
    edges: np.ndarray
    density: np.ndarray
    beyond: int
    shares: np.ndarray
    quantiles: np.ndarray

    @classmethod
    def of(cls, values: Values) -> Picture | None:
        """Make one; None where there are too few values to fit a distribution to."""
        flat = values.reshape(-1).astype(np.float64)
        x = np.sort(flat[np.isfinite(flat) & (flat != 0)])
        if x.size < LEAST:
            return None
        largest = max(-float(x[0]), float(x[-1]))
        x /= largest
        rms = math.sqrt(float(np.mean(x * x)))
        x /= rms
        inside = float(np.quantile(np.abs(x), _INSIDE))
        span = min(max(_SPANS[0], 1.05 * inside), _SPANS[1])
        edges = np.linspace(-span, span, _BINS + 1)
        counts = np.histogram(x, edges)[0]
        # As dense as quantiles of a normal distribution are at equal steps.
        reach = float(special.ndtri(1 - 0.5 / x.size))
        shares = special.ndtr(np.linspace(-reach, reach, _QUANTILES))
        return cls(
            x.size,
            int(np.count_nonzero(flat == 0)),
            rms * largest,
            edges,
            counts / (x.size * (edges[1] - edges[0])),
            x.size - int(counts.sum()),
            shares,
            np.quantile(x, shares),
        )


def density_at(shape: Shape, x: np.ndarray) -> np.ndarray:
    """Return the density of a generalised normal distribution."""
    log = math.log(shape.beta / (2 * shape.alpha)) - float(special.gammaln(1 / shape.beta))
    found: np.ndarray = np.exp(log - (np.abs(x) / shape.alpha) ** shape.beta)
    return found


def quantiles_at(shape: Shape, shares: np.ndarray) -> np.ndarray:
    """Return the quantiles of a generalised normal distribution."""
    tail = special.gammainccinv(1 / shape.beta, 2 * np.minimum(shares, 1 - shares))
    found: np.ndarray = np.sign(shares - 0.5) * shape.alpha * tail ** (1 / shape.beta)
    return found
