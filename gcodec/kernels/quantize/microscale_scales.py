"""Scales of blocks of small floats: powers of two, and e4m3 numbers below a scale of the tensor.

The scale of a block follows from its largest magnitude; see `ScaleRule`. A block with NaN or Inf
gets a mark in place of its scale.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.quantize.block_format import BLOCK_SIZES, MANTISSA
from gcodec.runtime.jit import Intrinsic, Kernel, calling, factory, kernel
from gcodec.runtime.lanes import (
    BLOCK,
    Emitter,
    Value,
    block,
    compiles_for,
    constants,
    floats,
    lanes,
)

GROUPS = 8  # elements whose magnitudes are compared at once, lanes of a vector
_LEAST, _MOST = 0x3C800000, 0x43E00000  # bits of 2^-6 and 448, the range of scales of NVFP4
_E4M3 = 20  # bits of a float32 that an e4m3 number drops
_REBIAS = 120 << MANTISSA  # what the exponent of a float32 has more than that of e4m3

# Steps that reduce eight vectors of eight lanes to the largest lane of each. A step has the places
# of the first lanes of pairs in two vectors, and the distance of the second ones. Lanes change
# places within 128 bits, and finally across them.
_REDUCTION = (
    ((0, 1, 8, 9, 4, 5, 12, 13), 2),
    ((0, 2, 8, 10, 4, 6, 12, 14), 1),
    ((0, 1, 2, 3, 8, 9, 10, 11), 4),
)


def _tops_block(size: int) -> Intrinsic:
    """Make the block that finds the largest magnitudes of 32 elements of x from i on, as bits.

    `parts` gets those of eight groups of elements, whose blocks, of `size` elements, are those
    from b on. A step of the reduction has been made if there are two blocks.
    """

    @block("x", "i", "parts", "b")
    def tops(e: Emitter) -> None:
        source, vectors = e.address("x", "i"), []
        for first in range(0, BLOCK, size):
            sizes = [
                e.magnitude_bits(e.load(e.element(source, at), floats(GROUPS)))
                for at in range(first, first + size, GROUPS)
            ]
            while len(sizes) > 1:
                pairs = zip(sizes[::2], sizes[1::2], strict=True)
                sizes = [e.larger(*pair) for pair in pairs]
            vectors += sizes
        (parts,) = vectors if size == BLOCK else _reduced(e, vectors, _REDUCTION[:1])
        e.store(parts, _parts_address(e, size))

    return tops


def _parts_address(e: Emitter, size: int) -> Value:
    """Emit the address of the parts of block b, which is even where a vector has two blocks."""
    per_block = GROUPS * size // BLOCK
    return e.builder.gep(
        e.args["parts"], [e.builder.mul(e.args["b"], e.args["b"].type(per_block))]
    )


def _reduced(e: Emitter, vectors: list[Value], steps: tuple[Value, ...]) -> list[Value]:
    """Emit steps of the reduction of vectors to half as many, each."""
    builder, order = e.builder, lanes(32, GROUPS)
    for places, away in steps:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [
            e.larger(
                builder.shuffle_vector(one, other, order(places)),
                builder.shuffle_vector(one, other, order([p + away for p in places])),
            )
            for one, other in pairs
        ]
    return vectors


def _emit_tops(e: Emitter, size: int) -> Value:
    """Emit the largest magnitudes of 32 blocks from b on, as bits, and their store to `tops`."""
    source = _parts_address(e, size)  # of one vector for 32 elements
    vectors = [e.load(e.element(source, k * GROUPS), lanes(32, GROUPS)) for k in range(size)]
    tops = e.joined(_reduced(e, vectors, _REDUCTION if size == BLOCK else _REDUCTION[1:]))
    e.store(tops, e.address("tops", "b"))
    return tops


def _store_scales(e: Emitter, codes: Value, tops: Value, mark: int) -> None:
    """Emit the stores of 32 scales, or of marks where blocks are not finite, and of all tops."""
    builder, kind = e.builder, tops.type
    largest = e.load(e.args["largest"], kind)
    e.store(e.larger(tops, largest), e.args["largest"])
    is_finite = builder.icmp_signed("<", tops, kind([INFINITY_BITS] * kind.count))
    codes = builder.select(is_finite, codes, kind([mark] * kind.count))
    e.store(builder.trunc(codes, lanes(8)), e.address("bytes", "b"), align=1)


_SCALE_NAMES = (
    *("divisor", "reciprocal", "adds", "least", "parts", "tops", "b"),
    *("largest", "bytes", "factors", "sizes"),
)


def _power_block(uniform: bool) -> Intrinsic:
    """Make the block that finds the scales of 32 blocks of 32 elements from b on, powers of two.

    `bytes`, `sizes` and `factors` get the bytes, the scales, and what elements are multiplied by.
    `adds` has 256 elements, or 1 if the rule is `uniform` and divides by 1. See `ScaleRule`.
    """

    @block(*_SCALE_NAMES)
    def powers(e: Emitter) -> None:
        builder, kind = e.builder, lanes(32)
        constant = constants(kind)
        tops = bits = _emit_tops(e, BLOCK)
        if uniform:
            adds = e.splat(builder.load(e.args["adds"]))
        else:
            divisor = e.splat(e.args["divisor"])
            quotients = builder.fdiv(builder.bitcast(tops, floats()), divisor)
            bits = builder.bitcast(quotients, kind)
            exponents = builder.and_(builder.lshr(bits, constant(MANTISSA)), constant(255))
            adds = e.gathered(e.args["adds"], e.indices(exponents), kind)
        scales = builder.ashr(builder.add(bits, adds), constant(MANTISSA))
        scales = e.smaller(e.larger(scales, constant(0)), constant(254))
        _store_scales(e, scales, tops, 0xFF)
        tiny = constant(1 << MANTISSA - 1)  # 2^-127
        sizes = e.larger(builder.shl(scales, constant(MANTISSA)), tiny)
        e.store(sizes, e.address("sizes", "b"))
        inverse = builder.shl(builder.sub(constant(254), scales), constant(MANTISSA))
        least = builder.bitcast(e.splat(e.args["least"]), kind)
        is_least = builder.icmp_signed("==", scales, constant(0))
        factors = builder.select(is_least, least, e.larger(inverse, tiny))
        e.store(factors, e.address("factors", "b"))

    return powers


def _e4m3_block(size: int) -> Intrinsic:
    """Make the block that finds the scales of 32 blocks of `size` from b on, e4m3 numbers.

    `divisor` is the scale of the tensor, and `reciprocal` its reciprocal; see `_power_block`.
    """

    @block(*_SCALE_NAMES)
    def numbers(e: Emitter) -> None:
        builder, kind, real = e.builder, lanes(32), floats()
        constant = constants(kind)
        tops = _emit_tops(e, size)
        tensor_scale = e.splat(e.args["divisor"])
        sixths = _emit_sixths(e, builder.bitcast(tops, real))
        bits = builder.bitcast(builder.fdiv(sixths, tensor_scale), kind)
        bits = e.smaller(e.larger(bits, constant(_LEAST)), constant(_MOST))
        odd = builder.and_(builder.lshr(bits, constant(_E4M3)), constant(1))
        almost_half = builder.add(bits, constant((1 << _E4M3 - 1) - 1 - _REBIAS))
        codes = builder.lshr(builder.add(almost_half, odd), constant(_E4M3))
        _store_scales(e, codes, tops, 0x7F)
        bits = builder.add(builder.shl(codes, constant(_E4M3)), constant(_REBIAS))
        scales = builder.bitcast(bits, real)
        e.store(builder.fmul(tensor_scale, scales), e.address("sizes", "b"))
        e.store(_emit_factors(e, codes, scales), e.address("factors", "b"))

    return numbers


def _emit_sixths(e: Emitter, x: Value) -> Value:
    """Emit the float32 quotients of finite lanes, not negative, and 6.

    A division takes longer than a product and its correction by the remainder, which is equal
    where the quotient is a normal number. A smaller one has the smallest scale in either case.
    """
    six, minus_six, sixth = (
        x.type([number] * x.type.count) for number in (6.0, -6.0, float(np.float32(1 / 6)))
    )
    if not compiles_for("fma"):
        return e.builder.fdiv(x, six)
    near = e.builder.fmul(x, sixth)
    return e.fused(e.fused(near, minus_six, x), sixth, near)


def _emit_factors(e: Emitter, codes: Value, scales: Value) -> Value:
    """Emit the quotients of the argument "reciprocal" and e4m3 numbers, with codes from 8 on.

    The quotients are normal numbers, so the exponents of scales do not change their mantissas.
    """
    builder, count = e.builder, 8  # mantissas of e4m3
    if not compiles_for("avx2"):
        return builder.fdiv(e.splat(e.args["reciprocal"]), scales)
    mantissas = floats(count)([1 + m / count for m in range(count)])
    quotients = builder.fdiv(e.splat(e.args["reciprocal"], count), mantissas)
    of_mantissas = e.permuted(quotients, codes)
    constant = constants(codes.type)
    exponents = builder.and_(codes, constant(0x78))
    exponents = builder.shl(builder.sub(exponents, constant(7 << 3)), constant(_E4M3))
    bits = builder.sub(builder.bitcast(of_mantissas, codes.type), exponents)
    return builder.bitcast(bits, of_mantissas.type)


@block("bytes", "b", "out", "at")
def _copy_block(e: Emitter) -> None:
    """Copy 32 bytes from b on to `out`, from byte `at` on."""
    e.store(e.load(e.address("bytes", "b"), lanes(8), align=1), e.address("out", "at"), align=1)


RULE = "(float32, float32, in int32[], float32)"
"""Types of the numbers that depend on the rule and the scale of the tensor, one parameter."""
ROOM = "(out int32[], out int32[], out int32[], out float32[], out float32[], out uint8[])"
"""Types of the arrays that a kernel of `scale_finder` uses, one parameter; see `microscale`."""
find_scales = calling(f"in float32[], int64, int64, {RULE}, {ROOM}, int64, out uint8[]")


@factory(lambda: ((size,) for size in BLOCK_SIZES))
def scale_finder(size: int) -> Kernel:
    """Return the kernel that finds the scales of blocks of `size` elements."""
    tops_block, has_powers = _tops_block(size), size == BLOCK
    uniform_block = _power_block(True)
    scale_block = _power_block(False) if has_powers else _e4m3_block(size)

    @kernel(
        f"in float32[], int64, int64, {RULE}, {ROOM}, int64, out uint8[]",
        variant=str(size),
        vectorized=False,
    )
    def find_block_scales(x, first, count, rule, arrays, at, scales):
        # x has `count` blocks from element `first` on, whose scales are those from `at` on, and
        # first + count * size is a multiple of BLOCK; for the others, see `microscale`.
        adds = rule[2]
        parts, tops, largest, factors, sizes, room = arrays
        for i in range(0, count * size, BLOCK):
            tops_block(x, first + i, parts, i // size)
        for b in range(0, count, BLOCK):
            if has_powers and adds.size == 1:
                uniform_block(*rule, parts, tops, b, largest, room, factors, sizes)
            else:
                scale_block(*rule, parts, tops, b, largest, room, factors, sizes)
        whole = count - count % BLOCK
        for b in range(0, whole, BLOCK):
            _copy_block(room, b, scales, at + b)
        for b in range(whole, count):
            scales[at + b] = room[b]

    return find_block_scales
