"""Words of 32 and 64 bits: unaligned access, byte order, bit counts and comparison masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.runtime.jit import Intrinsic, inline, intrinsic, named_intrinsic, subroutine
from gcodec.runtime.lanes import Builder, Emitter, Value, compiles_for, integer, lanes

MOST_PUT = 56  # bits of one `put`


@intrinsic
def load_word(typing_context: Any, data: Any, at: Any) -> Any:
    """Return eight bytes of a uint8 array from `at` on as a uint64, the first byte lowest."""
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_word_at(builder, *args[:2]), align=1)

    return types.uint64(data, at), generate


@intrinsic
def store_word(typing_context: Any, data: Any, at: Any, word: Any) -> Any:
    """Write a uint64 to eight bytes of a uint8 array from `at` on, the lowest byte first."""
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _word_at(builder, *args[:2]), align=1)
        return context.get_dummy_value()

    return types.void(data, at, word), generate


@intrinsic
def words_of(typing_context: Any, data: Any) -> Any:
    """View a uint8 array of whole words as words, the first byte of each lowest.

    It is aligned if the array is. Numba's `view` first compiles a function that checks its dtype.
    """
    from numba.core import types

    from gcodec.runtime import lowering

    kind = data.copy(dtype=types.uint64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, size = context.get_value_type(kind), lowering.size_of(builder, args[0])
        first = builder.bitcast(lowering.data_of(builder, args[0]), lowering.data_type(array))
        count = builder.lshr(size, size.type(3))
        return lowering.array_of(array, builder, first, count, size.type(8))

    return kind(data), generate


def _word_at(builder: Builder, data: Value, at: Value) -> Value:
    """Emit the address of the word that begins at an element of a uint8 array."""
    from gcodec.runtime import lowering

    first = builder.gep(lowering.data_of(builder, data), [at])
    return builder.bitcast(first, integer(64).as_pointer())


def _bit_operation(name: str, instruction: str, *flags: bool) -> Intrinsic:
    """Make an intrinsic that applies an LLVM instruction to an unsigned integer."""

    def operation(typing_context: Any, word: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            constants = [integer(1)(flag) for flag in flags]
            return getattr(builder, instruction)(args[0], *constants)

        return word(word), generate

    operation.__name__ = name
    return intrinsic(operation)


@intrinsic
def arranged(typing_context: Any, word: Any, order: Any) -> Any:
    """Return a uint64 whose bytes are those of another one in a given order.

    Each byte of `order` is the number of a byte of `word`, the lowest byte being 0, or 128 for a
    byte of 0.
    """
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole, lane = integer(64), integer(32)
        if compiles_for("avx2"):  # LLVM has no portable instruction for it
            bytes_kind, pairs = lanes(8, 16), lanes(64, 2)
            both = [
                builder.bitcast(builder.insert_element(pairs([0, 0]), arg, lane(0)), bytes_kind)
                for arg in args
            ]
            moved = Emitter(builder, {}).x86("ssse3.pshuf.b.128", bytes_kind, both)
            return builder.extract_element(builder.bitcast(moved, pairs), lane(0))
        result = whole(0)
        for k in range(8):
            place = builder.lshr(args[1], whole(8 * k))
            by = builder.shl(builder.and_(place, whole(7)), whole(3))
            moved = builder.and_(builder.lshr(args[0], by), whole(255))
            is_zero = builder.trunc(builder.lshr(place, whole(7)), integer(1))
            own = builder.select(is_zero, whole(0), moved)
            result = builder.or_(result, builder.shl(own, whole(8 * k)))
        return result

    return types.uint64(word, order), generate


swapped = _bit_operation("swapped", "bswap")
"""Return an unsigned integer with its bytes reversed."""
leading_zeros = _bit_operation("leading_zeros", "ctlz", False)
"""Return the number of zero bits above the highest one bit; the width of the type for 0."""
trailing_zeros = _bit_operation("trailing_zeros", "cttz", False)
"""Return the number of zero bits below the lowest one bit; the width of the type for 0."""
count_ones = _bit_operation("count_ones", "ctpop")
"""Return the number of one bits."""


@intrinsic
def place_of_one(typing_context: Any, word: Any, rank: Any) -> Any:
    """Return the place of the one bit of a uint64 that has `rank` one bits below it.

    The steps have no branches, which no processor could predict.
    """
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, rank = args
        if compiles_for("avx512f"):  # PDEP is slow on some older processors
            one = builder.shl(word.type(1), rank)
            chosen = Emitter(builder, {}).x86("bmi.pdep.64", word.type, [one, word])
            return builder.cttz(chosen, integer(1)(False))
        place = zero = word.type(0)
        for half in (32, 16, 8, 4, 2, 1):
            lower = builder.ctpop(builder.and_(word, word.type((1 << half) - 1)))
            is_above = builder.icmp_unsigned(">=", rank, lower)
            rank = builder.sub(rank, builder.select(is_above, lower, zero))
            move = builder.select(is_above, word.type(half), zero)
            word, place = builder.lshr(word, move), builder.add(place, move)
        return place

    return types.uint64(word, rank), generate


@subroutine
def peek(data, at):
    """Return the 64 bits from bit `at` >= 0 on, the first highest; zeros follow the last byte."""
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
def high_product(typing_context: Any, a: Any, b: Any) -> Any:
    """Return the upper 64 bits of the 128-bit product of two uint64."""
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = integer(128)
        product = builder.mul(*(builder.zext(arg, wide) for arg in args))
        return builder.trunc(builder.lshr(product, wide(64)), integer(64))

    return types.uint64(a, b), generate


def _elements(e: Emitter, kind: Any, array: Value, at: Value) -> Value:
    """Emit the vector of 64 integers of an array from `at` on, and prefetches of later ones."""
    from gcodec.runtime import lowering

    nbits = kind.dtype.bitwidth
    first = e.builder.gep(lowering.data_of(e.builder, array), [at])
    return e.fetched(first, lanes(nbits, 64), nbits // 8)


def _mask_of(name: str, names: tuple[str, ...], compare: Callable[..., Value]) -> Intrinsic:
    """Make an intrinsic (*arrays, at, *numbers) that compares 64 elements from `at` on.

    `compare` gets the builder, a vector of integers for the elements of each array, and one for
    each number, and returns a vector of booleans. Bit k of the resulting uint64 belongs to the
    elements `at` + k.
    """
    count = names.index("at")  # of arrays

    def mask_of(typing_context: Any, *kinds: Any) -> Any:
        from numba.core import types

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e, at = Emitter(builder, {}), args[count]
            arrays = zip(signature.args[:count], args[:count], strict=True)
            vectors = [_elements(e, kind, array, at) for kind, array in arrays]
            numbers = [e.splat(number, 64) for number in args[count + 1 :]]
            return builder.bitcast(compare(builder, *vectors, *numbers), integer(64))

        return types.uint64(*kinds), generate

    mask_of.__name__ = name
    return named_intrinsic(mask_of, names)


at_least = _mask_of(
    "at_least",
    ("array", "at", "bound"),
    lambda builder, x, least: builder.icmp_unsigned(">=", x, least),
)
"""Return a uint64 whose bit k is 1 if ``array[at + k]`` is at least a bound, both unsigned."""
magnitudes_above = _mask_of(
    "magnitudes_above",
    ("values", "at", "bound"),
    lambda builder, x, level: builder.icmp_signed(
        ">", builder.and_(x, x.type([0x7FFFFFFF] * 64)), level
    ),
)
"""Return a uint64 whose bit k is 1 if the bits of abs(values[at + k]) exceed an int32 bound."""
unequal = _mask_of(
    "unequal", ("a", "b", "at"), lambda builder, a, b: builder.icmp_unsigned("!=", a, b)
)
"""Return a uint64 whose bit k is 1 if ``a[at + k]`` differs from ``b[at + k]``, both integers."""


def bytes_above(count: int) -> Intrinsic:
    """Make an intrinsic (array, at, shift, levels) that compares bytes within 64 elements.

    The byte of an element of the unsigned array is that from the bit `shift` on. The intrinsic
    returns `count` masks, one for each of the low bytes of `levels`, the lowest first. Bit k of a
    mask is 1 if the byte of element `at` + k exceeds the level. `shift` and `levels` are uint64.
    """

    def masks_of(typing_context: Any, array: Any, at: Any, shift: Any, levels: Any) -> Any:
        from numba.core import types

        kind = types.UniTuple(types.uint64, count)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            e, levels, masks = Emitter(builder, {}), args[3], list[Value]()
            # AVX2 compares signed bytes only, so all signs are flipped.
            flip = lanes(8, 64)([128] * 64)
            places = builder.xor(e.bytes_of(_elements(e, array, *args[:2]), args[2]), flip)
            for k in range(count):
                level = builder.trunc(builder.lshr(levels, integer(64)(8 * k)), integer(8))
                above = builder.icmp_signed(">", places, builder.xor(e.splat(level, 64), flip))
                masks.append(builder.bitcast(above, integer(64)))
            return context.make_tuple(builder, kind, masks)

        return kind(array, at, shift, levels), generate

    return intrinsic(masks_of)


def _putting(
    name: str, merge: Callable[[Builder, Value, Value, Value, Value], Value]
) -> Intrinsic:
    """Make an intrinsic (out, at, acc, have, bits, nbits) that appends up to 56 bits.

    `acc` contains the last `have` < 8 bits in its highest ones. The intrinsic merges the new bits
    into acc, writes acc to eight bytes of the uint8 array `out` from `at` on, and returns acc
    without its whole bytes, the number of its bits, and the index of their byte. `at` is an int64,
    all other numbers are uint64. `merge` gets the builder, acc, bits, have, and have + nbits.
    """

    def put(
        typing_context: Any, out: Any, at: Any, acc: Any, have: Any, bits: Any, nbits: Any
    ) -> Any:
        from numba.core import types

        result = types.Tuple((types.uint64, types.uint64, types.int64))

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _, at, acc, have, bits, nbits = args
            word, total = acc.type, builder.add(have, nbits)
            acc = merge(builder, acc, bits, have, total)
            place = _word_at(builder, *args[:2])
            builder.store(builder.bswap(acc), place, align=1)
            acc = builder.shl(acc, builder.and_(total, word(56)))
            at = builder.add(at, builder.lshr(total, word(3)))
            return context.make_tuple(builder, result, (acc, builder.and_(total, word(7)), at))

        return result(out, at, acc, have, bits, nbits), generate

    put.__name__ = name
    return intrinsic(put)


def _merge_low(builder: Builder, acc: Value, bits: Value, have: Value, total: Value) -> Value:
    # If `have` and `nbits` are 0, the bits are 0 as well.
    return builder.or_(acc, builder.shl(bits, builder.and_(builder.neg(total), acc.type(63))))


def _merge_high(builder: Builder, acc: Value, bits: Value, have: Value, total: Value) -> Value:
    return builder.or_(acc, builder.lshr(bits, have))


put = _putting("put", _merge_low)
"""Append the low `nbits` bits of a word whose other bits are 0."""
put_high = _putting("put_high", _merge_high)
"""Append the high `nbits` bits of a word whose other bits are 0."""


@inline
def put_long(out, at, acc, have, bits, nbits):
    """Append the low `nbits` bits, at most 64, of a word whose other bits are 0."""
    if nbits > np.uint64(MOST_PUT):
        upper = nbits - np.uint64(MOST_PUT)
        acc, have, at = put(out, at, acc, have, bits >> np.uint64(MOST_PUT), upper)
        bits, nbits = bits & np.uint64((1 << MOST_PUT) - 1), np.uint64(MOST_PUT)
    return put(out, at, acc, have, bits, nbits)


@inline
def put_zeros(out, at, acc, have, count):
    """Append zeros; none if their number is negative."""
    while count > 0:
        acc, have, at = put(out, at, acc, have, np.uint64(0), np.uint64(min(count, MOST_PUT)))
        count -= MOST_PUT
    return acc, have, at


@intrinsic
def fused(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c of float32 numbers, rounded once, as a fused multiply-add instruction does.

    On a processor without this instruction, the C library computes the same bits.
    """
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        single = ir.FloatType()
        kind = ir.FunctionType(single, [single] * 3)
        function = builder.module.declare_intrinsic("llvm.fma", [single], kind)
        return builder.call(function, args)

    return types.float32(types.float32, types.float32, types.float32), generate
