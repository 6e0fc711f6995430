"""TernGrad's quantizer, which rounds |x|/s at random to 0 or 1 and keeps the sign; three packings.

r = |x|/s, rounded once to float32, and 1 for |x| ≥ s. The element is sent if r is 1 or (u >> 1) <
int32(r·2^31), where u is its random word. Sources: Wen et al., "TernGrad", NIPS 2017;
wenwei202/terngrad ec4f75e for the strided packing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.computed_symbols import Read, Symbols, read_by, symbols_in
from gcodec.kernels.bits.dequantize import (
    LEVELS_IN_BYTES,
    LEVELS_LOW_FIRST,
    LEVELS_STRIDED,
    dequantize,
)
from gcodec.kernels.bits.pack import FieldLayout, check_length, check_padding, pad_error
from gcodec.kernels.numeric import convert
from gcodec.kernels.numeric.philox import COUNTER_SPAN, emit_words
from gcodec.kernels.numeric.words import load_word, store_word
from gcodec.kernels.quantize.byte_lanes import HALF, IN_HALF, IN_WHOLE, sorted_groups
from gcodec.runtime import pool
from gcodec.runtime.cover import cover
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, kernel
from gcodec.runtime.lanes import BLOCK, SIGN, Emitter, Value, block, floats, lanes
from gcodec.runtime.memory import aligned_empty

Pack = Literal["chapter", "terngrad", "base3"]

CHAPTER = FieldLayout(width=2, order="lsb")
STRIDED = FieldLayout(width=2, order="lsb", strided=True)
TRITS = 5  # codes in a byte of base3
FIVES = np.arange(3**TRITS).astype(np.uint8)  # all bytes of base3
_LARGEST = 3**TRITS - 1
_DIGITS = (np.arange(256)[:, None] // 3 ** np.arange(TRITS) % 3).astype(np.uint8)  # of each byte
# The product of this number and the five codes in the bytes of a word has the sum of all codes
# times their powers as its fifth byte. No lower byte carries, as each holds at most that sum.
_COLLECT = sum(3**k << 8 * (TRITS - 1 - k) for k in range(TRITS))

_TILE = TRITS * 512  # elements; a multiple of BLOCK and of TRITS
_CHUNK = 128 * _TILE  # elements whose codes stay in the second-level cache
_SYMBOL_CHUNK = 1 << 16  # bytes of base3
_SLACK = 8  # bytes after codes that a word may reach


def packed_nbytes(n: int, pack: Pack) -> int:
    """Return the bytes of n packed codes."""
    if pack == "base3":
        return -(-n // TRITS)
    return (STRIDED if pack == "terngrad" else CHAPTER).nbytes(n)


@dispatched("gcodec.kernels.quantize.ternary_cuda")
def quantize(
    x: np.ndarray,
    scale: np.float32,
    seed: int,
    pack: Pack,
    level: np.float32 | None = None,
) -> np.ndarray:
    """Quantize a (n,) float32 array and pack the codes.

    Parameters
    ----------
    x : (n,) float32 array
        Finite.
    scale : float32
        Not negative; 0 only if all of x is 0.
    seed : int
        Seed for stochastic rounding.
    pack : Pack
    level : float32, optional
        Magnitude to which elements are decoded. If it is given, x is replaced by the
        quantization error x − x̂; only on the host.

    Returns
    -------
    (packed_nbytes(n, pack),) uint8 array
    """
    leaves_errors, level = level is not None, np.float32(0) if level is None else level
    numbers = _Numbers(scale if scale > 0 else np.float32(np.inf), level, np.uint64(seed))
    out = aligned_empty(packed_nbytes(x.size, pack), np.uint8)
    if pack == "chapter":
        _quantize_chapter(x, numbers, leaves_errors, out)
    elif pack == "terngrad":
        _quantize_strided(convert.whole(x), numbers, leaves_errors, out)
    else:
        _quantize_base3(x, numbers, leaves_errors, out)
    return out


class _Numbers(NamedTuple):
    """Arguments of the kernels."""

    scale: np.float32  # not 0, as 0/0 would be NaN
    level: np.float32
    seed: np.uint64


def dequantize_ternary(
    data: np.ndarray,
    scale: np.float32,
    out: np.ndarray,
    pack: Pack,
    add: np.float32 | None = None,
) -> None:
    """Write 0 and ±scale to the (n,) float32 `out`, or add a multiple; see `dequantize`.

    `check` must have accepted the bytes.
    """
    if pack == "chapter":
        dequantize(data, LEVELS_LOW_FIRST, scale, out, add)
    elif pack == "terngrad":
        size = data.size
        for field in range(4):
            part = out[field * size : (field + 1) * size]
            dequantize(data[: part.size], LEVELS_STRIDED[field], scale, part, add)
    else:
        dequantize_base3(data, scale, out, add)


@dispatched("gcodec.kernels.quantize.ternary_cuda")
def check(data: np.ndarray, n: int, pack: Pack) -> None:
    """Raise `FormatError` unless the bytes are those of n packed codes."""
    check_length(8 * data.size, 8 * packed_nbytes(n, pack))
    if pack == "chapter":
        check_padding(data, 2 * n, "lsb")
        if _code_11_bits(data):
            raise code_error()
    elif pack == "terngrad":
        _check_strided(data, n)
    elif data.size:
        if data.max() > _LARGEST:
            raise digits_error()
        if int(data[-1]) >= 3 ** (n - (data.size - 1) * TRITS):
            raise pad_digits_error(data.size - 1)


def _check_strided(data: np.ndarray, n: int) -> None:
    size = data.size
    # The pad codes, at most four, lie in the last four bytes.
    plain = max(size - 4, 0)
    if _code_11_bits(data[:plain]):
        raise code_error()
    for at in range(plain, size):
        for field in range(4):
            code, index = int(data[at]) >> 2 * field & 3, field * size + at
            if index < n and code == 3:
                raise code_error(at)
            if index >= n and code != index - n:
                raise pad_error(at)


def code_error(at: int | None = None) -> Corrupt:
    """Make the error for an invalid code, in byte `at`."""
    return Corrupt("a field of two bits holds the invalid code 11", at)


def digits_error() -> Corrupt:
    """Make the error for an invalid byte of ``base3``."""
    return Corrupt(f"a byte exceeds {_LARGEST}, the largest of five ternary codes")


def pad_digits_error(at: int) -> Corrupt:
    """Make the error for a wrong pad code of ``base3``, in byte `at`."""
    return Corrupt("a pad code is not zero", at)


# --- blocks --------------------------------------------------------------------------------------


def _ternary_block(
    emit_codes: Callable[[Emitter, Value], Value], leaves_errors: bool = False
) -> Value:
    """Make the block that quantizes 32 elements of x from i, or `start` of the tensor, on.

    `emit_codes` takes 32-bit lanes, which are 0 or have the sign of the element that is sent.
    `emit_words` describes `span`. With `leaves_errors`, elements that are sent lose `level`.
    """

    @block("x", "i", "scale", "level", "seed", "start", "span", "out", "at")
    def ternary(e: Emitter) -> None:
        builder = e.builder
        source, word = e.address("x", "i"), lanes(32)
        x = e.fetched(source, floats())
        size = builder.bitcast(e.magnitude_bits(x), floats())
        scale = e.splat(e.args["scale"])
        full = builder.fcmp_ordered(">=", size, scale)
        r = builder.fdiv(size, scale)
        # For r = 1 the conversion overflows, but `full` decides such a lane.
        bound = builder.fptosi(builder.fmul(r, floats()([2.0**31] * BLOCK)), word)
        (halves,) = emit_words(e)
        below = builder.icmp_signed("<", halves, bound)
        sent = builder.select(full, lanes(1)([1] * BLOCK), below)
        # An element that is sent is not 0, so as an integer its bits have its sign.
        signed = builder.select(sent, builder.bitcast(x, word), word([0] * BLOCK))
        e.store(emit_codes(e, signed), e.address("out", "at"), align=1)
        if leaves_errors:
            sign = builder.and_(builder.bitcast(x, word), word([SIGN] * BLOCK))
            level = builder.bitcast(e.splat(e.args["level"]), word)
            value = builder.bitcast(builder.or_(level, sign), floats())
            left = builder.select(sent, builder.fsub(x, value), x)
            e.store(left, source)

    return ternary


def _emit_codes(e: Emitter, signed: Value, zero: int, plus: int, minus: int) -> Value:
    """Emit a code in a byte for each lane; the even groups of four precede the odd ones."""
    builder, code = e.builder, lanes(8)
    halves = IN_HALF + [HALF + k for k in IN_HALF]
    pairs = e.picked(_saturated(e, signed, 16), halves)
    small = e.picked(_saturated(e, pairs, 8), IN_WHOLE)
    none = code([0] * BLOCK)
    negative = builder.icmp_signed("<", small, none)
    positive = builder.icmp_signed(">", small, none)
    other = builder.select(positive, code([plus] * BLOCK), code([zero] * BLOCK))
    return builder.select(negative, code([minus] * BLOCK), other)


def _saturated(e: Emitter, values: Value, bits: int) -> Value:
    """Emit signed lanes, limited to a width in bits."""
    kind = values.type
    high, low = kind([2 ** (bits - 1) - 1] * kind.count), kind([-(2 ** (bits - 1))] * kind.count)
    return e.builder.trunc(e.larger(e.smaller(values, high), low), lanes(bits))


def _one_per_byte(zero: int, plus: int, minus: int) -> Callable[[Emitter, Value], Value]:
    """Make the emitter of a byte for each element, in order: these codes for 0, + and −."""

    def emit(e: Emitter, signed: Value) -> Value:
        return sorted_groups(e, _emit_codes(e, signed, zero, plus, minus))

    return emit


def _four_per_byte(e: Emitter, signed: Value) -> Value:
    """Emit a byte for four elements, the first lowest: 00 for 0, 01 for +, 10 for −."""
    builder = e.builder
    # One multiplication collects the four codes in the bytes of a word in its top byte.
    four = builder.bitcast(_emit_codes(e, signed, 0, 1, 2), lanes(32, BLOCK // 4))
    collect = four.type([1 << 24 | 1 << 18 | 1 << 12 | 1 << 6] * (BLOCK // 4))
    top = builder.lshr(builder.mul(four, collect), four.type([24] * (BLOCK // 4)))
    even, odd = e.parts(top, 4)
    return builder.trunc(builder.or_(even, builder.shl(odd, odd.type([8] * 4))), lanes(16, 4))


# --- chapter: four codes in a byte, the first lowest ---------------------------------------------


def _quantize_chapter(
    x: np.ndarray, numbers: _Numbers, leaves_errors: bool, out: np.ndarray
) -> None:
    loop = _chapter_blocks(leaves_errors)

    def blocks(start: int, stop: int) -> None:
        loop(x[start:stop], *numbers, np.uint64(start), out[start // 4 : stop // 4])

    def padded(start: int, stop: int) -> None:
        values, packed = np.zeros(BLOCK, np.float32), np.empty(BLOCK // 4, np.uint8)
        values[: stop - start] = x[start:stop]
        loop(values, *numbers, np.uint64(start), packed)
        out[start // 4 :] = packed[: out.size - start // 4]
        if leaves_errors:
            x[start:stop] = values[: stop - start]

    cover(blocks, padded, 0, x.size, x)


@factory(lambda: ((leaves_errors,) for leaves_errors in (False, True)))
def _chapter_blocks(leaves_errors: bool) -> Kernel:
    one_block = _ternary_block(_four_per_byte, leaves_errors)

    @kernel(
        f"{'out' if leaves_errors else 'in'} float32[], float32, float32, uint64, uint64, "
        "out uint8[]",
        variant=f"{leaves_errors}",
    )
    def chapter_blocks(x, scale, level, seed, start, out):
        # x.size is a multiple of BLOCK, out.size == x.size // 4
        span = start >> COUNTER_SPAN
        if (start + np.uint64(x.size)) >> COUNTER_SPAN == span:  # nearly always
            for i in range(0, x.size, BLOCK):
                one_block(x, i, scale, level, seed, start + np.uint64(i), span, out, i // 4)
        else:
            for i in range(0, x.size, BLOCK):
                element = start + np.uint64(i)
                span = element >> COUNTER_SPAN
                one_block(x, i, scale, level, seed, element, span, out, i // 4)

    return chapter_blocks


@kernel("in uint8[]")
def _code_11_bits(data):
    # Gathers the low bits of fields whose high bit is 1.
    bits = np.uint8(0)
    for i in range(data.size):
        bits = np.uint8(bits | np.uint8(data[i] & np.uint8(data[i] >> np.uint8(1))))
    return bits & np.uint8(0x55)


# --- terngrad: byte i holds codes i, i + Q, i + 2Q, i + 3Q of Q bytes, each plus one -------------


def _quantize_strided(
    x: np.ndarray, numbers: _Numbers, leaves_errors: bool, out: np.ndarray
) -> None:
    size = out.size
    errors = x if leaves_errors else np.empty(0, np.float32)

    def task(start: int, stop: int) -> None:
        codes = np.empty(_TILE + 2 * BLOCK, np.uint8)
        padded = np.zeros(BLOCK, np.float32)
        out[start:stop] = 0
        for field in range(4):
            part = x[: (field + 1) * size]
            first = field * size + start
            _stride(field)(part, *numbers, codes, padded, first, errors, out[start:stop])

    pool.run(task, size)
    for pad in range(4 * size - x.size):
        field, at = divmod(x.size + pad, size)
        out[at] |= pad << 2 * field


@factory(lambda: ((field,) for field in range(4)))
def _stride(field: int) -> Kernel:
    """Make the kernel that adds the codes of one field to the bytes."""
    plus, minus = 2 << 2 * field, 0
    one_block = _ternary_block(_one_per_byte(1 << 2 * field, plus, minus))

    @kernel(
        "in float32[], float32, float32, uint64, out uint8[], out float32[], int64, "
        "out float32[], out uint8[]",
        variant=f"{field}",
    )
    def add_stride(x, scale, level, seed, codes, padded, first, errors, out):
        # Byte i of `out` gets the code of element first + i, if x has it. `errors` is empty, or
        # the memory of x and of what follows; blocks of other bytes read these elements again,
        # but nothing depends on the codes that they find.
        # codes.size == _TILE + 2 * BLOCK, padded.size == BLOCK
        for tile in range(0, out.size, _TILE):
            begin = first + tile
            end = min(begin + min(_TILE, out.size - tile), x.size)
            aligned = begin - begin % BLOCK  # random words come in blocks
            for i in range(aligned, end, BLOCK):  # i - aligned < _TILE + BLOCK
                at, start = i - aligned, np.uint64(i)
                span = start >> COUNTER_SPAN
                if i + BLOCK <= x.size:
                    one_block(x, i, scale, level, seed, start, span, codes, at)
                else:
                    for k in range(x.size - i):  # fewer than BLOCK
                        padded[k] = x[i + k]
                    one_block(padded, 0, scale, level, seed, start, span, codes, at)
            own = codes[begin - aligned :][: max(end - begin, 0)]
            part = out[tile : tile + own.size]
            for i in range(part.size):  # part.size == own.size
                part[i] |= own[i]
            if errors.size != 0:
                left = errors[begin : begin + own.size]
                for i in range(left.size):  # left.size == own.size
                    value = level if own[i] == plus else np.float32(0)
                    left[i] -= -level if own[i] == minus else value

    return add_stride


# --- base3: five codes in a byte, the first with weight 1 ----------------------------------------


def _quantize_base3(
    x: np.ndarray, numbers: _Numbers, leaves_errors: bool, out: np.ndarray
) -> None:
    loop = _base3_tiles(leaves_errors)

    def task(start: int, stop: int) -> None:
        codes = np.zeros(_TILE + _SLACK, np.uint8)
        padded = np.zeros(BLOCK, np.float32)
        part = out[start // TRITS : -(-stop // TRITS)]
        loop(x[start:stop], *numbers, np.uint64(start), codes, padded, part)

    pool.run(task, x.size, _TILE, x)


@factory(lambda: ((leaves_errors,) for leaves_errors in (False, True)))
def _base3_tiles(leaves_errors: bool) -> Kernel:
    one_block = _ternary_block(_one_per_byte(0, 1, 2), leaves_errors)

    @kernel(
        f"{'out' if leaves_errors else 'in'} float32[], float32, float32, uint64, uint64, "
        "out uint8[], out float32[], out uint8[]",
        variant=f"{leaves_errors}",
    )
    def base3_tiles(x, scale, level, seed, start, codes, padded, out):
        # out.size == ceil(x.size / TRITS); codes.size == _TILE + _SLACK; padded is BLOCK zeros
        five, top = np.uint64((1 << 8 * TRITS) - 1), np.uint64(8 * (TRITS - 1))
        for tile in range(0, x.size, _TILE):
            values = x[tile : tile + _TILE]
            whole = values.size - values.size % BLOCK
            for i in range(0, whole, BLOCK):
                element = start + np.uint64(tile + i)
                span = element >> COUNTER_SPAN
                one_block(values, i, scale, level, seed, element, span, codes, i)
            if whole < values.size:  # whole + BLOCK <= _TILE
                for i in range(values.size - whole):
                    padded[i] = values[whole + i]
                element = start + np.uint64(tile + whole)
                span = element >> COUNTER_SPAN
                one_block(padded, 0, scale, level, seed, element, span, codes, whole)
                if leaves_errors:
                    for i in range(values.size - whole):
                        values[whole + i] = padded[i]
            for i in range(values.size, values.size + TRITS):  # pad codes; TRITS <= _SLACK
                codes[i] = np.uint8(0)
            part = out[tile // TRITS : (tile + _TILE) // TRITS]
            for j in range(part.size):  # TRITS * j + 8 <= codes.size
                word = load_word(codes, j * TRITS) & five
                part[j] = np.uint8((word * np.uint64(_COLLECT)) >> top)

    return base3_tiles


@dispatched("gcodec.kernels.quantize.ternary_cuda")
def dequantize_base3(
    data: np.ndarray, scale: np.float32, out: np.ndarray, add: np.float32 | None
) -> None:
    """Write the values of base3 bytes; see `dequantize_ternary`."""

    def task(start: int, stop: int) -> None:
        codes = np.empty(min(_CHUNK, stop - start) + TRITS + _SLACK, np.uint8)
        for at in range(start, stop, _CHUNK):
            part = out[at : min(at + _CHUNK, stop)]
            _digits(data[at // TRITS : -(-(at + part.size) // TRITS)], _digit_words(), codes)
            dequantize(codes[: part.size], LEVELS_IN_BYTES, scale, part, add)

    pool.run(task, out.size, _CHUNK)


@functools.cache
def _digit_words() -> np.ndarray:
    """Return the five codes of each byte as the low bytes of a uint64 word."""
    padded = np.zeros((256, 8), np.uint8)
    padded[:, :TRITS] = _DIGITS
    return padded.view("<u8").reshape(-1).astype(np.uint64)


@kernel("in uint8[], in uint64[], out uint8[]")
def _digits(data, table, codes):
    # table.size == 256; codes.size >= TRITS * data.size + _SLACK
    for j in range(data.size):
        store_word(codes, j * TRITS, table[data[j]])


@dispatched("gcodec.kernels.quantize.ternary_cuda")
def symbols_of(codes: np.ndarray, n: int) -> Symbols:
    """Return the (n,) uint8 symbols of n codes in base3 bytes: 0, 2, 3 for codes 0, 1, 2."""
    return symbols_in(codes, TRITS, _symbol_reader(), n)


@functools.cache
def _symbol_reader() -> Read:
    return read_by(np.array([0, 2, 3], np.uint8)[_DIGITS])


@dispatched("gcodec.kernels.quantize.ternary_cuda")
def codes_of(symbols: np.ndarray) -> np.ndarray:
    """Return the base3 bytes of (n,) uint8 symbols; see `symbols_of`."""
    codes = np.zeros(packed_nbytes(symbols.size, "base3"), np.uint8)

    def task(start: int, stop: int) -> None:
        part = symbols[TRITS * start : TRITS * stop]
        trits = part - (part >> np.uint8(1))
        for k in range(TRITS):
            digits = trits[k::TRITS]
            codes[start : start + digits.size] += np.uint8(3**k) * digits

    pool.run(task, codes.size, _SYMBOL_CHUNK)
    return codes
