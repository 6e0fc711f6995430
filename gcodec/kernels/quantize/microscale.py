"""Blocks of small floats with a shared scale: from float32 to bytes, and back.

One pass reads a block of 32 elements, finds the largest magnitude, derives the byte of the scale,
and rounds the scaled elements, as `emit_codes` does.

In a block with NaN or Inf, each kind of value has a rule of its own. The kernels mark such blocks
by a scale of NaN and leave their elements; `quantize_nonfinite` then writes them without a kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.numeric.arithmetic import (
    TERMS,
    ResidualUpdate,
    add_block,
    fetch_terms,
    store_errors,
)
from gcodec.kernels.numeric.convert import add_rounded
from gcodec.kernels.numeric.philox import emit_words, words
from gcodec.kernels.numeric.reduce import INFINITY_BITS, float_of_bits
from gcodec.kernels.quantize.block_format import (
    FORMATS,
    LEAST_TENSOR_SCALE,
    MANTISSA,
    MOST_TENSOR_SCALE,
    BlockFormat,
    ScaleRule,
)
from gcodec.kernels.quantize.byte_lanes import (
    HALF,
    load_codes,
    narrow_halves,
    pair_codes,
    store_sorted,
)
from gcodec.kernels.quantize.float_codes import emit_codes, emit_values, limit_bits
from gcodec.kernels.quantize.float_format import nearest_codes
from gcodec.kernels.quantize.microscale_scales import GROUPS, ROOM, RULE, find_scales, scale_finder
from gcodec.runtime import pool
from gcodec.runtime.cover import store_of, streams
from gcodec.runtime.deferred import binary32
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, Kernel, factory, kernel
from gcodec.runtime.lanes import (
    ADD,
    BLOCK,
    ROUNDED,
    SIGN,
    STREAM,
    Emitter,
    Value,
    block,
    fence,
    floats,
    lanes,
)
from gcodec.runtime.memory import tile_beside

_TILE = 2048  # elements whose scales are found together, while they stay in a cache


class Quantization(NamedTuple):
    """How values become elements.

    Attributes
    ----------
    fmt : BlockFormat
    rule : str
        The rule for scales; see `ScaleRule`.
    tensor_scale : float32 or Deferred
        The scale of the tensor; 1 for MX formats.
    """

    fmt: BlockFormat
    rule: str
    tensor_scale: Any


@dispatched("gcodec.kernels.quantize.microscale_cuda")
def quantize(
    x: np.ndarray,
    quantization: Quantization,
    seed: int | None,
    scales: np.ndarray,
    out: np.ndarray,
    update: ResidualUpdate | None = None,
    leaves_errors: bool = False,
    rounded_to: int = 0,
) -> int:
    """Write the scales and elements of a (n,) float32 array.

    Parameters
    ----------
    x : (n,) float32 array
    quantization : Quantization
    seed : int or None
        Seed for stochastic rounding; None rounds to nearest, ties to even.
    scales : (quantization.fmt.blocks(n),) uint8 array
    out : (quantization.fmt.data_nbytes(n),) uint8 array
    update : ResidualUpdate, optional
        Residual that is added to x; the new one is the sum minus its decoded value.
    leaves_errors : bool
        Whether x, to which no residual is added, is replaced by the quantization error x − x̂.
    rounded_to : int
        With `leaves_errors`, the index in `ROUNDED` of the dtype to which x̂ is rounded before it
        is subtracted.

    Returns
    -------
    int
        Bit pattern of the largest magnitude of x, or of the sum; NaN is larger than infinity. For
        an array on a device, to which no residual is added, a `Deferred`.
    """
    fmt, has_update, none = quantization.fmt, update is not None, np.empty(0, np.float32)
    streaming = False
    if update is not None:
        streaming = streams(update.separate_output)
        leaves_errors, rounded_to = True, update.rounded_to
    loop, modes = _quantizer(fmt.name, seed is not None, leaves_errors), (streaming, rounded_to)
    keys = np.uint64(seed or 0), np.uint64(scale_finder(fmt.block).address)
    constants = *keys, *_numbers(quantization)
    per_byte, blocks = fmt.per_byte, _TILE // fmt.block

    def task(start: int, stop: int) -> int:
        part, largest = x[start:stop], np.zeros(BLOCK, np.int32)
        whole = part.size - part.size % BLOCK
        update_part = ResidualUpdate(none, np.float32(0), none)
        sums = part[:whole]
        if update is not None:
            update_part = update.part(start, stop)
            sums = tile_beside(_TILE, update_part.separate_output)
        numbers = (
            *constants,
            np.zeros(GROUPS * _TILE // BLOCK, np.int32),
            np.zeros(blocks, np.int32),
            largest,
            *np.empty((2, blocks), np.float32),
            np.empty(blocks, np.uint8),
        )
        own = scales[start // fmt.block : fmt.blocks(stop)]
        data = out[start // per_byte : fmt.data_nbytes(stop)]
        count = whole // fmt.block
        terms = *update_part.part(0, whole).terms(part[:whole]), has_update, *modes
        loop(sums, *terms, np.uint64(start), *numbers, own[:count], data)
        if whole < part.size:  # the remaining elements, in a block of zeros
            ends, last = np.empty(BLOCK // fmt.block, np.uint8), np.empty(BLOCK, np.uint8)
            padded, rest = np.zeros((3, BLOCK), np.float32), update_part.part(whole, part.size)
            padded[0, : part.size - whole] = part[whole:]
            if has_update:
                padded[1, : part.size - whole] = rest.save()
            sums = sums if has_update else padded[0]
            terms = *padded[:2], rest.decay, padded[2], none, has_update, False, rounded_to
            loop(sums, *terms, np.uint64(start + whole), *numbers, ends, last)
            own[count:] = ends[: own.size - count]
            data[whole // per_byte :] = last[: data.size - whole // per_byte]
            if leaves_errors:
                errors = padded[2] if has_update else padded[0]
                target = rest.new_residual if has_update else part[whole:]
                target[:] = errors[: part.size - whole]
        update_part.mark_replaced()
        return int(largest.max())

    top = max(pool.run(task, x.size, BLOCK, x))
    if top >= INFINITY_BITS:
        values = x if update is None else update.new_residual
        quantize_nonfinite(values, quantization, seed, scales, out, leaves_errors, rounded_to)
    return top


@dispatched("gcodec.kernels.quantize.microscale_cuda")
def dequantize(
    scales: np.ndarray,
    data: np.ndarray,
    fmt: BlockFormat,
    tensor_scale: float,
    out: np.ndarray,
    add: np.float32 | None = None,
) -> None:
    """Write the values of n elements to (n,) float32 `out`, or add a multiple of them.

    Parameters
    ----------
    scales : (fmt.blocks(n),) uint8 array
    data : (fmt.data_nbytes(n),) uint8 array
        Elements of 6 bits are below 64.
    fmt : BlockFormat
    tensor_scale : float
        The scale of the tensor; 1 for MX formats.
    out : (n,) float32 array
    add : float32, optional
        Factor of the values that are added; each product is rounded first.
    """
    store, times = store_of(add, streams(out))
    loop, factors, per_byte = _dequantizer(fmt.name), fmt.scales(tensor_scale), fmt.per_byte

    def task(start: int, stop: int) -> None:
        part = out[start:stop]
        own = scales[start // fmt.block : fmt.blocks(stop)]
        codes = data[start // per_byte : fmt.data_nbytes(stop)]
        whole = part.size - part.size % BLOCK
        count = whole // fmt.block
        loop(own[:count], codes[: whole // per_byte], factors, store, times, part[:whole])
        if whole < part.size:
            padded, last = np.zeros(BLOCK, np.float32), np.zeros(BLOCK // per_byte, np.uint8)
            padded[: part.size - whole] = part[whole:]
            last[: codes.size - whole // per_byte] = codes[whole // per_byte :]
            scale = np.zeros(BLOCK // fmt.block, np.uint8)
            scale[: own.size - count] = own[count:]
            loop(scale, last, factors, store & ADD, times, padded)
            part[whole:] = padded[: part.size - whole]

    pool.run(task, out.size, BLOCK)


@dispatched("gcodec.kernels.quantize.microscale_cuda")
def tensor_scale_of(bits: int) -> float:
    """Return the scale of a tensor for NVFP4, by the bits of its largest magnitude, over 448·6."""
    with np.errstate(under="ignore"):
        scale = float(float_of_bits(bits) / np.float32(2688))
    return binary32(min(max(scale, LEAST_TENSOR_SCALE), MOST_TENSOR_SCALE))


@dispatched("gcodec.kernels.quantize.microscale_cuda")
def check_at_most(data: np.ndarray, most: int, error: Callable[[int, int], Exception]) -> None:
    """Raise an error for the first byte above `most`, given its place and its value."""
    if int(data.max(initial=0)) > most:
        at = int(np.argmax(data > most))
        raise error(at, int(data[at]))


def rounded(
    x: np.ndarray, quantization: Quantization, seed: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes that `quantize` writes, and their values, without a kernel of a format.

    The bytes are all scales, then all elements. NumPy takes longer than the kernels, but each
    format has kernels of its own to compile.

    Parameters
    ----------
    x : (n,) float32 array
        Finite.
    quantization : Quantization
    seed : int or None
        See `quantize`.
    """
    fmt, rule_name, tensor_scale = quantization
    blocks = np.zeros((fmt.blocks(x.size), fmt.block), np.float32)
    blocks.reshape(-1)[: x.size] = x
    tops = np.abs(blocks).max(axis=1)
    if fmt.is_two_level:
        e4m3 = BlockFormat.of("mxfp8e4m3")
        with np.errstate(over="ignore"):
            wanted = np.clip(tops / np.float32(6) / tensor_scale, 2.0**-6, 448)
        scales = nearest_codes(wanted.astype(np.float32), e4m3.mantissa, 1 - e4m3.bias)
        factors = np.float32(1) / tensor_scale / e4m3.values()[scales]
    else:
        rule = ScaleRule.of(rule_name, fmt)
        with np.errstate(under="ignore"):
            bits = (tops / rule.divisor).view(np.int32)
        scales = np.clip(bits + rule.adds[bits >> MANTISSA] >> MANTISSA, 0, 254)
        factors = np.where(scales > 0, np.ldexp(np.float32(1), 127 - scales), rule.least)
    random = None if seed is None else words(seed, 0, blocks.size).reshape(blocks.shape)
    with np.errstate(over="ignore", under="ignore"):
        sizes = np.minimum(np.abs(blocks * factors[:, None]), fmt.largest)
        codes = _signed(_codes(sizes, fmt, random), blocks, fmt)
        values = fmt.values()[codes] * fmt.scales(float(tensor_scale))[scales][:, None]
    elements = _in_bytes(codes.reshape(-1)[: x.size], fmt)
    return np.append(scales.astype(np.uint8), elements), values.reshape(-1)[: x.size]


def quantize_nonfinite(
    x: np.ndarray,
    quantization: Quantization,
    seed: int | None,
    scales: np.ndarray,
    out: np.ndarray,
    leaves_errors: bool,
    rounded_to: int,
) -> None:
    """Write the blocks of a tensor that contain NaN or Inf, and are marked; see `quantize`.

    In a block with NaN, the scale is NaN. A block with Inf and no NaN has the largest scale of its
    rule, and Inf becomes the largest magnitude.
    """
    fmt = quantization.fmt
    for b in np.flatnonzero(scales == fmt.nan_scale).tolist():
        first, stop = b * fmt.block, min((b + 1) * fmt.block, x.size)
        part = np.asarray(x[first:stop], np.float32)
        scale, codes = _nonfinite_block(part, quantization, seed, first)
        data = out[first // fmt.per_byte : fmt.data_nbytes(stop)]
        scales[b], data[:] = scale, _in_bytes(codes, fmt)
        if leaves_errors:
            decoded = np.empty(part.size, np.float32)
            dequantize(scales[b : b + 1], data, fmt, float(quantization.tensor_scale), decoded)
            add_rounded(decoded, ROUNDED[rounded_to], np.float32(-1), part)


def _nonfinite_block(
    x: np.ndarray, quantization: Quantization, seed: int | None, first: int
) -> tuple[int, np.ndarray]:
    """Return the scale and the codes of a block that contains NaN or Inf, from element `first`."""
    fmt, rule, tensor_scale = quantization
    sign = np.where(np.signbit(x), np.uint8(1 << fmt.width - 1), np.uint8(0))
    if np.isnan(x).any():
        scale = fmt.nan_scale
        if fmt.is_integer:
            return scale, np.zeros(x.size, np.uint8)
        if fmt.is_two_level or rule == "rceil":  # a product with NaN is that NaN
            return scale, np.full(x.size, fmt.nan_code, np.uint8)
        # A quotient by infinity is 0 with the sign of the element; that of infinity is −NaN.
        nan = np.where(np.isinf(x), np.uint8(1 << fmt.width - 1), sign) | np.uint8(fmt.nan_code)
        return scale, np.where(np.isfinite(x), sign, nan)
    scale = infinite_scale(fmt, rule)
    factor = np.ldexp(np.float32(1), 127 - scale)
    if fmt.is_two_level:
        factor = (np.float32(1) / tensor_scale) / np.float32(448)
    with np.errstate(all="ignore"):
        r = np.minimum(np.abs(x * factor), fmt.largest)
    codes = _codes(r, fmt, None if seed is None else words(seed, first, x.size))
    return scale, _signed(codes, x, fmt)


def infinite_scale(fmt: BlockFormat, rule: str) -> int:
    """Return the scale of blocks with Inf and no NaN."""
    if fmt.is_two_level:
        return 0x7E
    return 254 if rule == "rceil" or fmt.is_integer else 255 - fmt.largest_exponent


def _codes(r: np.ndarray, fmt: BlockFormat, random: np.ndarray | None) -> np.ndarray:
    """Round magnitudes, at most `fmt.largest`, to codes, given random words or None."""
    least = 0 if fmt.is_integer else 1 - fmt.bias
    if random is None:
        return nearest_codes(r, fmt.mantissa, least)
    exponents = np.full(r.shape, least)
    if not fmt.is_integer:
        exponents = np.where(r > 0, np.maximum(np.frexp(r)[1] - 1, least), least)
    units = np.ldexp(r.astype(np.float64), fmt.mantissa - exponents)
    whole = np.floor(units)
    whole += random >> 1 < ((units - whole) * 2.0**31).astype(np.int64)
    return whole.astype(np.int64) + (exponents - least << fmt.mantissa)


def _signed(codes: np.ndarray, x: np.ndarray, fmt: BlockFormat) -> np.ndarray:
    """Return codes with the signs of values, as uint8."""
    negative = -codes if fmt.is_integer else codes | 1 << fmt.width - 1
    return np.asarray(np.where(np.signbit(x), negative, codes).astype(np.uint8))


def _in_bytes(codes: np.ndarray, fmt: BlockFormat) -> np.ndarray:
    """Return codes as bytes. Two 4-bit codes share a byte, the first in the low half."""
    if fmt.per_byte == 1:
        return codes
    codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
    return np.asarray(codes[::2] | codes[1::2] << np.uint8(4))


def _numbers(quantization: Quantization) -> tuple[Any, ...]:
    """Return the arguments of a kernel that depend on the rule and the scale of the tensor."""
    fmt, rule_name, tensor_scale = quantization
    if fmt.is_two_level:
        nothing = np.empty(0, np.int32), np.float32(0)
        return tensor_scale, np.float32(1) / tensor_scale, *nothing
    rule = ScaleRule.of(rule_name, fmt)
    adds = rule.adds[:1] if rule.is_uniform else rule.adds
    return rule.divisor, np.float32(0), adds, rule.least


# --- blocks from values to codes -----------------------------------------------------------------


def _code_block(fmt: BlockFormat, stochastic: bool, leaves_errors: bool) -> Intrinsic:
    """Make the block that quantizes 32 elements of x from i, or `start` of the tensor, on.

    Their blocks have the numbers from b on, and their codes begin at byte `at` of `out`.
    """

    @block("x", "i", "seed", "start", "tops", "factors", "sizes", "b", "rounded_to", "out", "at")
    def codes(e: Emitter) -> None:
        builder, word = e.builder, lanes(32, HALF)
        source, halves = e.address("x", "i"), None
        if not leaves_errors:
            e.fetch(source, _TILE)  # of the next tile, while this one is in a cache
        if stochastic:
            (halves,) = emit_words(e)

        def number(name: str, k: int) -> Value:
            return builder.load(e.element(e.address(name, "b"), k if fmt.is_two_level else 0))

        def half(first: int) -> Value:
            k = first // HALF
            x = e.load(e.element(source, first), floats(HALF))
            own = None if halves is None else e.picked(halves, range(first, first + HALF))
            r = builder.fmul(x, e.splat(number("factors", k), HALF))
            bits = builder.bitcast(x, word)
            largest = limit_bits(fmt, HALF)
            code, rounded = emit_codes(e, fmt, r, own, largest if fmt.is_two_level else None)
            code, rounded = builder.and_(code, word([0xFF] * HALF)), builder.bitcast(rounded, word)
            if not fmt.is_two_level:
                code = e.smaller(code, word([fmt.top] * HALF))
                rounded = e.smaller(rounded, largest)
            if fmt.is_integer:  # 0 has no sign
                flips = builder.ashr(bits, word([31] * HALF))
                code = builder.sub(builder.xor(code, flips), flips)
            else:
                sign = builder.and_(bits, word([SIGN] * HALF))
                code = builder.or_(code, builder.lshr(sign, word([32 - fmt.width] * HALF)))
                rounded = builder.or_(rounded, sign)
            if leaves_errors:
                size = e.splat(number("sizes", k), HALF)
                signed = emit_values(e, fmt, code) if fmt.is_integer else rounded
                value = e.rounded(builder.fmul(builder.bitcast(signed, size.type), size))
                error = builder.fsub(x, value)
                is_finite = builder.icmp_signed(
                    "<", number("tops", k), word.element(INFINITY_BITS)
                )
                e.store(builder.select(is_finite, error, x), e.element(source, first))
            return code

        codes = narrow_halves(e, half)
        if fmt.per_byte == 2:
            codes = pair_codes(e, codes)
        store_sorted(e, codes)

    return codes


# --- blocks from codes to values -----------------------------------------------------------------


def _dequantize_block(fmt: BlockFormat) -> Intrinsic:
    """Make the block that decodes the codes from byte `at` to 32 elements of `out` from i on."""

    @block("scales", "b", "codes", "at", "factors", "store", "scale", "out", "i")
    def values(e: Emitter) -> None:
        builder = e.builder
        codes = load_codes(e, e.address("codes", "at"), fmt.per_byte)
        numbers = emit_values(e, fmt, builder.zext(codes, lanes(32)))
        place, factors = e.address("scales", "b"), []
        for k in range(BLOCK // fmt.block):
            scale = builder.zext(builder.load(e.element(place, k)), e.args["b"].type)
            factor = builder.load(builder.gep(e.args["factors"], [scale]))
            factors.append(e.splat(factor, fmt.block))
        e.store_as(builder.fmul(numbers, e.joined(factors)), e.address("out", "i"))

    return values


# --- loops ---------------------------------------------------------------------------------------


@factory(lambda: itertools.product(FORMATS, (False, True), (False, True)))
def _quantizer(name: str, stochastic: bool, leaves_errors: bool) -> Kernel:
    fmt = BlockFormat.of(name)
    code_block = _code_block(fmt, stochastic, leaves_errors)
    per_byte, per_scale = fmt.per_byte, fmt.block

    @kernel(
        f"{'out' if leaves_errors else 'in'} float32[], {TERMS}, boolean, boolean, int64, uint64, "
        f"uint64, uint64, {RULE}, {ROOM}, out uint8[], out uint8[]",
        variant=f"{name} {stochastic} {leaves_errors}",
        vectorized=False,
    )
    def microscale_codes(
        x, terms, updates, streaming, rounded_to, first, seed, find, rule, arrays, scales, out
    ):
        # gradient.size is a multiple of BLOCK, and gradient begins with element `first`, another
        # multiple. If it `updates`, residual and new_residual are as long, backup is or has no
        # elements, and x has room for the sums of a tile; else x is the gradient. scales.size ==
        # gradient.size // per_scale, out.size >= gradient.size // per_byte. `find` is the address
        # of a kernel of `scale_finder`. `rule` is divisor, reciprocal, adds and least; adds has
        # 256 elements, or 1 where scales are powers of two. `arrays` are parts, tops, largest,
        # factors, sizes and room. Tops, factors, sizes and room have an element for each block of
        # a tile, a multiple of 32; parts has GROUPS for 32 elements, and largest has 32.
        gradient, residual = terms[0], terms[1]
        _, tops, _, factors, sizes, _ = arrays
        for tile in range(0, gradient.size, _TILE):
            stop = min(gradient.size, tile + _TILE)
            base = tile if updates else 0  # element of the gradient for which x[0] is
            if leaves_errors and updates:
                for i in range(tile, stop, BLOCK):
                    add_block(terms, i, x, i - base, streaming)
            before = tile // per_scale
            count = stop // per_scale - before
            find_scales(find, x, tile - base, count, rule, arrays, before, scales)
            for i in range(tile, stop, BLOCK):
                start, b = first + np.uint64(i), i // per_scale - before
                at = i - base
                numbers = tops, factors, sizes, b, rounded_to
                code_block(x, at, seed, start, *numbers, out, i // per_byte)
                if leaves_errors and updates:
                    store_errors(x, at, terms, i, streaming)
                    fetch_terms(gradient, residual, i + _TILE)
                elif leaves_errors:
                    fetch_terms(x, x, i + _TILE)
        if leaves_errors and streaming:
            fence()

    return microscale_codes


@factory(lambda: ((name,) for name in FORMATS))
def _dequantizer(name: str) -> Kernel:
    fmt = BlockFormat.of(name)
    one_block = _dequantize_block(fmt)
    per_byte, per_scale = fmt.per_byte, fmt.block

    @kernel(
        "in uint8[], in uint8[], in float32[], int64, float32, out float32[]",
        variant=name,
        vectorized=False,
    )
    def microscale_values(scales, codes, factors, store, times, out):
        # out.size is a multiple of BLOCK, scales.size == out.size // per_scale, codes.size ==
        # out.size // per_byte; factors has 256 elements.
        for i in range(0, out.size, BLOCK):
            one_block(scales, i // per_scale, codes, i // per_byte, factors, store, times, out, i)
        if store == STREAM:
            fence()

    return microscale_values
