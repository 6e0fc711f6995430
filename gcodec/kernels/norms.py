"""Norms of buckets: of Euclid, by the fixed order of sums, or the largest magnitude."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels import pool
from gcodec.kernels.device import twinned
from gcodec.kernels.jit import kernel
from gcodec.kernels.lanes import BLOCK, Emitter, block, doubles, floats
from gcodec.kernels.memory import bits_float, float_bits
from gcodec.kernels.reduce import INFINITY_BITS, LANES, TILE, max_abs_bits, sum_squares

Norm = Literal["l2", "max"]

_PART = 1 << 18  # elements whose norms are made at a time


@twinned("norms")
def norms(x: np.ndarray, bucket: int, kind: Norm) -> np.ndarray:
    """Norms of the buckets of a (n,) float32 array, each rounded once to float32.

    Parameters
    ----------
    x : (n,) float32 array
    bucket : int
        Elements of a bucket, of which the last may have fewer.
    kind : {"l2", "max"}

    Returns
    -------
    (ceil(n / bucket),) float32 array
        Not finite where x is not, or where the norm passes float32.
    """
    out = np.empty(-(-x.size // bucket), np.float32)
    if bucket >= pool.SEGMENT:
        for b in range(out.size):
            out[b] = _norm(x[b * bucket : (b + 1) * bucket], kind)
        return out

    def task(start: int, stop: int) -> None:
        step = max(_PART // bucket, 1) * bucket
        for at in range(start, stop, step):
            part = x[at : min(at + step, stop)]
            _fill(part, bucket, kind, out[at // bucket : -(-(at + part.size) // bucket)])

    pool.run(task, x.size, bucket)
    return out


@twinned("norms", by="data")
def write_norms(found: np.ndarray, data: np.ndarray) -> None:
    """Write norms as binary32, big-endian, to the first bytes of `data`."""
    data[: found.nbytes] = found.astype(">f4").view(np.uint8)


@twinned("norms")
def read_norms(data: np.ndarray) -> np.ndarray:
    """Read what `write_norms` wrote: whole numbers of four bytes."""
    bits = data.view(">u4").astype(np.uint32)
    wrong = np.flatnonzero(bits >= INFINITY_BITS)  # the sign is the highest bit
    if wrong.size:
        raise norm_error(int(wrong[0]))
    return bits.view(np.float32)


def norm_error(bucket: int) -> Corrupt:
    """Say that the norm of a bucket is none."""
    return Corrupt("a norm must be finite, and not negative", 4 * bucket)


def _fill(x: np.ndarray, bucket: int, kind: Norm, out: np.ndarray) -> None:
    """Write the norms of buckets of less than 2^19 elements, so of at most 128 tiles."""
    if kind == "max":
        _largest(x, bucket, out)
        return
    tiles = -(-bucket // TILE)
    sums = np.zeros((out.size, tiles))
    _tile_squares(x, bucket, tiles, np.empty(LANES), sums.reshape(-1))
    # The lanes of the tiles' sums behind these are 0; so are those that make pairs.
    while tiles > 1:
        half = 1 << (tiles - 1).bit_length() - 1
        sums[:, : tiles - half] += sums[:, half:tiles]
        tiles = half
    with np.errstate(over="ignore"):
        out[:] = np.sqrt(sums[:, 0])


def _norm(x: np.ndarray, kind: Norm) -> np.float32:
    if kind == "max":
        return np.uint32(max_abs_bits(x)).view(np.float32)
    with np.errstate(over="ignore"):
        return np.float32(np.sqrt(sum_squares(x)))


def _squares_block(add: bool) -> Any:
    """Make the block: squares of 32 elements of x from i, written or added to lanes from t."""

    @block("x", "i", "lanes", "t")
    def squares(e: Emitter) -> None:
        builder = e.builder
        source, target = e.address("x", "i"), e.address("lanes", "t")
        e.fetch(source)
        wide = builder.fpext(e.load(source, floats()), doubles())
        square = builder.fmul(wide, wide)
        if add:
            square = builder.fadd(e.load(target, doubles(), 8), square)
        e.store(square, target, 8)

    return squares


_write_squares = _squares_block(False)
_add_squares = _squares_block(True)


@block("lanes", "zero")
def _fold_lanes(e: Emitter) -> None:
    """Add up LANES lanes by a binary tree down to 16, which stay in the first ones."""
    builder = e.builder
    first = e.address("lanes", "zero")
    held = [e.load(e.element(first, at), doubles(16), 8) for at in range(0, LANES, 16)]
    while len(held) > 1:
        half = len(held) // 2
        held = [builder.fadd(held[k], held[half + k]) for k in range(half)]
    e.store(held[0], first, 8)


@kernel("in float32[], int64, int64, out float64[], out float64[]")
def _tile_squares(x, bucket, tiles, lanes, sums):
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
                lanes[i % LANES] = value * value + (lanes[i % LANES] if i >= LANES else 0.0)
            width = LANES // 2
            if part.size > 16:
                _fold_lanes(lanes, 0)
                width = 8
            # What is added of lanes behind the part is 0, and squares are no −0.
            while width >= part.size and width > 1:
                width //= 2
            while width >= 1:
                for t in range(width):  # 2 * width <= LANES
                    lanes[t] += lanes[t + width]
                width //= 2
            sums[b * tiles + tile] = lanes[0]


@kernel("in float32[], int64, out float32[]")
def _largest(x, bucket, out):
    # out.size == ceil(x.size / bucket)
    for b in range(out.size):
        values = x[b * bucket : b * bucket + bucket]
        top = np.uint32(0)
        for i in range(values.size):
            top = max(top, np.uint32(float_bits(values[i]) & np.uint32(0x7FFFFFFF)))
        out[b] = bits_float(top)
