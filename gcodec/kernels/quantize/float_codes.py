"""LLVM IR that rounds float32 lanes to the codes of small floats, and that decodes them.

For a number with the magnitude r and the exponent e, not below the least one of the format, the
code is r/2^(e − M) rounded to an integer, plus 2^M for each exponent above the least one. Adding
2^(e + 23 − M) to r rounds to nearest with ties to even, because an ulp of the sum is one unit of
the code, and the lowest bits of the sum have the code. Stochastic rounding takes the whole part,
and adds 1 if (u >> 1) < int32(f·2^31), where f is the fraction and u the random word of the
element.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.quantize.block_format import MANTISSA, BlockFormat
from gcodec.runtime.lanes import SIGN, Emitter, Value, compiles_for, constants, floats, lanes

_ONE = 127 << MANTISSA  # bits of the number 1


def emit_codes(
    e: Emitter, fmt: BlockFormat, r: Value, random: Value, largest: Value | None = None
) -> tuple[Value, Value]:
    """Emit numbers whose lowest 8 bits are the codes of magnitudes, and the rounded magnitudes.

    `r` has the scaled elements, and `random` the random words, or None. Magnitudes are limited
    first, if `largest` has the bits of a limit; see `limit_bits`. Otherwise they must be below
    twice the largest power of two, and may be rounded to more than the largest magnitude.
    """
    builder, kind = e.builder, lanes(32, r.type.count)
    constant, cut = constants(kind), MANTISSA - fmt.mantissa
    size = e.magnitude_bits(r)
    if largest is not None:
        size = e.smaller(size, largest)
    power = constant(_ONE if fmt.is_integer else _ONE + (1 - fmt.bias << MANTISSA))
    if not fmt.is_integer:
        power = e.larger(builder.and_(size, constant(INFINITY_BITS)), power)
    number, real_power = builder.bitcast(size, r.type), builder.bitcast(power, r.type)
    # What the lowest 8 bits lack when the exponent of `power` is added.
    rest = 0 if fmt.is_integer else -(127 + 1 - fmt.bias << fmt.mantissa) & 0xFF
    if random is None:
        # The product is exact. The sum has its exponent, and in the lowest bits the sum of `rest`
        # and the element in units of its code, rounded to an integer.
        shift = r.type([2.0**cut + rest * 2.0**-fmt.mantissa] * kind.count)
        if compiles_for("fma"):
            moved = e.fused(real_power, shift, number)
            rounded = e.fused(builder.fneg(real_power), shift, moved)
        else:
            product = builder.fmul(real_power, shift)
            moved = builder.fadd(number, product)
            rounded = builder.fsub(moved, product)
        code = builder.bitcast(moved, kind)
    else:
        unit = builder.sub(constant(2 * _ONE + (fmt.mantissa << MANTISSA)), power)
        units = builder.fmul(number, builder.bitcast(unit, r.type))
        code = builder.fptosi(units, kind)
        fraction = builder.fsub(units, builder.sitofp(code, r.type))
        bound = builder.fmul(fraction, r.type([2.0**31] * kind.count))
        is_up = builder.icmp_signed("<", random, builder.fptosi(bound, kind))
        code = builder.sub(code, builder.sext(is_up, kind))
        one = builder.sub(power, constant(fmt.mantissa << MANTISSA))  # of the code, as float32
        rounded = builder.fmul(builder.sitofp(code, r.type), builder.bitcast(one, r.type))
        code = builder.add(code, constant(rest))
    if fmt.is_integer:
        return code, rounded
    return builder.add(code, builder.lshr(power, constant(cut))), rounded


def limit_bits(fmt: BlockFormat, count: int) -> Value:
    """Return lanes with the bits of the largest magnitude of a format."""
    return constants(lanes(32, count))(int(fmt.largest.view(np.uint32)))


def emit_values(e: Emitter, fmt: BlockFormat, codes: Value) -> Value:
    """Emit the numbers of codes, 32-bit lanes whose upper bits do not matter."""
    builder, kind, constant = e.builder, codes.type, constants(codes.type)
    real, cut = floats(kind.count), MANTISSA - fmt.mantissa
    top = builder.shl(codes, constant(32 - fmt.width))
    if fmt.is_integer:
        number = builder.sitofp(builder.ashr(top, constant(32 - fmt.width)), real)
        return builder.fmul(number, real([2.0**-fmt.mantissa] * kind.count))
    sign = builder.and_(top, constant(SIGN))
    if fmt.width == 4:
        numbers = e.one_of_eight(fmt.values()[:8].tolist(), codes)
        return builder.bitcast(builder.or_(builder.bitcast(numbers, kind), sign), real)
    size = builder.and_(top, constant(SIGN - 1))
    placed = builder.lshr(size, constant(32 - fmt.width - cut))
    bits = builder.bitcast(emit_magnitudes(e, fmt, placed), kind)
    nan = constant(0x7FC00000)
    if fmt.name == "mxfp8e5m2":
        first = 0x1F << MANTISSA  # of infinity, as placed
        above = builder.or_(placed, constant(INFINITY_BITS))
        bits = builder.select(builder.icmp_signed(">=", placed, constant(first)), above, bits)
    bits = builder.or_(bits, sign)
    if fmt.name.startswith("mxfp8"):
        last = (0x7E if fmt.name == "mxfp8e4m3" else 0x7C) << cut
        bits = builder.select(builder.icmp_signed(">", placed, constant(last)), nan, bits)
    return builder.bitcast(bits, real)


def emit_magnitudes(e: Emitter, fmt: BlockFormat, placed: Value) -> Value:
    """Emit the magnitudes of codes that lie where float32 has its exponent and mantissa."""
    builder, constant, real = e.builder, constants(placed.type), floats(placed.type.count)
    normal = builder.add(placed, constant(_ONE - (fmt.bias << MANTISSA)))
    # Exponent 0 has no leading one: it is subtracted from the number with the least exponent.
    least = constant(_ONE + (1 - fmt.bias << MANTISSA))
    small = builder.bitcast(builder.add(placed, least), real)
    small = builder.fsub(small, builder.bitcast(least, real))
    is_small = builder.icmp_signed("<", placed, constant(1 << MANTISSA))
    return builder.select(is_small, small, builder.bitcast(normal, real))
