"""Blocks of small floats with a shared scale: from float32 to bytes, and back.

One pass reads a block of 32 elements, finds the largest magnitude, derives the byte of the scale,
and rounds the scaled elements. For an element with the magnitude r and the exponent e, not below
the least one of the format, the code is r/2^(e − M) rounded to an integer, plus 2^M for each
exponent above the least one. Adding 2^(e + 23 − M) to r rounds to nearest with ties to even, for
the element itself has the ulp of that sum. Stochastic rounding takes the whole part, and adds 1
if (u >> 1) < int32(f·2^31), where f is the fraction and u the random word of the element.

In a block with NaN or Inf, each kind of value has a rule of its own. The kernels mark such blocks
by a scale of NaN and leave their elements; `quantize_nonfinite` then writes them without a kernel.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from gcodec.kernels.numeric.philox import COUNTER_SPAN, ROUNDING, emit_words, words
from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.quantize.block_format import FORMATS, BlockFormat, ScaleRule
from gcodec.runtime import pool
from gcodec.runtime.cover import streams
from gcodec.runtime.jit import Kernel, factory, kernel
from gcodec.runtime.lanes import BLOCK, SIGN, Emitter, block, fence, floats, lanes

Store = Literal["write", "stream", "add"]

_HALF = BLOCK // 2  # elements whose numbers stay in registers; a block of NVFP4
_MANTISSA = 23  # of float32: bits of the mantissa
_ONE = 127 << _MANTISSA  # bits of the number 1
_LEAST, _MOST = 0x3C800000, 0x43E00000  # bits of 2^-6 and 448, the range of scales of NVFP4
_E4M3 = 20  # bits of a float32 that an e4m3 number drops
_REBIAS = 120 << _MANTISSA  # what the exponent of a float32 has more than that of e4m3


class Quantization(NamedTuple):
    """How values become elements.

    Attributes
    ----------
    fmt : BlockFormat
    rule : str
        The rule for scales; see `ScaleRule`.
    tensor_scale : float32
        The scale of the tensor; 1 for MX formats.
    """

    fmt: BlockFormat
    rule: str
    tensor_scale: np.float32


def quantize(
    x: np.ndarray,
    quantization: Quantization,
    seed: int | None,
    scales: np.ndarray,
    out: np.ndarray,
    leave: bool = False,
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
    leave : bool
        Whether x is replaced by the quantization error x − x̂.

    Returns
    -------
    int
        Bit pattern of the largest magnitude; NaN is larger than infinity.
    """
    fmt = quantization.fmt
    loop, numbers = _quantizer(fmt.name, seed is not None, leave), _numbers(quantization)
    key, per_byte = np.uint64(seed or 0), fmt.per_byte

    def task(start: int, stop: int) -> int:
        part, tops = x[start:stop], np.zeros(BLOCK, np.int32)
        own = scales[start // fmt.block : fmt.blocks(stop)]
        data = out[start // per_byte : fmt.data_nbytes(stop)]
        whole = part.size - part.size % BLOCK
        count = whole // fmt.block
        loop(part[:whole], np.uint64(start), key, *numbers, tops, own[:count], data)
        if whole < part.size:
            padded, last = np.zeros(BLOCK, np.float32), np.empty(BLOCK, np.uint8)
            padded[: part.size - whole] = part[whole:]
            ends = np.empty(BLOCK // fmt.block, np.uint8)
            loop(padded, np.uint64(start + whole), key, *numbers, tops, ends, last)
            own[count:] = ends[: own.size - count]
            data[whole // per_byte :] = last[: data.size - whole // per_byte]
            if leave:
                part[whole:] = padded[: part.size - whole]
        return int(tops.max())

    top = max(pool.run(task, x.size, BLOCK, x))
    if top >= INFINITY_BITS:
        quantize_nonfinite(x, quantization, seed, scales, out, leave)
    return top


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
    store: Store = "add" if add is not None else "stream" if streams(out) else "write"
    factors, times = fmt.scales(tensor_scale), np.float32(1 if add is None else add)
    loop = _dequantizer(fmt.name, store)
    ends = _dequantizer(fmt.name, "write" if store == "stream" else store)
    per_byte = fmt.per_byte

    def task(start: int, stop: int) -> None:
        part = out[start:stop]
        own = scales[start // fmt.block : fmt.blocks(stop)]
        codes = data[start // per_byte : fmt.data_nbytes(stop)]
        whole = part.size - part.size % BLOCK
        count = whole // fmt.block
        loop(own[:count], codes[: whole // per_byte], factors, times, part[:whole])
        if whole < part.size:
            padded, last = np.zeros(BLOCK, np.float32), np.zeros(BLOCK // per_byte, np.uint8)
            padded[: part.size - whole] = part[whole:]
            last[: codes.size - whole // per_byte] = codes[whole // per_byte :]
            scale = np.zeros(BLOCK // fmt.block, np.uint8)
            scale[: own.size - count] = own[count:]
            ends(scale, last, factors, times, padded)
            part[whole:] = padded[: part.size - whole]

    pool.run(task, out.size, BLOCK)


def quantize_nonfinite(
    x: np.ndarray,
    quantization: Quantization,
    seed: int | None,
    scales: np.ndarray,
    out: np.ndarray,
    leave: bool,
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
        if fmt.per_byte == 2:
            codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
            codes = codes[::2] | codes[1::2] << np.uint8(4)
        data = out[first // fmt.per_byte : fmt.data_nbytes(stop)]
        scales[b], data[:] = scale, codes
        if leave:
            with np.errstate(invalid="ignore"):
                own = scales[b : b + 1]
                dequantize(own, data, fmt, float(quantization.tensor_scale), part, np.float32(-1))


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
    if fmt.is_two_level:
        scale = 0x7E
        factor = (np.float32(1) / tensor_scale) / np.float32(448)
    else:
        scale = 254 if rule == "rceil" or fmt.is_integer else 255 - fmt.largest_exponent
        factor = np.ldexp(np.float32(1), 127 - scale)
    with np.errstate(all="ignore"):
        r = np.minimum(np.abs(x * factor), fmt.largest)
    codes = _codes(r, fmt, None if seed is None else words(seed, first, x.size))
    if fmt.is_integer:
        return scale, np.where(np.signbit(x), -codes, codes).astype(np.uint8)
    return scale, codes.astype(np.uint8) | sign


def _codes(r: np.ndarray, fmt: BlockFormat, random: np.ndarray | None) -> np.ndarray:
    """Round magnitudes, at most `fmt.largest`, to codes, given random words or None."""
    least = 0 if fmt.is_integer else 1 - fmt.bias
    exponents = np.full(r.size, least)
    if not fmt.is_integer:
        exponents = np.where(r > 0, np.maximum(np.frexp(r)[1] - 1, least), least)
    units = np.ldexp(r.astype(np.float64), fmt.mantissa - exponents)
    whole = np.floor(units)
    if random is None:
        whole = np.rint(units)
    else:
        whole += random >> 1 < ((units - whole) * 2.0**31).astype(np.int64)
    codes: np.ndarray = whole.astype(np.int64) + (exponents - least << fmt.mantissa)
    return codes


def _numbers(quantization: Quantization) -> tuple[Any, ...]:
    """Return the arguments of a kernel that depend on the rule and the scale of the tensor."""
    fmt, rule_name, tensor_scale = quantization
    if fmt.is_two_level:
        nothing = np.empty(0, np.int32), np.int64(0), np.empty(0, np.float32)
        return tensor_scale, np.float32(1) / tensor_scale, *nothing
    rule = ScaleRule.of(rule_name, fmt)
    return rule.divisor, np.float32(0), rule.adds, np.int64(rule.drop), rule.factors


# --- blocks from values to codes -----------------------------------------------------------------


def _quantize_block(fmt: BlockFormat, stochastic: bool, leave: bool) -> Any:
    """Make the block that quantizes 32 elements of x from i, or `start` of the tensor, on.

    It writes the scales of the elements from `b` on, the codes from byte `at` of `out` on, and
    raises BLOCK / fmt.block elements of `tops` to the bits of the largest magnitudes.
    """
    names = ("divisor", "reciprocal", "adds", "drop", "factors", "tops", "scales", "b", "out")

    @block("x", "i", "seed", "start", *names, "at", "zero")
    def codes(e: Emitter) -> None:
        builder, word = e.builder, lanes(32, _HALF)
        source, halves = e.address("x", "i"), None
        e.fetch(source)
        if stochastic:
            seed, start = e.args["seed"], e.args["start"]
            span = builder.lshr(start, start.type(int(COUNTER_SPAN)))
            (halves,) = emit_words(e, seed, start, span, seed.type(ROUNDING), halved=True)
        parts = [e.load(e.element(source, first), floats(_HALF)) for first in (0, _HALF)]
        sizes = [e.magnitude_bits(x) for x in parts]
        if fmt.is_two_level:
            tops = [e.reduced("smax", size) for size in sizes]
            factors = [_e4m3_factor(e, top, k) for k, top in enumerate(tops)]
        else:
            above = builder.icmp_signed(">", *sizes)
            tops = 2 * [e.reduced("smax", builder.select(above, *sizes))]
            factors = 2 * [_power_factor(e, tops[0])]
        bytes_of = []
        for k, (x, (factor, scale)) in enumerate(zip(parts, factors, strict=True)):
            own = None
            if halves is not None:
                order = word([*range(k * _HALF, (k + 1) * _HALF)])
                own = builder.shuffle_vector(halves, halves, order)
            r = builder.fmul(x, e.splat(factor, _HALF))
            code = _emit_codes(e, fmt, r, builder.bitcast(x, word), own)
            if leave:
                value = builder.fmul(_emit_values(e, fmt, code), e.splat(scale, _HALF))
                error = builder.fsub(x, value)
                is_finite = builder.icmp_signed("<", tops[k], tops[k].type(INFINITY_BITS))
                error = builder.select(is_finite, error, x)
                e.store(error, e.element(source, k * _HALF))
            bytes_of.append(builder.trunc(code, lanes(8, _HALF)))
        joined = builder.shuffle_vector(*bytes_of, lanes(32)([*range(BLOCK)]))
        if fmt.per_byte == 2:
            pairs = builder.bitcast(joined, lanes(16, _HALF))  # the first code is the low byte
            joined = builder.or_(pairs, builder.lshr(pairs, pairs.type([4] * _HALF)))
            joined = builder.trunc(joined, lanes(8, _HALF))
        e.store(joined, e.address("out", "at"), align=1)

    return codes


def _raise_top(e: Emitter, top: Any, slot: int) -> None:
    """Emit the maximum of an element of `tops` and the bits of a magnitude."""
    builder = e.builder
    place = e.element(e.address("tops", "zero"), slot)
    before = builder.load(place)
    builder.store(builder.select(builder.icmp_signed(">", before, top), before, top), place)


def _store_scale(e: Emitter, scale: Any, top: Any, mark: int, k: int) -> None:
    """Emit the store of the byte of a scale, or of a mark if its block is not finite."""
    from llvmlite import ir

    builder, byte = e.builder, ir.IntType(8)
    is_finite = builder.icmp_signed("<", top, top.type(INFINITY_BITS))
    scale = builder.select(is_finite, builder.trunc(scale, byte), byte(mark))
    builder.store(scale, e.element(e.address("scales", "b"), k))


def _entry(e: Emitter, table: str, index: Any) -> Any:
    """Emit the load of an entry of a table, at a 32-bit index that is not negative."""
    from llvmlite import ir

    return e.builder.load(e.builder.gep(e.args[table], [e.builder.zext(index, ir.IntType(64))]))


def _power_factor(e: Emitter, top: Any) -> tuple[Any, Any]:
    """Emit the scale of a block, a power of two, and return its reciprocal and value.

    `adds` and `factors` have 256 elements.
    """
    from llvmlite import ir

    builder, word = e.builder, ir.IntType(32)
    _raise_top(e, top, 0)
    number = builder.bitcast(top, ir.FloatType())
    bits = builder.bitcast(builder.fdiv(number, e.args["divisor"]), word)
    exponent = builder.and_(builder.lshr(bits, word(_MANTISSA)), word(255))
    scale = builder.lshr(builder.add(bits, _entry(e, "adds", exponent)), word(_MANTISSA))
    scale = builder.sub(scale, builder.trunc(e.args["drop"], word))
    scale = builder.select(builder.icmp_signed(">", scale, word(0)), scale, word(0))
    scale = builder.select(builder.icmp_signed("<", scale, word(254)), scale, word(254))
    _store_scale(e, scale, top, 0xFF, 0)
    least = word(1 << _MANTISSA - 1)  # 2^-127
    power = builder.shl(scale, word(_MANTISSA))
    power = builder.select(builder.icmp_signed(">", power, least), power, least)
    return _entry(e, "factors", scale), builder.bitcast(power, ir.FloatType())


def _e4m3_factor(e: Emitter, top: Any, k: int) -> tuple[Any, Any]:
    """Emit the scale of block k of 16 elements, an e4m3 number, and return the two factors.

    `divisor` is the scale of the tensor, and `reciprocal` its reciprocal.
    """
    from llvmlite import ir

    builder, word, real = e.builder, ir.IntType(32), ir.FloatType()
    _raise_top(e, top, k)
    number = builder.fdiv(builder.bitcast(top, real), real(6.0))
    bits = builder.bitcast(builder.fdiv(number, e.args["divisor"]), word)
    bits = builder.select(builder.icmp_signed(">", bits, word(_LEAST)), bits, word(_LEAST))
    bits = builder.select(builder.icmp_signed("<", bits, word(_MOST)), bits, word(_MOST))
    odd = builder.and_(builder.lshr(bits, word(_E4M3)), word(1))
    bits = builder.add(builder.add(bits, word((1 << _E4M3 - 1) - 1 - _REBIAS)), odd)
    code = builder.lshr(bits, word(_E4M3))
    _store_scale(e, code, top, 0x7F, k)
    bits = builder.add(builder.shl(code, word(_E4M3)), word(_REBIAS))
    scale = builder.bitcast(bits, real)
    return (
        builder.fdiv(e.args["reciprocal"], scale),
        builder.fmul(e.args["divisor"], scale),
    )


def _emit_codes(e: Emitter, fmt: BlockFormat, r: Any, x: Any, random: Any) -> Any:
    """Emit the codes of scaled elements, given the bits of the elements and random words."""
    builder, kind = e.builder, x.type
    real, cut = floats(kind.count), _MANTISSA - fmt.mantissa

    def constant(value: int) -> Any:
        return kind([value & 0xFFFFFFFF] * kind.count)

    def least(one: Any, other: Any) -> Any:
        return builder.select(builder.icmp_signed("<", one, other), one, other)

    largest = constant(int(fmt.largest.view(np.uint32)))
    size = least(e.magnitude_bits(r), largest)
    floor = constant(_ONE if fmt.is_integer else _ONE + (1 - fmt.bias << _MANTISSA))
    if fmt.is_integer:
        power = floor
    else:
        power = builder.and_(size, constant(INFINITY_BITS))
        power = builder.select(builder.icmp_signed(">", power, floor), power, floor)
    number = builder.bitcast(size, real)
    if random is None:
        far = builder.add(power, constant(cut << _MANTISSA))
        moved = builder.fadd(number, builder.bitcast(far, real))
        code = builder.sub(builder.bitcast(moved, kind), far)
    else:
        unit = builder.sub(constant(2 * _ONE + (fmt.mantissa << _MANTISSA)), power)
        units = builder.fmul(number, builder.bitcast(unit, real))
        code = builder.fptosi(units, kind)
        fraction = builder.fsub(units, builder.sitofp(code, real))
        bound = builder.fptosi(builder.fmul(fraction, real([2.0**31] * kind.count)), kind)
        code = builder.sub(code, builder.sext(builder.icmp_signed("<", random, bound), kind))
    if fmt.is_integer:
        signs = builder.ashr(x, constant(31))
        return builder.sub(builder.xor(code, signs), signs)
    code = builder.add(code, builder.lshr(builder.sub(power, floor), constant(cut)))
    sign = builder.lshr(builder.and_(x, constant(SIGN)), constant(32 - fmt.width))
    return builder.or_(code, sign)


# --- blocks from codes to values -----------------------------------------------------------------


def _dequantize_block(fmt: BlockFormat, store: Store) -> Any:
    """Make the block that decodes the codes from byte `at` to 32 elements of `out` from i on."""

    @block("scales", "b", "codes", "at", "factors", "times", "out", "i")
    def values(e: Emitter) -> None:
        builder, source = e.builder, e.address("codes", "at")
        if fmt.per_byte == 1:
            codes = e.load(source, lanes(8), align=1)
        else:
            wide = lanes(16, _HALF)
            pairs = builder.zext(e.load(source, lanes(8, _HALF), align=1), wide)
            pairs = builder.or_(pairs, builder.shl(pairs, wide([4] * _HALF)))
            codes = builder.bitcast(builder.and_(pairs, wide([0x0F0F] * _HALF)), lanes(8))
        numbers = _emit_values(e, fmt, builder.zext(codes, lanes(32)))
        place = e.address("scales", "b")
        from llvmlite import ir

        firsts = []
        for k in range(BLOCK // fmt.block):
            scale = builder.zext(builder.load(e.element(place, k)), ir.IntType(32))
            firsts.append(e.splat(_entry(e, "factors", scale), fmt.block))
        e.args["scale"] = e.args["times"]
        e.store_as(store, builder.fmul(numbers, e.joined(firsts)), e.address("out", "i"))

    return values


def _emit_values(e: Emitter, fmt: BlockFormat, codes: Any) -> Any:
    """Emit the numbers of codes, 32-bit lanes whose upper bits do not matter."""
    builder, kind = e.builder, codes.type
    real, cut = floats(kind.count), _MANTISSA - fmt.mantissa

    def constant(value: int) -> Any:
        return kind([value & 0xFFFFFFFF] * kind.count)

    top = builder.shl(codes, constant(32 - fmt.width))
    if fmt.is_integer:
        number = builder.sitofp(builder.ashr(top, constant(32 - fmt.width)), real)
        return builder.fmul(number, real([2.0**-fmt.mantissa] * kind.count))
    sign = builder.and_(top, constant(SIGN))
    size = builder.and_(top, constant(SIGN - 1))
    placed = builder.lshr(size, constant(32 - fmt.width - cut))
    normal = builder.add(placed, constant(_ONE - (fmt.bias << _MANTISSA)))
    # Exponent 0 has no leading one: it is subtracted from the number with the least exponent.
    least = _ONE + (1 - fmt.bias << _MANTISSA)
    small = builder.add(placed, constant(least))
    small = builder.fsub(builder.bitcast(small, real), builder.bitcast(constant(least), real))
    is_small = builder.icmp_signed("<", placed, constant(1 << _MANTISSA))
    bits = builder.select(is_small, builder.bitcast(small, kind), normal)
    nan = constant(0x7FC00000)
    if fmt.name == "mxfp8e5m2":
        first = 0x1F << _MANTISSA  # of infinity, as placed
        above = builder.or_(placed, constant(INFINITY_BITS))
        bits = builder.select(builder.icmp_signed(">=", placed, constant(first)), above, bits)
    bits = builder.or_(bits, sign)
    if fmt.name.startswith("mxfp8"):
        last = (0x7E if fmt.name == "mxfp8e4m3" else 0x7C) << cut
        bits = builder.select(builder.icmp_signed(">", placed, constant(last)), nan, bits)
    return builder.bitcast(bits, real)


# --- loops ---------------------------------------------------------------------------------------


@factory(lambda: itertools.product(FORMATS, (False, True), (False, True)))
def _quantizer(name: str, stochastic: bool, leave: bool) -> Kernel:
    fmt = BlockFormat.of(name)
    one_block = _quantize_block(fmt, stochastic, leave)
    per_byte, per_scale = fmt.per_byte, fmt.block

    @kernel(
        f"{'out' if leave else 'in'} float32[], uint64, uint64, float32, float32, in int32[], "
        "int64, in float32[], out int32[], out uint8[], out uint8[]",
        variant=f"{name} {stochastic} {leave}",
    )
    def microscale_codes(
        x, first, seed, divisor, reciprocal, adds, drop, factors, tops, scales, out
    ):
        # x.size is a multiple of BLOCK, and x begins with element `first`, another multiple.
        # scales.size == x.size // per_scale, out.size >= x.size // per_byte; tops has two elements
        # at least, adds and factors have 256 each where a scale is a power of two.
        for i in range(0, x.size, BLOCK):
            numbers = divisor, reciprocal, adds, drop, factors, tops, scales, i // per_scale
            one_block(x, i, seed, first + np.uint64(i), *numbers, out, i // per_byte, 0)

    return microscale_codes


@factory(lambda: itertools.product(FORMATS, get_args(Store)))
def _dequantizer(name: str, store: Store) -> Kernel:
    fmt = BlockFormat.of(name)
    one_block = _dequantize_block(fmt, store)
    per_byte, per_scale = fmt.per_byte, fmt.block
    streaming = store == "stream"

    @kernel(
        "in uint8[], in uint8[], in float32[], float32, out float32[]", variant=f"{name} {store}"
    )
    def microscale_values(scales, codes, factors, times, out):
        # out.size is a multiple of BLOCK, scales.size == out.size // per_scale, codes.size ==
        # out.size // per_byte; factors has 256 elements.
        for i in range(0, out.size, BLOCK):
            one_block(scales, i // per_scale, codes, i // per_byte, factors, times, out, i)
        if streaming:
            fence()

    return microscale_values
