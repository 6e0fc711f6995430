"""A number with which something is met, by a search that ends and is the same everywhere.

What is looked for is the octave of a quantiser's step, say: off(u) rises with u, and is to be just
below 0. The search is a secant, kept between a u that is known to be low enough and one that is
too high.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_MOST = 40  # times that a bracket is moved or halved
_STEADY = 0.5  # of a slope: what is measured may be a jump
_NEAR = 2.0**-20  # between numbers that are as good as one


class Met(NamedTuple):
    """What a search ends with.

    Attributes
    ----------
    at : float
        The largest u that was found to be low enough.
    off : float
        off(u), at most 0.
    slope : float
        About how much off(u) rises with 1, near it.
    """

    at: float
    off: float
    slope: float


def search(
    off_of: Callable[[float], float],
    first: float,
    first_slope: float,
    tolerance: float,
    bounds: tuple[float, float],
    near: float = _NEAR,
) -> Met | None:
    """Find a u that is low enough, by no more than the tolerance if there is one.

    Parameters
    ----------
    off_of : callable
    first : float
        The u to begin with.
    first_slope : float
        About how much off(u) rises with 1.
    tolerance : float
        Good enough is from -tolerance to 0.
    bounds : (float, float)
        The least u, and the largest.
    near : float
        Between numbers that are as good as one.

    Returns
    -------
    Met or None
        None where even the least u is too high.
    """
    low: Met | None = None
    high: Met | None = None
    last: Met | None = None
    slope = first_slope
    at = min(max(first, bounds[0]), bounds[1])
    for _ in range(_MOST):
        off = off_of(at)
        if last is not None:
            rise = (off - last.off) / (at - last.at)
            slope = min(max(rise, _STEADY * first_slope), first_slope / _STEADY)
        last = found = Met(at, off, slope)
        if found.off <= 0:
            low = found
            if found.off >= -tolerance or at == bounds[1]:
                break
        else:
            high = found
            if at == bounds[0]:
                return None
        if low and high:
            if high.at - low.at < near:
                break
            # Aimed at the middle of what is good enough, but off the ends.
            share = (-tolerance / 2 - low.off) / (high.off - low.off)
            at = low.at + (high.at - low.at) * min(max(share, 0.05), 0.95)
        else:
            at = min(max(at - (found.off + tolerance / 2) / slope, bounds[0]), bounds[1])
    return low
