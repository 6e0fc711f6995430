"""The order in which interleaved lanes code the elements of a tensor.

A tensor is cut into runs of 2^16 elements; the last run may be shorter. In a run of m elements
and L lanes, lane l codes the ⌊m / L⌋ consecutive elements from l·⌊m / L⌋ on. The m mod L elements
at the end of the run go to the first lanes, one each. Lanes take turns: symbol t·L + l of the
coded run is symbol t of lane l.
"""

from __future__ import annotations

import numpy as np

from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, Kernel, factory, kernel
from gcodec.runtime.lanes import Emitter, Value, block, floats, lanes

LOG2_RUN = 16
RUN = 1 << LOG2_RUN  # elements; a multiple of every number of lanes

_TILE = 16  # the largest number of lanes that one block transposes in registers
_DEPTH = 16  # turns that one block transposes; as float32, a cache line of each lane
_LINE = 64  # turns of a group of lanes that are transposed before the next group


@dispatched("gcodec.kernels.context.lane_order_cuda")
def to_turns(flat: np.ndarray, lanes: int, out: np.ndarray) -> None:
    """Reorder elements from tensor order to coding order, on the calling thread.

    Parameters
    ----------
    flat : (n,) uint8 array
        Whole runs; only the last run may be shorter. On the host, float32 is allowed too.
    lanes : int
        2, 8 or 32.
    out : (n,) array of the same dtype
    """
    _transposer(flat.dtype.name, min(lanes, _TILE), False)(flat, lanes, out)


@dispatched("gcodec.kernels.context.lane_order_cuda")
def from_turns(turns: np.ndarray, lanes: int, out: np.ndarray) -> None:
    """Reorder (n,) uint8 elements from coding order to tensor order; see `to_turns`."""
    _transposer(turns.dtype.name, min(lanes, _TILE), True)(turns, lanes, out)


def positions_of(turns: np.ndarray, n: int, lanes: int) -> np.ndarray:
    """Return the tensor positions of the elements at (k,) int64 positions of the coding order."""
    start = turns >> LOG2_RUN << LOG2_RUN
    size = np.minimum(n - start, RUN)
    length = size // lanes
    offset = turns - start
    interleaved = offset < length * lanes
    moved = np.where(interleaved, offset % lanes * length + offset // lanes, offset)
    return start + moved


def _tile(dtype: str, rows: int, inverse: bool) -> Intrinsic:
    """Make the block that transposes _DEPTH turns of `rows` lanes, or transposes them back."""

    @block("source", "lane", "length", "target", "turn", "lanes")
    def transpose_tile(e: Emitter) -> None:
        builder = e.builder
        vector = floats(_DEPTH) if dtype == "float32" else lanes(8, _DEPTH)

        def row_pointer(array: str, first: str, step: str, k: int) -> Value:
            index = builder.mul(e.args[step], e.args[step].type(k))
            return builder.gep(e.args[array], [builder.add(e.args[first], index)])

        def lane(k: int) -> Value:
            return row_pointer("target" if inverse else "source", "lane", "length", k)

        def turn(k: int) -> Value:
            array = "source" if inverse else "target"
            row = row_pointer(array, "turn", "lanes", k * _DEPTH // rows)
            return e.element(row, k * _DEPTH % rows)

        read, write = (turn, lane) if inverse else (lane, turn)
        vectors = [e.load(read(k), vector, 1) for k in range(rows)]
        low = [i // 2 + _DEPTH * (i % 2) for i in range(_DEPTH)]
        high = [i + _DEPTH // 2 for i in low]
        # Each round interleaves the first half of all elements with the second half.
        for _ in range((_DEPTH if inverse else rows).bit_length() - 1):
            pairs = zip(vectors[: rows // 2], vectors[rows // 2 :], strict=True)
            vectors = [
                builder.shuffle_vector(first, second, lanes(32, _DEPTH)(order))
                for first, second in pairs
                for order in (low, high)
            ]
        for k, row in enumerate(vectors):
            e.store(row, write(k), 1)

    return transpose_tile


_KINDS = ("uint8", False), ("uint8", True), ("float32", False)


@factory(lambda: ((dtype, rows, back) for dtype, back in _KINDS for rows in (2, 8, _TILE)))
def _transposer(dtype: str, rows: int, inverse: bool) -> Kernel:
    """Make the kernel for `rows` lanes; that for _TILE lanes also serves multiples of _TILE."""
    one_tile = _tile(dtype, rows, inverse)

    @kernel(f"in {dtype}[], int64, out {dtype}[]", f"{dtype} {rows} {inverse}", vectorized=False)
    def transpose_runs(source, lanes, out):
        # source.size == out.size; lanes % rows == 0. All lanes and turns of a tile exist.
        for start in range(0, source.size, RUN):
            size = min(RUN, source.size - start)
            length = size // lanes
            whole = length - length % _DEPTH
            for line in range(0, whole, _LINE):
                for lane in range(0, lanes, rows):
                    for t in range(line, min(line + _LINE, whole), _DEPTH):
                        flat, turn = start + lane * length + t, start + t * lanes + lane
                        one_tile(source, flat, length, out, turn, lanes)
            for t in range(whole, length):
                for lane in range(lanes):
                    flat, turn = start + lane * length + t, start + t * lanes + lane
                    if inverse:
                        out[flat] = source[turn]
                    else:
                        out[turn] = source[flat]
            for i in range(start + length * lanes, start + size):
                out[i] = source[i]

    return transpose_runs
