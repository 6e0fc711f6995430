"""Words of 32 and 64 bits: unaligned access to bytes, byte order, and counting bits."""

from __future__ import annotations

from typing import Any

from gcodec.kernels.jit import intrinsic


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
