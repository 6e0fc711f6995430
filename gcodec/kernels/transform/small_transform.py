"""Linear transforms of contiguous small chunks, along each of their axes.

A chunk has three sizes a, b, c, some of which may be 1. Along an axis of n values it is multiplied
by a matrix T: y(j) is the sum of x(v)·T(v, j) over v, starting at +0, in rising order of v; each
product and each sum is rounded to float32. The axes are processed from the last to the first; an
axis of one value does not change.

In memory, x(v) is v − j strides after the place of y(j). So for each distance, a whole row of
neighbors is multiplied by weights that repeat from chunk to chunk: entries of T, or 0 for a
neighbor outside the axis, which adds ±0 to a sum that is never −0. No value changes its place.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel, subroutine
from gcodec.runtime.lanes import BLOCK, Emitter, block, floats

MOST = 1 << 10  # values of the largest chunk
_TILE = 1 << 11  # values that fit into the first-level cache
Sizes = tuple[int, int, int]
Matrices = tuple[bytes, bytes, bytes]
"""The bytes of a float32 matrix for each axis; T(v, j) is entry v·n + j."""


@dispatched("gcodec.kernels.transform.small_transform_cuda")
def transform(x: np.ndarray, sizes: Sizes, matrices: Matrices, out: np.ndarray) -> None:
    """Transform chunks, on the calling thread.

    Parameters
    ----------
    x : (m·a·b·c,) float32 array
    sizes : (int, int, int)
        Sizes a, b, c of a chunk; their product is at most `MOST`.
    matrices : three bytes objects
        See `Matrices`.
    out : float32 array
        Array as large as `x`, or `x` itself.
    """
    half = _TILE + 2 * math.prod(sizes) + BLOCK  # a tile between zeros
    buffers = np.zeros(2 * half, np.float32)
    _transform(x, *sizes, _weights(sizes, matrices), buffers[:half], buffers[half:], out)


@functools.lru_cache(maxsize=32)
def _weights(sizes: Sizes, matrices: Matrices) -> np.ndarray:
    """Return rows of weights for each axis and distance, as long as a chunk and a block."""
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
    """Set 32 values to the sum of `count` > 0 rows of neighbors times weights.

    The loop tests its condition at the end, which is faster than `Emitter.loop`.
    """
    builder = e.builder
    source, factors = e.address("x", "at"), e.address("weights", "row")
    index = e.args["count"].type
    entry = builder.block
    body = builder.append_basic_block("each_distance")
    done = builder.append_basic_block("all_distances")
    builder.branch(body)
    builder.position_at_end(body)
    k = builder.phi(index)
    values, weights = builder.phi(source.type), builder.phi(factors.type)
    total = builder.phi(floats())
    product = builder.fmul(e.load(values, floats()), e.load(weights, floats()))
    added = builder.fadd(total, product)
    after = builder.add(k, index(1))
    for phi, first, following in (
        (k, index(0), after),
        (values, source, builder.gep(values, [e.args["stride"]])),
        (weights, factors, builder.gep(weights, [e.args["length"]])),
        (total, floats()([0.0] * BLOCK), added),
    ):
        phi.add_incoming(first, entry)
        phi.add_incoming(following, body)
    builder.cbranch(builder.icmp_signed("<", after, e.args["count"]), body, done)
    builder.position_at_end(done)
    e.store(added, e.address("out", "to"))


@subroutine
def _along(x, stride, n, size, weights, row, count, out):
    """Transform `count` values along an axis; `size` zeros precede them, and `size` follow.

    0 < stride < stride * n <= size, x.size == out.size >= count + 2 * size + 32; 2 * n - 1 rows of
    size + 32 weights start at `row`.
    """
    at = row
    for i in range(0, count, BLOCK):
        first = size + i - (n - 1) * stride  # the last index that is read is at most 2 * size + i
        _add_up(x, first, stride, weights, at, size + BLOCK, 2 * n - 1, out, size + i)
        at = row + (i + BLOCK) % size


@kernel(
    "in float32[], int64, int64, int64, in float32[], out float32[], out float32[], out float32[]"
)
def _transform(x, a, b, c, weights, one, two, out):
    # x.size == out.size, a multiple of size == a * b * c; one and two: _TILE + 2 * size + 32 zeros
    # each; weights: see _weights.
    size = a * b * c
    tile = _TILE // size * size
    for start in range(0, x.size, tile):
        count = min(tile, x.size - start)
        values, inside = x[start : start + count], one[size:]
        for i in range(values.size):
            inside[i] = values[i]
        # A remainder of the preceding tile might overflow float32 and then be multiplied by 0.
        for i in range(size + count, one.size if count < tile else 0):
            one[i] = two[i] = np.float32(0)
        row, stride = 0, 1
        for axis in range(3):
            n = c if axis == 0 else b if axis == 1 else a
            if n > 1:
                _along(one, stride, n, size, weights, row, count, two)
                one, two = two, one
                row += (2 * n - 1) * (size + BLOCK)
                stride *= n
        result, target = one[size:], out[start : start + count]
        for i in range(target.size):
            target[i] = result[i]
