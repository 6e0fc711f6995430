"""Levels of a step: what a tensor becomes, and what levels stand for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.contexts import models
from gcodec.contexts.scales import Scales
from gcodec.kernels import pool, scalar_quantize
from gcodec.kernels.arithmetic import add_scaled
from gcodec.kernels.escapes import symbols_from
from gcodec.kernels.memory import empty_beside
from gcodec.kernels.rated_levels import Errors
from gcodec.kernels.reduce import max_abs_bits
from gcodec.kernels.scalar_quantize import FINE
from gcodec.kernels.scatter import replace
from gcodec.payload import MissedTarget

_MINUS_ZERO = 0x80000000
CENTRE = 128  # a centroid in the middle: 256ths of a step, above this
_MIDDLE = np.full(3, CENTRE, np.uint8)
_UNIT = FINE // 256


class Levels(NamedTuple):
    """What a tensor becomes.

    Attributes
    ----------
    step : float
        As float32; 0 where all is zero.
    centroids : (3,) uint8 array
        Of the magnitudes 1, 2, and those above: how far from the level they lie, in 256ths of a
        step, plus `CENTRE`.
    symbols : (n,) uint8 array
        Twice the magnitude of the level, plus 1 where it is negative; `ESCAPE` from 127 on.
    beyond : (k,) int64 array
        The same of those, in order.
    scales : Scales or None
        None where all is zero, or nothing.
    lanes : int
        With a trellis, the states that take turns, and symbols are in halves of a step; see
        `kernels.trellis`. Else 0.
    transform : str
        "dct" where the levels are those of coefficients of `gcodec.taps`, else "none".
    places : (k,) int64 array or None
        Where those beyond are, if the host knows that of a device.
    there : optional
        Where a device found them and has not told all yet: what puts and writes them.
    missed : MissedTarget or None
        The target that no step meets.
    """

    step: float
    centroids: np.ndarray
    symbols: np.ndarray
    beyond: np.ndarray
    scales: Scales | None
    lanes: int = 0
    transform: str = "none"
    places: np.ndarray | None = None
    there: Any = None
    missed: MissedTarget | None = None


def largest(x: np.ndarray) -> float:
    """Return the largest magnitude of (n,) float32 values, 0 of none; not finite where one is."""
    bits = int(max_abs_bits(x)) if x.size else 0
    return float(np.uint32(bits).view(np.float32))


def lifted(x: np.ndarray, factor: float) -> np.ndarray:
    """Return (n,) float32 values times a factor."""
    found = empty_beside(x.size, np.float32, x)
    found.view(np.uint32)[:] = _MINUS_ZERO  # to which anything may be added
    add_scaled(x, np.float32(factor), found)
    return found


def nothing(n: int, beside: np.ndarray) -> Levels:
    """Return the levels of n zeros, where an array lies."""
    symbols = empty_beside(n, np.uint8, beside)
    symbols[:] = 0
    return Levels(0.0, middle(), symbols, np.empty(0, np.int64), None)


def points(unit: float, centroids: np.ndarray) -> np.ndarray:
    """Return what each symbol stands for, as (256,) float32; see `point`."""
    return scalar_quantize.points_of(unit / 256, _moves(centroids).tolist())


def put(levels: Levels, unit: float, out: np.ndarray) -> None:
    """Write the (n,) float32 values that levels stand for, where symbols count `unit`."""
    if levels.there is not None:
        levels.there.put(unit, out)
        return
    values = points(unit, levels.centroids)

    def task(start: int, stop: int) -> None:
        scalar_quantize.put_points(levels.symbols[start:stop], values, out[start:stop])

    pool.run(task, out.size, beside=out)
    if levels.beyond.size:
        places = levels.places
        if places is None:
            places, _ = symbols_from(levels.symbols, models.least_escape(levels.lanes > 0))
        replace(out, places, point(levels.beyond, unit, levels.centroids))


def point(symbols: np.ndarray, unit: float, centroids: np.ndarray) -> np.ndarray:
    """Return what symbols stand for: f32((k + d)·unit), the product rounded once; 0 for k = 0."""
    if not symbols.size:
        return np.empty(0, np.float32)
    k = symbols >> 1
    moved = _moves(centroids)[np.minimum(np.maximum(k, 1), 3) - 1]
    with np.errstate(over="ignore"):
        size = ((256 * k + moved) * (unit / 256)).astype(np.float32)
    return np.where(k == 0, np.float32(0), np.where(symbols & 1, -size, size))


def _moves(centroids: np.ndarray) -> np.ndarray:
    """Return how far points lie above levels of each magnitude, in 256ths of a step."""
    return centroids.astype(np.int64) - CENTRE


def squares_of(errors: Errors) -> float:
    """Return ‖x − x̂‖² in squares of what errors are counted in, with the best centroids."""
    counts, rests, squares, _ = errors
    for count, rest in zip(counts, rests, strict=True):
        if count:
            moved = _moved(count, rest) * _UNIT
            squares -= moved * (2 * rest - moved * count)
    return squares / FINE**2


def centroids_of(errors: Errors) -> np.ndarray:
    """Return the mean of what each magnitude leaves over, in 256ths, rounded."""
    moved = map(_moved, errors.counts, errors.rests)
    return np.array([CENTRE + part for part in moved], np.uint8)


def _moved(count: int, rest: int) -> int:
    """Return the mean of the rests of so many levels, in 256ths, rounded, within bounds."""
    if not count:
        return 0
    found = (2 * rest + _UNIT * count) // (2 * _UNIT * count)
    return -CENTRE if found < -CENTRE else 255 - CENTRE if found > 255 - CENTRE else found


def middle() -> np.ndarray:
    """Return centroids of levels that lie in their middle."""
    return _MIDDLE.copy()
