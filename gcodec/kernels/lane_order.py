"""The order in which lanes that take turns code the runs of a tensor.

A tensor is cut into runs of 2^16 elements, of which the last may have fewer. In a run of m
elements with L lanes, lane l has the ⌊m / L⌋ that follow each other from l·⌊m / L⌋ on; of those
that are left behind all, each of the first lanes has one more. Lanes take turns, so that coded
symbol t·L + l is the t-th of lane l.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.device import twinned
from gcodec.kernels.jit import kernel
from gcodec.kernels.lanes import Emitter, block, lanes

LOG2_RUN = 16
RUN = 1 << LOG2_RUN  # elements; a multiple of all counts of lanes

_TILE = 16  # rows and columns that are turned over in registers
_LINE = 64  # bytes of each lane that are turned over before those of the next lanes


@twinned("lane_order")
def to_turns(flat: np.ndarray, lanes: int, out: np.ndarray) -> None:
    """Put (n,) uint8 elements in the order in which they are coded, on the calling thread.

    Parameters
    ----------
    flat : (n,) uint8 array
        Whole runs, but for the last.
    lanes : int
    out : (n,) uint8 array
    """
    _to_turns(flat, lanes, out)


@twinned("lane_order")
def from_turns(turns: np.ndarray, lanes: int, out: np.ndarray) -> None:
    """Put elements back in the order of the tensor; see `to_turns`."""
    _from_turns(turns, lanes, out)


def places_of(turns: np.ndarray, n: int, lanes: int) -> np.ndarray:
    """Return where in a tensor of n elements those are that are coded at (k,) int64 turns."""
    start = turns >> LOG2_RUN << LOG2_RUN
    size = np.minimum(n - start, RUN)
    length = size // lanes
    at, inside = turns - start, turns - start < length * lanes
    found: np.ndarray = start + np.where(inside, at % lanes * length + at // lanes, at)
    return found


@block("source", "first", "stride", "target", "place", "pitch")
def _turn_tile(e: Emitter) -> None:
    """Write the columns of 16 × 16 bytes as rows."""
    builder, first, place = e.builder, e.args["first"], e.args["place"]

    def at(name: str, index: object, k: int, step: str) -> object:
        far = builder.mul(e.args[step], e.args[step].type(k))
        return builder.gep(e.args[name], [builder.add(index, far)])

    kind, order = lanes(8, _TILE), lanes(32, _TILE)
    rows = [e.load(at("source", first, k, "stride"), kind, 1) for k in range(_TILE)]
    low = [i // 2 + _TILE * (i % 2) for i in range(_TILE)]
    high = [i + _TILE // 2 for i in low]
    # Each round puts a row beside the one that is half of all further on.
    for _ in range(4):
        pairs = zip(rows[: _TILE // 2], rows[_TILE // 2 :], strict=True)
        mixed = [[builder.shuffle_vector(*both, order(k)) for k in (low, high)] for both in pairs]
        rows = [row for both in mixed for row in both]
    for k, row in enumerate(rows):
        e.store(row, at("target", place, k, "pitch"), 1)


@kernel("in uint8[], int64, out uint8[]")
def _to_turns(flat, lanes, out):
    # flat.size == out.size. Tiles are of 16 lanes and 16 turns that there are.
    for start in range(0, flat.size, RUN):
        size = min(RUN, flat.size - start)
        length = size // lanes
        whole = length - length % _TILE if lanes % _TILE == 0 else 0
        for line in range(0, whole, _LINE):
            for lane in range(0, lanes, _TILE):
                for t in range(line, min(line + _LINE, whole), _TILE):
                    source, target = start + lane * length + t, start + t * lanes + lane
                    _turn_tile(flat, source, length, out, target, lanes)
        for t in range(whole, length):
            for lane in range(lanes):
                out[start + t * lanes + lane] = flat[start + lane * length + t]
        for i in range(start + length * lanes, start + size):
            out[i] = flat[i]


@kernel("in uint8[], int64, out uint8[]")
def _from_turns(turns, lanes, out):
    # As above, the other way around.
    for start in range(0, turns.size, RUN):
        size = min(RUN, turns.size - start)
        length = size // lanes
        whole = length - length % _TILE if lanes % _TILE == 0 else 0
        for line in range(0, whole, _LINE):
            for lane in range(0, lanes, _TILE):
                for t in range(line, min(line + _LINE, whole), _TILE):
                    source, target = start + t * lanes + lane, start + lane * length + t
                    _turn_tile(turns, source, lanes, out, target, length)
        for t in range(whole, length):
            for lane in range(lanes):
                out[start + lane * length + t] = turns[start + t * lanes + lane]
        for i in range(start + length * lanes, start + size):
            out[i] = turns[i]
