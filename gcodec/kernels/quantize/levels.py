"""Levels of a norm: |v|·s/N rounded at random to an integer, with the sign, and back.

With c = f32(s/N) and r = f32(|v|·c), the level is min(s, floor(r) + up), where up is 1 if (u >> 1)
< int32(f·2^31), f being what floor cut off and u the random word of the element. A symbol is twice
the level, plus 1 where the value is negative and the level not 0; level k stands for
f32(k·f32(N/s)). Below N = 2^-100, where the factors would leave float32, both products are taken
in float64 and rounded once. Source: Alistarh et al., "QSGD", NIPS 2017, section 3.1.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, get_args

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels.numeric.philox import COUNTER_SPAN, words
from gcodec.kernels.quantize.level_blocks import Store, dequantize_block, quantize_block
from gcodec.runtime import cover
from gcodec.runtime.device import device_of, dispatched
from gcodec.runtime.jit import Kernel, factory, inline, kernel
from gcodec.runtime.lanes import BLOCK, fence

KINDS = tuple(map(np.dtype, (np.uint8, np.uint16, np.uint32)))  # of symbols

_PART = 1 << 18  # symbols that are checked at a time
_TINY_PART = 1 << 16  # elements among which those of tiny norms are looked for
TINY = 2.0**-100  # norm from which on the factors stay within float32


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

    def part(self, first: int) -> tuple[np.ndarray, int, int, np.uint32]:
        """Return the norms from element `first` on, where they begin before it, bucket and s."""
        start = first // self.bucket
        phase = first - start * self.bucket
        return self.norms[start:], phase, self.bucket, np.uint32(self.s)

    def of(self, at: np.ndarray) -> np.ndarray:
        """Return the norms of elements, in float64."""
        return np.asarray(self.norms[at // self.bucket], np.float64)

    def has_tiny(self, first: int, n: int) -> bool:
        """Whether some norm of the n elements from `first` on is tiny, but not 0."""
        some = self.norms[first // self.bucket : -(-(first + n) // self.bucket)]
        return bool(((some > 0) & (some < np.float32(TINY))).any())

    def tiny(self, first: int, n: int, part: slice) -> np.ndarray:
        """Return which of n elements from `first` on are in a part and have a tiny norm."""
        begin, end = part.start, min(part.stop, n)
        norms = self.of(np.arange(first + begin, first + end))
        found: np.ndarray = np.flatnonzero((norms > 0) & (norms < TINY)) + begin
        return found


def symbol_dtype(s: int) -> np.dtype[Any]:
    """Return the least unsigned type that holds the symbols of levels up to s."""
    return np.dtype(np.uint8 if s < 1 << 7 else np.uint16 if s < 1 << 15 else np.uint32)


def check_dtype(symbols: np.ndarray, s: int) -> None:
    """Raise `ParameterError` unless symbols are of the type that levels up to s have."""
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
    """Say that symbols are not those of levels up to s."""
    return ParameterError(f"symbols: levels must be at most {s}, and that of 0 has no sign")


@dispatched("gcodec.kernels.quantize.levels_cuda")
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
    loop, numbers = _quantizer(out.dtype), np.empty(BLOCK, np.float32)
    key, whole = np.uint64(seed), x.size - x.size % BLOCK
    tiny = loop(x[:whole], key, np.uint64(first), *scale.part(first), numbers, out[:whole])
    if whole < x.size:
        rest, last = np.zeros(BLOCK, np.float32), np.empty(BLOCK, out.dtype)
        rest[: x.size - whole] = x[whole:]
        start = first + whole
        tiny |= loop(rest, key, np.uint64(start), *scale.part(start), numbers, last)
        out[whole:] = last[: x.size - whole]
    if tiny:
        for begin in range(0, x.size, _TINY_PART):
            _quantize_tiny(x, scale, seed, first, out, slice(begin, begin + _TINY_PART))


def _quantize_tiny(
    x: np.ndarray, scale: Scale, seed: int, first: int, out: np.ndarray, part: slice
) -> None:
    """Quantise again what lies in buckets of tiny norms."""
    here = scale.tiny(first, x.size, part)
    size = np.abs(x[here]).astype(np.float64)
    r = (size * (scale.s / scale.of(first + here))).astype(np.float32)
    whole = np.floor(r)
    bound = ((r - whole) * np.float32(2.0**31)).astype(np.int32)
    random = words(seed, first + part.start, min(part.stop, x.size) - part.start)
    level = whole.astype(np.uint32) + (random[here - part.start] >> 1 < bound)
    level = np.minimum(level, np.uint32(scale.s))
    out[here] = 2 * level + ((level > 0) & (x[here] < 0))


def streams(out: np.ndarray) -> bool:
    """Whether `dequantize` should write to (n,) float32 `out` past the cache."""
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
        Whether to write past the cache, from the first cache line of `out` on.
    """
    if scale.has_tiny(first, out.size):
        for begin in range(0, out.size, _TINY_PART):
            part = slice(begin, min(begin + _TINY_PART, out.size))
            here = scale.tiny(first, out.size, part)
            held, code = out[here], symbols[here]
            _dequantize_part(symbols[part], scale, first + begin, out[part], add, stream)
            size = (code >> 1) * (scale.of(first + here) / scale.s)
            value = np.where(code & 1, -size, size).astype(np.float32)
            out[here] = value if add is None else held + add * value
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
    """Do what `dequantize` does, but in buckets of tiny norms."""
    store: Store = "add" if add is not None else "stream" if stream else "write"
    one = np.float32(1) if add is None else add
    loop, head = _dequantizer(symbols.dtype, store), cover.to_cache_line(out, 1) if stream else 0
    rest, numbers = np.empty(BLOCK, symbols.dtype), np.empty((2, BLOCK), np.float32)
    loop(symbols, *scale.part(first), one, head, rest, *numbers, out)


def factoring(up: bool) -> Any:
    """Make the helper that tells the factor by a norm, 0 if that is tiny: (norm, s) -> factor."""

    @inline
    def scale_by(norm, s):
        wide, level = np.float64(norm), np.float64(s)
        if wide < TINY:
            return np.float32(0)
        return np.float32(level / wide if up else wide / level)

    return scale_by


def _spreading(up: bool) -> Any:
    """Make the helper that writes the factor of each element of a block.

    (numbers, norms, bucket, start, s, b) -> (up to where they hold, whether a norm is tiny, the
    bucket of `start`); b is a bucket that begins at `start` or before it, best the last.
    """
    scale_by = factoring(up)

    @inline
    def spread(numbers, norms, bucket, start, s, b):
        # numbers.size == BLOCK. Lanes behind the last bucket, which are cut off, have its factor.
        last = norms.size - 1
        end = (b + 1) * bucket
        while end <= start and b < last:
            b, end = b + 1, end + bucket
        here, held, lane, tiny = b, start, 0, False
        while lane < BLOCK:
            stop = min(end - start, BLOCK) if b < last else BLOCK
            norm = norms[b]
            tiny |= 0 < norm < TINY
            if lane == 0 and stop == BLOCK:
                numbers[:] = scale_by(norm, s)
                held = end
            else:
                factor = scale_by(norm, s)
                for k in range(lane, stop):  # stop <= BLOCK
                    numbers[k] = factor
            lane = stop
            b, end = b + 1, end + bucket
        return held, tiny, here

    return spread


@factory(lambda: ((kind,) for kind in KINDS))
def _quantizer(kind: np.dtype[Any]) -> Kernel:
    dtype = kind.name
    one_block = quantize_block(8 * kind.itemsize, 1, "each")
    two_blocks = quantize_block(8 * kind.itemsize, 2, "same")
    pair, odd = np.int64(2 * BLOCK), np.uint64(BLOCK)
    spread = _spreading(True)

    @kernel(
        "in float32[], uint64, uint64, in float32[], int64, int64, uint32, out float32[], "
        f"out {dtype}[]",
        variant=dtype,
    )
    def quantize_part(x, seed, first, norms, phase, bucket, s, numbers, out):
        # out.size == x.size, a multiple of BLOCK, as is `first`; the first bucket begins `phase`
        # elements before x; numbers.size == BLOCK. Returned is whether some norm is tiny; its
        # elements are 0.
        i, same, b, any_tiny = np.int64(0), np.int64(0), np.int64(0), False
        while i < x.size:
            if i + BLOCK > same:
                held, tiny, b = spread(numbers, norms, bucket, i + phase, s, b)
                same = min(held - phase, x.size)  # up to where the numbers hold, or i
                any_tiny |= tiny
            start = first + np.uint64(i)
            span = start >> COUNTER_SPAN
            if i + pair <= same and start & odd == 0:
                two_blocks(x, i, numbers[0], s, seed, start, span, out, i)
                i += pair
            else:
                one_block(x, i, numbers, 0, s, seed, start, span, out, i)
                i += BLOCK
        return any_tiny

    return quantize_part


@factory(lambda: itertools.product(KINDS, get_args(Store)))
def _dequantizer(kind: np.dtype[Any], store: Store) -> Kernel:
    dtype = kind.name
    bits = 8 * kind.itemsize
    any_block, two_buckets = (dequantize_block(bits, store, how) for how in ("each", "two"))
    edge_block = dequantize_block(bits, "add" if store == "add" else "write", "each")
    streaming = store == "stream"
    scale_by, spread = factoring(False), _spreading(False)

    @kernel(
        f"in {dtype}[], in float32[], int64, int64, uint32, float32, int64, out {dtype}[], "
        "out float32[], out float32[], out float32[]",
        variant=f"{dtype} {store}",
    )
    def dequantize_part(symbols, norms, phase, bucket, s, scale, head, some, values, numbers, out):
        # symbols.size == out.size; some, values and numbers have BLOCK elements; head is less, and
        # at most out.size. Whole blocks lie between `head` and `tail`. For the rest see
        # quantize_part.
        if out.size == 0:
            return
        last = norms.size - 1
        tail = out.size - (out.size - head) % BLOCK
        for start, stop in ((0, head), (tail, out.size)):
            if start < stop:
                for k in range(stop - start):  # at most BLOCK
                    some[k], values[k] = symbols[start + k], out[start + k]
                b = min((start + phase) // bucket, last)
                spread(numbers, norms, bucket, start + phase, s, b)
                edge_block(some, 0, numbers, 0, scale, values, 0)
                for k in range(stop - start):
                    out[start + k] = values[k]
        i, b = head, np.int64(0)
        following = scale_by(norms[0], s)
        while i < tail and bucket >= BLOCK:
            factor, end = following, tail
            if b < last:  # lanes behind the last, which are cut off, have its factor
                end = min((b + 1) * bucket - phase, tail)
                b += 1
            # Found before it is needed, as it takes a division.
            following = scale_by(norms[b], s)
            while i + BLOCK <= end:
                two_buckets(symbols, i, factor, factor, BLOCK, scale, out, i)
                i += BLOCK
            if i < end:  # so that was not the last, and tail is BLOCK or more from i
                two_buckets(symbols, i, factor, following, end - i, scale, out, i)
                i += BLOCK
        while i < tail:
            _, _, b = spread(numbers, norms, bucket, i + phase, s, b)
            any_block(symbols, i, numbers, 0, scale, out, i)
            i += BLOCK
        if streaming:
            fence()

    return dequantize_part
