"""Bits that an error asks for: the entropy of a uniform quantizer, and a bound below all codecs.

Errors are relative, ‖x − x̂‖² / ‖x‖². Sources: Gish and Pierce, "Asymptotically efficient
quantizing", 1968 (entropy-coded uniform quantizers are a quarter of a bit above the bound at small
errors); Berger, "Rate distortion theory", 1971, section 4.3 (the Shannon lower bound).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from gcodec.analysis.stats import Values

_ROUNDS = 40  # more than a step ever needs to be trial
_COARSE = 1e-6  # errors from which on float32 tells them well
_CLOSE = 1e-3  # relative, of the error that is asked for
_MOST_BINS = 1 << 22  # levels that are counted in a table rather than sorted


class Entropy(NamedTuple):
    """What a uniform quantizer makes of a tensor.

    Attributes
    ----------
    step : float
        In the unit of the values.
    bits : float
        Order-0 entropy of the levels, in bits per value.
    error : float
        Relative.
    """

    step: float
    bits: float
    error: float


def entropy_at(values: Values, error: float) -> Entropy:
    """Find the step of a uniform quantizer for a relative error.

    Parameters
    ----------
    values : array of n elements
        Values of any float dtype; NaN and Inf are left out.
    error : float
        Relative error, above 0. The error of the quantizer is at most that, and close to it if the
        values allow that.

    Returns
    -------
    Entropy
        Step, bits and error; a step of 0 and no bits if all values are 0.
    """
    x = values.reshape(-1).astype(np.float64)
    x = x[np.isfinite(x)]
    largest = float(np.max(np.abs(x), initial=0.0))
    if not largest:
        return Entropy(0.0, 0.0, 0.0)
    x = (x / largest).astype(np.float32 if error >= _COARSE else np.float64)
    energy = float(x @ x)
    # With `low` the error is small enough; with `high`, as far as one was seen, it is not.
    step = math.sqrt(12 * error * energy / x.size)
    low, high, best = 0.0, math.inf, None
    for _ in range(_ROUNDS):
        trial = _quantized(x, step, energy)
        if trial.error <= error:
            low, best = step, trial
            if trial.error >= error * (1 - _CLOSE) or step > 2:
                break
        else:
            high = step
        if high <= low * (1 + _CLOSE / 4):
            break
        # The error grows about as the square of the step.
        guess = step * math.sqrt(error * (1 - _CLOSE / 2) / trial.error) if trial.error else 0.0
        inside = low < guess < high
        step = guess if inside else (2 * low if math.isinf(high) else (low + high) / 2)
    trial = best or _quantized(x, low or step / 2, energy)
    return trial._replace(
        step=trial.step * largest, bits=_entropy(np.rint(x * x.dtype.type(1 / trial.step)))
    )


def _quantized(x: np.ndarray, step: float, energy: float) -> Entropy:
    scaled = x * x.dtype.type(1 / step)
    scaled -= np.rint(scaled)
    return Entropy(step, math.nan, step * step * float(scaled @ scaled) / energy)


def _entropy(levels: np.ndarray) -> float:
    """Return the order-0 entropy of (n,) whole numbers, in bits."""
    low, high = levels.min(), levels.max()
    if high - low < _MOST_BINS:
        counts = np.bincount((levels - low).astype(np.int32))
        counts = counts[counts > 0]
    else:
        counts = np.unique(levels, return_counts=True)[1]
    shares = counts / levels.size
    return abs(float(shares @ np.log2(shares)))


def shannon_lower_bound(beta: float, error: float) -> float:
    """Bits per value that every code of independent GenNorm values needs for a relative error.

    Parameters
    ----------
    beta : float
        Shape of the distribution.
    error : float
        Above 0.

    Returns
    -------
    float
        Its differential entropy for σ = 1, less that of a normal distribution of the variance
        `error`; 0 where that is negative.
    """
    log_of = special.gammaln(np.arange(1, 4) / beta)
    alpha = math.exp(float(log_of[0] - log_of[2]) / 2)
    nats = 1 / beta + math.log(2 * alpha / beta) + float(log_of[0])
    return max(0.0, (nats - math.log(2 * math.pi * math.e * error) / 2) / math.log(2))
