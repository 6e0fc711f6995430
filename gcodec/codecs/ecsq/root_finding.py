"""A number with which something is met, by a search that ends and is the same everywhere.

What is looked for is the octave of a quantiser's step, say: off(u) rises with u, and is to be just
below 0. The search is a secant until there are a u that is low enough and one that is too high;
between them it is that of false positions, where the end that stays counts for half each time
("Illinois"). What is measured may have jumps, and may hardly change where it should.

Source: M. Dowell and P. Jarratt, "A modified regula falsi method for computing the root of an
equation", BIT 11, 1971.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_MOST = 60  # times that off(u) is asked for
_STEADY = 3  # times as steep as expected, or as flat, that a measured slope may be
_GROWTH = 2  # of moves that hardly helped
_EDGE = 0.05  # of a bracket that is left on each side


class Met(NamedTuple):
    """What a search ends with.

    Attributes
    ----------
    at : float
        The u that was found.
    off : float
        off(u).
    slope : float
        About how much off(u) rises with 1, near it.
    """

    at: float
    off: float
    slope: float


def search(
    off_of: Callable[[float], float],
    first: float,
    slope: float,
    window: tuple[float, float],
    bounds: tuple[float, float],
    near: float,
    known: float | None = None,
) -> Met | None:
    """Find a u with off(u) in a window; where a jump leaves none, the last that is low enough.

    Parameters
    ----------
    off_of : callable
    first : float
        The u to begin with.
    slope : float
        About how much off(u) rises with 1.
    window : (float, float)
        What is good enough; up to the upper end, off(u) is low enough.
    bounds : (float, float)
        The least u, and the largest.
    near : float
        Between numbers that are as good as one.
    known : float, optional
        off(first), inside of bounds.

    Returns
    -------
    Met or None
        None where even the least u is too high.
    """
    flattest, steepest = slope / _STEADY, slope * _STEADY
    aim = sum(window) / 2
    low: Met | None = None
    high: Met | None = None
    last: Met | None = None
    below = above = 1.0  # what the ends of the bracket count for
    at = min(max(first, bounds[0]), bounds[1])
    for _ in range(_MOST):
        off = off_of(at) if known is None else known
        known = None
        if last is not None:
            slope = min(max((off - last.off) / (at - last.at), flattest), steepest)
        before, last = last, Met(at, off, slope)
        if off <= window[1]:
            if off >= window[0] or at == bounds[1]:
                return last
            below, above = 1.0, above / 2 if before is low else 1.0
            low = last
        else:
            if at == bounds[0]:
                return None
            above, below = 1.0, below / 2 if before is high else 1.0
            high = last
        if low and high:
            if high.at - low.at < near:
                break
            under, over = below * (aim - low.off), above * (high.off - aim)
            share = min(max(under / (under + over), _EDGE), 1 - _EDGE)
            at = low.at + (high.at - low.at) * share
        else:
            move = (aim - off) / slope
            if before is not None and abs(off - aim) > abs(before.off - aim) / 2:
                least = _GROWTH * abs(last.at - before.at)
                move = max(move, least) if move > 0 else min(move, -least)
            at = min(max(at + move, bounds[0]), bounds[1])
    return low
