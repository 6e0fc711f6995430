"""Element-wise sums for error feedback and aggregation, each in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.numeric.reduce import (
    COLUMN,
    LANES,
    TILE,
    Moments,
    add_lanes,
    emit_moments,
    finish_moments,
    fold,
    key_of,
    ranges_of_keys,
    top_of_keys,
)
from gcodec.runtime import pool
from gcodec.runtime.cover import streams
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel
from gcodec.runtime.lanes import BLOCK, Emitter, block, fence, floats, lanes
from gcodec.runtime.memory import emit_prefetch, empty_beside, float_bits, magnitude_bits

_PART = 1 << 16  # elements whose range is found together, where no buckets are requested
_LINE = 64  # bytes of a cache line


class ResidualUpdate(NamedTuple):
    """The residual of a tensor, which a quantizer adds and replaces.

    Attributes
    ----------
    residual : (n,) float32 array
    decay : float32
        Factor of the residual in the sum u = x + decay·residual.
    left : (n,) float32 array
        Output: u minus the decoded value. May be `residual`.
    """

    residual: np.ndarray
    decay: np.float32
    left: np.ndarray

    @property
    def is_in_place(self) -> bool:
        """Whether the output is the residual itself."""
        return self.left is self.residual

    def part(self, start: int, stop: int) -> ResidualUpdate:
        """Return the update of the elements from `start` to `stop`."""
        return ResidualUpdate(self.residual[start:stop], self.decay, self.left[start:stop])


class Extremes(NamedTuple):
    """What the pass that adds a residual finds about the sum.

    Attributes
    ----------
    top_bits : int or Deferred
        Bit pattern of the largest magnitude; NaN is larger than infinity.
    ranges : tuple, optional
        Result of `ranges` for the buckets that were requested; None if the pass did not find them.
    moments : Moments, optional
        Moments of the sum; None if the pass did not find them.
    """

    top_bits: int | Deferred
    ranges: tuple[np.ndarray, bool] | None = None
    moments: Moments | None = None


def corrected(x: np.ndarray, residual: np.ndarray, decay: np.float32) -> np.ndarray:
    """Return x + decay·residual of (n,) float32 arrays; each step is rounded once."""
    out = empty_beside(x.size, np.float32, x)
    correct(x, residual, decay, out)
    return out


@dispatched("gcodec.kernels.numeric.arithmetic_cuda")
def correct(x: np.ndarray, residual: np.ndarray, decay: np.float32, out: np.ndarray) -> int:
    """Write x + decay·residual to `out`, which may be `residual`; see `corrected`.

    Returns
    -------
    int
        Bit pattern of the largest magnitude; NaN is larger than infinity.
    """
    if out is not residual and streams(out):
        return top_of_keys(_past_cache(x, residual, decay, out, _PART))

    def task(i: int, j: int) -> int:
        if out is residual:
            return int(_correct_in_place(x[i:j], residual[i:j], decay))
        return int(_correct(x[i:j], residual[i:j], decay, out[i:j]))

    return max(pool.run(task, x.size))


def correct_with_ranges(
    x: np.ndarray, residual: np.ndarray, decay: np.float32, out: np.ndarray, bucket: int
) -> Extremes:
    """Do what `correct` does on the host, and find the ranges of buckets where this costs no pass.

    Parameters
    ----------
    x, residual, decay
        See `correct`.
    out : (n,) float32 array
        Another array than `residual`.
    bucket : int
        Elements of a bucket, at least 1.
    """
    is_one = bucket >= x.size
    part = _PART if is_one else bucket
    if part % BLOCK or not streams(out):
        return Extremes(correct(x, residual, decay, out))
    keys = _past_cache(x, residual, decay, out, part)
    top_bits = top_of_keys(keys)
    if is_one:
        keys = np.array([[keys[:, 0].min(), keys[:, 1].max()]], np.int32)
    return Extremes(top_bits, ranges_of_keys(keys))


def correct_with_moments(
    x: np.ndarray, residual: np.ndarray, decay: np.float32, out: np.ndarray
) -> Extremes:
    """Do what `correct` does on the host, and find the moments where this costs no pass.

    `out` may be `residual`.
    """
    if not streams(out, _LINE):
        return Extremes(correct(x, residual, decay, out))
    sums, squares = np.empty((2, -(-x.size // TILE)), np.float64)

    def task(i: int, j: int) -> int:
        part = slice(i // TILE, -(-j // TILE))
        scratch = np.empty(2 * LANES), np.zeros(COLUMN, np.uint32)
        terms = x[i:j], residual[i:j], decay, out[i:j]
        return int(_correct_with_moments(*terms, *scratch, sums[part], squares[part]))

    top_bits = max(pool.run(task, x.size, TILE))
    return Extremes(top_bits, moments=Moments(fold(sums), fold(squares), top_bits))


def _past_cache(
    x: np.ndarray, residual: np.ndarray, decay: np.float32, out: np.ndarray, bucket: int
) -> np.ndarray:
    """Write x + decay·residual past the cache, and return the least and greatest keys of buckets.

    `bucket` is a multiple of BLOCK; see `gcodec.kernels.numeric.ranges` for keys.
    """
    keys = np.empty((-(-x.size // bucket), 2), np.int32)

    def task(i: int, j: int) -> None:
        own = keys[i // bucket : -(-j // bucket)].reshape(-1)
        _correct_past_cache(x[i:j], residual[i:j], decay, out[i:j], bucket, own)

    pool.run(task, x.size, bucket)
    return keys


@dispatched("gcodec.kernels.numeric.arithmetic_cuda")
def add_scaled(decoded: np.ndarray, scale: np.float32, out: np.ndarray) -> None:
    """Add scale·decoded to `out`, both (n,) float32; each step is rounded once."""
    pool.run(lambda i, j: _add_scaled(decoded[i:j], scale, out[i:j]), out.size)


# All arrays of a call have the same size.


@kernel("in float32[], in float32[], float32, out float32[]")
def _correct(x, residual, decay, out):
    top = np.uint32(0)
    for i in range(out.size):
        out[i] = x[i] + decay * residual[i]
        top = max(top, magnitude_bits(out[i]))
    return top


# LLVM cannot vectorize the preceding loop for overlapping arrays.
@kernel("in float32[], out float32[], float32")
def _correct_in_place(x, residual, decay):
    top = np.uint32(0)
    for i in range(residual.size):
        residual[i] = x[i] + decay * residual[i]
        top = max(top, magnitude_bits(residual[i]))
    return top


@block("x", "residual", "i", "stop", "decay", "out", "keys", "at")
def _stream_sums(e: Emitter) -> None:
    """Write x + decay·residual of the elements from i to stop past the cache.

    Their number is a multiple of BLOCK. Their least key goes to element `at` of keys, and their
    greatest one to the next.
    """
    builder, kind = e.builder, lanes(32)
    word, stop, decay = e.args["i"].type, e.args["stop"], e.splat(e.args["decay"])

    def extreme(sign: str, one: Any, other: Any) -> Any:
        return builder.select(builder.icmp_signed(sign, one, other), one, other)

    def body(state: list[Any]) -> list[Any]:
        i, least, greatest = state
        source, kept, target = (builder.gep(e.args[k], [i]) for k in ("x", "residual", "out"))
        e.fetch(source)
        e.fetch(kept)
        total = builder.fadd(e.load(source, floats()), builder.fmul(decay, e.load(kept, floats())))
        e.store(total, target, align=32, streaming=True)
        bits = builder.bitcast(total, kind)
        negative = builder.ashr(bits, kind([31] * BLOCK))
        keys = builder.xor(bits, builder.and_(negative, kind([0x7FFFFFFF] * BLOCK)))
        following = builder.add(i, word(BLOCK))
        return [following, extreme("<", keys, least), extreme(">", keys, greatest)]

    begin = [e.args["i"], kind([0x7FFFFFFF] * BLOCK), kind([-0x80000000] * BLOCK)]
    _, *extremes = e.loop(begin, lambda state: builder.icmp_signed("<", state[0], stop), body)
    for place, (name, keys) in enumerate(zip(("smin", "smax"), extremes, strict=True)):
        builder.store(e.reduced(name, keys), e.element(e.address("keys", "at"), place))


@kernel("in float32[], in float32[], float32, out float32[], int64, out int32[]")
def _correct_past_cache(x, residual, decay, out, bucket, keys):
    # bucket is a multiple of BLOCK; keys.size == 2 * ceil(out.size / bucket)
    for b in range(keys.size // 2):
        start = b * bucket
        stop = min(start + bucket, out.size)
        whole = stop - (stop - start) % BLOCK
        _stream_sums(x, residual, start, whole, decay, out, keys, 2 * b)
        low, high = keys[2 * b], keys[2 * b + 1]
        for i in range(whole, stop):
            out[i] = x[i] + decay * residual[i]
            key = key_of(np.int32(float_bits(out[i])))
            low, high = min(low, key), max(high, key)
        keys[2 * b], keys[2 * b + 1] = low, high
    fence()


# Kernels that quantize a sum add the residual to a bucket, a block or a tile while it is in the
# cache. They quantize the sum there and replace it by its error, which becomes the new residual.


@block("x", "residual", "i", "decay", "sums", "j")
def sum_block(e: Emitter) -> None:
    """Write x + decay·residual of 32 elements from i on to `sums`, from element j on."""
    x, residual = (e.load(e.address(name, "i"), floats()) for name in ("x", "residual"))
    product = e.builder.fmul(e.splat(e.args["decay"]), residual)
    e.store(e.builder.fadd(x, product), e.address("sums", "j"))


@block("x", "residual", "i")
def fetch_terms(e: Emitter) -> None:
    """Prefetch what `sum_block` reads from element i on."""
    for name in ("x", "residual"):
        e.fetch(e.address(name, "i"), 0)


def _leave_block(stream: bool) -> Any:
    """Make the block that copies 32 errors from j on to elements of `left` from i on."""

    @block("errors", "j", "left", "i")
    def leave(e: Emitter) -> None:
        errors = e.load(e.address("errors", "j"), floats())
        e.store(errors, e.address("left", "i"), align=32 if stream else 4, streaming=stream)

    return leave


_write_errors, _stream_errors = _leave_block(False), _leave_block(True)


@inline
def leave_errors(errors, j, left, i, streaming):
    """Copy 32 errors from j on to `left`, from element i on; past the cache if `streaming`.

    A `fence` must follow the last call with `streaming`.
    """
    if streaming:
        _stream_errors(errors, j, left, i)
    else:
        _write_errors(errors, j, left, i)


@block("x", "residual", "i", "next", "decay", "out", "sums", "squares", "t", "largest", "zero")
def _column_sums(e: Emitter) -> None:
    """Write a column of x + decay·residual past the cache; `emit_moments` sums it."""
    builder, decay = e.builder, e.splat(e.args["decay"], COLUMN)
    source, target = e.address("residual", "i"), e.address("out", "i")
    ahead = e.address("residual", "next")

    def total(x: Any, row: int) -> Any:
        emit_prefetch(builder, e.element(ahead, row * COLUMN))
        kept = e.load(e.element(source, row * LANES), floats(COLUMN))
        total = builder.fadd(x, builder.fmul(decay, kept))
        e.store(total, e.element(target, row * LANES), align=_LINE, streaming=True)
        return total

    emit_moments(e, total)


@kernel(
    "in float32[], in float32[], float32, out float32[], out float64[], out uint32[], "
    "out float64[], out float64[]"
)
def _correct_with_moments(x, residual, decay, out, scratch, top, sums, squares):
    # See reduce._tile_moments for the arguments after `out`.
    lanes_1, lanes_2 = scratch[:LANES], scratch[LANES:]
    whole = x.size - x.size % TILE
    for i in range(whole, x.size):
        out[i] = x[i] + decay * residual[i]
    for tile in range(x.size // TILE):
        for t in range(0, LANES, COLUMN):  # a column ends inside its tile
            at, ahead = tile * TILE + t, (tile + 1) * TILE + t * (LANES // COLUMN)
            _column_sums(x, residual, at, ahead, decay, out, lanes_1, lanes_2, t, top, 0)
        sums[tile], squares[tile] = add_lanes(lanes_1), add_lanes(lanes_2)
    fence()
    return finish_moments(out, scratch, top, sums, squares)


@kernel("in float32[], float32, out float32[]")
def _add_scaled(decoded, scale, out):
    for i in range(out.size):
        out[i] += scale * decoded[i]
