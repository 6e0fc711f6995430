"""Fused rows of Caffe2 and FBGEMM: the codes of a row of a matrix, then its scale and bias.

A row of c columns has ceil(c·bits / 8) bytes of codes, the first element in the lowest bits, then
a scale and a bias, both float32 or both float16, little-endian. All arithmetic is float32, in the
order of FBGEMM's AVX2 kernels.
"""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt, ParameterError
from gcodec.kernels.numeric.convert import half_to_single, single_to_half
from gcodec.kernels.numeric.ranges import range_of
from gcodec.kernels.numeric.reduce import INFINITY_BITS, key_of
from gcodec.kernels.numeric.words import fused, load_word, store_word
from gcodec.runtime import pool
from gcodec.runtime.jit import Intrinsic, Kernel, factory, inline, kernel
from gcodec.runtime.lanes import BLOCK, Emitter, block, floats, lanes
from gcodec.runtime.memory import bits_float, float_bits

# Bits of a code, and whether scale and bias are float16.
FORMATS = ((8, False), (8, True), (4, True), (2, True))

_LANES = 8  # float32 values of an AVX2 register
# Adding this number to a float32 between 0 and 2^22 leaves the nearest integer, ties to even, in
# the lowest bits.
_ROUND = np.float32(1.5 * 2.0**23)
_EPSILON = np.float32(1e-8)
_SIGN, _ABS = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_INFINITY = np.uint32(INFINITY_BITS)
_NONFINITE, _TOO_LARGE, _PADDING, _SCALE = range(1, 5)


def row_nbytes(columns: int, bits: int, half: bool) -> int:
    """Return the bytes of a row."""
    return -(-columns * bits // 8) + (4 if half else 8)


def quantize(x: np.ndarray, columns: int, bits: int, half: bool, out: np.ndarray) -> int | None:
    """Write the fused rows of a matrix.

    Parameters
    ----------
    x : (rows * columns,) float32 array
    columns : int
        From 1.
    bits : int
        2, 4 or 8.
    half : bool
        Whether scale and bias are float16; required for 2 and 4 bits.
    out : (rows * row_nbytes(columns, bits, half),) uint8 array

    Returns
    -------
    int or None
        Row of the first NaN or Inf, after which `out` is incomplete; None if all are finite.

    Raises
    ------
    ParameterError
        If the range of a row is infinite, or its scale or bias as float16.
    """
    loop, width = _quantizer(bits, half), row_nbytes(columns, bits, half)

    def task(start: int, stop: int) -> tuple[int, int]:
        state, ends = np.zeros(2, np.int64), np.empty(2, np.int32)
        first, last = start // columns, stop // columns
        room = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.uint8)
        loop(x[start:stop], columns, out[first * width : last * width], ends, *room, state)
        return int(state[0]), first + int(state[1])

    for status, row in pool.run(task, x.size, columns):
        if status == _NONFINITE:
            return row
        if status == _TOO_LARGE:
            kind = "float16" if half else "float32"
            raise ParameterError(
                f"x: row {row} needs a scale or bias beyond {kind}; multiply x by a smaller factor"
            )
    return None


def dequantize(data: np.ndarray, columns: int, bits: int, half: bool, out: np.ndarray) -> None:
    """Decode fused rows to a (rows * columns,) float32 array; see `quantize`.

    Raises
    ------
    Corrupt
        If a scale or bias is invalid, a padding bit is 1, or a value exceeds float32.
    """
    loop, width = _dequantizer(bits, half), row_nbytes(columns, bits, half)

    def task(start: int, stop: int) -> tuple[int, int]:
        state = np.zeros(2, np.int64)
        first, last = start // columns, stop // columns
        loop(data[first * width : last * width], columns, out[start:stop], state)
        return int(state[0]), first + int(state[1])

    for status, row in pool.run(task, out.size, columns):
        if status == _PADDING:
            raise Corrupt(f"row {row} has a padding bit that is 1", row * width)
        if status == _SCALE:
            raise Corrupt(f"row {row} has an invalid scale or bias", row * width)
        if status == _TOO_LARGE:
            raise Corrupt(f"row {row} holds a value beyond float32", row * width)


@inline
def _first_zero(x, start, columns):
    """Return the bits of the zero, −0 or 0, that FBGEMM takes as the minimum of a row.

    Each of eight lanes keeps the last of equal values. Then the lanes are compared in order, and
    after them the columns beyond the last whole register; the first of equal values wins.
    """
    whole = columns - columns % _LANES
    zero = np.uint32(1)  # the bits of no zero
    for lane in range(_LANES):
        if zero == np.uint32(1):
            for i in range(start + lane, start + whole, _LANES):  # start + columns <= x.size
                if x[i] == np.float32(0):
                    zero = float_bits(x[i])
    for i in range(start + whole, start + columns):
        if zero == np.uint32(1) and x[i] == np.float32(0):
            zero = float_bits(x[i])
    return zero


@inline
def _write_scale_bias(row, at, scale, bias, half):
    """Write the bits of scale and bias to the last 4 or 8 bytes of a row, from `at` on."""
    if half:
        word = scale | bias << np.uint32(16)
        for k in range(4):  # at + 4 <= row.size
            row[at + k] = np.uint8(word >> np.uint32(8 * k))
    else:
        store_word(row, at, np.uint64(scale) | np.uint64(bias) << np.uint64(32))


@inline
def _read_scale_bias(row, at, half):
    """Return the bits of the scale and the bias from `at` on."""
    if half:
        pair = np.uint32(0)
        for k in range(4):  # at + 4 <= row.size
            pair |= np.uint32(np.uint32(row[at + k]) << np.uint32(8 * k))
        return np.uint32(pair & np.uint32(0xFFFF)), np.uint32(pair >> np.uint32(16))
    word = load_word(row, at)
    return np.uint32(word & np.uint64(0xFFFFFFFF)), np.uint32(word >> np.uint64(32))


def _codes_block(bits: int) -> Intrinsic:
    """Make the block that quantizes 32 elements of x from i to the bytes of `out` from `at` on."""
    levels = float(2**bits - 1)

    @block("x", "i", "low", "inverse", "out", "at")
    def codes_block(e: Emitter) -> None:
        builder, single = e.builder, floats()
        x = e.load(e.address("x", "i"), single)
        q = builder.fmul(builder.fsub(x, e.splat(e.args["low"])), e.splat(e.args["inverse"]))
        least, most = single([0.0] * BLOCK), single([levels] * BLOCK)
        q = e.smaller(e.larger(q, least), most)
        q = builder.fadd(q, single([float(_ROUND)] * BLOCK))
        codes = builder.trunc(builder.bitcast(q, lanes(32)), lanes(8))
        if bits < 8:  # the codes of a byte lie in one lane of 64 // bits bits
            count = BLOCK * bits // 8
            wide = builder.bitcast(codes, lanes(64 // bits, count))
            joined = wide
            for k in range(1, 8 // bits):
                distance = wide.type([k * (8 - bits)] * count)
                joined = builder.or_(joined, builder.lshr(wide, distance))
            codes = builder.trunc(joined, lanes(8, count))
        e.store(codes, e.address("out", "at"), align=1)

    return codes_block


def _values_block(bits: int) -> Intrinsic:
    """Make the block that decodes the 32 codes from byte `at` on to elements of `out` from i."""

    @block("data", "at", "scale", "bias", "out", "i")
    def values_block(e: Emitter) -> None:
        builder, single, count = e.builder, floats(), BLOCK * bits // 8
        codes = e.load(e.address("data", "at"), lanes(8, count), align=1)
        if bits < 8:
            wide = builder.zext(codes, lanes(64 // bits, count))
            spread = wide
            for k in range(1, 8 // bits):
                distance = wide.type([k * (8 - bits)] * count)
                spread = builder.or_(spread, builder.shl(wide, distance))
            mask = sum((2**bits - 1) << 8 * k for k in range(8 // bits))
            codes = builder.bitcast(builder.and_(spread, wide.type([mask] * count)), lanes(8))
        numbers = builder.uitofp(builder.zext(codes, lanes(32)), single)
        scale, bias = e.splat(e.args["scale"]), e.splat(e.args["bias"])
        e.store(e.fused(numbers, scale, bias), e.address("out", "i"))

    return values_block


@factory(lambda: FORMATS)
def _quantizer(bits: int, half: bool) -> Kernel:
    levels, per_byte, tail = np.float32(2**bits - 1), 8 // bits, 4 if half else 8
    zero, one = np.float32(0), np.float32(1)
    codes_block = _codes_block(bits)

    @inline
    def half_numbers(low, high):
        # Returns the bits of scale and bias, the subtrahend, the factor, whether all are finite.
        bias = single_to_half(float_bits(low))
        rounded = bits_float(half_to_single(bias))
        span = np.float32(high - rounded)
        scale = one if span == zero else np.float32(span / levels)
        stored = single_to_half(float_bits(scale))
        finite = (bias & np.uint32(0x7FFF)) < np.uint32(0x7C00)
        finite &= (stored & np.uint32(0x7FFF)) < np.uint32(0x7C00)
        scale = bits_float(half_to_single(stored))
        if scale == zero:
            scale, stored = one, np.uint32(0x3C00)
        return stored, bias, rounded, np.float32(one / scale), finite

    @inline
    def single_numbers(low, high):
        span = np.float32(high - low)
        finite = float_bits(span) < _INFINITY
        stored = float_bits(np.float32(span / levels))
        inverse = np.float32(levels / np.float32(span + _EPSILON))
        return stored, float_bits(low), low, inverse, finite

    numbers = half_numbers if half else single_numbers

    @kernel(
        "in float32[], int64, out uint8[], out int32[], out float32[], out uint8[], out int64[]",
        f"{bits} {half}",
    )
    def quantize_rows(x, columns, out, ends, padded, codes, state):
        # x.size == rows * columns, columns > 0, out.size == rows * width, ends.size == 2; padded
        # and codes have BLOCK elements.
        packed = (columns + per_byte - 1) // per_byte
        width, blocks = packed + tail, columns // BLOCK
        for row in range(x.size // columns):
            first, end, to = row * columns, (row + 1) * columns, row * width
            least, most = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
            if blocks > 0:
                range_of(x, first, first + blocks * BLOCK, ends)
                least, most = ends[0], ends[1]
            for i in range(first + blocks * BLOCK, end):  # end <= x.size
                key = key_of(np.int32(float_bits(x[i])))
                least, most = min(least, key), max(most, key)
            if max(most, ~least) >= INFINITY_BITS:
                state[0], state[1] = _NONFINITE, row
                return
            if least == -1:  # −0, and perhaps 0 too
                low = bits_float(_first_zero(x, first, columns))
            else:
                low = bits_float(np.uint32(key_of(least)))
            high = bits_float(np.uint32(key_of(most)))
            scale, bias, base, inverse, finite = numbers(low, high)
            if not finite:
                state[0], state[1] = _TOO_LARGE, row
                return
            for i in range(blocks):  # of the row and its codes
                codes_block(x, first + i * BLOCK, base, inverse, out, to + i * BLOCK // per_byte)
            rest = x[first + blocks * BLOCK : end]  # less than a block
            if rest.size:
                padded[:] = base  # whose code is 0
                for k in range(rest.size):
                    padded[k] = rest[k]
                codes_block(padded, 0, base, inverse, codes, 0)
                last = out[to + blocks * BLOCK // per_byte : to + packed]
                for k in range(last.size):  # at most BLOCK // per_byte
                    last[k] = codes[k]
            _write_scale_bias(out, to + packed, scale, bias, half)

    return quantize_rows


@factory(lambda: FORMATS)
def _dequantizer(bits: int, half: bool) -> Kernel:
    mask, per_byte, tail = np.uint32(2**bits - 1), 8 // bits, 4 if half else 8
    levels = np.float32(2**bits - 1)
    values_block = _values_block(bits)

    @inline
    def number(pattern):
        return bits_float(half_to_single(pattern)) if half else bits_float(pattern)

    @kernel("in uint8[], int64, out float32[], out int64[]", variant=f"{bits} {half}")
    def dequantize_rows(data, columns, out, state):
        # out.size == rows * columns, columns > 0, data.size == rows * width
        packed = (columns + per_byte - 1) // per_byte
        width = packed + tail
        blocks, whole = columns // BLOCK, columns // per_byte
        for row in range(out.size // columns):
            start, first, end = row * width, row * columns, (row + 1) * columns
            scale_bits, bias_bits = _read_scale_bias(data, start + packed, half)
            scale, bias = number(scale_bits), number(bias_bits)
            magnitude = np.uint32(float_bits(scale) & _ABS)
            wrong = magnitude >= _INFINITY
            wrong |= np.uint32(float_bits(bias) & _ABS) >= _INFINITY
            # A float16 scale is never 0; a float32 scale is never negative.
            wrong |= magnitude == np.uint32(0) if half else float_bits(scale) >= _SIGN
            if wrong:
                state[0], state[1] = _SCALE, row
                return
            for i in range(blocks):  # of the row and its codes
                at = start + i * BLOCK // per_byte
                values_block(data, at, scale, bias, out, first + i * BLOCK)
            # Below, indices of out are less than `end`, those of data less than start + packed.
            i = first + blocks * BLOCK
            if per_byte == 1:
                at = start + blocks * BLOCK
                for k in range(end - i):
                    out[i + k] = fused(np.float32(data[at + k]), scale, bias)
            else:
                for j in range(blocks * BLOCK // per_byte, whole):
                    codes = np.uint32(data[start + j])
                    for k in range(per_byte):
                        out[i + k] = fused(np.float32(codes & mask), scale, bias)
                        codes >>= np.uint32(bits)
                    i += per_byte
                if packed > whole:
                    codes = np.uint32(data[start + whole])
                    for k in range(end - i):
                        out[i + k] = fused(np.float32(codes & mask), scale, bias)
                        codes >>= np.uint32(bits)
                    if codes:
                        state[0], state[1] = _PADDING, row
                        return
            if not half:  # with a float16 scale, no value exceeds float32
                top = np.uint32(float_bits(fused(levels, scale, bias)) & _ABS)
                if top >= _INFINITY:
                    for k in range(first, end):
                        if np.uint32(float_bits(out[k]) & _ABS) >= _INFINITY:
                            state[0], state[1] = _TOO_LARGE, row
                            return

    return dequantize_rows
