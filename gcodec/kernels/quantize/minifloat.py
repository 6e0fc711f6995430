"""Minifloats: from float32 to codes of a scale Δ, with or without a residual, and back.

With r = |x|/Δ, rounded once to float32, the code is that of the magnitude nearest to r. Ties go to
the even code, and values beyond the largest magnitude get its code. Code 0 has no sign. Code j
stands for ±f32(Δ·c), where c is its magnitude. A byte holds two codes of up to four bits, the
first in the high half, or one wider code.

If there are few codes, blocks compare the bits of |x| with thresholds; bits of nonnegative floats
have the order of the numbers. Otherwise they divide once, and round the bits of the quotient.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.pack import FieldLayout, pack_fields, unpack_fields
from gcodec.kernels.numeric.arithmetic import (
    NO_TERMS,
    TERMS,
    ResidualUpdate,
    copy_block,
    store_errors,
)
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.quantize.byte_lanes import (
    HALF,
    load_codes,
    narrow_halves,
    pair_codes,
    store_sorted,
)
from gcodec.kernels.quantize.float_codes import emit_codes, emit_values
from gcodec.kernels.quantize.float_format import FORMATS, STYLES, MiniFloat, nearest_codes
from gcodec.runtime import cover, pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, Kernel, factory, inline, kernel
from gcodec.runtime.lanes import (
    ADD,
    BLOCK,
    SIGN,
    STREAM,
    STREAMED,
    Emitter,
    Value,
    block,
    constants,
    fence,
    floats,
    lanes,
)
from gcodec.runtime.memory import aligned_empty

MOST_STEPS = 7  # codes that comparisons find; for more, a division takes less time

_PART = 1 << 18  # codes that are checked at a time
_STEPS = tuple(f"step{code}" for code in range(1, MOST_STEPS + 1))


def per_byte(fmt: MiniFloat) -> int:
    """Return how many codes a byte holds."""
    return 2 if fmt.width <= 4 else 1


def codes_nbytes(n: int, fmt: MiniFloat) -> int:
    """Return the bytes of n codes."""
    return -(-n // per_byte(fmt))


def part_of(codes: np.ndarray, start: int, stop: int, fmt: MiniFloat) -> np.ndarray:
    """Return the bytes of the elements from `start`, which is even, to `stop`."""
    return codes[start // per_byte(fmt) : codes_nbytes(stop, fmt)]


# --- tensors -------------------------------------------------------------------------------------


@dispatched("gcodec.kernels.quantize.minifloat_cuda")
def quantize_tensor(
    x: np.ndarray, scale: np.float32, fmt: MiniFloat, update: ResidualUpdate | None = None
) -> tuple[np.ndarray, bool]:
    """Return the codes of (n,) values, and whether all values are finite; see `quantize`.

    On a device, a sum with a residual must be finite.
    """
    out = aligned_empty(codes_nbytes(x.size, fmt), np.uint8)
    stream = update is not None and cover.streams(update.separate_output)

    def task(start: int, stop: int) -> bool:
        own, part = update and update.part(start, stop), part_of(out, start, stop, fmt)
        return quantize(x[start:stop], scale, fmt, part, own, stream=stream)

    return out, all(pool.run(task, x.size, BLOCK, x))


@dispatched("gcodec.kernels.quantize.minifloat_cuda")
def dequantize_tensor(
    codes: np.ndarray,
    scale: np.float32,
    fmt: MiniFloat,
    out: np.ndarray,
    add: np.float32 | None = None,
) -> None:
    """Write the (n,) values of codes, or add a multiple of them; see `dequantize`."""
    stream = add is None and can_stream(out, fmt)

    def task(start: int, stop: int) -> None:
        part = part_of(codes, start, stop, fmt)
        dequantize(part, scale, fmt, out[start:stop], add, stream=stream)

    pool.run(task, out.size, BLOCK)


def rounded(
    x: np.ndarray, scales: np.ndarray | np.float32, fmt: MiniFloat
) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes that `quantize_tensor` writes, and their values, without a kernel.

    NumPy takes longer than the kernels, but each format has kernels of its own to compile.

    Parameters
    ----------
    x : (n,) float32 array
        Finite.
    scales : float32, or (n,) float32 array
        Of all elements, or of each.
    fmt : MiniFloat
    """
    magnitudes = fmt.magnitudes()
    with np.errstate(over="ignore"):
        ratios = np.abs(x) / np.where(scales > 0, scales, np.float32(np.inf))
    codes = nearest_codes(np.minimum(ratios, magnitudes[-1]), fmt.mantissa, 1)
    is_negative = np.signbit(x) & (codes > 0)
    values = magnitudes[codes] * scales
    np.negative(values, out=values, where=is_negative)
    codes = (codes | is_negative << np.int32(fmt.width - 1)).astype(np.uint8)
    if per_byte(fmt) == 2:
        codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
        codes = codes[::2] << np.uint8(4) | codes[1::2]
    return codes, values


# --- parts of a tensor, on the calling thread ----------------------------------------------------


def quantize(
    x: np.ndarray,
    scale: np.float32,
    fmt: MiniFloat,
    out: np.ndarray,
    update: ResidualUpdate | None = None,
    *,
    stream: bool = False,
) -> bool:
    """Quantize a part of a tensor on the calling thread.

    Parameters
    ----------
    x : (n,) float32 array
        Elements from an even number on.
    scale : float32
        Finite, not negative; 0 makes all codes 0.
    fmt : MiniFloat
    out : (codes_nbytes(n, fmt),) uint8 array
    update : ResidualUpdate, optional
        Residual that is added to x; the new one is the sum minus its decoded value.
    stream : bool
        Whether to write `update.separate_output`, past the cache.

    Returns
    -------
    bool
        Whether all of x, or of the sum, is finite. Otherwise the codes and the new residual have
        no meaning.
    """
    loop, whole = _quantizer(_shared(fmt), update is not None), x.size - x.size % BLOCK
    numbers = scale, *_numbers(scale, fmt), np.zeros(2 * HALF, np.uint32)
    terms: tuple[Any, ...] = (x[:whole], *NO_TERMS[1:], False, 0, NO_TERMS[0])
    if update is not None:
        modes = update.rounded_to, aligned_empty(BLOCK, np.float32)
        terms = *update.part(0, whole).terms(x[:whole]), stream, *modes
    top = loop(*terms, *numbers, out[: codes_nbytes(whole, fmt)])
    if whole < x.size:
        padded, last = np.zeros(BLOCK, np.float32), np.empty(codes_nbytes(BLOCK, fmt), np.uint8)
        padded[: x.size - whole] = x[whole:]
        terms = padded, *terms[1:]
        if update is not None:
            rest, former = update.part(whole, x.size), np.zeros(BLOCK, np.float32)
            former[: x.size - whole] = rest.save()
            own = ResidualUpdate(former, update.decay, former)
            terms = *own.terms(padded), False, *modes
        top = max(top, loop(*terms, *numbers, last))
        if update is not None:
            update.new_residual[whole:] = former[: x.size - whole]
        out[codes_nbytes(whole, fmt) :] = last[: codes_nbytes(x.size - whole, fmt)]
    if update is not None:
        update.mark_replaced()
    return bool(top < INFINITY_BITS)


def can_stream(out: np.ndarray, fmt: MiniFloat) -> bool:
    """Return whether `dequantize` should write to (n,) float32 `out` past the cache."""
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
    """Write the values of a part of the codes, or add a multiple of them, on the calling thread.

    Parameters
    ----------
    codes : (codes_nbytes(n, fmt),) uint8 array
    scale : float32
    fmt : MiniFloat
    out : (n,) float32 array
        Elements from an even number on.
    add : float32, optional
        Factor of the values that are added to `out`; each product is rounded first.
    stream : bool
        Whether to write past the cache, from the first cache line of `out` on; see `can_stream`.
    """
    pair = per_byte(fmt)
    if stream and (head := cover.to_cache_line(out, pair)):
        dequantize(codes[: head // pair], scale, fmt, out[:head], add)
        codes, out = codes[head // pair :], out[head:]
    aligned = out.ctypes.data % STREAMED == 0
    store, times = cover.store_of(add, stream and aligned)
    whole, loop = out.size - out.size % BLOCK, _dequantizer(fmt.format)
    loop(codes[: codes_nbytes(whole, fmt)], scale, store, times, out[:whole])
    if whole < out.size:
        last, padded = np.zeros(codes_nbytes(BLOCK, fmt), np.uint8), np.zeros(BLOCK, np.float32)
        tail = codes[codes_nbytes(whole, fmt) :]
        last[: tail.size], padded[: out.size - whole] = tail, out[whole:]
        loop(last, scale, store & ADD, times, padded)
        out[whole:] = padded[: out.size - whole]


# --- the bytes of codes --------------------------------------------------------------------------


@dispatched("gcodec.kernels.quantize.minifloat_cuda")
def check(codes: np.ndarray, n: int, fmt: MiniFloat) -> None:
    """Raise `Corrupt` unless the bytes are n valid codes.

    Parameters
    ----------
    codes : (codes_nbytes(n, fmt),) uint8 array
    n : int
    fmt : MiniFloat
    """
    pair, sign = per_byte(fmt), 1 << fmt.width - 1
    rule = np.uint8(sign), np.uint8(fmt.top), pair == 2
    if any(pool.run(lambda i, j: bool(_any_wrong(codes[i:j], *rule)), codes.size)):
        starts = range(0, codes.size, _PART)
        start = next(i for i in starts if _any_wrong(codes[i : i + _PART], *rule))
        part = codes[start : start + _PART]
        own = np.stack([part >> 4, part & 15], axis=1).reshape(-1) if pair == 2 else part
        magnitude = own & (sign - 1)
        wrong = (magnitude > fmt.top) | (own == sign) | (own >= 2 * sign)
        at = int(np.argmax(wrong))
        raise code_error(pair * start + at, int(own[at]))
    if n % pair and codes[-1] & 15:
        raise half_error(codes.size - 1)


def code_error(at: int, code: int) -> Corrupt:
    """Make the error for an invalid code of element `at`."""
    return Corrupt(f"element {at} has the code {code:#x}, which is invalid")


def half_error(at: int) -> Corrupt:
    """Make the error for a wrong half of a byte, which is at `at`."""
    return Corrupt("the half of a byte after the last code is not zero", at)


def packed(codes: np.ndarray, n: int, fmt: MiniFloat) -> np.ndarray:
    """Pack n codes without gaps, most significant bit first; may return the same memory."""
    if 8 // per_byte(fmt) == fmt.width:
        return codes
    if per_byte(fmt) == 2:
        codes = unpack_fields(codes, n, FieldLayout(4))
    return pack_fields(codes, FieldLayout(fmt.width))


def unpacked(data: np.ndarray, n: int, fmt: MiniFloat) -> np.ndarray:
    """Unpack the codes that `packed` packed."""
    if 8 // per_byte(fmt) == fmt.width:
        return data
    codes = unpack_fields(data, n, FieldLayout(fmt.width))
    return pack_fields(codes, FieldLayout(4)) if per_byte(fmt) == 2 else codes


# --- thresholds ----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _numbers(scale: np.float32, fmt: MiniFloat) -> tuple[np.float32, int, np.ndarray]:
    """Return the divisor, the bits of the largest number, and those of |x| below each code.

    The bits are padded to MOST_STEPS.
    """
    steps = np.full(MOST_STEPS, INFINITY_BITS, np.int32)
    if fmt.top <= MOST_STEPS and scale > 0:
        steps[: fmt.top] = least_bits(scale, fmt)
    # Division by infinity turns all of x into 0.
    divisor = scale if scale > 0 else np.float32(np.inf)
    return divisor, int(fmt.magnitudes()[-1].view(np.int32)), steps - np.int32(1)


def least_bits(scale: np.float32, fmt: MiniFloat) -> np.ndarray:
    """Return the bits of the least float32 |x| of each code from 1 on, as (top,) int32.

    A code that no |x| has gets the bits of infinity.
    """
    middles = least_middles(fmt) * float(scale)
    with np.errstate(over="ignore", under="ignore"):
        x = middles.astype(np.float32)
    return x.view(np.int32) + (x < middles)


@functools.cache
def least_middles(fmt: MiniFloat) -> np.ndarray:
    """Return the lower bound of |x|/Δ for each code from 1 on, as read-only (top,) float64."""
    magnitudes = fmt.magnitudes()
    ties = (magnitudes[1:] + magnitudes[:-1]) / np.float32(2)  # exact
    odd = np.arange(1, fmt.top + 1) % 2 == 1
    least = np.where(odd, np.nextafter(ties, np.float32(np.inf)), ties)
    # r ≥ least if and only if |x|/Δ exceeds the middle of `least` and the float32 below it. The
    # middle and its product with Δ are exact in float64, and have 25 significant bits or more, so
    # no |x| equals the product.
    below = np.nextafter(least, np.float32(0))
    middles: np.ndarray = (least.astype(np.float64) + below) / 2
    middles.flags.writeable = False
    return middles


# --- blocks from values to codes -----------------------------------------------------------------


def _quantize_block(fmt: MiniFloat, leaves_errors: bool) -> Intrinsic:
    """Make the block that quantizes 32 elements of x from i to bytes of `out` from `at` on.

    It raises HALF elements of `tops` from `slot` on to the bits of the largest magnitudes. With
    `leaves_errors`, it quantizes u = x + decay·residual, and sets `errors` to u − x̂.
    """
    terms = "x", "residual", "i", "decay", "rounded_to", "errors"

    @block(*terms, "delta", "divisor", "largest", *_STEPS, "tops", "slot", "out", "at")
    def codes(e: Emitter) -> None:
        builder, word = e.builder, lanes(32, HALF)
        source, residual = (e.address(name, "i") for name in ("x", "residual"))
        largest: list[Value] = []
        e.fetch(source)
        if leaves_errors:
            e.fetch(residual)

        def half(first: int) -> Value:
            x = e.load(e.element(source, first), floats(HALF))
            if leaves_errors:
                former = e.load(e.element(residual, first), floats(HALF))
                x = builder.fadd(x, builder.fmul(e.splat(e.args["decay"], HALF), former))
            bits = e.magnitude_bits(x)
            largest.append(bits)
            code, sent, size = _emit_code(e, fmt, bits)
            sign = builder.and_(builder.bitcast(x, word), word([SIGN] * HALF))
            sign = builder.select(sent, sign, word([0] * HALF))
            if leaves_errors:
                size = builder.fmul(e.splat(e.args["delta"], HALF), size)
                value = builder.or_(builder.bitcast(size, word), sign)
                value = e.rounded(builder.bitcast(value, size.type))
                e.store(builder.fsub(x, value), e.element(e.args["errors"], first))
            return builder.or_(code, builder.lshr(sign, word([32 - fmt.width] * HALF)))

        codes = narrow_halves(e, half)
        if per_byte(fmt) == 2:
            codes = pair_codes(e, codes, first_high=True)
        store_sorted(e, codes)
        slot = e.address("tops", "slot")
        e.store(e.larger(e.larger(*largest), e.load(slot, word)), slot)

    return codes


def _emit_code(e: Emitter, fmt: MiniFloat, bits: Value) -> tuple[Value, Value, Value]:
    """Emit the codes of magnitudes, given as bits, whether they are not 0, and their numbers."""
    return _by_steps(e, fmt, bits) if fmt.top <= MOST_STEPS else _by_division(e, fmt, bits)


def _by_steps(e: Emitter, fmt: MiniFloat, bits: Value) -> tuple[Value, Value, Value]:
    builder, kind = e.builder, bits.type
    steps = [e.splat(e.args[name], kind.count) for name in _STEPS[: fmt.top]]
    above = [builder.icmp_signed(">", bits, step) for step in steps]
    code = builder.zext(above[0], kind)
    for one in above[1:]:
        code = builder.sub(code, builder.sext(one, kind))  # minus −1
    return code, above[0], e.one_of_eight(np.resize(fmt.magnitudes(), 8).tolist(), code)


def _by_division(e: Emitter, fmt: MiniFloat, bits: Value) -> tuple[Value, Value, Value]:
    builder, constant, count = e.builder, constants(bits.type), bits.type.count
    r = builder.fdiv(builder.bitcast(bits, floats(count)), e.splat(e.args["divisor"], count))
    code, size = emit_codes(e, fmt.elements, r, None, e.splat(e.args["largest"], count))
    code = builder.and_(code, constant(0xFF))
    return code, builder.icmp_unsigned("!=", code, constant(0)), size


# --- blocks from codes to values -----------------------------------------------------------------


def _dequantize_block(fmt: MiniFloat) -> Intrinsic:
    """Make the block that decodes the codes from byte `at` to 32 elements of `out` from i on."""

    @block("codes", "at", "delta", "store", "scale", "out", "i")
    def values(e: Emitter) -> None:
        codes = load_codes(e, e.address("codes", "at"), per_byte(fmt), first_high=True)
        numbers = emit_values(e, fmt.elements, e.builder.zext(codes, lanes(32)))
        values = e.builder.fmul(e.splat(e.args["delta"]), numbers)
        e.store_as(values, e.address("out", "i"))

    return values


# --- loops ---------------------------------------------------------------------------------------


@functools.cache
def _shared(fmt: MiniFloat) -> MiniFloat:
    """Return the format whose kernels quantize a format: only comparisons depend on the style."""
    return fmt if fmt.top <= MOST_STEPS else fmt._replace(style="full")


def _variants() -> Iterator[tuple[MiniFloat, bool]]:
    formats = (MiniFloat(*names) for names in itertools.product(FORMATS, STYLES))
    return itertools.product(dict.fromkeys(map(_shared, formats)), (False, True))


@inline
def _place(b, count):
    """Return the first element of block b of `count`, where no residual is added.

    The blocks alternate between two halves: two streams keep more of the memory busy than one.
    """
    return BLOCK * ((b >> 1) + (b & 1) * ((count + 1) >> 1))


@factory(_variants)
def _quantizer(fmt: MiniFloat, leaves_errors: bool) -> Kernel:
    one_block = _quantize_block(fmt, leaves_errors)
    pair = per_byte(fmt)

    @kernel(
        f"{TERMS}, boolean, int64, out float32[], float32, float32, int32, in int32[], "
        "out uint32[], out uint8[]",
        variant=f"{fmt} {leaves_errors}",
        vectorized=False,
    )
    def minifloat_codes(
        terms, streaming, rounded_to, errors, delta, divisor, largest, steps, tops, out
    ):
        # x.size is a multiple of BLOCK, out.size == x.size // pair; `largest` has the bits of the
        # largest number; steps.size == MOST_STEPS, tops is 2 * HALF zeros. With `leaves_errors`,
        # residual and new_residual are as long as x, backup is or has no elements, and
        # errors.size == BLOCK. Returns the largest magnitude's bits.
        x, residual, decay, _, backup = terms
        a, b, c, d = steps[0], steps[1], steps[2], steps[3]
        f, g, h = steps[4], steps[5], steps[6]
        numbers = delta, divisor, largest, a, b, c, d, f, g, h
        count = x.size // BLOCK
        for k in range(count):
            i, slot = BLOCK * k if leaves_errors else _place(k, count), (k & 1) * HALF
            modes = rounded_to, errors
            one_block(x, residual, i, decay, *modes, *numbers, tops, slot, out, i // pair)
            if leaves_errors:
                if backup.size:
                    copy_block(residual, i, backup, i, streaming)
                store_errors(errors, 0, terms, i, streaming)
        if leaves_errors and streaming:
            fence()
        top = np.uint32(0)
        for k in range(tops.size):
            top = max(top, tops[k])
        return top

    return minifloat_codes


@factory(lambda: ((format,) for format in FORMATS))
def _dequantizer(format: str) -> Kernel:
    fmt = MiniFloat(format)
    one_block = _dequantize_block(fmt)
    pair = per_byte(fmt)

    @kernel("in uint8[], float32, int64, float32, out float32[]", format, vectorized=False)
    def minifloat_values(codes, delta, store, scale, out):
        # out.size is a multiple of BLOCK, codes.size == out.size // pair
        for i in range(0, out.size, BLOCK):
            one_block(codes, i // pair, delta, store, scale, out, i)
        if store == STREAM:
            fence()

    return minifloat_values


@inline
def _wrong(code, sign, top):
    """Return 1 for an invalid code, else 0; each step is cut to 8 bits."""
    size = np.uint8(code & np.uint8(sign - np.uint8(1)))
    beyond = np.uint8(np.uint8(code ^ size) > sign)
    return np.uint8(np.uint8(np.uint8(size > top) | np.uint8(code == sign)) | beyond)


@kernel("in uint8[], uint8, uint8, boolean")
def _any_wrong(codes, sign, top, pairs):
    wrong = np.uint8(0)
    for i in range(codes.size):
        own, first = codes[i], np.uint8(0)
        if pairs:
            own, first = np.uint8(own & np.uint8(15)), np.uint8(own >> np.uint8(4))
        pair = np.uint8(_wrong(own, sign, top) | _wrong(first, sign, top))
        wrong = np.uint8(wrong | pair)
    return wrong
