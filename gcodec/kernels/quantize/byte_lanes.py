"""Packing of the codes of 32 elements, 32-bit lanes, to bytes.

Vectors of 256 bits are packed within 128 bits. The orders of lanes undo that, so that no
instruction has to. Groups of four elements then come in another order, which is undone at the end,
when there are fewer bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from gcodec.runtime.lanes import BLOCK, Emitter, Value, compiles_for, lanes

HALF = BLOCK // 2  # elements whose numbers stay in registers

IN_HALF = [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)]
IN_WHOLE = [8 * quarter + k for quarter in (0, 2, 1, 3) for k in range(8)]
_GROUPS = (0, 2, 4, 6, 1, 3, 5, 7)


def narrow_halves(e: Emitter, half: Callable[[int], Value]) -> Value:
    """Emit both halves of a block, and their low bytes, whose groups are not in order.

    `half` emits the codes of 16 elements, given the first one.
    """
    builder = e.builder

    def narrowed(first: int) -> Value:
        return e.picked(builder.trunc(half(first), lanes(16, HALF)), IN_HALF)

    one = narrowed(0)
    e.in_order()
    joined = e.joined([one, narrowed(HALF)])
    return e.picked(builder.trunc(joined, lanes(8)), IN_WHOLE)


def pair_codes(e: Emitter, codes: Value, *, first_high: bool = False) -> Value:
    """Emit bytes of two codes below 16 each, from bytes of one each.

    The first code takes the low half, or the high half with `first_high`.
    """
    pairs = e.builder.bitcast(codes, lanes(16, HALF))  # the first code is the low byte
    if compiles_for("avx2") and not compiles_for("avx512bw"):
        factors = codes.type(([16, 1] if first_high else [1, 16]) * HALF)
        joined = e.x86("avx2.pmadd.ub.sw", pairs.type, [codes, factors])
    elif first_high:
        high = e.builder.shl(pairs, pairs.type([4] * HALF))
        joined = e.builder.or_(high, e.builder.lshr(pairs, pairs.type([8] * HALF)))
    else:
        joined = e.builder.or_(pairs, e.builder.lshr(pairs, pairs.type([4] * HALF)))
    return e.builder.trunc(joined, lanes(8, HALF))


def load_codes(e: Emitter, source: Value, per_byte: int, *, first_high: bool = False) -> Value:
    """Emit bytes of one code each, from bytes of one, or of two as `pair_codes` joins them."""
    if per_byte == 1:
        return e.load(source, lanes(8), align=1)
    builder, wide = e.builder, lanes(16, HALF)
    pairs = builder.zext(e.load(source, lanes(8, HALF), align=1), wide)
    four, eight = wide([4] * HALF), wide([8] * HALF)
    if first_high:
        spread = builder.or_(builder.lshr(pairs, four), builder.shl(pairs, eight))
    else:
        spread = builder.or_(pairs, builder.shl(pairs, four))
    return builder.bitcast(builder.and_(spread, wide([0x0F0F] * HALF)), lanes(8))


def sorted_groups(e: Emitter, codes: Value) -> Value:
    """Emit the groups of 16 or 32 bytes in order."""
    group = codes.type.count // 8  # bytes
    order = [group * _GROUPS.index(at) + k for at in range(8) for k in range(group)]
    return e.picked(codes, order)


def store_sorted(e: Emitter, codes: Value) -> None:
    """Emit the reordering of the groups of 16 or 32 bytes, and the store to byte `at` of `out`."""
    e.store(sorted_groups(e, codes), e.address("out", "at"), align=1)
