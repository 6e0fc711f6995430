"""The rate for a given error: the entropy of a uniform quantizer, and the Shannon lower bound.

Errors are normalized (nmse). Sources: Gish and Pierce, "Asymptotically efficient
quantizing", 1968 (entropy-coded uniform quantizers are a quarter of a bit above the bound at small
errors); Berger, "Rate distortion theory", 1971, section 4.3 (the Shannon lower bound).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from gcodec.analysis.stats import Values, widened

_MAX_ITERATIONS = 40  # more than the search for a step needs
_FLOAT32_ERROR = 1e-6  # smallest error that float32 measures accurately
_TOLERANCE = 1e-3  # of the error, relative to the requested one
_CHUNK = 1 << 16  # squares that are added up in the precision of the values
_MAX_BINS = 1 << 22  # largest range of levels that is counted in a table instead of sorted


class Entropy(NamedTuple):
    """The rate and the error of a uniform quantizer on a tensor.

    Attributes
    ----------
    step : float
        Step of the quantizer, in the unit of the values.
    bits : float
        Order-0 entropy of the levels, in bits per value.
    error : float
        The nmse.
    """

    step: float
    bits: float
    error: float


def entropy_at(values: Values, error: float) -> Entropy:
    """Search for the uniform quantizer that has a given nmse.

    Parameters
    ----------
    values : array
        Values of any float dtype and shape; NaN and Inf are ignored.
    error : float
        Largest nmse, above 0. The quantizer nearly reaches it if the values allow it.

    Returns
    -------
    Entropy
        Step 0 and 0 bits if all values are 0; 0 bits also if the error may be 1 or more.
    """
    x = widened(values.reshape(-1))
    x = x[np.isfinite(x)]
    largest = float(np.max(np.abs(x), initial=0.0))
    if not largest:
        return Entropy(0.0, 0.0, 0.0)
    if error >= 1:
        return Entropy(2 * largest, 0.0, 1.0)  # all levels are 0
    x = (x / largest).astype(np.float32 if error >= _FLOAT32_ERROR else np.float64)
    energy = _squares(x)
    # The step `low` meets the error. The step `high` does not, unless it is infinite.
    step = math.sqrt(12 * error * energy / x.size)
    low, high = 0.0, math.inf
    for _ in range(_MAX_ITERATIONS):
        actual = _nmse(x, step, energy)
        if actual <= error:
            low = step
            if actual >= error * (1 - _TOLERANCE) or step > 2:
                break
        else:
            high = step
        if high <= low * (1 + _TOLERANCE / 4):
            break
        # The error is roughly proportional to the square of the step.
        guess = step * math.sqrt(error * (1 - _TOLERANCE / 2) / actual) if actual else 0.0
        inside = low < guess < high
        step = guess if inside else (2 * low if math.isinf(high) else (low + high) / 2)
    step = low or step / 2
    bits = _entropy(np.rint(x * x.dtype.type(1 / step)))
    return Entropy(step * largest, bits, _nmse(x, step, energy))


def _nmse(x: np.ndarray, step: float, energy: float) -> float:
    """Return the nmse of values with this energy."""
    scaled = x * x.dtype.type(1 / step)
    scaled -= np.rint(scaled)
    return step * step * _squares(scaled) / energy


def _squares(x: np.ndarray) -> float:
    """Return the sum of squares; float32 adds up a few of them accurately, but not millions."""
    parts = (x[start : start + _CHUNK] for start in range(0, x.size, _CHUNK))
    return math.fsum(float(part @ part) for part in parts)


def _entropy(levels: np.ndarray) -> float:
    """Return the order-0 entropy of (n,) whole numbers, in bits."""
    low, high = levels.min(), levels.max()
    if high - low < _MAX_BINS:
        counts = np.bincount((levels - low).astype(np.int32))
        counts = counts[counts > 0]
    else:
        counts = np.unique(levels, return_counts=True)[1]
    shares = counts / levels.size
    return abs(float(shares @ np.log2(shares)))


def shannon_lower_bound(beta: float, error: float) -> float:
    """Return a lower bound of the rate of any code of independent generalized normal values.

    Parameters
    ----------
    beta : float
        Shape of the distribution.
    error : float
        The nmse, above 0.

    Returns
    -------
    float
        Bits per value: the differential entropy of the distribution for σ = 1, minus the entropy
        of a normal distribution of variance `error`; at least 0.
    """
    log_of = special.gammaln(np.arange(1, 4) / beta)
    alpha = math.exp(float(log_of[0] - log_of[2]) / 2)
    nats = 1 / beta + math.log(2 * alpha / beta) + float(log_of[0])
    return max(0.0, (nats - math.log(2 * math.pi * math.e * error) / 2) / math.log(2))
