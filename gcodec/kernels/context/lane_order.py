"""The order in which lanes that take turns code the runs of a tensor.

A tensor is cut into runs of 2^16 elements, of which the last may have fewer. In a run of m
elements with L lanes, lane l has the ⌊m / L⌋ that follow each other from l·⌊m / L⌋ on; of those
that are left behind all, each of the first lanes has one more. Lanes take turns, so that coded
symbol t·L + l is the t-th of lane l.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, kernel
from gcodec.runtime.lanes import Emitter, block, floats, lanes

LOG2_RUN = 16
RUN = 1 << LOG2_RUN  # elements; a multiple of all counts of lanes

_TILE = 16  # lanes, at most, that are turned over in registers
_DEPTH = 16  # and turns; as float32, a cache line of each lane
_LINE = 64  # turns of each lane that are turned over before those of the next lanes


@dispatched("gcodec.kernels.context.lane_order_cuda")
def to_turns(flat: np.ndarray, lanes: int, out: np.ndarray) -> None:
    """Put elements in the order in which they are coded, on the calling thread.

    Parameters
    ----------
    flat : (n,) uint8 array
        Whole runs, but for the last. On the host it may be float32.
    lanes : int
        2, 8 or 32.
    out : (n,) array of the same kind
    """
    _turning(flat.dtype.name, min(lanes, _TILE), False)(flat, lanes, out)


@dispatched("gcodec.kernels.context.lane_order_cuda")
def from_turns(turns: np.ndarray, lanes: int, out: np.ndarray) -> None:
    """Put (n,) uint8 elements back in the order of the tensor; see `to_turns`."""
    _turning(turns.dtype.name, min(lanes, _TILE), True)(turns, lanes, out)


def places_of(turns: np.ndarray, n: int, lanes: int) -> np.ndarray:
    """Return where in a tensor of n elements those are that are coded at (k,) int64 turns."""
    start = turns >> LOG2_RUN << LOG2_RUN
    size = np.minimum(n - start, RUN)
    length = size // lanes
    at, inside = turns - start, turns - start < length * lanes
    found: np.ndarray = start + np.where(inside, at % lanes * length + at // lanes, at)
    return found


def _tile(kind: str, rows: int, back: bool) -> Any:
    """Make the block that turns over so many lanes, of a vector each; or back."""

    @block("source", "lane", "length", "target", "turn", "lanes")
    def turn_tile(e: Emitter) -> None:
        builder = e.builder
        vector = floats(_DEPTH) if kind == "float32" else lanes(8, _DEPTH)

        def far(name: str, first: str, step: str, k: int) -> Any:
            index = builder.mul(e.args[step], e.args[step].type(k))
            return builder.gep(e.args[name], [builder.add(e.args[first], index)])

        def lane(k: int) -> Any:
            return far("target" if back else "source", "lane", "length", k)

        def turn(k: int) -> Any:
            row = far("source" if back else "target", "turn", "lanes", k * _DEPTH // rows)
            return e.element(row, k * _DEPTH % rows)

        given, made = (turn, lane) if back else (lane, turn)
        held = [e.load(given(k), vector, 1) for k in range(rows)]
        low = [i // 2 + _DEPTH * (i % 2) for i in range(_DEPTH)]
        high = [i + _DEPTH // 2 for i in low]
        # Each round puts an element beside the one that is half of all further on.
        for _ in range((_DEPTH if back else rows).bit_length() - 1):
            pairs = zip(held[: rows // 2], held[rows // 2 :], strict=True)
            mixed = [[_mixed(builder, both, k) for k in (low, high)] for both in pairs]
            held = [row for both in mixed for row in both]
        for k, row in enumerate(held):
            e.store(row, made(k), 1)

    return turn_tile


def _mixed(builder: Any, both: tuple[Any, Any], order: list[int]) -> Any:
    return builder.shuffle_vector(*both, lanes(32, len(order))(order))


@factory(lambda: itertools.product(("uint8", "float32"), (2, 8, _TILE), (False, True)))
def _turning(kind: str, rows: int, back: bool) -> Kernel:
    """Make the kernel for so many lanes, or for multiples of the most; to turns, or back."""
    one_tile = _tile(kind, rows, back)

    @kernel(f"in {kind}[], int64, out {kind}[]", f"{kind} {rows} {back}")
    def turn_over(given, lanes, out):
        # given.size == out.size; lanes % rows == 0. Tiles are of lanes and turns that there are.
        for start in range(0, given.size, RUN):
            size = min(RUN, given.size - start)
            length = size // lanes
            whole = length - length % _DEPTH
            for line in range(0, whole, _LINE):
                for lane in range(0, lanes, rows):
                    for t in range(line, min(line + _LINE, whole), _DEPTH):
                        flat, turn = start + lane * length + t, start + t * lanes + lane
                        one_tile(given, flat, length, out, turn, lanes)
            for t in range(whole, length):
                for lane in range(lanes):
                    flat, turn = start + lane * length + t, start + t * lanes + lane
                    if back:
                        out[flat] = given[turn]
                    else:
                        out[turn] = given[flat]
            for i in range(start + length * lanes, start + size):
                out[i] = given[i]

    return turn_over
