"""Codes of a table of numbers, with a scale for each block: from float32 to codes, and back.

The code of x is that of the number next to (x − shift)·factor, with a factor for each block; see
`value_table`. Code c of a block stands for values[c]·scale, or values[c]/scale. A byte holds one
code of 8 bits, or two of 4, the first in the high half.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.kernels.numeric.arithmetic import (
    NO_TERMS,
    TERMS,
    ResidualUpdate,
    add_block,
    fetch_terms,
    store_errors,
)
from gcodec.kernels.numeric.norms import norms
from gcodec.kernels.numeric.reduce import largest_bits
from gcodec.kernels.quantize.block_format import BlockFormat
from gcodec.kernels.quantize.byte_lanes import HALF, narrow_halves, pair_codes, store_sorted
from gcodec.kernels.quantize.float_codes import emit_codes, limit_bits
from gcodec.kernels.quantize.value_table import CELL, Cells, ValueTable
from gcodec.runtime import pool
from gcodec.runtime.cover import store_of, streams
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, Kernel, factory, inline, kernel
from gcodec.runtime.lanes import (
    ADD,
    AHEAD,
    BLOCK,
    SIGN,
    STREAM,
    Emitter,
    Value,
    block,
    compiles_for,
    fence,
    floats,
    integer,
    lanes,
)
from gcodec.runtime.memory import aligned_copy, aligned_empty, bits_float, tile_beside

_CACHED = 1 << 16  # elements of the largest block whose sums stay in a cache
_METHODS = ("tree", "cells", "int4", "int8", "offset8", "fp8")
_NARROW = ("tree", "int4")  # methods whose codes have 4 bits
_ABSMAX = ("tree", "cells")  # methods whose scales are magnitudes; those of others are factors
_LEFT = ("tree", "cells", "int4", "int8", "fp8")  # methods with a residual
_TABLES = {1: "float32[]", 2: "uint64[]"}  # types of `_numbers_of` by the codes of a byte
_FINITE = np.float32(np.finfo(np.float32).max)


class FactorRule(NamedTuple):
    """How the factor of a block follows from its largest magnitude.

    It is numerator / max(magnitude, least). Where this is infinite, it is 1 if the magnitude is 0
    or `resets`, and else the largest float32.

    Attributes
    ----------
    numerator, least : float32
    resets : bool
    """

    numerator: np.float32
    least: np.float32
    resets: bool

    def factors(self, tops: np.ndarray) -> np.ndarray:
        """Return the factors of (blocks,) float32 magnitudes."""
        with np.errstate(divide="ignore", over="ignore"):
            factors = self.numerator / np.maximum(tops, self.least)
        beyond = np.where(self.resets | (tops == 0), np.float32(1), _FINITE)
        return np.where(np.isinf(factors), beyond, factors)


# A numerator of 0 tells the kernel to use the given factors instead of computing them.
_KNOWN_FACTORS = FactorRule(np.float32(0), np.float32(0), False)


def quantize_relative(
    x: np.ndarray,
    block_size: int,
    rule: FactorRule,
    table: ValueTable,
    out: np.ndarray,
    update: ResidualUpdate | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Write the codes of a (n,) float32 array, relative to the largest magnitudes of blocks.

    See `quantize` for the other parameters.

    Parameters
    ----------
    update : ResidualUpdate, optional
        Residual that is added to x; the new one is the sum minus its decoded value. To decode a
        number of the table, "tree" and "cells" multiply it by the magnitude of its block, integers
        by the reciprocal of the factor, and "fp8" divides it by the factor. `accepts_update` must
        be true.

    Returns
    -------
    tops, factors : (ceil(n / block_size),) float32 arrays
        Largest magnitudes of blocks, and their factors. The codes of a block whose magnitude is
        not finite are arbitrary.
    """
    if not accepts_update(x.size, block_size):
        tops = norms(x, block_size, "max")
        factors = rule.factors(tops)
        quantize(x, block_size, factors, np.float32(0), table, out)
        return tops, factors
    tops, factors = np.empty((2, -(-x.size // block_size)), np.float32)

    def task(start: int, stop: int) -> None:
        part = out[start // table.per_byte : -(-stop // table.per_byte)]
        blocks = slice(start // block_size, -(-stop // block_size))
        own = tops[blocks], factors[blocks]
        segment = update and update.part(start, stop)
        _run(x[start:stop], 0, block_size, *own, rule, np.float32(0), table, part, segment)
        if segment is not None:
            segment.mark_replaced()

    pool.run(task, x.size, block_size, x)
    return tops, factors


def accepts_update(n: int, block_size: int) -> bool:
    """Return whether `quantize_relative` accepts an update: unless threads share a block."""
    return block_size < pool.SEGMENT or pool.is_one(n)


def quantize(
    x: np.ndarray,
    block_size: int,
    factors: np.ndarray,
    shift: np.float32,
    table: ValueTable,
    out: np.ndarray,
) -> None:
    """Write the codes of a (n,) float32 array of finite values.

    Parameters
    ----------
    x : (n,) float32 array
    block_size : int
        Elements of a block; even where two codes share a byte.
    factors : (ceil(n / block_size),) float32 array
        What the elements of each block are multiplied by.
    shift : float32
        What is subtracted from all elements before.
    table : ValueTable
    out : (ceil(n / table.per_byte),) uint8 array
        A last half that belongs to no element gets the code of 0 if `shift` is 0.
    """
    per_byte, none = table.per_byte, np.empty(0, np.float32)

    def task(start: int, stop: int) -> None:
        part = out[start // per_byte : -(-stop // per_byte)]
        _run(x[start:stop], start, block_size, none, factors, _KNOWN_FACTORS, shift, table, part)

    pool.run(task, x.size, BLOCK, x)


def _run(
    x: np.ndarray,
    first: int,
    block_size: int,
    tops: np.ndarray,
    factors: np.ndarray,
    rule: FactorRule,
    shift: np.float32,
    table: ValueTable,
    out: np.ndarray,
    update: ResidualUpdate | None = None,
) -> None:
    scratch = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.uint8)
    cells = table.cells.first, table.cells.per_sign
    terms, flags = (x, *NO_TERMS[1:]), (False, 0)
    if update is not None:
        terms, x = update.terms(x), update.new_residual
        flags = False, update.rounded_to
        if block_size <= _CACHED:
            x = tile_beside(min(block_size, x.size), update.separate_output)
            flags = block_size % BLOCK == 0 and streams(update.separate_output), update.rounded_to
    numbers = table.placed() if update is not None else NO_TERMS[0]
    loop = _quantizer(table.method, update is not None)
    rule_of = *rule, shift, table.entries, *cells
    rules = tops, factors, *rule_of, *scratch
    loop(x, *terms, *flags, first, block_size, *rules, numbers, out)


@dispatched("gcodec.kernels.quantize.blockwise_cuda")
def dequantize(
    codes: np.ndarray,
    block_size: int,
    scales: np.ndarray,
    values: np.ndarray,
    divides: bool,
    out: np.ndarray,
    add: np.float32 | None = None,
) -> None:
    """Write the numbers of n codes to (n,) float32 `out`, or add a multiple of them.

    Parameters
    ----------
    codes : uint8 array
        As `quantize` writes them.
    block_size : int
    scales : (ceil(n / block_size),) float32 array
    values : (16,) or (256,) float32 array
        Number of each code.
    divides : bool
        Whether numbers are divided by the scale of their block, not multiplied by it.
    out : (n,) float32 array
    add : float32, optional
        Factor of the values that are added; each product is rounded first.
    """
    per_byte = 2 if values.size == 16 else 1
    is_aligned = block_size % BLOCK == 0 or block_size >= out.size
    stored = store_of(add, is_aligned and streams(out))
    loop, numbers = _dequantizer(per_byte, divides), _numbers_of(values)

    def task(start: int, stop: int) -> None:
        scratch = np.empty(BLOCK, np.float32), np.zeros(BLOCK, np.uint8)
        part = codes[start // per_byte : -(-stop // per_byte)]
        loop(part, start, block_size, scales, numbers, *stored, *scratch, out[start:stop])

    pool.run(task, out.size, BLOCK)


def _numbers_of(values: np.ndarray) -> np.ndarray:
    """Return the number of each byte as (256,) float32, or its two numbers as (256,) uint64.

    The result starts at a cache line: loads of a whole line from it take one access each.
    """
    if values.size == 256:
        return aligned_copy(values)
    pairs = aligned_empty(512, np.float32).reshape(16, 16, 2)
    pairs[..., 0], pairs[..., 1] = values[:, np.newaxis], values
    return pairs.reshape(-1).view(np.uint64)


# --- the same without kernels --------------------------------------------------------------------

# NumPy takes longer than the kernels, but each method and each form of a table has kernels of its
# own to compile.


def rounded_relative(
    x: np.ndarray,
    block_size: int,
    rule: FactorRule,
    table: ValueTable,
    out: np.ndarray,
    update: ResidualUpdate | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Do what `quantize_relative` does, without a kernel, for (n,) finite values.

    Only kernels add a residual, so there must be no `update`.
    """
    assert update is None
    tops = np.empty(-(-x.size // block_size), np.float32)
    whole = x.size // block_size
    np.abs(x[: whole * block_size]).reshape(whole, block_size).max(1, out=tops[:whole])
    if whole < tops.size:
        tops[whole] = np.abs(x[whole * block_size :]).max()
    factors = rule.factors(tops)
    rounded(x, block_size, factors, np.float32(0), table, out)
    return tops, factors


def rounded(
    x: np.ndarray,
    block_size: int,
    factors: np.ndarray,
    shift: np.float32,
    table: ValueTable,
    out: np.ndarray,
) -> None:
    """Write what `quantize` writes, without a kernel."""
    codes = nearest((x - shift) * _repeated(factors, block_size, x.size), table.cells)
    if table.per_byte == 2:
        codes = np.append(codes, np.full(x.size % 2, table.zero, np.uint8))
        codes = codes[::2] << np.uint8(4) | codes[1::2]
    out[:] = codes


def look_up(
    codes: np.ndarray,
    block_size: int,
    scales: np.ndarray,
    values: np.ndarray,
    divides: bool,
    out: np.ndarray,
) -> None:
    """Write what `dequantize` writes, without a kernel."""
    if values.size == 16:
        codes = np.stack((codes >> np.uint8(4), codes & np.uint8(15)), axis=1).reshape(-1)
    combine = np.divide if divides else np.multiply
    with np.errstate(over="ignore", under="ignore"):
        combine(values[codes[: out.size]], _repeated(scales, block_size, out.size), out=out)


def _repeated(numbers: np.ndarray, block_size: int, n: int) -> np.ndarray:
    """Return the number of the block of each of n elements."""
    return np.repeat(numbers, block_size)[:n] if numbers.size > 1 else numbers


def nearest(numbers: np.ndarray, cells: Cells) -> np.ndarray:
    """Return the codes of (n,) float32 numbers, a byte each."""
    bits = numbers.view(np.uint32).astype(np.int64)
    magnitudes = bits & 0x7FFFFFFF
    places = np.clip((magnitudes >> CELL) - cells.first, 0, cells.per_sign - 1)
    entries = cells.entries[places + (bits >> 31) * cells.per_sign].astype(np.int64)
    is_above = magnitudes > (entries & 0x7FFFFFFF)
    return (entries >> np.where(is_above, 40, 32)).astype(np.uint8)


# --- blocks --------------------------------------------------------------------------------------


def _quantize_block(method: str, leaves_errors: bool) -> Intrinsic:
    """Make the block that writes the codes of 32 elements of x from i on, from byte `at` on.

    With `leaves_errors`, x is replaced by the quantization errors; `block_scale` is the scale of
    the block, and `values` has the numbers of places in a tree.
    """
    emit_half = {"tree": _emit_tree, "cells": _emit_cells, "fp8": _emit_fp8}.get(
        method, _emit_integers
    )

    numbers = "factor", "shift", "entries", "first", "count", "block_scale", "values", "rounded_to"

    @block("x", "i", *numbers, "out", "at")
    def codes(e: Emitter) -> None:
        builder, source = e.builder, e.address("x", "i")
        e.fetch(source)
        highest = 7 if method in _NARROW else 127

        def half(first: int) -> Value:
            x = e.load(e.element(source, first), floats(HALF))
            shifted = builder.fsub(x, e.splat(e.args["shift"], HALF))
            r = builder.fmul(shifted, e.splat(e.args["factor"], HALF))
            codes, numbers = emit_half(e, r, highest)
            if leaves_errors:
                combine = builder.fdiv if method == "fp8" else builder.fmul
                block_scale = e.splat(e.args["block_scale"], HALF)
                value = e.rounded(combine(numbers, block_scale))
                e.store(builder.fsub(x, value), e.element(source, first))
            return builder.and_(codes, codes.type([2 * highest + 1] * HALF))

        codes = narrow_halves(e, half)
        if method == "offset8":
            codes = builder.xor(codes, codes.type([0x80] * BLOCK))
        if method == "tree":
            codes = _emit_ordered(e, codes)
        if method in _NARROW:
            codes = pair_codes(e, codes, first_high=True)
        store_sorted(e, codes)

    return codes


# Each of the following functions emits the codes of 16 lanes, and their numbers.


def _emit_tree(e: Emitter, r: Value, highest: int) -> tuple[Value, Value]:
    """Emit the numbers of bounds below lanes, found by four comparisons; see `ValueTable`."""
    builder, kind = e.builder, lanes(32, r.type.count)
    table = builder.bitcast(e.args["entries"], floats(1).element.as_pointer())
    places = kind([0] * kind.count)
    for first in (24, 16, 8, 0):
        bounds = e.one_of_eight_at(e.element(table, first), places, repeats=first > 0)
        is_above = builder.fcmp_ordered(">", r, bounds)
        places = builder.sub(builder.add(places, places), builder.sext(is_above, kind))
    return places, e.looked_up_floats(e.args["values"], places)


def _emit_ordered(e: Emitter, places: Value) -> Value:
    """Emit the codes of places in a tree, a byte each."""
    table = e.element(e.args["entries"], 32)
    if compiles_for("avx2"):
        return e.x86("avx2.pshuf.b", places.type, [e.load(table, lanes(8)), places])
    bytes_of = e.builder.bitcast(table, integer(8).as_pointer())
    indices = e.indices(e.builder.zext(places, lanes(32)))
    return e.gathered(bytes_of, indices, lanes(8))


def _emit_cells(e: Emitter, r: Value, highest: int) -> tuple[Value, None]:
    """Emit the codes of lanes, whose lowest 8 bits matter, from cells; see `Cells.packed`.

    A block of its own looks the numbers up.
    """
    builder, kind = e.builder, lanes(32, r.type.count)
    first, count = (
        e.splat(builder.trunc(e.args[name], kind.element), kind.count)
        for name in ("first", "count")
    )
    zero, last = kind([0] * kind.count), builder.sub(count, kind([1] * kind.count))
    magnitude = e.magnitude_bits(r)
    place = builder.sub(builder.lshr(magnitude, kind([CELL] * kind.count)), first)
    place = e.smaller(e.larger(place, zero), last)
    sign = builder.ashr(builder.bitcast(r, kind), kind([31] * kind.count))
    place = builder.add(place, builder.and_(sign, count))
    entries = e.gathered(e.args["entries"], e.indices(place), kind)
    rest = kind([(1 << CELL) - 1] * kind.count)
    is_above = builder.icmp_signed(">", builder.and_(magnitude, rest), builder.and_(entries, rest))
    difference = builder.ashr(entries, kind([CELL + 8] * kind.count))
    difference = builder.and_(difference, builder.sext(is_above, kind))
    return builder.add(builder.lshr(entries, kind([CELL] * kind.count)), difference), None


def _emit_integers(e: Emitter, r: Value, highest: int) -> tuple[Value, Value]:
    """Emit lanes rounded to integers of few bits, to nearest with ties to even.

    The lowest bits of the results have them in two's complement.
    """
    builder, kind = e.builder, r.type
    low, high, far = (kind([value] * kind.count) for value in (-highest - 1, highest, 1.5 * 2**23))
    r = e.smaller(e.larger(r, low), high)
    moved = builder.fadd(r, far)
    return builder.bitcast(moved, lanes(32, kind.count)), builder.fsub(moved, far)


def _emit_fp8(e: Emitter, r: Value, highest: int) -> tuple[Value, Value]:
    """Emit numbers whose lowest 8 bits are the codes of OCP's E4M3, and what they stand for."""
    builder, fmt, word = e.builder, BlockFormat.of("mxfp8e4m3"), lanes(32, HALF)
    codes, sizes = emit_codes(e, fmt, r, None, limit_bits(fmt, HALF))
    sign = builder.and_(builder.bitcast(r, word), word([SIGN] * HALF))
    numbers = builder.bitcast(builder.or_(builder.bitcast(sizes, word), sign), r.type)
    return builder.or_(codes, builder.lshr(sign, word([24] * HALF))), numbers


def _dequantize_block(per_byte: int, divides: bool, *, may_round: bool = False) -> Intrinsic:
    """Make the block that decodes the codes from byte `at` to 32 elements of `out` from i on."""
    rounded_to = ("rounded_to",) if may_round else ()

    @block("codes", "at", "block_scale", "numbers", *rounded_to, "store", "scale", "out", "i")
    def values(e: Emitter) -> None:
        builder, source = e.builder, e.address("codes", "at")
        count = BLOCK // per_byte
        codes = builder.zext(e.load(source, lanes(8, count), align=1), lanes(32, count))
        if per_byte == 2:
            pairs = e.gathered(e.args["numbers"], e.indices(codes), lanes(64, count))
            numbers = builder.bitcast(pairs, floats())
        elif compiles_for("avx512f"):
            numbers = e.looked_up_floats(e.args["numbers"], codes, 256)
        else:
            numbers = e.gathered(e.args["numbers"], e.indices(codes), floats())
        block_scale = e.splat(e.args["block_scale"])
        combine = builder.fdiv if divides else builder.fmul
        scaled = combine(numbers, block_scale)
        e.store_as(e.rounded(scaled) if may_round else scaled, e.address("out", "i"))

    return values


# --- loops ---------------------------------------------------------------------------------------


@inline
def _block_at(start, first, size, block_size):
    """Return the block of element `start` of an array, and the end of the block in the array.

    The array has `size` elements and begins with element `first` of the tensor.
    """
    b = (first + start) // block_size
    return b, min((b + 1) * block_size - first, size)


@inline
def _factor(top, numerator, least, resets):
    """Return the factor of a block; see `FactorRule`."""
    divisor = max(top, least)
    factor = numerator / divisor if divisor > np.float32(0) else np.float32(1)
    if factor > _FINITE:
        factor = np.float32(1) if resets else _FINITE
    return factor


@factory(lambda: [(m, False) for m in _METHODS] + [(m, True) for m in _LEFT])
def _quantizer(method: str, leaves_errors: bool) -> Kernel:
    is_apart = leaves_errors and method == "cells"  # a block of its own looks numbers up faster
    one_block = _quantize_block(method, leaves_errors and not is_apart)
    error_block = _dequantize_block(1, False, may_round=True)
    minus = np.float32(-1)
    per_byte = 2 if method in _NARROW else 1
    is_absmax, divides = method in _ABSMAX, method == "fp8"
    one = np.float32(1)

    @inline
    def scale_of(top, factor):
        if is_absmax:
            return top
        return factor if divides else np.float32(one / factor)

    @kernel(
        f"{'out' if leaves_errors else 'in'} float32[], {TERMS}, boolean, int64, int64, int64, "
        "(out float32[], out float32[], float32, float32, boolean), "
        "(float32, in uint32[], int64, int64), out float32[], out uint8[], in float32[], "
        "out uint8[]",
        variant=f"{method} {leaves_errors}",
    )
    def blockwise_codes(
        x, terms, streaming, rounded_to, first, block_size, rules, cells, padded, last, values, out
    ):
        # gradient begins with element `first`, whose byte is the first of `out`, and factors has
        # the factors of all blocks from 0 on, or gets them where numerator is not 0, like tops.
        # out.size == ceil(gradient.size / per_byte); `cells` are the shift, the entries of the
        # table, the lowest and the count; padded and last have BLOCK elements. Blocks are even
        # where per_byte is 2. With `leaves_errors`, residual and new_residual are as long, and
        # backup is or has no elements; x is new_residual or has room for the sums of a block, and
        # values are the numbers of codes, or of places in a tree. Else x is the gradient.
        gradient, residual, decay, new_residual, backup = terms
        tops, factors, numerator, least, resets = rules
        start = 0
        while start < gradient.size:
            b, stop = _block_at(start, first, gradient.size, block_size)
            base = start if x.size < gradient.size else 0  # element for which x[0] is
            whole = stop - (stop - start) % BLOCK
            if leaves_errors:
                for i in range(start, whole, BLOCK):
                    add_block(terms, i, x, i - base, streaming)
                rest = x[whole - base : stop - base]
                for k in range(rest.size):
                    if backup.size:
                        backup[whole + k] = residual[whole + k]
                    rest[k] = gradient[whole + k] + decay * residual[whole + k]
            if numerator > np.float32(0):
                part = x[start - base : stop - base]
                tops[b] = bits_float(largest_bits(part, np.uint32(0)))
                factors[b] = _factor(tops[b], numerator, least, resets)
            factor = factors[b]
            block_scale = scale_of(tops[b], factor) if leaves_errors else one
            ahead = max(stop - start, AHEAD)
            for i in range(start, whole, BLOCK):
                at = i // per_byte
                one_block(x, i - base, factor, *cells, block_scale, values, rounded_to, out, at)
                if is_apart:
                    error_block(out, i, block_scale, values, rounded_to, ADD, minus, x, i - base)
                if leaves_errors:
                    store_errors(x, i - base, terms, i, streaming)
                    fetch_terms(gradient, residual, i + ahead)  # while this block is coded
            if whole < stop:
                for k in range(BLOCK):
                    padded[k] = x[whole + k - base] if k < stop - whole else np.float32(0)
                one_block(padded, 0, factor, *cells, block_scale, values, rounded_to, last, 0)
                if is_apart:
                    error_block(last, 0, block_scale, values, rounded_to, ADD, minus, padded, 0)
                for k in range((stop - whole + per_byte - 1) // per_byte):
                    out[whole // per_byte + k] = last[k]
                if leaves_errors:
                    for k in range(stop - whole):
                        new_residual[whole + k] = padded[k]
            start = stop
        if leaves_errors and streaming:
            fence()

    return blockwise_codes


@factory(lambda: ((1, False), (1, True), (2, False)))
def _dequantizer(per_byte: int, divides: bool) -> Kernel:
    one_block = _dequantize_block(per_byte, divides)

    @kernel(
        f"in uint8[], int64, int64, in float32[], in {_TABLES[per_byte]}, int64, float32, "
        "out float32[], out uint8[], out float32[]",
        variant=f"{per_byte} {divides}",
        vectorized=False,
    )
    def blockwise_values(
        codes, first, block_size, scales, numbers, store, times, padded, last, out
    ):
        # out begins with element `first`, a multiple of BLOCK, and scales has the scales of all
        # blocks; codes.size == ceil(out.size / per_byte); numbers has 256 elements, padded and
        # last have BLOCK. Blocks are even where per_byte is 2.
        start = 0
        while start < out.size:
            b, stop = _block_at(start, first, out.size, block_size)
            whole = stop - (stop - start) % BLOCK
            block_scale = scales[b]
            for i in range(start, whole, BLOCK):
                one_block(codes, i // per_byte, block_scale, numbers, store, times, out, i)
            if whole < stop:
                for k in range(stop - whole):  # fewer than BLOCK
                    padded[k] = out[whole + k]
                for k in range((stop - whole + per_byte - 1) // per_byte):
                    last[k] = codes[whole // per_byte + k]
                one_block(last, 0, block_scale, numbers, store & ADD, times, padded, 0)
                for k in range(stop - whole):
                    out[whole + k] = padded[k]
            start = stop
        if store == STREAM:
            fence()

    return blockwise_values
