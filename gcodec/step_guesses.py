"""About which step meets an error, or a number of bits, before any is tried."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gcodec.contexts import models
from gcodec.contexts.scales import apart
from gcodec.kernels.byte_counts import byte_counts
from gcodec.kernels.device import host
from gcodec.kernels.memory import flattened
from gcodec.kernels.reduce import sum_squares
from gcodec.scalar_levels import Levels, point, points

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


def step_alike(prior: Levels, power: float) -> float | None:
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
