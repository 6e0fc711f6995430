"""Blocks of the ternary quantiser: 32 elements at random to codes, as vector IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gcodec.kernels.numeric.philox import ROUNDING, emit_words
from gcodec.runtime.lanes import BLOCK, Emitter, block, floats, lanes


def ternary_block(emit_codes: Callable[[Emitter, Any], Any]) -> Any:
    """Make a block: 32 elements of x from i, whose first is element `start` of the tensor.

    `emit_codes` gets lanes of 32 bits with the sign of what is sent, or 0. `span` is that of
    `emit_words`.
    """

    @block("x", "i", "scale", "seed", "start", "span", "out", "at")
    def ternary(e: Emitter) -> None:
        builder = e.builder
        source = e.address("x", "i")
        e.fetch(source)
        every = lanes(32)
        x = e.load(source, floats())
        size = builder.bitcast(e.magnitude_bits(x), floats())
        scale = e.splat(e.args["scale"])
        full = builder.fcmp_ordered(">=", size, scale)
        r = builder.fdiv(size, scale)
        # Where r is 1 the conversion passes the range; that lane is not looked at.
        bound = builder.fptosi(builder.fmul(r, floats()([2.0**31] * BLOCK)), every)
        seed, start, span = (e.args[name] for name in ("seed", "start", "span"))
        (halves,) = emit_words(e, seed, start, span, seed.type(ROUNDING), halved=True)
        below = builder.icmp_signed("<", halves, bound)
        sent = builder.select(full, lanes(1)([1] * BLOCK), below)
        # What is sent is no zero, so its bits tell its sign as an integer.
        signed = builder.select(sent, builder.bitcast(x, every), every([0] * BLOCK))
        e.store(emit_codes(e, signed), e.address("out", "at"), align=1)

    return ternary


# Saturating packs work within 128 bits, so eight groups of four bytes come in this order. It is
# cheaper to put things right at the end than after each pack.
_GROUPS = (0, 2, 4, 6, 1, 3, 5, 7)


def _codes(e: Emitter, signed: Any, zero: int, plus: int, minus: int) -> Any:
    """Emit a code in a byte for each lane, the fours ordered as _GROUPS tells."""
    builder, code = e.builder, lanes(8)
    pairs = _saturated(builder, signed, 16)
    half = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]
    pairs = builder.shuffle_vector(pairs, pairs, lanes(32)(half + [16 + k for k in half]))
    small = _saturated(builder, pairs, 8)
    quarters = [8 * quarter + k for quarter in (0, 2, 1, 3) for k in range(8)]
    small = builder.shuffle_vector(small, small, lanes(32)(quarters))
    none = code([0] * BLOCK)
    negative = builder.icmp_signed("<", small, none)
    positive = builder.icmp_signed(">", small, none)
    other = builder.select(positive, code([plus] * BLOCK), code([zero] * BLOCK))
    return builder.select(negative, code([minus] * BLOCK), other)


def _saturated(builder: Any, values: Any, bits: int) -> Any:
    """Emit signed lanes cut to so many bits, what passes them at their ends."""
    kind = values.type
    high, low = kind([2 ** (bits - 1) - 1] * kind.count), kind([-(2 ** (bits - 1))] * kind.count)
    values = builder.select(builder.icmp_signed("<", values, high), values, high)
    values = builder.select(builder.icmp_signed(">", values, low), values, low)
    return builder.trunc(values, lanes(bits))


def one_per_byte(zero: int, plus: int, minus: int) -> Callable[[Emitter, Any], Any]:
    """Make what emits a byte for each element, in order: these for 0, + and −."""

    def emit(e: Emitter, signed: Any) -> Any:
        codes = _codes(e, signed, zero, plus, minus)
        order = [4 * _GROUPS.index(group) + k for group in range(8) for k in range(4)]
        return e.builder.shuffle_vector(codes, codes, lanes(32)(order))

    return emit


def four_per_byte(e: Emitter, signed: Any) -> Any:
    """Emit a byte for four elements, the first lowest: 00 for 0, 01 for +, 10 for −."""
    builder = e.builder
    # Four codes in the bytes of a word: one multiplication collects them in its top byte.
    four = builder.bitcast(_codes(e, signed, 0, 1, 2), lanes(32, BLOCK // 4))
    collect = four.type([1 << 24 | 1 << 18 | 1 << 12 | 1 << 6] * (BLOCK // 4))
    top = builder.lshr(builder.mul(four, collect), four.type([24] * (BLOCK // 4)))
    # _GROUPS is the even ones, then the odd ones.
    half = lanes(32, 4)
    even, odd = (
        builder.shuffle_vector(top, top, half([first + k for k in range(4)])) for first in (0, 4)
    )
    return builder.trunc(builder.or_(even, builder.shl(odd, half([8] * 4))), lanes(16, 4))
