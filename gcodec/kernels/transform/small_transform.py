"""Linear transforms of small chunks that lie end to end, along each of their axes.

A chunk has three sizes a, b, c, of which some may be 1. Along an axis of n values it is multiplied
by a matrix T: y(j) is the sum over v of x(v)·T(v, j), each product and each sum rounded to
float32, from +0 on, in rising order of v. The last axis comes first, then the one before it; an
axis of one value is left as it is.

In memory, x(v) lies v − j strides from where y(j) will. So for each distance in turn a whole row
of neighbours is multiplied by weights that repeat from chunk to chunk: those of T, and 0 where the
distance leads out of the axis, which adds ±0 to a sum that is never −0. No value changes place.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel, subroutine
from gcodec.runtime.lanes import BLOCK, Emitter, block, floats

MOST = 1 << 10  # values of a chunk
_TILE = 1 << 11  # values that stay in the first cache from axis to axis
Sizes = tuple[int, int, int]
Matrices = tuple[bytes, bytes, bytes]
"""Of each axis the bytes of a float32 matrix: T(v, j) is entry v·n + j."""


@dispatched("gcodec.kernels.transform.small_transform_cuda")
def transform(x: np.ndarray, sizes: Sizes, matrices: Matrices, out: np.ndarray) -> None:
    """Transform chunks, on the calling thread.

    Parameters
    ----------
    x : (m·a·b·c,) float32 array
    sizes : (int, int, int)
        Of a product of at most `MOST`.
    matrices : three bytes objects
    out : float32 array
        As large as `x`; it may be the same.
    """
    half = _TILE + 2 * math.prod(sizes) + BLOCK  # zeros lie on both sides of a tile
    room = np.zeros(2 * half, np.float32)
    _transform(x, *sizes, _weights(sizes, matrices), room[:half], room[half:], out)


@functools.lru_cache(maxsize=32)
def _weights(sizes: Sizes, matrices: Matrices) -> np.ndarray:
    """Return rows of weights, as long as a chunk and a block: of each axis, of each distance."""
    (a, b, c), size = sizes, math.prod(sizes)
    lane, rows = np.arange(size + BLOCK) % size, [np.empty((0, size + BLOCK), np.float32)]
    for n, stride, matrix in zip((c, b, a), (1, c, b * c), matrices[::-1], strict=True):
        j = lane // stride % n
        v = j + np.arange(1 - n, n)[:, None]
        entries = np.frombuffer(matrix, np.float32).reshape(n, n)
        inside = (v >= 0) & (v < n)
        if n > 1:
            rows.append(np.where(inside, entries[np.clip(v, 0, n - 1), j], np.float32(0)))
    return np.concatenate(rows).reshape(-1)


@block("x", "at", "stride", "weights", "row", "length", "count", "out", "to")
def _add_up(e: Emitter) -> None:
    """Set 32 values to the sum of `count` > 0 rows of neighbours times weights."""
    builder = e.builder
    source, factors = e.address("x", "at"), e.address("weights", "row")
    index = e.args["count"].type
    before = builder.block
    inside = builder.append_basic_block("each_distance")
    behind = builder.append_basic_block("all_distances")
    builder.branch(inside)
    builder.position_at_end(inside)
    k = builder.phi(index)
    values, weights = builder.phi(source.type), builder.phi(factors.type)
    total = builder.phi(floats())
    product = builder.fmul(e.load(values, floats()), e.load(weights, floats()))
    added = builder.fadd(total, product)
    after = builder.add(k, index(1))
    for phi, first, then in (
        (k, index(0), after),
        (values, source, builder.gep(values, [e.args["stride"]])),
        (weights, factors, builder.gep(weights, [e.args["length"]])),
        (total, floats()([0.0] * BLOCK), added),
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(then, inside)
    builder.cbranch(builder.icmp_signed("<", after, e.args["count"]), inside, behind)
    builder.position_at_end(behind)
    e.store(added, e.address("out", "to"))


@subroutine(variant="along")
def _along(x, stride, n, size, weights, row, count, out):
    """Transform `count` values along an axis; they lie behind `size` others, as many follow.

    0 < stride < stride * n <= size, x.size == out.size >= count + 2 * size + 32; and from `row`
    on there are 2 * n - 1 rows of size + 32 weights.
    """
    at = row
    for i in range(0, count, BLOCK):
        first = size + i - (n - 1) * stride  # the last that is read is at most size + i + size
        _add_up(x, first, stride, weights, at, size + BLOCK, 2 * n - 1, out, size + i)
        at = row + (i + BLOCK) % size


@kernel(
    "in float32[], int64, int64, int64, in float32[], out float32[], out float32[], out float32[]"
)
def _transform(x, a, b, c, weights, one, two, out):
    # x.size == out.size, a multiple of size == a * b * c; one and two: _TILE + 2 * size + 32 zeros
    # each; weights: those of a, b, c.
    size = a * b * c
    tile = _TILE // size * size
    for start in range(0, x.size, tile):
        count = min(tile, x.size - start)
        values, inside, beyond = x[start : start + count], one[size:], one[size + count :]
        for i in range(values.size):
            inside[i] = values[i]
        # What is left there of the tile before might pass float32 and then be multiplied by 0.
        for i in range(beyond.size if count < tile else 0):
            beyond[i] = np.float32(0)
        row, stride = 0, 1
        for axis in range(3):
            n = c if axis == 0 else b if axis == 1 else a
            if n > 1:
                _along(one, stride, n, size, weights, row, count, two)
                one, two = two, one
                row += (2 * n - 1) * (size + BLOCK)
                stride *= n
        found, here = one[size:], out[start : start + count]
        for i in range(here.size):
            here[i] = found[i]
