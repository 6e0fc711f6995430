"""Threshold quantisation of one block of 32 elements, written as vector IR.

LLVM's loop vectoriser narrows the masks of eight float32 lanes at a time, which on hosts without
AVX-512 costs more than the arithmetic. Here a block is one vector of 32 lanes, so its masks become
codes in one go. The bits are those of the plain statements in the docstrings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gcodec.kernels.jit import intrinsic
from gcodec.kernels.memory import emit_prefetch

BLOCK = 32  # elements
_AHEAD = 256  # elements between a block and what is prefetched for a later one
_LINE = 16  # float32 elements in a cache line


@intrinsic
def threshold_block_2bit(
    typing_context: Any,
    x: Any,
    i: Any,
    before: Any,
    after: Any,
    j: Any,
    decay: Any,
    threshold: Any,
    level: Any,
    out: Any,
    at: Any,
) -> Any:
    """For the 32 elements of `x` from i and of `before` and `after` from j.

    v = x + decay * before; code = 3 where v >= threshold, 2 where v <= -threshold, else 0;
    after = v - (level, -level, 0); the codes go to 8 bytes of `out`, first element highest.
    """
    from llvmlite import ir

    lane, byte, word = ir.FloatType(), ir.IntType(8), ir.IntType(32)

    def codes(builder: Any, v: Any, threshold: Any, level: Any) -> tuple[Any, Any]:
        zero = ir.VectorType(lane, BLOCK)([0.0] * BLOCK)
        up = builder.fcmp_ordered(">=", v, threshold)
        down = builder.fcmp_ordered("<=", v, builder.fneg(threshold))
        step = builder.select(up, level, builder.select(down, builder.fneg(level), zero))
        code = ir.VectorType(byte, BLOCK)
        negative = builder.select(down, code([2] * BLOCK), code([0] * BLOCK))
        four = builder.bitcast(
            builder.select(up, code([3] * BLOCK), negative), ir.VectorType(word, BLOCK // 4)
        )
        # Four codes in the bytes of a word: one multiplication collects them in its top byte.
        collect = four.type([1 | 1 << 10 | 1 << 20 | 1 << 30] * (BLOCK // 4))
        top = builder.lshr(builder.mul(four, collect), four.type([24] * (BLOCK // 4)))
        return step, builder.trunc(top, ir.VectorType(byte, BLOCK // 4))

    return _block(codes, x, i, before, after, j, decay, threshold, level, out, at)


@intrinsic
def threshold_block_1bit(
    typing_context: Any,
    x: Any,
    i: Any,
    before: Any,
    after: Any,
    j: Any,
    decay: Any,
    threshold: Any,
    level: Any,
    out: Any,
    at: Any,
) -> Any:
    """For the 32 elements of `x` from i and of `before` and `after` from j.

    v = x + decay * before; code = 1 where v > threshold, else 0; after = v - (level, -level);
    the codes go to 4 bytes of `out`, first element highest.
    """
    from llvmlite import ir

    def codes(builder: Any, v: Any, threshold: Any, level: Any) -> tuple[Any, Any]:
        up = builder.fcmp_ordered(">", v, threshold)
        step = builder.select(up, level, builder.fneg(level))
        bits = builder.bitcast(up, ir.IntType(BLOCK))
        # The first lane is the lowest bit; it has to be the highest of the first byte.
        return step, builder.bswap(builder.bitreverse(bits))

    return _block(codes, x, i, before, after, j, decay, threshold, level, out, at)


def _block(codes: Callable[..., tuple[Any, Any]], *types: Any) -> Any:
    """Signature and code generator of a block whose comparison and packing `codes` emits."""
    from llvmlite import ir
    from numba.core import types as numba_types

    flag = ir.IntType(32)
    vector = ir.VectorType(ir.FloatType(), BLOCK)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def address(which: int, index: int) -> Any:
            array = context.make_array(signature.args[which])(context, builder, args[which])
            return builder.gep(array.data, [args[index]])

        def splat(value: Any) -> Any:
            first = builder.insert_element(vector(ir.Undefined), value, flag(0))
            return builder.shuffle_vector(first, first, ir.VectorType(flag, BLOCK)([0] * BLOCK))

        def load(pointer: Any) -> Any:
            return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=4)

        x, before, after, out = address(0, 1), address(2, 4), address(3, 4), address(8, 9)
        decay, threshold, level = (splat(args[k]) for k in (5, 6, 7))
        for pointer in (x, before):
            for ahead in range(_AHEAD, _AHEAD + BLOCK, _LINE):
                emit_prefetch(builder, builder.gep(pointer, [flag(ahead)]))
        v = builder.fadd(load(x), builder.fmul(decay, load(before)))
        step, packed = codes(builder, v, threshold, level)
        builder.store(builder.fsub(v, step), builder.bitcast(after, vector.as_pointer()), align=4)
        builder.store(packed, builder.bitcast(out, packed.type.as_pointer()), align=1)
        return context.get_dummy_value()

    return numba_types.void(*types), generate
