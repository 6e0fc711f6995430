"""Reductions whose results do not depend on the threads or the device.

Sums have a fixed order. A tile has 4096 elements. In a tile, lane t of 256 sums elements t, t +
256, … in float64, and a binary tree (128, 64, … 1) adds up the lanes. The sums of tiles are
reduced by the same rule until one sum remains. Squares of float32 are exact in float64, so a
device that fuses multiplication and addition computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, inline, kernel
from gcodec.runtime.lanes import BLOCK, Emitter, Value, block, doubles, floats, lanes
from gcodec.runtime.memory import aligned_empty, emit_prefetch, magnitude_bits

TILE = 4096
LANES = 256
COLUMN = 16  # lanes whose sums fit into registers, and whose float32 values fill a cache line
INFINITY_BITS = 0x7F800000  # of a float32; the bits of NaN are larger


class Moments(NamedTuple):
    """Statistics from one pass over an array of n float32 elements.

    Attributes
    ----------
    total, squares : float
        Sums of the values and of their squares, in float64, in the fixed order.
    largest : int
        Bit pattern of the largest absolute value; NaN is larger than infinity.
    """

    total: float
    squares: float
    largest: int


@dispatched("gcodec.kernels.numeric.reduce_cuda")
def moments(x: np.ndarray) -> Moments:
    """Return sum, sum of squares and largest absolute value of a (n,) float32 array."""
    tiles = -(-x.size // TILE)
    sums, squares = np.empty(tiles, np.float64), np.empty(tiles, np.float64)

    def task(start: int, stop: int) -> int:
        part = slice(start // TILE, -(-stop // TILE))
        scratch = aligned_empty(2 * LANES, np.float64), np.zeros(COLUMN, np.uint32)
        return int(_tile_moments(x[start:stop], *scratch, sums[part], squares[part]))

    largest = max(pool.run(task, x.size, TILE, x))
    return Moments(fold(sums), fold(squares), largest)


@dispatched("gcodec.kernels.numeric.reduce_cuda")
def sum_squares(x: np.ndarray) -> float:
    """Return the sum of squares of a (n,) float32 array, in float64, in the fixed order."""
    sums = np.empty(-(-x.size // TILE), np.float64)

    def task(start: int, stop: int) -> None:
        part = sums[start // TILE : -(-stop // TILE)]
        tile_squares(x[start:stop], TILE, 1, np.empty(LANES), part)

    pool.run(task, x.size, TILE, x)
    return fold(sums)


def tile_sums(values: np.ndarray) -> np.ndarray:
    """Return the sums of tiles of (n,) float64 values, as `fold` expects them."""
    sums = np.empty(-(-values.size // TILE), np.float64)
    _tile_sums(values, np.empty(LANES), sums)
    return sums


@dispatched("gcodec.kernels.numeric.reduce_cuda")
def fold(sums: np.ndarray) -> float:
    """Reduce the (n,) float64 sums of tiles to one sum."""
    while sums.size > 1:
        sums = tile_sums(sums)
    return float(sums[0]) if sums.size else 0.0


@dispatched("gcodec.kernels.numeric.reduce_cuda")
def max_abs_bits(x: np.ndarray) -> int:
    """Return the bit pattern of the largest |x| of (n,) float32; NaN is larger than infinity."""

    def task(start: int, stop: int) -> int:
        return int(_max_abs_bits(x[start:stop], np.empty(1, np.int32)))

    return max(pool.run(task, x.size, 1, x))


def float_of_bits(bits: int | Deferred) -> float:
    """Return the float32 with a bit pattern, such as that of `max_abs_bits`; wait for it."""
    return float(np.uint32(int(bits)).view(np.float32))


@dispatched("gcodec.kernels.numeric.reduce_cuda")
def max_abs_bits_corrected(x: np.ndarray, residual: np.ndarray, decay: np.float32) -> int:
    """Return the bit pattern of the largest |x + decay·residual| of (n,) float32 arrays."""

    def task(start: int, stop: int) -> int:
        top = np.empty(1, np.int32)
        return int(_max_abs_bits_corrected(x[start:stop], residual[start:stop], decay, top))

    return max(pool.run(task, x.size, 1, x))


@inline
def key_of(pattern):
    """Return the key of the bit pattern of a float32, an int32; see `ranges`."""
    return np.int32(pattern ^ np.int32(np.int32(pattern >> np.int32(31)) & 0x7FFFFFFF))


def emit_range(e: Emitter, values: Callable[[Value], Value], place: Value) -> None:
    """Emit the least and the greatest key of the elements from "i" to "stop".

    Their number is a positive multiple of 32.
    `values` emits the 32 float32 elements from an index on. The keys go to two int32 at `place`.
    """
    builder, kind = e.builder, lanes(32)
    first, stop = e.args["i"], e.args["stop"]

    def body(i: Value, least: Value, greatest: Value) -> list[Value]:
        bits = builder.bitcast(values(i), kind)
        negative = builder.ashr(bits, kind([31] * BLOCK))
        keys = builder.xor(bits, builder.and_(negative, kind([0x7FFFFFFF] * BLOCK)))
        return [e.smaller(keys, least), e.larger(keys, greatest)]

    begin = [kind([0x7FFFFFFF] * BLOCK), kind([-0x80000000] * BLOCK)]
    extremes = e.count(first, stop, first.type(BLOCK), begin, body)
    for at, (name, keys) in enumerate(zip(("smin", "smax"), extremes, strict=True)):
        builder.store(e.reduced(name, keys), e.element(place, at))


def top_of_keys(keys: np.ndarray) -> int:
    """Return the bit pattern of the largest magnitude of values.

    Parameters
    ----------
    keys : (k, 2) int32 array
        Least and greatest key of each bucket of the values; see `gcodec.kernels.numeric.ranges`.
    """
    return max(int(keys[:, 1].max()), ~int(keys[:, 0].min())) if keys.size else 0


def ranges_of_keys(keys: np.ndarray) -> tuple[np.ndarray, bool]:
    """Turn keys, see `top_of_keys`, into the result of `ranges`, in place."""
    if top_of_keys(keys) >= INFINITY_BITS:
        return keys.view(np.float32), False
    keys ^= (keys >> 31) & 0x7FFFFFFF
    ranges = keys.view(np.float32)
    ranges += 0  # −0 becomes +0
    return ranges, True


def all_finite(x: np.ndarray) -> bool:
    """Return whether a (n,) float32 array contains neither NaN nor infinity."""
    return max_abs_bits(x) < INFINITY_BITS


def all_finite_corrected(x: np.ndarray, residual: np.ndarray, decay: np.float32) -> bool:
    """Return whether x + decay·residual of (n,) float32 arrays is finite everywhere."""
    return max_abs_bits_corrected(x, residual, decay) < INFINITY_BITS


@dispatched("gcodec.kernels.numeric.reduce_cuda")
def newly_infinite(
    values: np.ndarray, x: np.ndarray, residual: np.ndarray, decay: np.float32
) -> bool:
    """Return whether (n,) values contain NaN or infinity, and x + decay·residual does not."""
    return not all_finite(values) and all_finite_corrected(x, residual, decay)


@inline
def add_lanes(lanes):
    """Return the sum of LANES float64 lanes, added by a binary tree."""
    width = LANES // 2
    while width >= 1:
        for t in range(width):  # t + width < 2 * width <= LANES
            lanes[t] += lanes[t + width]
        width //= 2
    return lanes[0]


def emit_column(
    e: Emitter, terms: Callable[[Value, int], list[Value]], corrected: bool = False
) -> list[Value]:
    """Emit sums over the rows of a whole tile, for COLUMN lanes from element i of x on.

    Parameters
    ----------
    e : Emitter
        Its arguments include "x", "i" and "next". The columns of a tile prefetch the cache lines
        of the next tile in order, one for each row, from element `next` of the arrays on.
    terms : callable
        Gets the float32 vector and the number of a row, and returns float64 vectors to sum.
    corrected : bool
        Whether x + decay·residual takes the place of x; the arguments then also include "residual"
        and "decay".
    """
    names = ("x", "residual") if corrected else ("x",)
    totals: list[Value] = []
    for row in range(TILE // LANES):
        for name in names:
            emit_prefetch(e.builder, e.element(e.address(name, "next"), row * COLUMN))
        x, *former = (
            e.load(e.element(e.address(name, "i"), row * LANES), floats(COLUMN)) for name in names
        )
        if corrected:
            x = e.builder.fadd(x, e.builder.fmul(e.splat(e.args["decay"], COLUMN), *former))
        vectors = terms(x, row)
        totals = totals or [doubles(COLUMN)([0.0] * COLUMN)] * len(vectors)
        totals = [e.builder.fadd(a, b) for a, b in zip(totals, vectors, strict=True)]
        e.in_order()
    return totals


@block("x", "i", "next", "sums", "squares", "t", "largest")
def _moments_column(e: Emitter) -> None:
    """Sum a column of a tile of x from i, and its squares, to lanes from t; raise `largest`."""
    builder = e.builder
    at = e.args["largest"]
    top = [e.load(at, lanes(32, COLUMN))]

    def terms(x: Value, row: int) -> list[Value]:
        top[0] = e.larger(e.magnitude_bits(x), top[0])
        wide = builder.fpext(x, doubles(COLUMN))
        return [wide, builder.fmul(wide, wide)]

    total, square = emit_column(e, terms)
    e.store(total, e.address("sums", "t"), 8)
    e.store(square, e.address("squares", "t"), 8)
    e.store(top[0], at)


@inline
def finish_moments(x, scratch, top, sums, squares):
    """Sum the last tile of x if it is not whole, and return the largest magnitude of all tiles.

    See `_tile_moments` for the arguments; `top` has the largest magnitudes of whole tiles.
    """
    lanes_1, lanes_2 = scratch[:LANES], scratch[LANES:]
    tail = x[x.size // TILE * TILE :]
    if tail.size:
        scratch[:] = 0.0
        for i in range(tail.size):
            value = np.float64(tail[i])
            lanes_1[i % LANES] += value
            lanes_2[i % LANES] += value * value
            top[0] = max(top[0], magnitude_bits(tail[i]))
        sums[sums.size - 1], squares[sums.size - 1] = add_lanes(lanes_1), add_lanes(lanes_2)
    largest = np.uint32(0)
    for k in range(top.size):
        largest = max(largest, top[k])
    return largest


@kernel("in float32[], out float64[], out uint32[], out float64[], out float64[]")
def _tile_moments(x, scratch, top, sums, squares):
    # sums.size == squares.size == ceil(x.size / TILE), scratch.size == 2 * LANES; top is COLUMN
    # zeros. Only the last tile may be shorter.
    lanes_1, lanes_2 = scratch[:LANES], scratch[LANES:]
    for tile in range(x.size // TILE):
        for t in range(0, LANES, COLUMN):  # a column ends inside its tile
            at, ahead = tile * TILE + t, (tile + 1) * TILE + t * (LANES // COLUMN)
            _moments_column(x, at, ahead, lanes_1, lanes_2, t, top)
        sums[tile], squares[tile] = add_lanes(lanes_1), add_lanes(lanes_2)
    return finish_moments(x, scratch, top, sums, squares)


def _squares_block(add: bool) -> Intrinsic:
    """Make the block that writes or adds squares of 32 elements of x from i to lanes from t."""

    @block("x", "i", "lanes", "t")
    def squares(e: Emitter) -> None:
        builder = e.builder
        source, target = e.address("x", "i"), e.address("lanes", "t")
        wide = builder.fpext(e.fetched(source, floats()), doubles())
        square = builder.fmul(wide, wide)
        if add:
            square = builder.fadd(e.load(target, doubles(), 8), square)
        e.store(square, target, 8)

    return squares


_write_squares = _squares_block(False)
_add_squares = _squares_block(True)


@block("lanes")
def _fold_lanes(e: Emitter) -> None:
    """Add up LANES lanes by a binary tree to 16 sums, which the first lanes then contain."""
    builder = e.builder
    first = e.args["lanes"]
    sums = [e.load(e.element(first, at), doubles(16), 8) for at in range(0, LANES, 16)]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [builder.fadd(sums[k], sums[half + k]) for k in range(half)]
    e.store(sums[0], first, 8)


def bucket_squares(bucket: int) -> Intrinsic:
    """Make the block that writes the sum of squares of `bucket` elements of x from i to a lane.

    `bucket` is a power of two from 32 to TILE. All sums stay in registers. The values should be in
    a cache, because the block does not read them in order.
    """
    across = min(bucket, LANES)

    @block("x", "i", "lanes")
    def squares(e: Emitter) -> None:
        builder, source = e.builder, e.address("x", "i")

        def column(first: int) -> Value:
            total = None
            for row in range(0, bucket, across):
                values = e.load(e.element(source, row + first), floats(COLUMN))
                wide = builder.fpext(values, doubles(COLUMN))
                square = builder.fmul(wide, wide)
                total = square if total is None else builder.fadd(total, square)
            return total

        def added(first: int, step: int) -> Value:
            """Add up every `step`-th column from `first` on, in the order of the tree."""
            if step * COLUMN == across:
                return column(first * COLUMN)
            return builder.fadd(added(first, 2 * step), added(first + step, 2 * step))

        total = added(0, 1)
        while (half := total.type.count // 2) > 0:
            low, high = e.parts(total, half)
            total = builder.fadd(low, high)
        e.store(total, e.args["lanes"], 8)

    return squares


@kernel("in float32[], int64, int64, out float64[], out float64[]", vectorized=False)
def tile_squares(x, bucket, tiles, lanes, sums):
    """Sum the squares of each tile of each bucket."""
    # lanes.size == LANES; sums.size == ceil(x.size / bucket) * tiles, tiles == ceil(bucket / TILE)
    for b in range(sums.size // tiles):
        values = x[b * bucket : b * bucket + bucket]
        for tile in range((values.size + TILE - 1) // TILE):
            part = values[tile * TILE : tile * TILE + TILE]
            whole = part.size - part.size % BLOCK
            if part.size < LANES:
                lanes[:] = 0.0
            for i in range(0, min(whole, LANES), BLOCK):
                _write_squares(part, i, lanes, i)
            for i in range(LANES, whole, BLOCK):  # i % LANES + BLOCK <= LANES
                _add_squares(part, i, lanes, i % LANES)
            for i in range(whole, part.size):
                value = np.float64(part[i])
                lanes[i % LANES] += value * value
            width = LANES // 2
            if part.size > 16:
                _fold_lanes(lanes)
                width = 8
            # Lanes after the part are 0, and adding them changes nothing, as squares are not −0.
            while width >= part.size and width > 1:
                width //= 2
            while width >= 1:
                for t in range(width):  # 2 * width <= LANES
                    lanes[t] += lanes[t + width]
                width //= 2
            sums[b * tiles + tile] = lanes[0]


@kernel("in float64[], out float64[], out float64[]")
def _tile_sums(x, lanes, sums):
    # sums.size == ceil(x.size / TILE); lanes.size == LANES
    for tile in range(sums.size):
        values = x[tile * TILE : tile * TILE + TILE]
        lanes[:] = 0.0
        for i in range(values.size):  # i % LANES < LANES
            lanes[i % LANES] += values[i]
        sums[tile] = add_lanes(lanes)


@inline
def largest_bits(values, top):
    """Return the bits of the largest magnitude of values, or `top` if they are larger."""
    for i in range(values.size):
        top = max(top, magnitude_bits(values[i]))
    return top


def _emit_largest(e: Emitter, values: Callable[[Value], Value]) -> None:
    """Emit a store to "top": the bits of the largest magnitude of the elements below "stop".

    "stop" is a multiple of 32; `values` emits the 32 float32 elements from an index on.
    """
    stop, kind = e.args["stop"], lanes(32)

    def body(i: Value, top: Value) -> list[Value]:
        return [e.larger(e.magnitude_bits(values(i)), top)]

    (top,) = e.count(stop.type(0), stop, stop.type(BLOCK), [kind([0] * BLOCK)], body)
    e.builder.store(e.reduced("smax", top), e.args["top"])


@block("x", "stop", "top")
def _largest(e: Emitter) -> None:
    """Write the bits of the largest magnitude of the elements of x below `stop`."""
    _emit_largest(e, lambda i: e.fetched(e.builder.gep(e.args["x"], [i]), floats()))


@block("x", "residual", "stop", "decay", "top")
def _largest_corrected(e: Emitter) -> None:
    """Write the bits of the largest magnitude of x + decay·residual below `stop`."""
    builder, decay = e.builder, e.splat(e.args["decay"])

    def values(i: Value) -> Value:
        x, residual = (
            e.fetched(builder.gep(e.args[name], [i]), floats()) for name in ("x", "residual")
        )
        return builder.fadd(x, builder.fmul(decay, residual))

    _emit_largest(e, values)


@kernel("in float32[], out int32[]")
def _max_abs_bits(x, top):
    # top.size == 1
    whole = x.size // BLOCK * BLOCK
    _largest(x, whole, top)
    return largest_bits(x[whole:], np.uint32(top[0]))


@kernel("in float32[], in float32[], float32, out int32[]")
def _max_abs_bits_corrected(x, residual, decay, top):
    # x.size == residual.size, top.size == 1
    whole = x.size // BLOCK * BLOCK
    _largest_corrected(x, residual, whole, decay, top)
    largest = np.uint32(top[0])
    for i in range(whole, x.size):
        largest = max(largest, magnitude_bits(x[i] + decay * residual[i]))
    return largest
