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

import numpy as np

from gcodec.kernels.context import lane_order
from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.scalar_quantize import FINE
from gcodec.kernels.quantize.trellis import ODD
from gcodec.kernels.quantize.trellis_vector import (
    APART,
    STATES,
    TILE,
    WIDTH,
    candidates,
    go_on,
    trace,
)
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel, subroutine

ClassesOf = Callable[[int, int, np.ndarray], np.ndarray]

_FAR = np.float32(1e30)
_ZERO, _ONE, _TWO, _THREE = (np.int32(k) for k in range(4))
_ESCAPES = np.int32(ODD >> 1)  # the least h that is an escape's
_NONE, _PARTS = np.float32(0), np.float32(FINE)
_TILE = 512  # elements whose rests are added up at once


@dispatched("gcodec.kernels.quantize.trellis_search_cuda")
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
        size, pitch = min(RUN, stop - start), max(lanes, WIDTH)
        room = pitch * -(-size // lanes)
        # Lanes that there are not have elements, too.
        turned, models = np.zeros(room, np.float32), np.zeros(room, np.uint8)
        levels, ways = np.empty(room, np.uint32), np.empty(room, np.uint8)
        metrics, so_far = np.empty(4 * APART, np.float32), np.empty(STATES * pitch, np.float32)
        classes, ends = np.empty(size, np.uint8), np.empty(pitch, np.uint32)
        for at in range(start, stop, RUN):
            if at // RUN % every:
                continue
            end = min(at + RUN, stop)
            last = (end - at - 1) // lanes * pitch
            told = turned[: last + pitch], factor, models[: last + pitch], costs, moved
            _spread(x[at:end], lanes, turned)
            _spread(classes_of(at, end, classes[: end - at]), lanes, models)
            count = end - at - last // pitch * lanes
            _search_run(*told, pitch, count, metrics, so_far, levels, ways, ends)
            lane_order.from_turns(_joined(ways, lanes, end - at), lanes, out[at:end])
            _add_signs(x[at:end], out[at:end])

    pool.run(task, x.size, RUN)


@dispatched("gcodec.kernels.quantize.trellis_search_cuda")
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


def _spread(flat: np.ndarray, lanes: int, out: np.ndarray) -> None:
    """Put a run in the order of turns, of so many lanes or as many as a vector has."""
    if lanes >= WIDTH:
        lane_order.to_turns(flat, lanes, out[: flat.size])
        return
    turned = np.empty_like(flat)
    lane_order.to_turns(flat, lanes, turned)
    for lane in range(lanes):
        part = turned[lane::lanes]
        out[lane::WIDTH][: part.size] = part


def _joined(turns: np.ndarray, lanes: int, n: int) -> np.ndarray:
    """Return the elements of lanes that there are."""
    if lanes >= WIDTH:
        return turns[:n]
    found = np.empty(n, np.uint8)
    for lane in range(lanes):
        part = found[lane::lanes]
        part[:] = turns[lane::WIDTH][: part.size]
    return found


@kernel(
    "in float32[], float32, in uint8[], in float32[], in float32[], int64, int64, out float32[], "
    "out float32[], out uint32[], out uint8[], out uint32[]"
)
def _search_run(
    x, factor, classes, costs, moved, pitch, count, metrics, before, levels, ways, ends
):
    # x.size == classes.size is a multiple of pitch, the lanes, which divide TILE and are a
    # multiple of WIDTH; levels and ways have as much room; of the last turn there are `count`.
    # Room for 4·APART metrics, STATES·pitch of before, pitch of ends. Classes are below CLASSES,
    # so that all candidates have costs.
    for k in range(STATES * pitch):
        before[k] = _NONE if k < pitch else _FAR
    last = x.size - pitch
    for first in range(0, x.size, TILE):
        end = min(TILE, x.size - first)
        for place in range(0, end, WIDTH):
            at = first + place
            candidates(x, classes, at, factor, costs, moved, place, metrics, levels)
        for place in range(last + count - first, end):
            # No level: nothing is added, whichever way is taken.
            for coset in range(4):
                metrics[APART * coset + place] = _NONE
        for lane in range(0, pitch, WIDTH):
            go_on(metrics, lane, pitch, end, before[lane:], ways[first:])
    for lane in range(pitch):
        ends[lane] = 0
        for s in range(1, STATES):
            if before[pitch * s + lane] < before[pitch * ends[lane] + lane]:
                ends[lane] = s
    for lane in range(0, pitch, WIDTH):
        trace(levels, ways, ends, lane, last, pitch)


@kernel("in float32[], out uint8[]")
def _add_signs(x, out):
    # x.size == out.size; levels, below 128, become symbols. Escapes have no sign.
    for i in range(out.size):
        level = out[i]
        sign = (x[i] < np.float32(0)) & (level > np.uint8(0)) & (level < np.uint8(ODD >> 1))
        out[i] = np.uint8(level << np.uint8(1)) | np.uint8(sign)


@kernel("in float32[], float32, in uint8[], out int64[]")
def _sum_errors(x, factor, symbols, sums):
    # x.size == symbols.size, sums.size == 8. Rests are below 2^13, so that those of a tile fit 32
    # bits.
    for start in range(0, x.size, _TILE):
        some, here = x[start : start + _TILE], symbols[start : start + _TILE]
        top = np.uint8(0)
        for i in range(here.size):
            top = max(top, here[i])
        if top >= np.uint8(ODD):
            _sum_escaping(some, factor, here, sums)
            continue
        a = b = c = of_a = of_b = of_c = _ZERO
        squares = np.int64(0)
        for i in range(here.size):
            h = np.int32(here[i] >> np.uint8(1))
            rest = _rest(np.float32(abs(some[i]) * factor), h)
            squares += np.int64(np.int32(rest * rest))
            a += np.int32(h == _ONE)
            b += np.int32(h == _TWO)
            c += np.int32(h > _TWO)
            of_a += rest if h == _ONE else _ZERO
            of_b += rest if h == _TWO else _ZERO
            of_c += rest if h > _TWO else _ZERO
        sums[0] += np.int64(a)
        sums[1] += np.int64(b)
        sums[2] += np.int64(c)
        sums[3] += np.int64(of_a)
        sums[4] += np.int64(of_b)
        sums[5] += np.int64(of_c)
        sums[6] += squares


@inline
def _rest(y, h):
    """Return what a level leaves over."""
    return np.int32(np.rint(np.float32(np.float32(y - np.float32(h)) * _PARTS)))


@subroutine("")
def _sum_escaping(x, factor, symbols, sums):
    # As above, where some escape.
    for i in range(x.size):
        y, h = np.float32(abs(x[i]) * factor), np.int32(symbols[i] >> np.uint8(1))
        if h >= _ESCAPES:
            # As in `beyond`.
            odd, h = h == _ESCAPES, np.int32(np.float32(y + np.float32(0.5)))
            if (h + _ONE >> _ONE & _ONE) != np.int32(odd):
                h += _ONE - _TWO * (h & _ONE)
            sums[7] += 1
        rest = np.int64(_rest(y, h))
        sums[6] += rest * rest
        if h > _ZERO:
            k = min(h, _THREE) - _ONE
            sums[k] += 1
            sums[3 + k] += rest
