"""A root finder for noisy, monotone functions that always ends and is reproducible.

Rate control uses it to find the octave of a quantizer's step. An excess function e(u) rises with
u, and the search wants e(u) just below 0. It takes secant steps until it has an u that is low
enough and one that is too high. Between these it uses false position, and halves the weight of an
end that stays ("Illinois"). The function may have jumps, and may be nearly flat in places.

Source: M. Dowell and P. Jarratt, "A modified regula falsi method for computing the root of an
equation", BIT 11, 1971.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_MAX_EVALUATIONS = 60
_SLOPE_RATIO = 3  # a measured slope is clipped to this many times the expected one, or 1 / it
_GROWTH = 2  # of a step that hardly reduced the excess
_EDGE = 0.05  # share of the bracket that is kept free at each end


class Root(NamedTuple):
    """Result of a search.

    Attributes
    ----------
    at : float
        The argument u.
    excess : float
        e(u).
    slope : float
        Approximate slope of e near u.
    """

    at: float
    excess: float
    slope: float


def search(
    excess_of: Callable[[float], float],
    first: float,
    slope: float,
    window: tuple[float, float],
    bounds: tuple[float, float],
    resolution: float,
    first_excess: float | None = None,
) -> Root | None:
    """Find an argument whose excess lies in a window.

    Where a jump leaves no such argument, the last one that is low enough is returned.

    Parameters
    ----------
    excess_of : callable
        The function e(u).
    first : float
        Argument to start from.
    slope : float
        Approximate slope of e.
    window : (float, float)
        Accepted values of e(u). A value up to the upper end is low enough.
    bounds : (float, float)
        Smallest and largest argument.
    resolution : float
        Distance below which two arguments count as equal.
    first_excess : float, optional
        e(first), if it is known. `first` must then lie within the bounds.

    Returns
    -------
    Root or None
        None where even the smallest argument is too high.
    """
    flattest, steepest = slope / _SLOPE_RATIO, slope * _SLOPE_RATIO
    goal = sum(window) / 2
    low: Root | None = None
    high: Root | None = None
    last: Root | None = None
    low_weight = high_weight = 1.0
    at = min(max(first, bounds[0]), bounds[1])
    for _ in range(_MAX_EVALUATIONS):
        excess = excess_of(at) if first_excess is None else first_excess
        first_excess = None
        if last is not None:
            slope = min(max((excess - last.excess) / (at - last.at), flattest), steepest)
        preceding, last = last, Root(at, excess, slope)
        if excess <= window[1]:
            if excess >= window[0] or at == bounds[1]:
                return last
            low_weight, high_weight = 1.0, high_weight / 2 if preceding is low else 1.0
            low = last
        else:
            if at == bounds[0]:
                return None
            high_weight, low_weight = 1.0, low_weight / 2 if preceding is high else 1.0
            high = last
        if low and high:
            if high.at - low.at < resolution:
                break
            under = low_weight * (goal - low.excess)
            over = high_weight * (high.excess - goal)
            share = min(max(under / (under + over), _EDGE), 1 - _EDGE)
            at = low.at + (high.at - low.at) * share
        else:
            move = (goal - excess) / slope
            if preceding is not None and abs(excess - goal) > abs(preceding.excess - goal) / 2:
                least = _GROWTH * abs(last.at - preceding.at)
                move = max(move, least) if move > 0 else min(move, -least)
            at = min(max(at + move, bounds[0]), bounds[1])
    return low
