"""Minifloats: from float32 to codes of a scale Δ, with or without a residual, and back.

With r = |x|/Δ, rounded once to float32, the code is that of the magnitude nearest to r: ties go to
the even code, what lies beyond the largest magnitude to that one. The sign of code 0 is no sign.
Code j stands for ±f32(Δ·c), c being its magnitude. Codes of up to four bits are kept two in a
byte, the first in the high half; wider ones a byte each.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import get_args

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.pack import FieldLayout, pack_fields, unpack_fields
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.quantize.float_format import FORMATS, STYLES, MiniFloat
from gcodec.kernels.quantize.minifloat_block import (
    MOST_STEPS,
    TOPS,
    Store,
    dequantize_block,
    per_byte,
    quantize_block,
    residual_block,
)
from gcodec.runtime import cover, pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, inline, kernel
from gcodec.runtime.lanes import BLOCK, fence

_PART = 1 << 18  # codes that are checked at a time


def codes_nbytes(n: int, fmt: MiniFloat) -> int:
    """Return the bytes of n codes."""
    return -(-n // per_byte(fmt))


def part_of(codes: np.ndarray, start: int, stop: int, fmt: MiniFloat) -> np.ndarray:
    """Return the bytes of elements `start` to `stop`; `start` is even."""
    return codes[start // per_byte(fmt) : codes_nbytes(stop, fmt)]


def quantize(x: np.ndarray, scale: np.float32, fmt: MiniFloat, out: np.ndarray) -> bool:
    """Quantise a part of a tensor on the calling thread.

    Parameters
    ----------
    x : (n,) float32 array
        From an element on whose number is even.
    scale : float32
        Finite, not negative; all codes are 0 where it is 0.
    fmt : MiniFloat
    out : (codes_nbytes(n, fmt),) uint8 array

    Returns
    -------
    bool
        Whether all of x is finite. If not, the codes stand for nothing.
    """
    loop, numbers = _quantizer(fmt), _numbers(scale, fmt)
    tops = np.zeros(2 * TOPS, np.uint32)
    whole = x.size - x.size % BLOCK
    top = loop(x[:whole], *numbers, tops, out[: codes_nbytes(whole, fmt)])
    if whole < x.size:
        rest, last = np.zeros(BLOCK, np.float32), np.empty(codes_nbytes(BLOCK, fmt), np.uint8)
        rest[: x.size - whole] = x[whole:]
        top = max(top, loop(rest, *numbers, tops, last))
        out[codes_nbytes(whole, fmt) :] = last[: codes_nbytes(x.size - whole, fmt)]
    return bool(top < INFINITY_BITS)


def quantize_residual(
    x: np.ndarray,
    residual: np.ndarray,
    decay: np.float32,
    scale: np.float32,
    fmt: MiniFloat,
    out: np.ndarray,
    left: np.ndarray,
) -> None:
    """Quantise u = x + decay·residual, and write u − x̂ to `left`, each step rounded once.

    Parameters
    ----------
    x, residual, left : (n,) float32 arrays
        u must be finite. They may be one array.
    decay : float32
    scale, fmt, out
        See `quantize`.
    """
    loop, numbers = _residual_quantizer(fmt), _numbers(scale, fmt)
    whole = x.size - x.size % BLOCK
    packed = out[: codes_nbytes(whole, fmt)]
    loop(x[:whole], residual[:whole], left[:whole], decay, scale, *numbers, packed)
    if whole < x.size:
        rest, kept = np.zeros((2, BLOCK), np.float32)
        rest[: x.size - whole], kept[: x.size - whole] = x[whole:], residual[whole:]
        last = np.empty(codes_nbytes(BLOCK, fmt), np.uint8)
        loop(rest, kept, kept, decay, scale, *numbers, last)
        left[whole:] = kept[: x.size - whole]
        out[codes_nbytes(whole, fmt) :] = last[: codes_nbytes(x.size - whole, fmt)]


def streams(out: np.ndarray, fmt: MiniFloat) -> bool:
    """Whether `dequantize` should write to (n,) float32 `out` past the cache."""
    return cover.streams(out[cover.to_cache_line(out, per_byte(fmt)) :])


def dequantize(
    codes: np.ndarray,
    scale: np.float32,
    fmt: MiniFloat,
    out: np.ndarray,
    add: np.float32 | None = None,
    *,
    stream: bool = False,
) -> None:
    """Write what a part of the codes stands for, or add a multiple of it, on this thread.

    Parameters
    ----------
    codes : (codes_nbytes(n, fmt),) uint8 array
    scale : float32
    fmt : MiniFloat
    out : (n,) float32 array
        From an element on whose number is even.
    add : float32, optional
        The multiple; each product is rounded before it is added.
    stream : bool
        Whether to write past the cache, from the first cache line of `out` on; see `streams`.
    """
    pair = per_byte(fmt)
    if stream and (head := cover.to_cache_line(out, pair)):
        dequantize(codes[: head // pair], scale, fmt, out[:head], add)
        codes, out = codes[head // pair :], out[head:]
    aligned = out.ctypes.data % 32 == 0  # as streaming needs it
    store: Store = "add" if add is not None else "stream" if stream and aligned else "write"
    times = np.float32(1) if add is None else add
    whole = out.size - out.size % BLOCK
    loop = _dequantizer(fmt.format, store)
    loop(codes[: codes_nbytes(whole, fmt)], scale, times, out[:whole])
    if whole < out.size:
        last, rest = np.zeros(codes_nbytes(BLOCK, fmt), np.uint8), np.zeros(BLOCK, np.float32)
        some = codes[codes_nbytes(whole, fmt) :]
        last[: some.size], rest[: out.size - whole] = some, out[whole:]
        loop = _dequantizer(fmt.format, "write" if store == "stream" else store)
        loop(last, scale, times, rest)
        out[whole:] = rest[: out.size - whole]


@dispatched("gcodec.kernels.quantize.minifloat_cuda")
def check(codes: np.ndarray, n: int, fmt: MiniFloat) -> None:
    """Raise `Corrupt` unless the bytes are n codes that stand for something.

    Parameters
    ----------
    codes : (codes_nbytes(n, fmt),) uint8 array
    n : int
    fmt : MiniFloat
    """
    pair, sign = per_byte(fmt), 1 << fmt.width - 1
    any_wrong = _any_wrong_half if pair == 2 else _any_wrong
    rule = np.uint8(sign), np.uint8(fmt.top)
    if any(pool.run(lambda i, j: bool(any_wrong(codes[i:j], *rule)), codes.size)):
        starts = range(0, codes.size, _PART)
        start = next(i for i in starts if any_wrong(codes[i : i + _PART], *rule))
        part = codes[start : start + _PART]
        each = np.stack([part >> 4, part & 15], axis=1).reshape(-1) if pair == 2 else part
        magnitude = each & (sign - 1)
        wrong = (magnitude > fmt.top) | (each == sign) | (each >= 2 * sign)
        at = int(np.argmax(wrong))
        raise Corrupt(f"element {pair * start + at} has the code {each[at]:#x}, which is none")
    if n % pair and codes[-1] & 15:
        raise Corrupt("the half of a byte behind the last code is not zero", codes.size - 1)


def packed(codes: np.ndarray, n: int, fmt: MiniFloat) -> np.ndarray:
    """Write n codes one behind the other, most significant bit first; maybe to the same memory."""
    if 8 // per_byte(fmt) == fmt.width:
        return codes
    if per_byte(fmt) == 2:
        codes = unpack_fields(codes, n, FieldLayout(4))
    return pack_fields(codes, FieldLayout(fmt.width))


def unpacked(data: np.ndarray, n: int, fmt: MiniFloat) -> np.ndarray:
    """Read what `packed` wrote."""
    if 8 // per_byte(fmt) == fmt.width:
        return data
    codes = unpack_fields(data, n, FieldLayout(fmt.width))
    return pack_fields(codes, FieldLayout(4)) if per_byte(fmt) == 2 else codes


# --- what codes are told by


@functools.lru_cache(maxsize=256)
def _numbers(scale: np.float32, fmt: MiniFloat) -> tuple[np.float32, np.ndarray]:
    """Return the divisor, and for each code what the bits of |x| must be above, filled up."""
    steps = np.full(MOST_STEPS, INFINITY_BITS, np.int32)
    if fmt.top <= MOST_STEPS and scale > 0:
        steps[: fmt.top] = least_bits(scale, fmt)
    # By infinity, all of x becomes 0.
    return (scale if scale > 0 else np.float32(np.inf)), steps - np.int32(1)


def least_bits(scale: np.float32, fmt: MiniFloat) -> np.ndarray:
    """Return the bits of the least float32 |x| of each code from 1 on, as (top,) int32.

    Those of infinity stand for codes that no |x| has.
    """
    middles = least_middles(fmt) * float(scale)
    with np.errstate(over="ignore", under="ignore"):
        x = middles.astype(np.float32)
    found: np.ndarray = x.view(np.int32) + (x < middles)
    return found


def least_middles(fmt: MiniFloat) -> np.ndarray:
    """Return what |x|/Δ must be above for each code from 1 on, as (top,) float64."""
    magnitudes = fmt.magnitudes()
    ties = (magnitudes[1:] + magnitudes[:-1]) / np.float32(2)  # exact
    odd = np.arange(1, fmt.top + 1) % 2 == 1
    least = np.where(odd, np.nextafter(ties, np.float32(np.inf)), ties)
    # r ≥ least where |x|/Δ is above the middle between it and the float32 below. That and its
    # product with Δ are exact in float64, and of 25 significant bits or more: no |x| is there.
    below = np.nextafter(least, np.float32(0))
    middles: np.ndarray = (least.astype(np.float64) + below) / 2
    return middles


# --- loops


def _formats() -> Iterator[tuple[MiniFloat]]:
    return ((MiniFloat(*both),) for both in itertools.product(FORMATS, STYLES))


@inline
def _place(b, count):
    """Return the element at which block b begins, of so many.

    They are taken from two halves in turn: two streams keep more of the memory busy than one.
    """
    return BLOCK * ((b >> 1) + (b & 1) * ((count + 1) >> 1))


@factory(_formats)
def _quantizer(fmt: MiniFloat) -> Kernel:
    one_block = quantize_block(fmt)
    pair = per_byte(fmt)

    @kernel("in float32[], float32, in int32[], out uint32[], out uint8[]", variant=f"{fmt}")
    def minifloat_codes(x, divisor, steps, tops, out):
        # x.size is a multiple of BLOCK, out.size == x.size // pair; steps.size == MOST_STEPS,
        # tops is 2 * TOPS zeros. Returned are the bits of the largest magnitude.
        a, b, c, d = steps[0], steps[1], steps[2], steps[3]
        f, g, h = steps[4], steps[5], steps[6]
        count = x.size // BLOCK
        for k in range(count):
            i, slot = _place(k, count), (k & 1) * TOPS
            one_block(x, i, divisor, a, b, c, d, f, g, h, tops, slot, out, i // pair)
        top = np.uint32(0)
        for k in range(tops.size):
            top = max(top, tops[k])
        return top

    return minifloat_codes


@factory(_formats)
def _residual_quantizer(fmt: MiniFloat) -> Kernel:
    one_block = residual_block(fmt)
    pair = per_byte(fmt)

    @kernel(
        "in float32[], in float32[], out float32[], float32, float32, float32, in int32[], "
        "out uint8[]",
        variant=f"{fmt}",
    )
    def minifloat_residual(x, before, after, decay, delta, divisor, steps, out):
        # before.size == after.size == x.size; for the rest see minifloat_codes
        a, b, c, d = steps[0], steps[1], steps[2], steps[3]
        f, g, h = steps[4], steps[5], steps[6]
        count = x.size // BLOCK
        for k in range(count):
            i = _place(k, count)
            numbers = decay, delta, divisor, a, b, c, d, f, g, h
            one_block(x, before, after, i, *numbers, out, i // pair)

    return minifloat_residual


@factory(lambda: itertools.product(FORMATS, get_args(Store)))
def _dequantizer(format: str, store: Store) -> Kernel:
    fmt = MiniFloat(format)
    one_block = dequantize_block(fmt, store)
    pair = per_byte(fmt)
    streaming = store == "stream"

    @kernel("in uint8[], float32, float32, out float32[]", variant=f"{format} {store}")
    def minifloat_values(codes, delta, scale, out):
        # out.size is a multiple of BLOCK, codes.size == out.size // pair
        for i in range(0, out.size, BLOCK):
            one_block(codes, i // pair, delta, scale, out, i)
        if streaming:
            fence()

    return minifloat_values


@inline
def _wrong(code, sign, top):
    """Return 1 where a code stands for nothing, each step cut to 8 bits."""
    size = np.uint8(code & np.uint8(sign - np.uint8(1)))
    beyond = np.uint8(np.uint8(code ^ size) > sign)
    return np.uint8(np.uint8(np.uint8(size > top) | np.uint8(code == sign)) | beyond)


@kernel("in uint8[], uint8, uint8")
def _any_wrong(codes, sign, top):
    found = np.uint8(0)
    for i in range(codes.size):
        found = np.uint8(found | _wrong(codes[i], sign, top))
    return found


@kernel("in uint8[], uint8, uint8")
def _any_wrong_half(codes, sign, top):
    found = np.uint8(0)
    for i in range(codes.size):
        first, second = np.uint8(codes[i] >> np.uint8(4)), np.uint8(codes[i] & np.uint8(15))
        wrong = np.uint8(_wrong(first, sign, top) | _wrong(second, sign, top))
        found = np.uint8(found | wrong)
    return found
