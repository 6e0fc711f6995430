"""Stochastic levels of a norm: |v|·s/N rounded at random to an integer, with the sign, and back.

With c = f32(s/N) and r = f32(|v|·c), the level is min(s, floor(r) + up). With f the fraction of r
and u the random word of the element, up is 1 if (u >> 1) < int32(f·2^31), else 0. A symbol is
twice the level, plus 1 if the value is negative and the level is not 0. Level k stands for
f32(k·f32(N/s)). For norms below 2^-100, whose factors would leave the range of float32, both
products are computed in float64 and rounded once. Source: Alistarh et al., "QSGD", NIPS 2017,
section 3.1.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Literal, NamedTuple

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels.numeric.convert import round_to
from gcodec.kernels.numeric.philox import COUNTER_SPAN, emit_words, words
from gcodec.runtime import cover
from gcodec.runtime.device import device_of, dispatched
from gcodec.runtime.jit import Inline, Intrinsic, Kernel, factory, inline, kernel
from gcodec.runtime.lanes import (
    ADD,
    AHEAD,
    BLOCK,
    ROUNDED,
    SIGN,
    STREAM,
    Emitter,
    Value,
    ValueType,
    block,
    fence,
    floats,
    lanes,
)

KINDS = tuple(map(np.dtype, (np.uint8, np.uint16, np.uint32)))  # dtypes of symbols
TINY = 2.0**-100  # least norm whose factors stay within float32

Factors = Literal["each", "two", "same"]
"""Factors of the 32 elements of a block: one each, from an array; one for the first `split` of
them and another for the others; or the same for all."""

_FACTORS = {"each": ("numbers",), "two": ("factor", "other", "split"), "same": ("factor",)}
_PART = 1 << 18  # symbols that are checked at a time
_TINY_PART = 1 << 16  # elements that are searched for tiny norms at a time


class Scale(NamedTuple):
    """The norms of the buckets, and the level of a norm.

    Attributes
    ----------
    norms : float32 array
        Norm of each bucket; finite, not negative.
    bucket : int
        Elements of a bucket.
    s : int
        Level of the norm.
    """

    norms: np.ndarray
    bucket: int
    s: int

    def part(self, first: int) -> tuple[np.ndarray, int, int, np.uint32]:
        """Return the norms from the bucket of element `first` on, and numbers for kernels.

        Returns
        -------
        norms : float32 array
        phase : int
            Elements of the first bucket before element `first`.
        bucket : int
        s : uint32
        """
        start, phase = divmod(first, self.bucket)
        return self.norms[start:], phase, self.bucket, np.uint32(self.s)

    def norms_at(self, at: np.ndarray) -> np.ndarray:
        """Return the norms of elements in float64."""
        return np.asarray(self.norms[at // self.bucket], np.float64)

    def has_tiny(self, first: int, n: int) -> bool:
        """Return whether any of the n elements from `first` on has a tiny norm other than 0."""
        norms = self.norms[first // self.bucket : -(-(first + n) // self.bucket)]
        return bool(((norms > 0) & (norms < np.float32(TINY))).any())

    def tiny(self, first: int, n: int, part: slice) -> np.ndarray:
        """Return which of the n elements from `first` on are in a part and have a tiny norm."""
        begin, end = part.start, min(part.stop, n)
        norms = self.norms_at(np.arange(first + begin, first + end))
        return np.flatnonzero((norms > 0) & (norms < TINY)) + begin


def symbol_dtype(s: int) -> np.dtype[Any]:
    """Return the smallest unsigned dtype for the symbols of levels up to s."""
    return np.dtype(np.uint8 if s < 1 << 7 else np.uint16 if s < 1 << 15 else np.uint32)


def check_dtype(symbols: np.ndarray, s: int) -> None:
    """Raise `ParameterError` unless symbols have the dtype of levels up to s."""
    if symbols.dtype != symbol_dtype(s):
        raise ParameterError(f"symbols: levels must be of {symbol_dtype(s)}, not {symbols.dtype}")


@dispatched("gcodec.kernels.quantize.levels_cuda")
def check(symbols: np.ndarray, s: int) -> None:
    """Raise `ParameterError` unless all symbols are those of levels up to s."""
    for at in range(0, symbols.size, _PART):
        part = symbols[at : at + _PART]
        if part.max() > 2 * s + 1 or (part == 1).any():
            raise levels_error(s)


def levels_error(s: int) -> ParameterError:
    """Make the error for symbols that are not those of levels up to s."""
    return ParameterError(f"symbols: levels must be at most {s}, and level 0 has no sign")


@dispatched("gcodec.kernels.quantize.levels_cuda")
def quantize(
    x: np.ndarray,
    scale: Scale,
    seed: int,
    first: int,
    out: np.ndarray,
    leaves_errors: bool = False,
    rounded_to: int = 0,
) -> None:
    """Quantize a part of a tensor on the calling thread.

    Parameters
    ----------
    x : (n,) float32 array
        Elements from number `first` of the tensor on.
    scale : Scale
        Scale of the whole tensor.
    seed : int
        Seed for stochastic rounding.
    first : int
        Multiple of 32.
    out : (n,) array of `symbol_dtype(scale.s)`
    leaves_errors : bool
        Whether x is replaced by the quantization error x − x̂; only on the host.
    rounded_to : int
        With `leaves_errors`, the index in `ROUNDED` of the dtype to which x̂ is rounded before it
        is subtracted.
    """
    loop, room = _quantizer(out.dtype, leaves_errors), np.empty((2, BLOCK), np.float32)
    key, whole, numbers = np.uint64(seed), x.size - x.size % BLOCK, (rounded_to, *room)
    tiny = loop(x[:whole], key, np.uint64(first), *scale.part(first), *numbers, out[:whole])
    if whole < x.size:
        padded, last = np.zeros(BLOCK, np.float32), np.empty(BLOCK, out.dtype)
        padded[: x.size - whole] = x[whole:]
        start = first + whole
        tiny |= loop(padded, key, np.uint64(start), *scale.part(start), *numbers, last)
        out[whole:] = last[: x.size - whole]
        if leaves_errors:
            x[whole:] = padded[: x.size - whole]
    if tiny:
        quantize_tiny(x, scale, seed, first, out, leaves_errors, rounded_to)


def quantize_tiny(
    x: np.ndarray,
    scale: Scale,
    seed: int,
    first: int,
    out: np.ndarray,
    leaves_errors: bool,
    rounded_to: int,
) -> None:
    """Quantize the elements with tiny norms in float64; see `quantize`."""
    for begin in range(0, x.size, _TINY_PART):
        end = min(begin + _TINY_PART, x.size)
        places = scale.tiny(first, x.size, slice(begin, end))
        norms, magnitudes = scale.norms_at(first + places), np.abs(x[places]).astype(np.float64)
        r = (magnitudes * (scale.s / norms)).astype(np.float32)
        whole = np.floor(r)
        bound = ((r - whole) * np.float32(2.0**31)).astype(np.int32)
        random = words(seed, first + begin, end - begin)
        level = whole.astype(np.uint32) + (random[places - begin] >> 1 < bound)
        level = np.minimum(level, np.uint32(scale.s))
        out[places] = 2 * level + ((level > 0) & (x[places] < 0))
        if leaves_errors:
            values = _tiny_values(out[places], norms, scale.s)
            x[places] -= round_to(values, ROUNDED[rounded_to])


def _tiny_values(symbols: np.ndarray, norms: np.ndarray, s: int) -> np.ndarray:
    """Return the values of (k,) symbols of (k,) tiny norms."""
    magnitudes = (symbols >> 1) * (norms / s)
    with np.errstate(under="ignore"):
        return np.where(symbols & 1, -magnitudes, magnitudes).astype(np.float32)


def can_stream(out: np.ndarray) -> bool:
    """Return whether `dequantize` should write to (n,) float32 `out` past the cache."""
    return device_of(out) is None and cover.streams(out[cover.to_cache_line(out, 1) :])


@dispatched("gcodec.kernels.quantize.levels_cuda")
def dequantize(
    symbols: np.ndarray,
    scale: Scale,
    first: int,
    out: np.ndarray,
    add: np.float32 | None = None,
    *,
    stream: bool = False,
) -> None:
    """Write the values of a part of the symbols, or add a multiple of them, on this thread.

    Parameters
    ----------
    symbols : (n,) array of `symbol_dtype(scale.s)`
        Symbols from element `first` of the tensor on.
    scale : Scale
        Scale of the whole tensor.
    first : int
    out : (n,) float32 array
    add : float32, optional
        Factor of the values that are added to `out`; each product is rounded first.
    stream : bool
        Whether to write past the cache, from the first cache line of `out` on.
    """
    if scale.has_tiny(first, out.size):
        for begin in range(0, out.size, _TINY_PART):
            part = slice(begin, min(begin + _TINY_PART, out.size))
            places = scale.tiny(first, out.size, part)
            before, symbol = out[places], symbols[places]
            _dequantize_part(symbols[part], scale, first + begin, out[part], add, stream)
            value = _tiny_values(symbol, scale.norms_at(first + places), scale.s)
            with np.errstate(over="ignore", invalid="ignore"):  # in each thread
                out[places] = value if add is None else before + add * value
    else:
        _dequantize_part(symbols, scale, first, out, add, stream)


def _dequantize_part(
    symbols: np.ndarray,
    scale: Scale,
    first: int,
    out: np.ndarray,
    add: np.float32 | None,
    stream: bool,
) -> None:
    """Dequantize; elements with tiny norms become wrong."""
    loop, stored = _dequantizer(symbols.dtype), cover.store_of(add, stream)
    head = cover.to_cache_line(out, 1) if stream else 0
    padded, numbers = np.empty(BLOCK, symbols.dtype), np.empty((2, BLOCK), np.float32)
    loop(symbols, *scale.part(first), *stored, head, padded, *numbers, out)


# --- blocks --------------------------------------------------------------------------------------


def _emit_factors(e: Emitter) -> Value:
    """Emit the factors of 32 elements."""
    if "numbers" in e.args:
        return e.load(e.args["numbers"], floats())
    if "other" not in e.args:
        return e.splat(e.args["factor"])
    split = e.args["split"]
    lane = lanes(split.type.width)(list(range(BLOCK)))
    is_first = e.builder.icmp_signed("<", lane, e.splat(split))
    return e.builder.select(is_first, e.splat(e.args["factor"]), e.splat(e.args["other"]))


def quantize_block(
    bits: int, blocks: int, factors: Factors, ahead: int = AHEAD, *, leaves_errors: bool = False
) -> Intrinsic:
    """Make the block that quantizes 32·blocks elements of x from i, or `start` of the tensor, on.

    It prefetches the elements that lie `ahead` elements further on. With `leaves_errors`, x is
    replaced by the quantization error; `step`, a number or an array for "each", is the value of
    level 1.
    """
    numbers = *_FACTORS[factors], "step", "rounded_to", "s"

    @block("x", "i", *numbers, "seed", "start", "span", "out", "at")
    def levels_of(e: Emitter) -> None:
        for k, halves in enumerate(emit_words(e, blocks=blocks)):
            source = e.element(e.address("x", "i"), k * BLOCK)
            e.fetch(source, ahead)
            x = e.load(source, floats())
            level = _emit_levels(e, x, halves)
            symbols = _emit_symbols(e, x, level, lanes(bits))
            e.store(symbols, e.element(e.address("out", "at"), k * BLOCK), align=1)
            if leaves_errors:
                step = e.args["step"]
                one_each = factors == "each"
                steps = e.load(step, floats()) if one_each else e.splat(step)
                e.store(_emit_left(e, x, level, steps), source)

    return levels_of


def _emit_left(e: Emitter, x: Value, level: Value, steps: Value) -> Value:
    """Emit x − x̂ for 32 values; a value of level 0 stays as it is."""
    builder, word = e.builder, lanes(32)
    sign = builder.and_(builder.bitcast(x, word), word([SIGN] * BLOCK))
    size = builder.fmul(builder.sitofp(level, floats()), steps)
    value = e.rounded(builder.bitcast(builder.or_(builder.bitcast(size, word), sign), floats()))
    is_zero = builder.icmp_signed("==", level, word([0] * BLOCK))
    return builder.select(is_zero, x, builder.fsub(x, value))


def _emit_levels(e: Emitter, x: Value, halves: Value) -> Value:
    """Emit the levels of 32 values, given their random words, halved."""
    builder, word = e.builder, lanes(32)
    size = builder.bitcast(e.magnitude_bits(x), floats())
    r = builder.fmul(size, _emit_factors(e))
    whole = builder.fptosi(r, word)
    fraction = builder.fsub(r, builder.sitofp(whole, floats()))
    bound = builder.fptosi(builder.fmul(fraction, floats()([2.0**31] * BLOCK)), word)
    up = builder.icmp_signed("<", halves, bound)
    level = builder.sub(whole, builder.sext(up, word))
    top = e.splat(e.args["s"])
    # r may exceed s because the norm is rounded.
    return e.smaller(level, top)


def _emit_symbols(e: Emitter, x: Value, level: Value, kind: ValueType) -> Value:
    """Emit the symbols of 32 values, given their levels."""
    builder, word = e.builder, lanes(32)
    one = word([1] * BLOCK)
    sign = builder.lshr(builder.bitcast(x, word), word([31] * BLOCK))
    symbols = builder.trunc(builder.or_(builder.shl(level, one), sign), kind)
    # Symbol 1 would be a negative 0; it becomes 0.
    negative_zero = builder.icmp_unsigned("==", symbols, symbols.type([1] * BLOCK))
    return builder.add(symbols, builder.sext(negative_zero, symbols.type))


def _dequantize_block(bits: int, factors: Factors) -> Intrinsic:
    """Make the block that dequantizes 32 symbols from `at` to elements of `out` from i on."""

    @block("symbols", "at", *_FACTORS[factors], "store", "scale", "out", "i")
    def values_of(e: Emitter) -> None:
        builder = e.builder
        word = lanes(32)
        symbols = e.load(e.address("symbols", "at"), lanes(bits), bits // 8)
        if bits < 32:
            symbols = builder.zext(symbols, word)
        sign = builder.shl(symbols, word([31] * BLOCK))
        level = builder.sitofp(builder.lshr(symbols, word([1] * BLOCK)), floats())
        size = builder.fmul(level, _emit_factors(e))
        values = builder.bitcast(builder.or_(builder.bitcast(size, word), sign), floats())
        e.store_as(values, e.address("out", "i"))

    return values_of


# --- loops ---------------------------------------------------------------------------------------


@functools.cache
def factoring(up: bool) -> Inline:
    """Make the helper (norm, s) -> factor, which quantizes if `up`; 0 for a tiny norm."""

    @inline
    def scale_by(norm, s):
        wide, level = np.float64(norm), np.float64(s)
        if wide < TINY:
            return np.float32(0)
        return np.float32(level / wide if up else wide / level)

    return scale_by


@functools.cache
def _spreading(up: bool) -> Inline:
    """Make the helper that writes the factor of each element of a block.

    (numbers, norms, bucket, start, s, b) -> (end of the elements for which the factors hold,
    whether a norm is tiny, bucket of `start`). Bucket b begins at `start` or before; the search
    is short if it is the bucket of the preceding block.
    """
    scale_by = factoring(up)

    @inline
    def spread(numbers, norms, bucket, start, s, b):
        # numbers.size == BLOCK. Lanes after the last bucket, which are cut off, get its factor.
        last = norms.size - 1
        end = (b + 1) * bucket
        while end <= start and b < last:
            b, end = b + 1, end + bucket
        first, limit, lane, tiny = b, start, 0, False
        while lane < BLOCK:
            stop = min(end - start, BLOCK) if b < last else BLOCK
            norm = norms[b]
            tiny |= 0 < norm < TINY
            if lane == 0 and stop == BLOCK:
                numbers[:] = scale_by(norm, s)
                limit = end
            else:
                factor = scale_by(norm, s)
                for k in range(lane, stop):  # stop <= BLOCK
                    numbers[k] = factor
            lane = stop
            b, end = b + 1, end + bucket
        return limit, tiny, first

    return spread


@factory(lambda: itertools.product(KINDS, (False, True)))
def _quantizer(kind: np.dtype[Any], leaves_errors: bool) -> Kernel:
    dtype = kind.name
    one_block = quantize_block(8 * kind.itemsize, 1, "each", leaves_errors=leaves_errors)
    two_blocks = quantize_block(8 * kind.itemsize, 2, "same", leaves_errors=leaves_errors)
    pair, odd = np.int64(2 * BLOCK), np.uint64(BLOCK)
    spread, spread_steps = _spreading(True), _spreading(False)

    @kernel(
        f"{'out' if leaves_errors else 'in'} float32[], uint64, uint64, in float32[], int64, "
        f"int64, uint32, int64, out float32[], out float32[], out {dtype}[]",
        variant=f"{dtype} {leaves_errors}",
        vectorized=False,
    )
    def quantize_part(x, seed, first, norms, phase, bucket, s, rounded_to, numbers, steps, out):
        # out.size == x.size, a multiple of BLOCK, as is `first`. The first bucket begins `phase`
        # elements before x; numbers.size == steps.size == BLOCK. Returns whether any norm is tiny;
        # elements of such buckets get level 0.
        i, same, b, any_tiny = np.int64(0), np.int64(0), np.int64(0), False
        while i < x.size:
            if i + BLOCK > same:
                if leaves_errors:
                    spread_steps(steps, norms, bucket, i + phase, s, b)
                limit, tiny, b = spread(numbers, norms, bucket, i + phase, s, b)
                same = min(limit - phase, x.size)  # end of the elements with these factors, or i
                any_tiny |= tiny
            start = first + np.uint64(i)
            span = start >> COUNTER_SPAN
            if i + pair <= same and start & odd == 0:
                two_blocks(x, i, numbers[0], steps[0], rounded_to, s, seed, start, span, out, i)
                i += pair
            else:
                one_block(x, i, numbers, steps, rounded_to, s, seed, start, span, out, i)
                i += BLOCK
        return any_tiny

    return quantize_part


@factory(lambda: ((kind,) for kind in KINDS))
def _dequantizer(kind: np.dtype[Any]) -> Kernel:
    dtype = kind.name
    bits = 8 * kind.itemsize
    any_block = _dequantize_block(bits, "each")
    two_buckets = _dequantize_block(bits, "two")
    scale_by, spread = factoring(False), _spreading(False)

    @kernel(
        f"in {dtype}[], in float32[], int64, int64, uint32, int64, float32, int64, "
        f"out {dtype}[], out float32[], out float32[], out float32[]",
        variant=dtype,
        vectorized=False,
    )
    def dequantize_part(
        symbols, norms, phase, bucket, s, store, scale, head, padded, values, numbers, out
    ):
        # symbols.size == out.size; padded, values and numbers have BLOCK elements; head is less,
        # and at most out.size. Whole blocks lie between `head` and `tail`. quantize_part describes
        # the other arguments.
        if out.size == 0:
            return
        last = norms.size - 1
        tail = out.size - (out.size - head) % BLOCK
        for start, stop in ((0, head), (tail, out.size)):
            if start < stop:
                for k in range(stop - start):  # at most BLOCK
                    padded[k], values[k] = symbols[start + k], out[start + k]
                b = min((start + phase) // bucket, last)
                spread(numbers, norms, bucket, start + phase, s, b)
                any_block(padded, 0, numbers, store & ADD, scale, values, 0)
                for k in range(stop - start):
                    out[start + k] = values[k]
        i, b = head, np.int64(0)
        following = scale_by(norms[0], s)
        while i < tail and bucket >= BLOCK:
            factor, end = following, tail
            if b < last:  # lanes after the last bucket, which are cut off, get its factor
                end = min((b + 1) * bucket - phase, tail)
                b += 1
            # Computed early, as the division takes long.
            following = scale_by(norms[b], s)
            while i + BLOCK <= end:
                two_buckets(symbols, i, factor, factor, BLOCK, store, scale, out, i)
                i += BLOCK
            if i < end:  # not the last bucket, so tail >= i + BLOCK
                two_buckets(symbols, i, factor, following, end - i, store, scale, out, i)
                i += BLOCK
        while i < tail:
            _, _, b = spread(numbers, norms, bucket, i + phase, s, b)
            any_block(symbols, i, numbers, store, scale, out, i)
            i += BLOCK
        if store == STREAM:
            fence()

    return dequantize_part
