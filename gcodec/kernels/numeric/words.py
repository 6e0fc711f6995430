"""Words of 32 and 64 bits: unaligned access to bytes, byte order, and counting bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.runtime.jit import intrinsic, subroutine


@intrinsic
def load_word(typing_context: Any, data: Any, at: Any) -> Any:
    """Return the eight bytes of a uint8 array from `at` on, the first lowest."""
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _word_at(context, builder, signature, args)
        return builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(data, at), generate


@intrinsic
def store_word(typing_context: Any, data: Any, at: Any, word: Any) -> Any:
    """Write a uint64 to the eight bytes of a uint8 array from `at` on, the lowest first."""
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _word_at(context, builder, signature, args)
        builder.store(args[2], builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(data, at, word), generate


def _word_at(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, args[0]).data
    return builder.gep(data, [args[1]])


@intrinsic
def swapped(typing_context: Any, word: Any) -> Any:
    """Return an unsigned integer with its bytes in the other order."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return word(word), generate


@intrinsic
def leading_zeros(typing_context: Any, word: Any) -> Any:
    """Return how many zero bits an unsigned integer has above its highest one."""
    from llvmlite import ir

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.IntType(1)(0))

    return word(word), generate


@intrinsic
def count_ones(typing_context: Any, word: Any) -> Any:
    """Return how many bits of an unsigned integer are one."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return word(word), generate


@subroutine(variant="peek")
def peek(data, at):
    """Return the 64 bits from bit `at` >= 0 on, the first highest; 0 behind the last byte."""
    byte = at >> 3
    shift = np.uint64(at & 7)
    if byte + 9 <= data.size:
        word = swapped(load_word(data, byte)) << shift
        return word | np.uint64(data[byte + 8]) >> (np.uint64(8) - shift)
    word = np.uint64(0)
    for i in range(byte, data.size):  # at most 8 bytes, so that no shift is negative
        word |= np.uint64(data[i]) << np.uint64(56 - 8 * (i - byte) + (at & 7))
    return word


@intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Return how many zero bits an unsigned integer has below its lowest one."""
    from llvmlite import ir

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(0))

    return word(word), generate


@intrinsic
def high_product(typing_context: Any, a: Any, b: Any) -> Any:
    """Return the upper 64 bits of the 128 that two uint64 multiply to."""
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(arg, wide) for arg in args))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(a, b), generate


@intrinsic
def bytes_at_least(typing_context: Any, data: Any, at: Any, least: Any) -> Any:
    """Return a uint64 of which bit k says whether byte `at` + k of an array is `least` or more.

    The 64 bytes are inside of the uint8 array.
    """
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(ir.IntType(8), 64)
        pointer = _word_at(context, builder, signature, args)
        found = builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)
        number = ir.IntType(32)
        first = builder.insert_element(kind(ir.Undefined), args[2], number(0))
        every = builder.shuffle_vector(first, first, ir.VectorType(number, 64)([0] * 64))
        mask = builder.icmp_unsigned(">=", found, every)
        return builder.bitcast(mask, ir.IntType(64))

    return types.uint64(data, at, least), generate


@intrinsic
def magnitudes_above(typing_context: Any, values: Any, at: Any, level: Any) -> Any:
    """Return a uint64 of which bit k says whether the bits of abs(values[at + k]) pass a level.

    The 64 elements are inside of the float32 array; the level is an int32, −1 below all.
    """
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind, number = ir.VectorType(ir.IntType(32), 64), ir.IntType(32)
        pointer = _word_at(context, builder, signature, args)
        found = builder.load(builder.bitcast(pointer, kind.as_pointer()), align=4)
        size = builder.and_(found, kind([0x7FFFFFFF] * 64))
        first = builder.insert_element(kind(ir.Undefined), args[2], number(0))
        every = builder.shuffle_vector(first, first, kind([0] * 64))
        return builder.bitcast(builder.icmp_signed(">", size, every), ir.IntType(64))

    return types.uint64(values, at, level), generate


@intrinsic
def put(typing_context: Any, out: Any, at: Any, acc: Any, have: Any, bits: Any, nbits: Any) -> Any:
    """Put up to 56 bits behind the `have` bits, below 8, that are the highest of acc.

    Eight bytes of the uint8 array `out` are written from `at` on. All but the array and `at`, an
    int64, are uint64. Returned are acc without its whole bytes, the bits that stay in it, and the
    byte where they are.
    """
    made, behind = _putting()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, acc, have, bits, nbits = args
        word = acc.type
        have = builder.add(have, nbits)
        # Where have and nbits are 0, so are the bits.
        left = builder.and_(builder.neg(have), word(63))
        acc = builder.or_(acc, builder.shl(bits, left))
        return behind(context, builder, signature, args, acc, have)

    return made(out, at, acc, have, bits, nbits), generate


@intrinsic
def put_high(
    typing_context: Any, out: Any, at: Any, acc: Any, have: Any, bits: Any, nbits: Any
) -> Any:
    """Put the highest up to 56 bits of a word whose others are 0; else as `put`."""
    made, behind = _putting()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, acc, have, bits, nbits = args
        acc = builder.or_(acc, builder.lshr(bits, have))
        return behind(context, builder, signature, args, acc, builder.add(have, nbits))

    return made(out, at, acc, have, bits, nbits), generate


def _putting() -> tuple[Any, Any]:
    """Return the type of what is put, and what emits the rest, with `have` bits in acc."""
    from numba.core import types

    made = types.Tuple((types.uint64, types.uint64, types.int64))

    def behind(context: Any, builder: Any, signature: Any, args: Any, acc: Any, have: Any) -> Any:
        word = acc.type
        pointer = _word_at(context, builder, signature, args)
        builder.store(builder.bswap(acc), builder.bitcast(pointer, word.as_pointer()), align=1)
        acc = builder.shl(acc, builder.and_(have, word(56)))
        at = builder.add(args[1], builder.lshr(have, word(3)))
        have = builder.and_(have, word(7))
        return context.make_tuple(builder, made, (acc, have, at))

    return made, behind


@intrinsic
def fused(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c of float32 numbers, rounded once: what a fused instruction gives.

    A host without one calls its C library, with the same bits.
    """
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        single = ir.FloatType()
        kind = ir.FunctionType(single, [single] * 3)
        function = builder.module.declare_intrinsic("llvm.fma", [single], kind)
        return builder.call(function, args)

    return types.float32(types.float32, types.float32, types.float32), generate
