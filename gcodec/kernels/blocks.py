"""Blocks of 32 elements for the threshold quantisers and back, written as vector IR.

LLVM's loop vectoriser narrows the masks of eight float32 lanes at a time, which on hosts without
AVX-512 costs more than the arithmetic; it also never prefetches and never streams. Here a block is
one vector of 32 lanes: its masks become codes in one go, the lines of a later block are asked for,
and a large result can bypass the cache. The bits are those of the statements in the docstrings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gcodec.kernels.jit import intrinsic
from gcodec.kernels.memory import emit_prefetch

BLOCK = 32  # elements
_AHEAD = 256  # elements between a block and what is prefetched for a later one
_LINE = 16  # float32 elements in a cache line
_SIGN = 0x80000000


def _quantize_block(rule: Callable[..., tuple[Any, Any]]) -> Any:
    """Build a block quantiser from `rule`, which emits the comparison and the packing."""

    @intrinsic
    def block(
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
        from numba.core import types

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = _address(context, builder, signature, args, 0, 1)
            kept = _address(context, builder, signature, args, 2, 4)
            left = _address(context, builder, signature, args, 3, 4)
            packed = _address(context, builder, signature, args, 8, 9)
            decay, threshold, level = (_splat(builder, args[k]) for k in (5, 6, 7))
            _fetch(builder, source)
            _fetch(builder, kept)
            memory = builder.fmul(decay, _load(builder, kept, decay.type))
            v = builder.fadd(_load(builder, source, decay.type), memory)
            step, codes = rule(builder, v, threshold, level)
            _store(builder, builder.fsub(v, step), left)
            _store(builder, codes, packed, align=1)
            return context.get_dummy_value()

        arguments = x, i, before, after, j, decay, threshold, level, out, at
        return types.void(*arguments), generate

    return block


def _rule_2bit(builder: Any, v: Any, threshold: Any, level: Any) -> tuple[Any, Any]:
    from llvmlite import ir

    byte, word = ir.IntType(8), ir.IntType(32)
    code = ir.VectorType(byte, BLOCK)
    up = builder.fcmp_ordered(">=", v, threshold)
    down = builder.fcmp_ordered("<=", v, builder.fneg(threshold))
    zero = v.type([0.0] * BLOCK)
    step = builder.select(up, level, builder.select(down, builder.fneg(level), zero))
    negative = builder.select(down, code([2] * BLOCK), code([0] * BLOCK))
    codes = builder.select(up, code([3] * BLOCK), negative)
    # Four codes in the bytes of a word: one multiplication collects them in its top byte.
    four = builder.bitcast(codes, ir.VectorType(word, BLOCK // 4))
    collect = four.type([1 | 1 << 10 | 1 << 20 | 1 << 30] * (BLOCK // 4))
    top = builder.lshr(builder.mul(four, collect), four.type([24] * (BLOCK // 4)))
    return step, builder.trunc(top, ir.VectorType(byte, BLOCK // 4))


def _rule_1bit(builder: Any, v: Any, threshold: Any, level: Any) -> tuple[Any, Any]:
    from llvmlite import ir

    up = builder.fcmp_ordered(">", v, threshold)
    # The first lane is the lowest bit; it has to be the highest of the first byte.
    bits = builder.bswap(builder.bitreverse(builder.bitcast(up, ir.IntType(BLOCK))))
    return builder.select(up, level, builder.fneg(level)), bits


def _dequantize_block(width: int, store: str) -> Any:
    """Build a block dequantiser for codes of `width` bits.

    `store` says what happens to the 32 values: "write", "add" to what is there, or "stream", which
    writes around the cache and needs the address to be a multiple of 32 bytes.
    """

    @intrinsic
    def block(typing_context: Any, data: Any, at: Any, level: Any, out: Any, i: Any) -> Any:
        from llvmlite import ir
        from numba.core import types

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = _address(context, builder, signature, args, 0, 1)
            target = _address(context, builder, signature, args, 3, 4)
            level = _splat(builder, args[2])
            lanes = ir.VectorType(ir.IntType(32), BLOCK)
            sign = lanes([_SIGN] * BLOCK)
            fields = _fields_on_top(builder, source, width)
            bits = builder.bitcast(level, lanes)
            if width == 2:  # 11, 10: the first bit says that there is a value, the second +
                sent = builder.ashr(fields, lanes([31] * BLOCK))
                plus = builder.shl(fields, lanes([1] * BLOCK))
                flip = builder.and_(builder.not_(plus), sign)
                bits = builder.and_(builder.xor(bits, flip), sent)
            else:
                bits = builder.xor(bits, builder.and_(builder.not_(fields), sign))
            values = builder.bitcast(bits, level.type)
            if store == "stream":
                _store(builder, values, target, align=32, streaming=True)
                return context.get_dummy_value()
            _fetch(builder, target)
            if store == "add":
                values = builder.fadd(_load(builder, target, level.type), values)
            _store(builder, values, target)
            return context.get_dummy_value()

        return types.void(data, at, level, out, i), generate

    return block


def _fields_on_top(builder: Any, source: Any, width: int) -> Any:
    """Emit the fields of the packed bytes at `source`, each in the top bits of its lane."""
    from llvmlite import ir

    per_byte = 8 // width
    word = ir.IntType(32)
    packed = ir.VectorType(ir.IntType(8), BLOCK // per_byte)
    wide = builder.zext(
        _load(builder, source, packed, align=1), ir.VectorType(word, BLOCK // per_byte)
    )
    lanes = ir.VectorType(word, BLOCK)
    spread = builder.shuffle_vector(wide, wide, lanes([k // per_byte for k in range(BLOCK)]))
    return builder.shl(spread, lanes([24 + width * (k % per_byte) for k in range(BLOCK)]))


def _address(context: Any, builder: Any, signature: Any, args: Any, array: int, index: int) -> Any:
    """Emit the address of an element: `array` and `index` say which arguments these are."""
    data = context.make_array(signature.args[array])(context, builder, args[array]).data
    return builder.gep(data, [args[index]])


def _splat(builder: Any, value: Any) -> Any:
    from llvmlite import ir

    lane = ir.IntType(32)
    first = builder.insert_element(ir.VectorType(value.type, BLOCK)(ir.Undefined), value, lane(0))
    return builder.shuffle_vector(first, first, ir.VectorType(lane, BLOCK)([0] * BLOCK))


def _load(builder: Any, pointer: Any, kind: Any, align: int = 4) -> Any:
    return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=align)


def _store(
    builder: Any, value: Any, pointer: Any, align: int = 4, streaming: bool = False
) -> None:
    from llvmlite import ir

    written = builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=align)
    if streaming:
        one = builder.module.add_metadata([ir.IntType(32)(1)])
        written.set_metadata("nontemporal", one)


def _fetch(builder: Any, pointer: Any) -> None:
    from llvmlite import ir

    for ahead in range(_AHEAD, _AHEAD + BLOCK, _LINE):
        emit_prefetch(builder, builder.gep(pointer, [ir.IntType(32)(ahead)]))


# block(x, i, before, after, j, decay, threshold, level, out, at), for 32 elements of x from i and
# of before and after from j: v = x + decay * before; then
#   2 bits: code 3, step = level where v >= threshold; 2, -level where v <= -threshold; else 0, 0
#   1 bit: code 1, step = level where v > threshold; else 0, -level
# after = v - step; the codes go to the bytes of `out` from `at`, first element highest.
quantize_2bit_block = _quantize_block(_rule_2bit)
quantize_1bit_block = _quantize_block(_rule_1bit)

# block(data, at, level, out, i): the inverse, for the bytes of `data` from `at`, to 32 elements of
# `out` from i.
write_2bit_block = _dequantize_block(2, "write")
write_1bit_block = _dequantize_block(1, "write")
stream_2bit_block = _dequantize_block(2, "stream")
stream_1bit_block = _dequantize_block(1, "stream")
add_2bit_block = _dequantize_block(2, "add")
add_1bit_block = _dequantize_block(1, "add")


@intrinsic
def fence(typing_context: Any) -> Any:
    """Make streamed values visible to whoever reads the result next."""
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
