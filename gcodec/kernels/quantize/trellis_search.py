"""Rate–distortion optimized quantization by a search for the best path through the trellis.

The algorithm of Viterbi searches each lane of a run, in float32, each operation rounded. With y =
|x|·factor in halves of a step, a level h costs (y − p)² plus the cost of its bits, where p is its
point. Each quantizer and parity has one candidate, the nearest level, or 0 if that is of the
parity and costs less. If both ways to a state cost the same, the search takes the one from the
lower state; of several best states in the end, it takes the lowest.

The search works on vectors: lanes take turns, at least `WIDTH` of them, and a tile is some turns
of all lanes. Each element has four candidates, the nearest level of each h mod 4, in this order.
Their costs are float32 numbers in four tiles `APART` from each other, and the halves of their
symbols are the bytes of a uint32.

Source: G. D. Forney, "The Viterbi algorithm", Proc. IEEE 61, 1973.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.context.lane_order import RUN, from_turns, to_turns
from gcodec.kernels.quantize.rated_levels import Errors
from gcodec.kernels.quantize.scalar_quantize import FINE
from gcodec.kernels.quantize.trellis import EVEN, MOST, NEXT, ODD
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel, subroutine
from gcodec.runtime.lanes import Emitter, Value, block, constants, floats, lanes

ClassesOf = Callable[[int, int, np.ndarray], np.ndarray]

WIDTH = 8  # elements of a vector
TILE = 512  # elements of a tile, at most
APART = TILE + 16  # stores a whole page apart would delay each other
LEVELS = MOST + 2  # costs of a model: those of 0 to MOST, and that of an escape
STATES = len(NEXT)

_FAR = np.float32(1e30)
_ZERO, _ONE, _TWO, _THREE = (np.int32(k) for k in range(4))
_ESCAPES = np.int32(ODD >> 1)  # the least h that is an escape's
_NONE, _PARTS = np.float32(0), np.float32(FINE)
_ERROR_TILE = 512  # elements whose residues are summed in 32 bits


@dispatched("gcodec.kernels.quantize.trellis_search_cuda")
def best_levels(
    x: np.ndarray,
    factor: np.float32,
    classes_of: ClassesOf,
    costs: np.ndarray,
    moved: np.ndarray,
    lanes: int,
    run_step: int,
    out: np.ndarray,
) -> None:
    """Find the best levels.

    Parameters
    ----------
    x : (n,) float32 array
        Finite, with magnitudes below 2^23 halves of a step.
    factor : float32
        Halves of a step per unit of x.
    classes_of : callable
        Returns the uint8 classes of a range of elements; a uint8 array of this size is scratch.
    costs : (QUANTIZERS * CLASSES * LEVELS,) float32 array
        Cost of each k by quantizer and class, in squares of half a step.
    moved : (3,) float32 array
        Distance of the points from the levels 1, 2, and all above.
    lanes : int
        Number of interleaved lanes: 2, 8 or 32.
    run_step : int
        Search one in so many runs, from the first on.
    out : (n,) uint8 array
        Symbols in tensor order.
    """

    def task(start: int, stop: int) -> None:
        size, pitch = min(RUN, stop - start), max(lanes, WIDTH)
        room = pitch * -(-size // lanes)
        # The lanes are padded to a vector; the padding has elements too.
        turned, models = np.zeros(room, np.float32), np.zeros(room, np.uint8)
        levels, decisions = np.empty(room, np.uint32), np.empty(room, np.uint8)
        metrics, totals = np.empty(4 * APART, np.float32), np.empty(STATES * pitch, np.float32)
        classes, ends = np.empty(size, np.uint8), np.empty(pitch, np.uint32)
        for at in range(start, stop, RUN):
            if at // RUN % run_step:
                continue
            end = min(at + RUN, stop)
            last = (end - at - 1) // lanes * pitch
            used, count = slice(last + pitch), end - at - last // pitch * lanes
            part = x[at:end]
            _spread(part, lanes, turned)
            _spread(classes_of(at, end, classes[: end - at]), lanes, models)
            _search_run(
                *(turned[used], factor, models[used], costs, moved, pitch, count),
                *(metrics, totals, levels, decisions, ends),
            )
            from_turns(_joined(decisions, lanes, end - at), lanes, out[at:end])
            _add_signs(part, out[at:end])

    pool.run(task, x.size, RUN)


@dispatched("gcodec.kernels.quantize.trellis_search_cuda")
def errors_of(x: np.ndarray, factor: np.float32, run_step: int, symbols: np.ndarray) -> Errors:
    """Return the errors of symbols, in halves of a step; see `best_levels`."""

    def task(start: int, stop: int) -> np.ndarray:
        sums = np.zeros(8, np.int64)
        for at in range(start, stop, RUN):
            if at // RUN % run_step == 0:
                end = min(at + RUN, stop)
                _sum_errors(x[at:end], factor, symbols[at:end], sums)
        return sums

    return Errors.of(pool.run_added(task, x.size, RUN))


def outlier_symbols(x: np.ndarray, factor: np.float32, escapes: np.ndarray) -> np.ndarray:
    """Return the int64 symbols of escaped elements: the nearest level of the escape's parity.

    Parameters
    ----------
    x : (k,) float32 array
    factor : float32
    escapes : (k,) uint8 array
    """
    h = (np.abs(x) * factor + np.float32(0.5)).astype(np.int64)
    is_wrong = ((h + 1) >> 1 & 1) != (escapes == ODD)
    h += np.where(is_wrong, 1 - 2 * (h & 1), 0)
    return 2 * h + (x < 0)


def _spread(flat: np.ndarray, lanes: int, out: np.ndarray) -> None:
    """Reorder a run to coding order, and pad the lanes to a vector."""
    if lanes >= WIDTH:
        to_turns(flat, lanes, out[: flat.size])
        return
    turned = np.empty_like(flat)
    to_turns(flat, lanes, turned)
    for lane in range(lanes):
        part = turned[lane::lanes]
        out[lane::WIDTH][: part.size] = part


def _joined(turns: np.ndarray, lanes: int, n: int) -> np.ndarray:
    """Return the n elements of all lanes without the padding."""
    if lanes >= WIDTH:
        return turns[:n]
    joined = np.empty(n, np.uint8)
    for lane in range(lanes):
        part = joined[lane::lanes]
        part[:] = turns[lane::WIDTH][: part.size]
    return joined


# --- vectors -------------------------------------------------------------------------------------


class _Coset(NamedTuple):
    """The levels of one h mod 4: 4j, 4j + 1, 4j + 2 or 4j − 1, each the k-th of a quantizer.

    Attributes
    ----------
    up : float
        Added to y before it is cut to 4j.
    h, k : int
        Added to 4j, and to 2j.
    far : int or None
        Index of the distance of the level for j = 0; None if that is level 0.
    escape : int
        Half of the symbol of its escape.
    """

    up: float
    h: int
    k: int
    far: int | None
    escape: int


_COSETS = (
    _Coset(2.0, 0, 0, None, EVEN >> 1),
    _Coset(1.0, 1, 1, 0, ODD >> 1),
    _Coset(0.0, 2, 1, 1, ODD >> 1),
    _Coset(3.0, -1, 0, None, EVEN >> 1),
)


def _coset(state: int, parity: int) -> int:
    """Return h mod 4 of the levels, other than 0, of a state's quantizer and a parity."""
    return 2 * parity if state < 2 else 3 - 2 * parity


@block("x", "classes", "at", "factor", "costs", "moved", "place", "metrics", "levels")
def _find_candidates(e: Emitter) -> None:
    """Write the candidates of eight elements, and their costs at a place of a tile."""
    builder, real, number = e.builder, floats(WIDTH), lanes(32, WIDTH)
    constant = constants(number)
    bits = e.magnitude_bits(e.load(e.address("x", "at"), real))
    y = builder.fmul(builder.bitcast(bits, real), e.splat(e.args["factor"], WIDTH))
    classes = builder.zext(e.load(e.address("classes", "at"), lanes(8, WIDTH), 1), number)
    models = builder.mul(classes, constant(LEVELS))
    distances = [e.splat(builder.load(e.element(e.args["moved"], k)), WIDTH) for k in range(3)]
    square, halves = builder.fmul(y, y), None
    for at, coset in enumerate(_COSETS):
        model = builder.add(models, constant(CLASSES * LEVELS)) if at % 2 else models
        raised = builder.fadd(y, real([coset.up] * WIDTH))
        j = builder.ashr(builder.fptosi(raised, number), constant(2))
        is_first = builder.icmp_signed("==", j, constant(0))
        k = builder.add(builder.shl(j, constant(1)), constant(coset.k))
        h = builder.add(builder.shl(j, constant(2)), constant(coset.h))
        has_symbol = builder.icmp_signed("<", k, constant(LEVELS - 1))
        column = builder.select(has_symbol, k, constant(LEVELS - 1))
        rate = e.gathered(e.args["costs"], e.indices(builder.add(model, column)), real)
        distance = distances[2]
        if coset.far is not None:
            distance = builder.select(is_first, distances[coset.far], distance)
        off = builder.fsub(y, builder.fadd(builder.sitofp(h, real), distance))
        cost = builder.fadd(builder.fmul(off, off), rate)
        code = builder.select(has_symbol, h, constant(coset.escape))
        if coset.far is None:
            rate = e.gathered(e.args["costs"], e.indices(model), real)
            zero = builder.fadd(square, rate)
            empty = builder.or_(is_first, builder.fcmp_ordered("<", zero, cost))
            cost = builder.select(empty, zero, cost)
            code = builder.select(empty, constant(0), code)
        e.store(cost, e.element(e.address("metrics", "place"), APART * at))
        code = builder.shl(code, constant(8 * at))
        halves = code if halves is None else builder.or_(halves, code)
    e.store(halves, e.address("levels", "at"))


@block("metrics", "place", "pitch", "end", "totals", "decisions")
def _advance(e: Emitter) -> None:
    """Advance eight lanes by the turns of a tile, from their place in the first turn on.

    Turns are `pitch` elements apart, and so are the rows of the total costs of each state. The
    bits of `decisions` tell from which state each state is reached.
    """
    builder, real, number = e.builder, floats(WIDTH), lanes(32, WIDTH)
    pitch, rows = e.args["pitch"], [e.args["totals"]]
    while len(rows) < STATES:
        rows.append(builder.gep(rows[-1], [pitch]))

    def one_turn(at: Value, *costs: Value) -> list[Value]:
        first = builder.gep(e.args["metrics"], [at])
        cosets = [e.load(e.element(first, APART * k), real) for k in range(len(_COSETS))]
        decided, after = number([0] * WIDTH), []
        for target in range(STATES):
            one, two = (
                builder.fadd(costs[s], cosets[_coset(s, p)])
                for s in range(STATES)
                for p in range(2)
                if NEXT[s][p] == target
            )
            second = builder.fcmp_ordered("<", two, one)
            after.append(builder.select(second, two, one))
            bit = builder.select(second, number([1 << target] * WIDTH), number([0] * WIDTH))
            decided = builder.or_(decided, bit)
        place = builder.gep(e.args["decisions"], [at])
        e.store(builder.trunc(decided, lanes(8, WIDTH)), place, 1)
        return after

    begin = [e.load(row, real) for row in rows]
    costs = e.count(e.args["place"], e.args["end"], pitch, begin, one_turn)
    for cost, row in zip(costs, rows, strict=True):
        e.store(cost, row)


@block("levels", "decisions", "ends", "lane", "top", "pitch")
def _trace_back(e: Emitter) -> None:
    """Follow the best paths of eight lanes back from their last states.

    The halves of their symbols replace the decisions.
    """
    builder, number, word = e.builder, lanes(32, WIDTH), lanes(8, WIDTH)
    constant = constants(number)

    def one_turn(state: list[Value]) -> list[Value]:
        at, s = state
        place = builder.gep(e.args["decisions"], [at])
        decided = builder.zext(e.load(place, word, 1), number)
        second = builder.and_(builder.lshr(decided, s), constant(1))
        parity = builder.xor(builder.lshr(s, constant(1)), second)
        s = builder.or_(builder.shl(builder.and_(s, constant(1)), constant(1)), second)
        coset = builder.shl(parity, constant(1))
        even = builder.icmp_unsigned("<", s, constant(2))
        coset = builder.select(even, coset, builder.sub(constant(3), coset))
        codes = e.load(builder.gep(e.args["levels"], [at]), number)
        code = builder.lshr(codes, builder.shl(coset, constant(3)))
        e.store(builder.trunc(code, word), place, 1)
        return [builder.sub(at, e.args["pitch"]), s]

    begin = [builder.add(e.args["top"], e.args["lane"]), e.load(e.address("ends", "lane"), number)]
    e.loop(begin, lambda state: builder.icmp_signed(">=", state[0], state[0].type(0)), one_turn)


# --- loops ---------------------------------------------------------------------------------------


@kernel(
    "in float32[], float32, in uint8[], in float32[], in float32[], int64, int64, out float32[], "
    "out float32[], out uint32[], out uint8[], out uint32[]"
)
def _search_run(
    x, factor, classes, costs, moved, pitch, count, metrics, totals, levels, decisions, ends
):
    # x.size == classes.size is a multiple of pitch, the number of padded lanes, which divides TILE
    # and is a multiple of WIDTH. levels and decisions are at least as long; the last turn has
    # `count` elements. Sizes: 4 * APART metrics, STATES * pitch totals, pitch ends. Classes are
    # below CLASSES, so all candidates have costs.
    for k in range(STATES * pitch):
        totals[k] = _NONE if k < pitch else _FAR
    last = x.size - pitch
    for first in range(0, x.size, TILE):
        end = min(TILE, x.size - first)
        for place in range(0, end, WIDTH):
            at = first + place
            _find_candidates(x, classes, at, factor, costs, moved, place, metrics, levels)
        for place in range(last + count - first, end):
            # No element: both ways cost nothing.
            for coset in range(4):
                metrics[APART * coset + place] = _NONE
        for lane in range(0, pitch, WIDTH):
            _advance(metrics, lane, pitch, end, totals[lane:], decisions[first:])
    for lane in range(pitch):
        ends[lane] = 0
        for s in range(1, STATES):
            if totals[pitch * s + lane] < totals[pitch * ends[lane] + lane]:
                ends[lane] = s
    for lane in range(0, pitch, WIDTH):
        _trace_back(levels, decisions, ends, lane, last, pitch)


@kernel("in float32[], out uint8[]")
def _add_signs(x, out):
    # x.size == out.size; turns levels, below 128, into symbols. Escapes have no sign.
    for i in range(out.size):
        level = out[i]
        sign = (x[i] < np.float32(0)) & (level > np.uint8(0)) & (level < np.uint8(ODD >> 1))
        out[i] = np.uint8(level << np.uint8(1)) | np.uint8(sign)


@kernel("in float32[], float32, in uint8[], out int64[]")
def _sum_errors(x, factor, symbols, sums):
    # x.size == symbols.size, sums.size == 8. Residues are below 2^13, so those of a tile fit 32
    # bits.
    for start in range(0, x.size, _ERROR_TILE):
        part, own = x[start : start + _ERROR_TILE], symbols[start : start + _ERROR_TILE]
        top = np.uint8(0)
        for i in range(own.size):
            top = max(top, own[i])
        if top >= np.uint8(ODD):
            _sum_escaping(part, factor, own, sums)
            continue
        a = b = c = of_a = of_b = of_c = _ZERO
        squares = np.int64(0)
        for i in range(own.size):
            h = np.int32(own[i] >> np.uint8(1))
            residue = _residue(np.float32(abs(part[i]) * factor), h)
            squares += np.int64(np.int32(residue * residue))
            a += np.int32(h == _ONE)
            b += np.int32(h == _TWO)
            c += np.int32(h > _TWO)
            of_a += residue if h == _ONE else _ZERO
            of_b += residue if h == _TWO else _ZERO
            of_c += residue if h > _TWO else _ZERO
        sums[0] += np.int64(a)
        sums[1] += np.int64(b)
        sums[2] += np.int64(c)
        sums[3] += np.int64(of_a)
        sums[4] += np.int64(of_b)
        sums[5] += np.int64(of_c)
        sums[6] += squares


@inline
def _residue(y, h):
    """Return y minus a level, in 1024ths of half a step."""
    return np.int32(np.rint(np.float32(np.float32(y - np.float32(h)) * _PARTS)))


@subroutine
def _sum_escaping(x, factor, symbols, sums):
    # As above, for elements some of which escape.
    for i in range(x.size):
        y, h = np.float32(abs(x[i]) * factor), np.int32(symbols[i] >> np.uint8(1))
        if h >= _ESCAPES:
            # As in `outlier_symbols`.
            odd, h = h == _ESCAPES, np.int32(np.float32(y + np.float32(0.5)))
            if (h + _ONE >> _ONE & _ONE) != np.int32(odd):
                h += _ONE - _TWO * (h & _ONE)
            sums[7] += 1
        residue = np.int64(_residue(y, h))
        sums[6] += residue * residue
        if h > _ZERO:
            k = min(h, _THREE) - _ONE
            sums[k] += 1
            sums[3 + k] += residue
