"""The path through the trellis that is best for error and bits together.

Each lane of a run is searched by the algorithm of Viterbi, in float32, each operation rounded.
With y = |x|·factor in halves of a step, a level h costs (y − p)² plus what its bits are worth, p
being the point that it stands for. Of each quantiser and parity the nearest level is a candidate,
and 0 where that is of this parity. Where two ways to a state cost the same, that from the lower
state is taken; and of several last states that cost the same, the lowest.

Source: G. D. Forney, "The Viterbi algorithm", Proc. IEEE 61, 1973.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.kernels import lane_order, pool
from gcodec.kernels.class_map import CLASSES
from gcodec.kernels.device import twinned
from gcodec.kernels.jit import inline, kernel
from gcodec.kernels.lane_order import RUN
from gcodec.kernels.lanes import Emitter, block, floats, lanes
from gcodec.kernels.rated_levels import Errors
from gcodec.kernels.scalar_quantize import FINE
from gcodec.kernels.trellis import EVEN, MOST, NEXT, ODD

LEVELS = MOST + 2  # for which there are costs: 0 to MOST, and those above
STATES = len(NEXT)
ClassesOf = Callable[[int, int, np.ndarray], np.ndarray]

_COLUMNS = 32  # lanes, or more, that are searched side by side
_WIDTH = 8  # of vectors
_TURNS = 16  # of a tile, whose candidates are found before it is searched
_FAR = np.float32(1e30)
_ZERO, _ONE, _TWO, _THREE = (np.int32(k) for k in range(4))
_LAST = np.int32(LEVELS - 1)
_SHIFTS = tuple(np.uint32(8 * k) for k in range(1, 4))
_EVEN, _ODD = np.uint32(EVEN >> 1), np.uint32(ODD >> 1)
_ESCAPES = np.int32(ODD >> 1)  # the least h that is an escape's
_NONE = np.float32(0)


@twinned("trellis_search")
def best_levels(
    x: np.ndarray,
    factor: np.float32,
    classes_of: ClassesOf,
    costs: np.ndarray,
    moved: np.ndarray,
    lanes: int,
    every: int,
    out: np.ndarray,
) -> None:
    """Find levels.

    Parameters
    ----------
    x : (n,) float32 array
        Finite, and of magnitudes below 2^23 halves of a step.
    factor : float32
        What makes halves of a step of values.
    classes_of : callable
        Returns the classes of a range as a uint8 array, where it may use an array of as many for
        it.
    costs : (QUANTISERS * CLASSES * LEVELS,) float32 array
        What k costs by quantiser and class, in squares of half a step.
    moved : (3,) float32 array
        How far from the levels 1, 2, and those above, points lie.
    lanes : int
        That take turns: 2, 8 or 32.
    every : int
        Of so many runs one is searched, from the first on.
    out : (n,) uint8 array
        The symbols, where the tensor has them.
    """

    def task(start: int, stop: int) -> None:
        size = min(RUN, stop - start)
        room = max(lanes, _WIDTH) * -(-size // lanes)
        metrics, so_far = _row(np.float32, 4 * _TURNS), _row(np.float32, STATES)
        levels, ways = np.zeros(room, np.uint32), np.zeros(room, np.uint8)
        found, classes = np.empty(size, np.uint8), np.empty(size, np.uint8)
        ends = _row(np.uint32)
        for at in range(start, stop, RUN):
            if at // RUN % every:
                continue
            end = min(at + RUN, stop)
            here = found[: end - at]
            _search_run(
                *(x[at:end], factor, classes_of(at, end, classes[: end - at]), costs, moved),
                *(lanes, metrics, so_far, levels, ways, ends, here),
            )
            lane_order.from_turns(here, lanes, out[at:end])
            _add_signs(x[at:end], out[at:end])

    pool.run(task, x.size, RUN)


@twinned("trellis_search")
def errors_of(x: np.ndarray, factor: np.float32, every: int, symbols: np.ndarray) -> Errors:
    """Return what symbols leave over, in halves of a step; see `best_levels`."""

    def task(start: int, stop: int) -> np.ndarray:
        sums = np.zeros(8, np.int64)
        for at in range(start, stop, RUN):
            if at // RUN % every == 0:
                end = min(at + RUN, stop)
                _sum_errors(x[at:end], factor, symbols[at:end], sums)
        return sums

    return Errors.of(*pool.run(task, x.size, RUN))


def beyond(x: np.ndarray, factor: np.float32, escapes: np.ndarray) -> np.ndarray:
    """Return the symbols, as int64, of what escapes: the nearest levels of the same parity.

    Parameters
    ----------
    x : (k,) float32 array
    factor : float32
    escapes : (k,) uint8 array
    """
    h = (np.abs(x) * factor + np.float32(0.5)).astype(np.int64)
    other = ((h + 1) >> 1 & 1) != (escapes == ODD)
    h += np.where(other, 1 - 2 * (h & 1), 0)
    found: np.ndarray = 2 * h + (x < 0)
    return found


def _row(dtype: Any, count: int = 1) -> np.ndarray:
    return np.zeros(count * _COLUMNS, dtype)


@block("metrics", "first", "before", "ways", "place")
def _turn(e: Emitter) -> None:
    """Go on by a level in eight lanes: costs of states, and by which way each is reached."""
    builder = e.builder
    metrics = builder.gep(e.args["metrics"], [e.args["first"]])
    real, number = floats(_WIDTH), lanes(32, _WIDTH)
    cosets = [e.load(e.element(metrics, _COLUMNS * k), real) for k in range(4)]
    costs = [e.load(e.element(e.args["before"], _COLUMNS * s), real) for s in range(STATES)]
    decided = None
    for state in range(STATES):
        one, two = (
            builder.fadd(costs[s], cosets[_coset(s, p)])
            for s in range(STATES)
            for p in range(2)
            if NEXT[s][p] == state
        )
        second = builder.fcmp_ordered("<", two, one)
        e.store(builder.select(second, two, one), e.element(e.args["before"], _COLUMNS * state))
        bits = number([1 << state] * _WIDTH)
        way = builder.select(second, bits, number([0] * _WIDTH))
        decided = way if decided is None else builder.or_(decided, way)
    narrow = builder.trunc(decided, lanes(8, _WIDTH))
    e.store(narrow, builder.gep(e.args["ways"], [e.args["place"]]), 1)


def _coset(state: int, parity: int) -> int:
    """Return h mod 4 of the levels, other than 0, of a state's quantiser and a parity."""
    return 2 * parity if state < 2 else 3 - 2 * parity


@inline
def _cost(y, h, moved, rate):
    """Return what a level costs whose point is so far from it."""
    off = np.float32(y - np.float32(np.float32(h) + moved))
    return np.float32(np.float32(off * off) + rate)


@inline
def _code(h, k, escape):
    """Return half of a symbol of level h, the k-th of its quantiser, or of its escape."""
    return np.uint32(h) if k < _LAST else escape


@kernel(
    "in float32[], float32, in uint8[], in float32[], in float32[], int64, out float32[], "
    "out float32[], out uint32[], out uint8[], out uint32[], out uint8[]"
)
def _search_run(x, factor, classes, costs, moved, lanes, metrics, before, levels, ways, ends, out):
    # x.size == classes.size == out.size <= RUN. Rooms: metrics for _TURNS of four cosets, before
    # for STATES, ends for one row, of _COLUMNS >= lanes each; levels and ways for all
    # turns, of `pitch` each.
    length = x.size // lanes
    turns, pitch = (x.size + lanes - 1) // lanes, max(lanes, _WIDTH)
    far_one, far_two, far = moved[0], moved[1], moved[2]
    for k in range(before.size):
        before[k] = _NONE if k < _COLUMNS else _FAR
    for first in range(0, turns, _TURNS):
        last = min(first + _TURNS, turns)
        for lane in range(lanes):
            for t in range(first, last):
                i = lane * length + t if t < length else length * lanes + lane
                place = 4 * _COLUMNS * (t - first) + lane
                if i >= x.size:
                    # No level: nothing is added, whichever way is taken.
                    for coset in range(4):
                        metrics[place + _COLUMNS * coset] = _NONE
                    continue
                y = np.float32(abs(x[i]) * factor)
                model = np.int64(classes[i]) * LEVELS
                other = model + CLASSES * LEVELS
                zero = np.float32(y * y)
                zero_even = np.float32(zero + costs[model])
                zero_odd = np.float32(zero + costs[other])
                # The nearest levels 4j, 4j + 1, 4j + 2 and 4j - 1.
                j = np.int32(np.float32(y + np.float32(2))) >> _TWO
                k, h = j << _ONE, j << _TWO
                cost = _cost(y, h, far, costs[model + np.int64(min(k, _LAST))])
                empty = (j == _ZERO) | (zero_even < cost)
                metrics[place] = zero_even if empty else cost
                found = _code(h, k, _EVEN) * np.uint32(not empty)
                j = np.int32(np.float32(y + np.float32(1))) >> _TWO
                k, h = (j << _ONE) + _ONE, (j << _TWO) + _ONE
                off = far_one if j == _ZERO else far
                cost = _cost(y, h, off, costs[other + np.int64(min(k, _LAST))])
                metrics[place + _COLUMNS] = cost
                found |= _code(h, k, _ODD) << _SHIFTS[0]
                j = np.int32(y) >> _TWO
                k, h = (j << _ONE) + _ONE, (j << _TWO) + _TWO
                off = far_two if j == _ZERO else far
                cost = _cost(y, h, off, costs[model + np.int64(min(k, _LAST))])
                metrics[place + 2 * _COLUMNS] = cost
                found |= _code(h, k, _ODD) << _SHIFTS[1]
                j = np.int32(np.float32(y + np.float32(3))) >> _TWO
                k, h = j << _ONE, (j << _TWO) - _ONE
                cost = _cost(y, h, far, costs[other + np.int64(min(k, _LAST))])
                empty = (j == _ZERO) | (zero_odd < cost)
                metrics[place + 3 * _COLUMNS] = zero_odd if empty else cost
                found |= _code(h, k, _EVEN) * np.uint32(not empty) << _SHIFTS[2]
                levels[pitch * t + lane] = found
        for t in range(first, last):
            for lane in range(0, lanes, _WIDTH):
                place = 4 * _COLUMNS * (t - first) + lane
                _turn(metrics, place, before[lane:], ways, pitch * t + lane)
    for lane in range(lanes):
        ends[lane] = 0
        for s in range(1, STATES):
            if before[_COLUMNS * s + lane] < before[_COLUMNS * ends[lane] + lane]:
                ends[lane] = s
    for t in range(turns - 1, -1, -1):
        here = out[t * lanes : (t + 1) * lanes]
        for lane in range(lanes):
            s, way = ends[lane], np.uint32(ways[pitch * t + lane])
            second = way >> s & np.uint32(1)
            parity = s >> np.uint32(1) ^ second
            s = (s & np.uint32(1)) << np.uint32(1) | second
            coset = parity << np.uint32(1)
            coset = coset if s < np.uint32(2) else np.uint32(3) - coset
            ends[lane] = s
            if lane < here.size:
                here[lane] = np.uint8(levels[pitch * t + lane] >> (coset << np.uint32(3)))


@kernel("in float32[], out uint8[]")
def _add_signs(x, out):
    # x.size == out.size; levels, below 128, become symbols. Escapes have no sign.
    for i in range(out.size):
        level = out[i]
        sign = (x[i] < np.float32(0)) & (level > np.uint8(0)) & (level < np.uint8(ODD >> 1))
        out[i] = np.uint8(level << np.uint8(1)) | np.uint8(sign)


@kernel("in float32[], float32, in uint8[], out int64[]")
def _sum_errors(x, factor, symbols, sums):
    # x.size == symbols.size, sums.size == 8.
    for i in range(x.size):
        y, h = np.float32(abs(x[i]) * factor), np.int32(symbols[i] >> np.uint8(1))
        if h >= _ESCAPES:
            # As in `beyond`.
            odd, h = h == _ESCAPES, np.int32(np.float32(y + np.float32(0.5)))
            if (h + _ONE >> _ONE & _ONE) != np.int32(odd):
                h += _ONE - _TWO * (h & _ONE)
            sums[7] += 1
        rest = np.int64(np.rint(np.float32(np.float32(y - np.float32(h)) * np.float32(FINE))))
        sums[6] += rest * rest
        if h > _ZERO:
            k = min(h, _THREE) - _ONE
            sums[k] += 1
            sums[3 + k] += rest
