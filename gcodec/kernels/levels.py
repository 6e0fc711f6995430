"""Levels of a norm: |v|·s/N rounded at random to an integer, with the sign, and back.

With c = f32(s/N) and r = f32(|v|·c), the level is min(s, floor(r) + up), where up is 1 if (u >> 1)
< int32(f·2^31), f being what floor cut off and u the random word of the element. A symbol is twice
the level, plus 1 where the value is negative and the level not 0; level k stands for
f32(k·f32(N/s)). Below N = 2^-100, where the factors would leave float32, both products are taken
in float64 and rounded once. Source: Alistarh et al., "QSGD", NIPS 2017, section 3.1.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import numpy as np

from gcodec.kernels.jit import Kernel, inline, kernel
from gcodec.kernels.lanes import BLOCK, Emitter, block, fence, floats, lanes
from gcodec.kernels.philox import COUNTER_SPAN, ROUNDING, emit_words, words

Store = Literal["write", "stream", "add"]

_TINY = 2.0**-100  # norm from which on the factors stay within float32


class Scale(NamedTuple):
    """What levels are counted in.

    Attributes
    ----------
    norms : float32 array
        One per bucket; finite, not negative.
    bucket : int
        Elements of a bucket.
    s : int
        Level of the norm.
    """

    norms: np.ndarray
    bucket: int
    s: int

    def part(self, first: int, n: int) -> tuple[np.ndarray, int]:
        """Return the norms of n elements from `first` on, in float64, and where they begin."""
        start = first // self.bucket
        some = self.norms[start : -(-(first + n) // self.bucket)]
        return some.astype(np.float64), first - start * self.bucket


def symbol_dtype(s: int) -> np.dtype[Any]:
    """Return the least unsigned type that holds the symbols of levels up to s."""
    return np.dtype(np.uint8 if s < 1 << 7 else np.uint16 if s < 1 << 15 else np.uint32)


def quantize(x: np.ndarray, scale: Scale, seed: int, first: int, out: np.ndarray) -> None:
    """Quantise a part of a tensor on the calling thread.

    Parameters
    ----------
    x : (n,) float32 array
        From element `first` of the tensor on, a multiple of 32.
    scale : Scale
        Of the tensor.
    seed, first : int
    out : (n,) array of `symbol_dtype(scale.s)`
    """
    norms, phase = scale.part(first, x.size)
    tiny = norms < _TINY
    with np.errstate(all="ignore"):
        factors = np.where(tiny, 0, scale.s / norms).astype(np.float32)
    numbers, rest = np.empty(BLOCK, np.float32), np.zeros(BLOCK, np.float32)
    last = np.empty(BLOCK, out.dtype)
    loop = _quantizer(out.dtype.name)
    place = np.uint64(first), factors, phase, scale.bucket
    loop(x, np.uint64(seed), *place, np.uint32(scale.s), numbers, rest, last, out)
    if (at := _tiny_elements(tiny & (norms > 0), phase, scale.bucket, x.size)).size:
        size, wide = np.abs(x[at]).astype(np.float64), norms[(at + phase) // scale.bucket]
        r = (size * (scale.s / wide)).astype(np.float32)
        whole = np.floor(r)
        bound = ((r - whole) * np.float32(2.0**31)).astype(np.int32)
        level = whole.astype(np.uint32) + (words(seed, first, x.size)[at] >> 1 < bound)
        level = np.minimum(level, np.uint32(scale.s))
        out[at] = 2 * level + ((level > 0) & (x[at] < 0))


def dequantize(
    symbols: np.ndarray,
    scale: Scale,
    first: int,
    out: np.ndarray,
    add: np.float32 | None = None,
    *,
    stream: bool = False,
) -> None:
    """Write what a part of the symbols stands for, or add a multiple of it, on this thread.

    Parameters
    ----------
    symbols : (n,) array of `symbol_dtype(scale.s)`
        From element `first` of the tensor on.
    scale : Scale
        Of the tensor.
    first : int
    out : (n,) float32 array
    add : float32, optional
        The multiple; each product is rounded before it is added.
    stream : bool
        Whether to write past the cache; `out` then starts at a multiple of 32 bytes.
    """
    norms, phase = scale.part(first, out.size)
    tiny = norms < _TINY
    factors = np.where(tiny, 0, norms / scale.s).astype(np.float32)
    store: Store = "add" if add is not None else "stream" if stream else "write"
    one = np.float32(1) if add is None else add
    at = _tiny_elements(tiny & (norms > 0), phase, scale.bucket, out.size)
    held = out[at]
    numbers, rest = np.empty(BLOCK, np.float32), np.zeros(BLOCK, np.float32)
    last = np.zeros(BLOCK, symbols.dtype)
    loop = _dequantizer(symbols.dtype.name, store)
    loop(symbols, factors, phase, scale.bucket, one, numbers, rest, last, out)
    if at.size:
        code = symbols[at]
        size = (code >> 1) * (norms[(at + phase) // scale.bucket] / scale.s)
        value = np.where(code & 1, -size, size).astype(np.float32)
        out[at] = value if add is None else held + add * value


def _tiny_elements(tiny: np.ndarray, phase: int, bucket: int, n: int) -> np.ndarray:
    """Return which of n elements lie in such buckets, of which the first begins before them."""
    if not tiny.any():
        return np.empty(0, np.int64)
    return np.flatnonzero(tiny[(np.arange(n) + phase) // bucket])


@inline
def _spread(numbers, factors, bucket, start):
    """Write the factor of each of the BLOCK elements from `start` on; return up to where it holds.

    numbers.size == BLOCK. Lanes behind the last bucket, which are cut, have its factor.
    """
    last = factors.size - 1
    b = min(start // bucket, last)
    end = (b + 1) * bucket
    lane = 0
    while lane < BLOCK:
        stop = min(end - start, BLOCK) if b < last else BLOCK
        for k in range(lane, stop):  # stop <= BLOCK
            numbers[k] = factors[b]
        if lane == 0 and stop == BLOCK:
            return end
        lane = stop
        b, end = b + 1, end + bucket
    return start


def _quantize_block(bits: int) -> Any:
    """Make the block: 32 elements of x from i, from element `start` of the tensor, to symbols."""

    @block("x", "i", "numbers", "zero", "s", "seed", "start", "span", "out", "at")
    def quantize_block(e: Emitter) -> None:
        builder = e.builder
        every = lanes(32)
        source = e.address("x", "i")
        e.fetch(source)
        x = e.load(source, floats())
        size = builder.bitcast(e.magnitude_bits(x), floats())
        r = builder.fmul(size, e.load(e.address("numbers", "zero"), floats()))
        whole = builder.fptosi(r, every)
        rest = builder.fsub(r, builder.sitofp(whole, floats()))
        bound = builder.fptosi(builder.fmul(rest, floats()([2.0**31] * BLOCK)), every)
        seed, start, span = (e.args[name] for name in ("seed", "start", "span"))
        halves = emit_words(e, seed, start, span, seed.type(ROUNDING), halved=True)
        up = builder.icmp_signed("<", halves, bound)
        level = builder.sub(whole, builder.sext(up, every))
        top = e.splat(e.args["s"])
        # r may pass s by the rounding of the norm.
        level = builder.select(builder.icmp_signed("<", level, top), level, top)
        one = every([1] * BLOCK)
        sign = builder.lshr(builder.bitcast(x, every), every([31] * BLOCK))
        codes = builder.trunc(builder.or_(builder.shl(level, one), sign), lanes(bits))
        # The sign of level 0 is no sign.
        lone = builder.icmp_unsigned("==", codes, codes.type([1] * BLOCK))
        codes = builder.add(codes, builder.sext(lone, codes.type))
        e.store(codes, e.address("out", "at"), align=1)

    return quantize_block


@functools.cache
def _quantizer(dtype: str) -> Kernel:
    one_block = _quantize_block(8 * np.dtype(dtype).itemsize)

    @kernel(
        "in float32[], uint64, uint64, in float32[], int64, int64, uint32, "
        f"out float32[], out float32[], out {dtype}[], out {dtype}[]",
        variant=dtype,
    )
    def quantize_part(x, seed, first, factors, phase, bucket, s, numbers, rest, last, out):
        # out.size == x.size; the first bucket begins `phase` elements before x; numbers, rest and
        # last have BLOCK elements. `first` is a multiple of BLOCK.
        held = np.int64(-1)
        whole = x.size - x.size % BLOCK
        for i in range(0, whole, BLOCK):
            if i + phase + BLOCK > held:
                held = _spread(numbers, factors, bucket, i + phase)
            start = first + np.uint64(i)
            one_block(x, i, numbers, 0, s, seed, start, start >> COUNTER_SPAN, out, i)
        if whole < x.size:
            _spread(numbers, factors, bucket, whole + phase)
            for k in range(x.size - whole):  # fewer than BLOCK
                rest[k] = x[whole + k]
            start = first + np.uint64(whole)
            one_block(rest, 0, numbers, 0, s, seed, start, start >> COUNTER_SPAN, last, 0)
            for k in range(x.size - whole):
                out[whole + k] = last[k]

    return quantize_part


def _dequantize_block(bits: int, store: Store) -> Any:
    """Make the block: 32 symbols from `at` to elements of `out` from i."""

    @block("symbols", "at", "numbers", "zero", "scale", "out", "i")
    def dequantize_block(e: Emitter) -> None:
        builder = e.builder
        every = lanes(32)
        target = e.address("out", "i")
        codes = e.load(e.address("symbols", "at"), lanes(bits), bits // 8)
        if bits < 32:
            codes = builder.zext(codes, every)
        sign = builder.shl(codes, every([31] * BLOCK))
        level = builder.sitofp(builder.lshr(codes, every([1] * BLOCK)), floats())
        size = builder.fmul(level, e.load(e.address("numbers", "zero"), floats()))
        values = builder.bitcast(builder.or_(builder.bitcast(size, every), sign), floats())
        if store == "stream":
            e.store(values, target, align=32, streaming=True)
            return
        e.fetch(target)
        if store == "add":
            scaled = builder.fmul(e.splat(e.args["scale"]), values)
            values = builder.fadd(e.load(target, floats()), scaled)
        e.store(values, target)

    return dequantize_block


@functools.cache
def _dequantizer(dtype: str, store: Store) -> Kernel:
    bits = 8 * np.dtype(dtype).itemsize
    one_block = _dequantize_block(bits, store)
    last_block = _dequantize_block(bits, "add" if store == "add" else "write")
    streaming = store == "stream"

    @kernel(
        f"in {dtype}[], in float32[], int64, int64, float32, "
        f"out float32[], out float32[], out {dtype}[], out float32[]",
        variant=f"{dtype} {store}",
    )
    def dequantize_part(symbols, factors, phase, bucket, scale, numbers, rest, last, out):
        # symbols.size == out.size; for the rest see quantize_part
        held = np.int64(-1)
        whole = out.size - out.size % BLOCK
        for i in range(0, whole, BLOCK):
            if i + phase + BLOCK > held:
                held = _spread(numbers, factors, bucket, i + phase)
            one_block(symbols, i, numbers, 0, scale, out, i)
        if whole < out.size:
            _spread(numbers, factors, bucket, whole + phase)
            for k in range(out.size - whole):  # fewer than BLOCK
                last[k], rest[k] = symbols[whole + k], out[whole + k]
            last_block(last, 0, numbers, 0, scale, rest, 0)
            for k in range(out.size - whole):
                out[whole + k] = rest[k]
        if streaming:
            fence()

    return dequantize_part
