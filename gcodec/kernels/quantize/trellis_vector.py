"""Vectors of the search of paths: what levels cost, and by which way a state is reached.

Lanes take turns, at least `WIDTH` of them; a tile is some turns of all. Of each element there are
four candidates, the nearest level of each h mod 4, in that order: what they cost, as float32 in
four tiles that begin `APART` from each other, and halves of their symbols, the bytes of a uint32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.quantize.trellis import EVEN, MOST, NEXT, ODD
from gcodec.runtime.lanes import Emitter, block, floats, lanes

WIDTH = 8  # elements of a vector
TILE = 512  # elements of a tile, at most
APART = TILE + 16  # as stores a page apart hold each other up
LEVELS = MOST + 2  # for which there are costs: 0 to MOST, and those above
STATES = len(NEXT)


class _Coset(NamedTuple):
    """Levels of one h mod 4: 4j, 4j + 1, 4j + 2 and 4j − 1, which are the k-th of a quantiser.

    Attributes
    ----------
    up : float
        What is added to y before it is cut to 4j.
    h, k : int
        What is added to 4j, and to 2j.
    far : int or None
        Which distance the level has where j is 0; None where that is level 0.
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


@block("x", "classes", "at", "factor", "costs", "moved", "place", "metrics", "levels")
def candidates(e: Emitter) -> None:
    """Find the candidates of eight elements, and what they cost at a place of a tile."""
    builder, real, number = e.builder, floats(WIDTH), lanes(32, WIDTH)

    def every(value: int) -> Any:
        return number([value] * WIDTH)

    bits = e.magnitude_bits(e.load(e.address("x", "at"), real))
    y = builder.fmul(builder.bitcast(bits, real), e.splat(e.args["factor"], WIDTH))
    classes = builder.zext(e.load(e.address("classes", "at"), lanes(8, WIDTH), 1), number)
    models = builder.mul(classes, every(LEVELS))
    distances = [e.splat(builder.load(e.element(e.args["moved"], k)), WIDTH) for k in range(3)]
    square, found = builder.fmul(y, y), None
    for at, coset in enumerate(_COSETS):
        model = builder.add(models, every(CLASSES * LEVELS)) if at % 2 else models
        raised = builder.fadd(y, real([coset.up] * WIDTH))
        j = builder.ashr(builder.fptosi(raised, number), every(2))
        none = builder.icmp_signed("==", j, every(0))
        k = builder.add(builder.shl(j, every(1)), every(coset.k))
        h = builder.add(builder.shl(j, every(2)), every(coset.h))
        known = builder.icmp_signed("<", k, every(LEVELS - 1))
        column = builder.select(known, k, every(LEVELS - 1))
        rate = e.gathered(e.args["costs"], e.indices(builder.add(model, column)), real)
        distance = distances[2]
        if coset.far is not None:
            distance = builder.select(none, distances[coset.far], distance)
        off = builder.fsub(y, builder.fadd(builder.sitofp(h, real), distance))
        cost = builder.fadd(builder.fmul(off, off), rate)
        code = builder.select(known, h, every(coset.escape))
        if coset.far is None:
            rate = e.gathered(e.args["costs"], e.indices(model), real)
            zero = builder.fadd(square, rate)
            empty = builder.or_(none, builder.fcmp_ordered("<", zero, cost))
            cost = builder.select(empty, zero, cost)
            code = builder.select(empty, every(0), code)
        e.store(cost, e.element(e.address("metrics", "place"), APART * at))
        code = builder.shl(code, every(8 * at))
        found = code if found is None else builder.or_(found, code)
    e.store(found, e.address("levels", "at"))


@block("metrics", "place", "pitch", "end", "before", "ways")
def go_on(e: Emitter) -> None:
    """Go on by the levels of a tile in eight lanes, from their place in the first turn on.

    Turns are `pitch` elements apart, and so are the rows of what states cost before. It is noted
    by which way each state is reached.
    """
    builder, real, number = e.builder, floats(WIDTH), lanes(32, WIDTH)
    place, pitch = e.args["place"], e.args["pitch"]
    rows = [e.args["before"]]
    while len(rows) < STATES:
        rows.append(builder.gep(rows[-1], [pitch]))

    def one_turn(held: list[Any]) -> list[Any]:
        at, *costs = held
        first = builder.gep(e.args["metrics"], [at])
        cosets = [e.load(e.element(first, APART * k), real) for k in range(len(_COSETS))]
        decided, after = number([0] * WIDTH), []
        for state in range(STATES):
            one, two = (
                builder.fadd(costs[s], cosets[_coset(s, p)])
                for s in range(STATES)
                for p in range(2)
                if NEXT[s][p] == state
            )
            second = builder.fcmp_ordered("<", two, one)
            after.append(builder.select(second, two, one))
            way = builder.select(second, number([1 << state] * WIDTH), number([0] * WIDTH))
            decided = builder.or_(decided, way)
        way = builder.gep(e.args["ways"], [at])
        e.store(builder.trunc(decided, lanes(8, WIDTH)), way, 1)
        return [builder.add(at, pitch), *after]

    begin = [place, *(e.load(row, real) for row in rows)]
    end = e.args["end"]
    _, *costs = e.loop(begin, lambda held: builder.icmp_signed("<", held[0], end), one_turn)
    for cost, row in zip(costs, rows, strict=True):
        e.store(cost, row)


@block("levels", "ways", "ends", "lane", "top", "pitch")
def trace(e: Emitter) -> None:
    """Follow the best paths of eight lanes back from their ends, from a turn on.

    The halves of their symbols take the place of the ways.
    """
    builder, number, word = e.builder, lanes(32, WIDTH), lanes(8, WIDTH)

    def every(value: int) -> Any:
        return number([value] * WIDTH)

    def one_turn(held: list[Any]) -> list[Any]:
        at, s = held
        place = builder.gep(e.args["ways"], [at])
        way = builder.zext(e.load(place, word, 1), number)
        second = builder.and_(builder.lshr(way, s), every(1))
        parity = builder.xor(builder.lshr(s, every(1)), second)
        s = builder.or_(builder.shl(builder.and_(s, every(1)), every(1)), second)
        coset = builder.shl(parity, every(1))
        even = builder.icmp_unsigned("<", s, every(2))
        coset = builder.select(even, coset, builder.sub(every(3), coset))
        codes = e.load(builder.gep(e.args["levels"], [at]), number)
        code = builder.lshr(codes, builder.shl(coset, every(3)))
        e.store(builder.trunc(code, word), place, 1)
        return [builder.sub(at, e.args["pitch"]), s]

    begin = [builder.add(e.args["top"], e.args["lane"]), e.load(e.address("ends", "lane"), number)]
    e.loop(begin, lambda held: builder.icmp_signed(">=", held[0], held[0].type(0)), one_turn)


def _coset(state: int, parity: int) -> int:
    """Return h mod 4 of the levels, other than 0, of a state's quantiser and a parity."""
    return 2 * parity if state < 2 else 3 - 2 * parity
