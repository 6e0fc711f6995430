"""Uniform levels between the least and the largest value of a bucket, packed, and back.

All arithmetic is float64; only the decoded value is rounded to float32, so ranges of any size
work. With L = 2^bits − 1, q = rint((x − low)·(L/(high − low))). Stochastic rounding takes floor in
place of rint, and adds 1 if (u >> 1) < int32(f·2^31), where f is the fraction and u the random
word of the element. With D = (high − low)/L, x̂ = low + q·D if |low| ≤ |high|, else high + (q −
L)·D: counted from the end with the smaller magnitude, both ends are exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from gcodec.kernels.bits.pack import packing, unpacking
from gcodec.kernels.numeric.philox import COUNTER_SPAN, ROUNDING, emit_words
from gcodec.runtime import pool
from gcodec.runtime.cover import streams
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, inline, kernel
from gcodec.runtime.lanes import BLOCK, Emitter, block, doubles, fence, floats, lanes

Store = Literal["write", "stream", "add"]

_PART = 1 << 16  # elements that `rounded` has in memory as float64
_TILE = 4096  # elements; a multiple of BLOCK, so that the codes of any width end on a byte


@dispatched("gcodec.kernels.quantize.uniform_cuda")
def quantize(
    x: np.ndarray,
    ranges: np.ndarray,
    bucket: int,
    bits: int,
    seed: int | None,
    out: np.ndarray,
    leave: bool = False,
) -> None:
    """Quantize a (n,) float32 array and pack the codes, most significant bit first.

    Parameters
    ----------
    x : (n,) float32 array
    ranges : (ceil(n / bucket), 2) float32 array
        Least and largest value of each bucket.
    bucket : int
        Elements of a bucket.
    bits : int
        Bits of a code, from 1 to 8.
    seed : int or None
        Seed for stochastic rounding; None rounds to nearest, ties to even.
    out : (ceil(n * bits / 8),) uint8 array
    leave : bool
        Whether x is replaced by the quantization error x − x̂; only on the host.
    """
    loop, key = _quantizer(bits, seed is not None, leave), np.uint64(seed or 0)
    flat = ranges.reshape(-1)

    def task(start: int, stop: int) -> None:
        part = out[start * bits // 8 : -(-stop * bits // 8)]
        ends = np.empty(2 * BLOCK)
        loop(x[start:stop], np.uint64(start), key, flat, bucket, *_scratch(), ends, part)

    pool.run(task, x.size, _TILE, x)


@dispatched("gcodec.kernels.quantize.uniform_cuda")
def dequantize(
    data: np.ndarray,
    ranges: np.ndarray,
    bucket: int,
    bits: int,
    out: np.ndarray,
    add: np.float32 | None = None,
) -> None:
    """Write the values of packed codes to (n,) float32 `out`, or add a multiple of them.

    See `quantize` for the other parameters.
    """
    store: Store = "add" if add is not None else "stream" if streams(out) else "write"
    loop, flat = _dequantizer(bits, store), ranges.reshape(-1)
    factor = np.float32(1 if add is None else add)

    def task(start: int, stop: int) -> None:
        part = data[start * bits // 8 : -(-stop * bits // 8)]
        loop(part, np.uint64(start), flat, bucket, factor, *_scratch(), out[start:stop])

    pool.run(task, out.size, _TILE)


def adder(
    data: np.ndarray, ranges: np.ndarray, bucket: int, bits: int, scale: np.float32
) -> Callable[[int, int, np.ndarray], None]:
    """Return a function that adds a multiple of some elements to an array.

    The function gets `start`, which is a multiple of 32, `stop`, and an array on the host for the
    elements `start` to `stop - 1`. See `dequantize` for the parameters.
    """
    loop, flat = _dequantizer(bits, "add"), ranges.reshape(-1)

    def add(start: int, stop: int, out: np.ndarray) -> None:
        part = data[start * bits // 8 : -(-stop * bits // 8)]
        loop(part, np.uint64(start), flat, bucket, scale, *_scratch(), out)

    return add


def rounded(x: np.ndarray, ranges: np.ndarray, bucket: int, bits: int) -> np.ndarray:
    """Return the values that `dequantize` decodes from the codes of `quantize`, without a kernel.

    Rounding is to nearest. NumPy takes longer than the kernels, but there are two kernels to
    compile for each number of bits. See `quantize` for the parameters.
    """
    levels = 2**bits - 1
    out = np.empty(x.size, np.float32)
    for start in range(0, x.size, _PART):
        part = x[start : start + _PART].astype(np.float64)
        low, high = ranges[np.arange(start, start + part.size) // bucket].astype(np.float64).T
        width = high - low
        factor = np.divide(levels, width, out=np.zeros(part.size), where=width > 0)
        codes, step = np.rint((part - low) * factor), width / levels
        is_from_low = np.abs(low) <= np.abs(high)
        out[start : start + _PART] = np.where(
            is_from_low, low + codes * step, high + (levels - codes) * -step
        )
    return out


def _scratch() -> tuple[np.ndarray, ...]:
    """Return the arrays `codes`, `padded`, `numbers` and `flips` of a task."""
    return (
        np.zeros(_TILE + BLOCK, np.uint8),
        np.zeros(BLOCK, np.float32),
        np.empty(2 * BLOCK),
        np.empty(BLOCK, np.uint8),
    )


# --- the numbers of each lane --------------------------------------------------------------------


@inline
def _fill(numbers, flips, ranges, bucket, start, numbers_of):
    """Write two numbers and a byte for each of the BLOCK elements from `start` on.

    numbers.size == 2 * BLOCK, flips.size == BLOCK; ``numbers_of(low, high)`` returns the three.
    Lanes after the last bucket, which are cut off, get its numbers. Return the end of the elements
    for which the numbers hold.
    """
    last = ranges.size // 2 - 1
    b = min(start // bucket, last)
    end = (b + 1) * bucket
    lane = 0
    while lane < BLOCK:
        stop = min(end - start, BLOCK) if b < last else BLOCK
        low, high = np.float64(ranges[2 * b]), np.float64(ranges[2 * b + 1])
        one, two, flip = numbers_of(low, high)
        for k in range(lane, stop):  # stop <= BLOCK
            numbers[k], numbers[BLOCK + k], flips[k] = one, two, flip
        if lane == 0 and stop == BLOCK:
            return end
        lane = stop
        b, end = b + 1, end + bucket
    return start


def _numbers(
    e: Emitter, name: str = "numbers", first: int = 0, count: int = BLOCK
) -> tuple[Any, Any]:
    """Emit the loads of the two numbers of some lanes from an array."""
    one = e.element(e.address(name, "zero"), first)
    return e.load(one, doubles(count), 8), e.load(e.element(one, BLOCK), doubles(count), 8)


# --- quantize ------------------------------------------------------------------------------------


def _decoded(e: Emitter, codes: Any, name: str, first: int = 0) -> Any:
    """Emit the values of codes, as 8-bit lanes, of the lanes from `first` on.

    For each lane, the array of this name holds the end from which levels are counted and the step,
    and `flips` the bits that are inverted in a code that counts from the other end.
    """
    builder, count = e.builder, codes.type.count
    flips = e.load(e.element(e.address("flips", "zero"), first), codes.type, 1)
    end, step = _numbers(e, name, first, count)
    steps = builder.zext(builder.xor(codes, flips), lanes(32, count))
    exact = builder.fadd(end, builder.fmul(builder.sitofp(steps, doubles(count)), step))
    return builder.fptrunc(exact, floats(count))


def _quantize_block(bits: int, stochastic: bool, leave: bool) -> Any:
    """Make the block that quantizes 32 elements of x from i, or `start` of the tensor, on.

    A code takes a byte. `numbers` holds the low and the factor of each lane, and `ends` what
    `_decoded` needs.
    """
    levels = 2**bits - 1
    count = BLOCK // 4 if leave else BLOCK  # lanes whose numbers fit into the registers

    @block("x", "i", "numbers", "ends", "flips", "zero", "seed", "start", "codes", "at")
    def quantize_block(e: Emitter) -> None:
        source, target, halves = e.address("x", "i"), e.address("codes", "at"), None
        e.fetch(source)
        if stochastic:
            seed, start = e.args["seed"], e.args["start"]
            span = e.builder.lshr(start, start.type(int(COUNTER_SPAN)))
            (halves,) = emit_words(e, seed, start, span, seed.type(ROUNDING), halved=True)
        for first in range(0, BLOCK, count):
            place = e.element(source, first)
            x = e.load(place, floats(count))
            codes = codes_of(e, x, halves, first)
            e.store(codes, e.element(target, first), align=1)
            if leave:
                e.store(e.builder.fsub(x, _decoded(e, codes, "ends", first)), place)

    def codes_of(e: Emitter, x: Any, halves: Any, first: int) -> Any:
        """Emit the codes of some lanes, given the random words of all lanes, halved."""
        builder, word = e.builder, lanes(32, count)
        low, factor = _numbers(e, "numbers", first, count)
        r = builder.fmul(builder.fsub(builder.fpext(x, doubles(count)), low), factor)
        if not stochastic:
            return builder.trunc(builder.fptosi(e.call("llvm.rint", r), word), lanes(8, count))
        whole = e.call("llvm.floor", r)
        fraction = builder.fmul(builder.fsub(r, whole), doubles(count)([2.0**31] * count))
        own = builder.shuffle_vector(halves, halves, word([*range(first, first + count)]))
        up = builder.icmp_signed("<", own, builder.fptosi(fraction, word))
        codes = builder.sub(builder.fptosi(whole, word), builder.sext(up, word))
        # r may exceed the last level because its factor is rounded.
        top = word([levels] * count)
        codes = builder.select(builder.icmp_signed(">", codes, top), top, codes)
        return builder.trunc(codes, lanes(8, count))

    return quantize_block


@factory(lambda: itertools.product(range(1, 9), (False, True), (False, True)))
def _quantizer(bits: int, stochastic: bool, leave: bool) -> Kernel:
    one_block = _quantize_block(bits, stochastic, leave)
    end_of = _end_of(bits)
    pack = packing(bits, True)
    packed = bits < 8
    levels = np.float64(2**bits - 1)

    @inline
    def factor_of(low, high):
        return low, levels / (high - low) if high > low else 0.0, np.uint8(0)

    @kernel(
        f"{'out' if leave else 'in'} float32[], uint64, uint64, in float32[], int64, out uint8[], "
        "out float32[], out float64[], out uint8[], out float64[], out uint8[]",
        variant=f"{bits} {stochastic} {leave}",
    )
    def quantize_tiles(x, first, seed, ranges, bucket, codes, padded, numbers, flips, ends, out):
        # x begins with element `first`, a multiple of _TILE; out.size == ceil(x.size * bits / 8).
        # codes.size == _TILE + BLOCK; padded and flips have BLOCK elements, numbers and ends twice
        # as many.
        limit = np.int64(first)
        for tile in range(0, x.size, _TILE):
            values = x[tile : tile + _TILE]
            part = out[tile * bits // 8 : (tile + _TILE) * bits // 8]
            target = codes if packed else part  # codes of 8 bits need no packing
            whole = values.size - values.size % BLOCK
            for i in range(0, whole, BLOCK):
                start = np.int64(first) + tile + i
                if start + BLOCK > limit:
                    limit = _fill(numbers, flips, ranges, bucket, start, factor_of)
                    if leave:
                        _fill(ends, flips, ranges, bucket, start, end_of)
                one_block(values, i, numbers, ends, flips, 0, seed, np.uint64(start), target, i)
            if whole < values.size:
                start = np.int64(first) + tile + whole
                limit = _fill(numbers, flips, ranges, bucket, start, factor_of)
                if leave:
                    _fill(ends, flips, ranges, bucket, start, end_of)
                for k in range(values.size - whole):  # fewer than BLOCK
                    padded[k] = values[whole + k]
                one_block(padded, 0, numbers, ends, flips, 0, seed, np.uint64(start), codes, _TILE)
                for k in range(values.size - whole):
                    target[whole + k] = codes[_TILE + k]
                    if leave:
                        values[whole + k] = padded[k]
            if packed:
                pack(codes[: values.size], part, False)

    return quantize_tiles


# --- dequantize ----------------------------------------------------------------------------------


def _dequantize_block(store: Store) -> Any:
    """Make the block that decodes 32 codes from `at` to elements of `out` from i on."""

    @block("codes", "at", "numbers", "flips", "zero", "scale", "out", "i")
    def dequantize_block(e: Emitter) -> None:
        codes = e.load(e.address("codes", "at"), lanes(8), 1)
        e.store_as(store, _decoded(e, codes, "numbers"), e.address("out", "i"))

    return dequantize_block


def _end_of(bits: int) -> Any:
    """Make the helper (low, high) -> end, step and flip, the numbers of `_decoded`."""
    levels = 2**bits - 1

    @inline
    def end_of(low, high):
        step = (high - low) / levels
        if abs(low) <= abs(high):
            return low, step, np.uint8(0)
        return high, -step, np.uint8(levels)

    return end_of


@factory(lambda: itertools.product(range(1, 9), get_args(Store)))
def _dequantizer(bits: int, store: Store) -> Kernel:
    one_block = _dequantize_block(store)
    last_block = _dequantize_block("add" if store == "add" else "write")
    unpack = unpacking(bits, True)
    packed = bits < 8
    streaming = store == "stream"
    end_of = _end_of(bits)

    @kernel(
        "in uint8[], uint64, in float32[], int64, float32, "
        "out uint8[], out float32[], out float64[], out uint8[], out float32[]",
        variant=f"{bits} {store}",
    )
    def dequantize_tiles(data, first, ranges, bucket, scale, codes, padded, numbers, flips, out):
        # out begins with element `first`, a multiple of _TILE; data.size == ceil(out.size * bits /
        # 8). quantize_tiles describes the scratch arrays; codes of 8 bits need no unpacking.
        limit = np.int64(first)
        for tile in range(0, out.size, _TILE):
            values = out[tile : tile + _TILE]
            if packed:
                part = data[tile * bits // 8 : (tile + _TILE) * bits // 8]
                unpack(part, codes[: values.size])
                source = codes
            else:
                source = data[tile : tile + _TILE]
            whole = values.size - values.size % BLOCK
            for i in range(0, whole, BLOCK):
                start = np.int64(first) + tile + i
                if start + BLOCK > limit:
                    limit = _fill(numbers, flips, ranges, bucket, start, end_of)
                one_block(source, i, numbers, flips, 0, scale, values, i)
            if whole < values.size:
                limit = _fill(
                    numbers, flips, ranges, bucket, np.int64(first) + tile + whole, end_of
                )
                for k in range(values.size - whole):  # fewer than BLOCK
                    codes[k], padded[k] = source[whole + k], values[whole + k]
                last_block(codes, 0, numbers, flips, 0, scale, padded, 0)
                for k in range(values.size - whole):
                    values[whole + k] = padded[k]
        if streaming:
            fence()

    return dequantize_tiles
