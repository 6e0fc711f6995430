"""Blocks of levels: 32 values at random to symbols, and symbols to values, as vector IR.

The arithmetic is that of `levels`.
"""

from __future__ import annotations

from typing import Any, Literal

from gcodec.kernels.numeric.philox import ROUNDING, emit_words
from gcodec.runtime.lanes import AHEAD, BLOCK, Emitter, block, floats, lanes

Store = Literal["write", "stream", "add"]
Factors = Literal["each", "two", "same"]
"""Whether each of 32 elements has a factor of its own, in an array, or `split` of them the first
of two and the others the second, or all have one."""

_FACTORS = {"each": ("numbers", "zero"), "two": ("factor", "other", "split"), "same": ("factor",)}


def _factors(e: Emitter) -> Any:
    """Emit the factors of 32 elements."""
    if "numbers" in e.args:
        return e.load(e.address("numbers", "zero"), floats())
    if "other" not in e.args:
        return e.splat(e.args["factor"])
    split = e.args["split"]
    lane = lanes(split.type.width)(list(range(BLOCK)))
    before = e.builder.icmp_signed("<", lane, e.splat(split))
    return e.builder.select(before, e.splat(e.args["factor"]), e.splat(e.args["other"]))


def quantize_block(bits: int, blocks: int, factors: Factors, ahead: int = AHEAD) -> Any:
    """Make the block: 32·blocks elements of x from i, from element `start` on, to symbols.

    What lies so many elements `ahead` is asked for.
    """

    @block("x", "i", *_FACTORS[factors], "s", "seed", "start", "span", "out", "at")
    def levels_of(e: Emitter) -> None:
        seed, start, span = (e.args[name] for name in ("seed", "start", "span"))
        stream = seed.type(ROUNDING)
        found = emit_words(e, seed, start, span, stream, blocks=blocks, halved=True)
        for k, halves in enumerate(found):
            source = e.element(e.address("x", "i"), k * BLOCK)
            e.fetch(source, ahead)
            codes = _codes(e, e.load(source, floats()), halves, lanes(bits))
            e.store(codes, e.element(e.address("out", "at"), k * BLOCK), align=1)

    return levels_of


def _codes(e: Emitter, x: Any, halves: Any, kind: Any) -> Any:
    """Emit the symbols of 32 values, given halves of their random words."""
    builder, every = e.builder, lanes(32)
    size = builder.bitcast(e.magnitude_bits(x), floats())
    r = builder.fmul(size, _factors(e))
    whole = builder.fptosi(r, every)
    rest = builder.fsub(r, builder.sitofp(whole, floats()))
    bound = builder.fptosi(builder.fmul(rest, floats()([2.0**31] * BLOCK)), every)
    up = builder.icmp_signed("<", halves, bound)
    level = builder.sub(whole, builder.sext(up, every))
    top = e.splat(e.args["s"])
    # r may pass s by the rounding of the norm.
    level = builder.select(builder.icmp_signed("<", level, top), level, top)
    one = every([1] * BLOCK)
    sign = builder.lshr(builder.bitcast(x, every), every([31] * BLOCK))
    codes = builder.trunc(builder.or_(builder.shl(level, one), sign), kind)
    # The sign of level 0 is no sign.
    lone = builder.icmp_unsigned("==", codes, codes.type([1] * BLOCK))
    return builder.add(codes, builder.sext(lone, codes.type))


def dequantize_block(bits: int, store: Store, factors: Factors) -> Any:
    """Make the block: 32 symbols from `at` to elements of `out` from i."""

    @block("symbols", "at", *_FACTORS[factors], "scale", "out", "i")
    def values_of(e: Emitter) -> None:
        builder = e.builder
        every = lanes(32)
        target = e.address("out", "i")
        codes = e.load(e.address("symbols", "at"), lanes(bits), bits // 8)
        if bits < 32:
            codes = builder.zext(codes, every)
        sign = builder.shl(codes, every([31] * BLOCK))
        level = builder.sitofp(builder.lshr(codes, every([1] * BLOCK)), floats())
        size = builder.fmul(level, _factors(e))
        values = builder.bitcast(builder.or_(builder.bitcast(size, every), sign), floats())
        e.store_as(store, values, target)

    return values_of
