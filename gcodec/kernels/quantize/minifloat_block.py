"""Blocks of minifloats: 32 elements to codes and back, as vector IR; see `minifloat`.

Codes are told by comparing where they are few: bits of floats that are not negative rise as these
do. Else by one division and arithmetic on the bits of the quotient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.runtime.lanes import BLOCK, SIGN, Emitter, block, floats, lanes

Store = Literal["write", "stream", "add"]

MOST_STEPS = 7  # codes that are told by comparing; beyond, a division takes less time
TOPS = 8  # lanes that collect the largest magnitude

_STEPS = tuple(f"step{code}" for code in range(1, MOST_STEPS + 1))
_HALF = BLOCK // 2  # elements whose comparisons stay in registers
_MANTISSA, _ONE = 23, 127 << 23  # of float32: bits of the mantissa, the number 1

# Vectors of 256 bits are packed within 128 bits. These orders undo it, so that no instruction has
# to; groups of four elements then come as _GROUPS tells, which is put right at the end.
_IN_HALF = [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)]
_IN_WHOLE = [8 * quarter + k for quarter in (0, 2, 1, 3) for k in range(8)]
_GROUPS = (0, 2, 4, 6, 1, 3, 5, 7)


def per_byte(fmt: MiniFloat) -> int:
    """Return how many codes a byte holds."""
    return 2 if fmt.width <= 4 else 1


def quantize_block(fmt: MiniFloat) -> Any:
    """Make the block: 32 elements of x from i to codes from byte `at` of `out` on.

    The bits of the largest magnitude raise some of TOPS elements of `tops` from `slot` on.
    """

    @block("x", "i", "divisor", *_STEPS, "tops", "slot", "out", "at")
    def codes(e: Emitter) -> None:
        builder, last = e.builder, lanes(32, _HALF)([31] * _HALF)
        source = e.address("x", "i")
        e.fetch(source)
        largest: list[Any] = []

        def half(first: int) -> Any:
            x = e.load(e.element(source, first), floats(_HALF))
            bits = e.magnitude_bits(x)
            largest.append(_larger(e, *_parts(e, bits)))
            code, _ = _code(e, fmt, bits)
            # All bits of a negative one's code are turned over: so its sign survives packing.
            return builder.xor(code, builder.ashr(builder.bitcast(x, code.type), last))

        packed, kind = _packed(e, half), lanes(8)
        none, sign = kind([0] * BLOCK), kind([1 << fmt.width - 1] * BLOCK)
        flips = builder.sext(builder.icmp_signed("<", packed, none), kind)
        packed = builder.or_(builder.xor(packed, flips), builder.and_(flips, sign))
        packed = builder.select(builder.icmp_unsigned("==", packed, sign), none, packed)
        _store_codes(e, fmt, packed)
        slot = e.address("tops", "slot")
        some = _larger(e, *largest)
        e.store(_larger(e, some, e.load(slot, some.type)), slot)

    return codes


def residual_block(fmt: MiniFloat) -> Any:
    """Make the block: u = x + decay·before, of 32 elements from i, to codes; after = u − x̂."""

    @block("x", "before", "after", "i", "decay", "delta", "divisor", *_STEPS, "out", "at")
    def codes_residual(e: Emitter) -> None:
        builder = e.builder
        source, kept, left = (e.address(name, "i") for name in ("x", "before", "after"))
        e.fetch(source)
        e.fetch(kept)
        decay = e.splat(e.args["decay"], _HALF)

        def half(first: int) -> Any:
            memory = builder.fmul(decay, e.load(e.element(kept, first), floats(_HALF)))
            u = builder.fadd(e.load(e.element(source, first), floats(_HALF)), memory)
            code, sent = _code(e, fmt, e.magnitude_bits(u))
            every = code.type
            sign = builder.and_(builder.bitcast(u, every), every([SIGN] * _HALF))
            sign = builder.select(sent, sign, every([0] * _HALF))
            placed = builder.shl(code, every([_MANTISSA - fmt.mantissa] * _HALF))
            e.store(builder.fsub(u, _values(e, placed, sign)), e.element(left, first))
            return builder.or_(code, builder.lshr(sign, every([32 - fmt.width] * _HALF)))

        _store_codes(e, fmt, _packed(e, half))

    return codes_residual


def dequantize_block(fmt: MiniFloat, store: Store) -> Any:
    """Make the block: codes from byte `at` on to 32 elements of `out` from i."""

    @block("codes", "at", "delta", "scale", "out", "i")
    def values(e: Emitter) -> None:
        builder = e.builder
        every = lanes(32)
        codes = builder.zext(_load_codes(e, fmt), every)
        top = builder.shl(codes, every([32 - fmt.width] * BLOCK))
        sign = builder.and_(top, every([SIGN] * BLOCK))
        code = builder.and_(top, every([SIGN - 1] * BLOCK))
        code = builder.lshr(code, every([8 - fmt.exponent] * BLOCK))
        e.store_as(store, _values(e, code, sign), e.address("out", "i"))

    return values


# --- to codes


def _parts(e: Emitter, bits: Any) -> list[Any]:
    """Emit the lanes, TOPS at a time."""
    starts = range(0, bits.type.count, TOPS)
    orders = [lanes(32, TOPS)(list(range(k, k + TOPS))) for k in starts]
    return [e.builder.shuffle_vector(bits, bits, order) for order in orders]


def _larger(e: Emitter, one: Any, other: Any) -> Any:
    """Emit the larger ones of unsigned lanes."""
    return e.builder.select(e.builder.icmp_unsigned(">", one, other), one, other)


def _code(e: Emitter, fmt: MiniFloat, bits: Any) -> tuple[Any, Any]:
    """Emit the codes of magnitudes, told by their bits, and whether they are not 0."""
    return _by_steps(e, fmt, bits) if fmt.top <= MOST_STEPS else _by_division(e, fmt, bits)


def _by_steps(e: Emitter, fmt: MiniFloat, bits: Any) -> tuple[Any, Any]:
    builder, kind = e.builder, bits.type
    steps = [e.splat(e.args[name], kind.count) for name in _STEPS[: fmt.top]]
    above = [builder.icmp_signed(">", bits, step) for step in steps]
    code = builder.zext(above[0], kind)
    for one in above[1:]:
        code = builder.sub(code, builder.sext(one, kind))  # minus −1
    return code, above[0]


def _by_division(e: Emitter, fmt: MiniFloat, bits: Any) -> tuple[Any, Any]:
    builder, kind = e.builder, bits.type

    def constant(value: int) -> Any:
        return kind([value & 0xFFFFFFFF] * kind.count)

    real = floats(kind.count)
    r = builder.fdiv(builder.bitcast(bits, real), e.splat(e.args["divisor"], kind.count))
    quotient = builder.bitcast(r, kind)
    cut = _MANTISSA - fmt.mantissa
    # To the nearest code, ties to even; the exponent of 1 becomes 0.
    odd = builder.and_(builder.lshr(quotient, constant(cut)), constant(1))
    almost_half = builder.add(quotient, constant((1 << cut - 1) - 1 - _ONE))
    normal = builder.lshr(builder.add(almost_half, odd), constant(cut))
    # Below 2, codes are as far from each other as float32 are from 2^(cut + 1) on.
    far = _ONE + (cut + 1 << _MANTISSA)
    moved = builder.fadd(r, builder.bitcast(constant(far), real))
    small = builder.sub(builder.bitcast(moved, kind), constant(far))
    two = constant(_ONE + (1 << _MANTISSA))
    code = builder.select(builder.icmp_signed("<", quotient, two), small, normal)
    top = constant(fmt.top)
    code = builder.select(builder.icmp_signed("<", code, top), code, top)
    return code, builder.icmp_unsigned("!=", code, constant(0))


def _packed(e: Emitter, half: Callable[[int], Any]) -> Any:
    """Emit the halves of a block, from element 0 and _HALF on, and their low bytes.

    Groups of four are ordered as _GROUPS tells.
    """
    builder = e.builder

    def narrowed(first: int) -> Any:
        lanes_16 = builder.trunc(half(first), lanes(16, _HALF))
        return builder.shuffle_vector(lanes_16, lanes_16, lanes(32, _HALF)(_IN_HALF))

    one = narrowed(0)
    e.in_order()
    both = builder.shuffle_vector(one, narrowed(_HALF), lanes(32)(list(range(BLOCK))))
    packed = builder.trunc(both, lanes(8))
    return builder.shuffle_vector(packed, packed, lanes(32)(_IN_WHOLE))


def _store_codes(e: Emitter, fmt: MiniFloat, codes: Any) -> None:
    """Emit what puts packed codes in order and stores them."""
    builder = e.builder
    group = 4 // per_byte(fmt)  # bytes
    if group == 2:
        pairs = builder.bitcast(codes, lanes(16, _HALF))  # the first code is the low byte
        # Its four bits come above those of the second.
        both = builder.mul(pairs, pairs.type([1 << 12 | 1] * _HALF))
        codes = builder.trunc(builder.lshr(both, pairs.type([8] * _HALF)), lanes(8, _HALF))
    order = [group * _GROUPS.index(at) + k for at in range(8) for k in range(group)]
    codes = builder.shuffle_vector(codes, codes, lanes(32, codes.type.count)(order))
    e.store(codes, e.address("out", "at"), align=1)


# --- to values


def _load_codes(e: Emitter, fmt: MiniFloat) -> Any:
    """Emit the codes from byte `at` on, a byte each."""
    builder = e.builder
    source = e.address("codes", "at")
    if per_byte(fmt) == 1:
        return e.load(source, lanes(8), align=1)
    wide = lanes(16, _HALF)
    pairs = builder.zext(e.load(source, lanes(8, _HALF), align=1), wide)
    first = builder.lshr(pairs, wide([4] * _HALF))
    second = builder.shl(builder.and_(pairs, wide([15] * _HALF)), wide([8] * _HALF))
    return builder.bitcast(builder.or_(first, second), lanes(8))


def _values(e: Emitter, code: Any, sign: Any) -> Any:
    """Emit Δ·c with the sign, the code being where float32 has exponent and mantissa."""
    builder, kind = e.builder, code.type
    count, real = kind.count, floats(kind.count)
    normal = builder.add(code, kind([_ONE] * count))
    # Exponent 0 has no leading one: 2·m/2^M = 2·(1 + m/2^M) − 2.
    twice = builder.add(normal, kind([1 << _MANTISSA] * count))
    small = builder.fsub(builder.bitcast(twice, real), real([2.0] * count))
    is_small = builder.icmp_signed("<", code, kind([1 << _MANTISSA] * count))
    c = builder.select(is_small, small, builder.bitcast(normal, real))
    size = builder.fmul(e.splat(e.args["delta"], count), c)
    return builder.bitcast(builder.or_(builder.bitcast(size, kind), sign), real)
