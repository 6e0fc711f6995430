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

import numpy as np

from gcodec.kernels.bits.pack import packer, unpacker
from gcodec.kernels.numeric.arithmetic import (
    NO_TERMS,
    TERMS,
    ResidualUpdate,
    add_range,
    copy_block,
    fetch_terms,
    store_errors,
)
from gcodec.kernels.numeric.philox import emit_words, words
from gcodec.kernels.numeric.reduce import INFINITY_BITS, key_of
from gcodec.runtime import pool
from gcodec.runtime.cover import store_of, streams
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, Kernel, calling, factory, inline, kernel, subroutine
from gcodec.runtime.lanes import (
    ADD,
    BLOCK,
    STREAM,
    WRITE,
    Emitter,
    Value,
    block,
    doubles,
    fence,
    floats,
    lanes,
)
from gcodec.runtime.memory import aligned_empty, bits_float, float_bits, tile_beside

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
    leaves_errors: bool = False,
    rounded_to: int = 0,
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
    leaves_errors : bool
        Whether x is replaced by the quantization error x − x̂; only on the host.
    rounded_to : int
        With `leaves_errors`, the index in `ROUNDED` of the dtype to which x̂ is rounded before it
        is subtracted.
    """
    loop = _quantizer(seed is not None, leaves_errors)
    numbers = ranges.reshape(-1), bucket, bits, np.uint64(seed or 0), _address(packer, bits)

    def task(start: int, stop: int) -> None:
        part = x[start:stop]
        terms, keys = (part, part, *NO_TERMS[1:]), np.empty(0, np.int32)
        codes = out[start * bits // 8 : -(-stop * bits // 8)]
        own = np.uint64(start), *numbers, *_scratch(), aligned_empty(3 * BLOCK, np.float64)
        loop(*terms, False, rounded_to, keys, *own, codes)

    pool.run(task, x.size, _TILE, x)


def adds_residual(bucket: int) -> bool:
    """Return whether `quantize_sum` accepts buckets of this size."""
    return _TILE % bucket == 0


def quantize_sum(
    x: np.ndarray,
    update: ResidualUpdate,
    bucket: int,
    bits: int,
    seed: int | None,
    out: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Quantize the sum of x and a residual, tile by tile, and replace the residual by its error.

    See `quantize` for the other parameters, and `adds_residual` for the sizes of buckets.

    Returns
    -------
    ranges : (ceil(n / bucket), 2) float32 array
        Least and largest value of each bucket; a zero is +0.
    top : int
        Bit pattern of the largest magnitude of the sum; NaN is larger than infinity. Unless it is
        finite, ranges and codes are undefined.
    """
    ranges = np.empty((-(-x.size // bucket), 2), np.float32)
    loop = _quantizer(seed is not None, True)
    buckets = ranges.reshape(-1), bucket, bits, np.uint64(seed or 0), _address(packer, bits)
    streaming = streams(update.separate_output)

    def task(start: int, stop: int) -> int:
        own = update.part(start, stop)
        sums = tile_beside(_TILE, own.separate_output)
        terms = sums, *own.terms(x[start:stop])
        codes = out[start * bits // 8 : -(-stop * bits // 8)]
        numbers = np.uint64(start), *buckets, *_scratch(), aligned_empty(3 * BLOCK, np.float64)
        flags = streaming, update.rounded_to
        top = int(loop(*terms, *flags, np.empty(2, np.int32), *numbers, codes))
        own.mark_replaced()
        return top

    return ranges, max(pool.run(task, x.size, _TILE, x))


def _address(loop_for: Callable[[int, bool], Kernel], bits: int) -> int:
    """Return the address of the loop that packs or unpacks codes; 0 if they are bytes."""
    return loop_for(bits, True).address if bits < 8 else 0


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
    write = _writer(data, ranges, bucket, bits, store_of(add, streams(out)))
    pool.run(lambda start, stop: write(start, stop, out[start:stop]), out.size, _TILE)


def adder(
    data: np.ndarray, ranges: np.ndarray, bucket: int, bits: int, scale: np.float32
) -> Callable[[int, int, np.ndarray], None]:
    """Return a function that adds a multiple of some elements to an array.

    The function gets `start`, which is a multiple of 32, `stop`, and an array on the host for the
    elements `start` to `stop - 1`. See `dequantize` for the parameters.
    """
    return _writer(data, ranges, bucket, bits, store_of(scale, False))


def _writer(
    data: np.ndarray, ranges: np.ndarray, bucket: int, bits: int, stored: tuple[int, np.float32]
) -> Callable[[int, int, np.ndarray], None]:
    """Return what `adder` returns; `stored` is the result of `store_of`."""
    numbers = ranges.reshape(-1), bucket, bits, *stored, _address(unpacker, bits)

    def write(start: int, stop: int, out: np.ndarray) -> None:
        part = data[start * bits // 8 : -(-stop * bits // 8)]
        room = *_scratch(), np.arange(BLOCK, dtype=np.uint8), aligned_empty(BLOCK, np.float32)
        _dequantize_tiles(part, np.uint64(start), *numbers, *room, out)

    return write


def rounded(
    x: np.ndarray, ranges: np.ndarray, bucket: int, bits: int, seed: int | None
) -> np.ndarray:
    """Return the values that `dequantize` decodes from the codes of `quantize`, without either.

    NumPy takes longer than the kernels, but they have to be compiled. See `quantize` for the
    parameters.
    """
    levels = 2**bits - 1
    out = np.empty(x.size, np.float32)
    for start in range(0, x.size, _PART):
        part = x[start : start + _PART].astype(np.float64)
        low, high = ranges[np.arange(start, start + part.size) // bucket].astype(np.float64).T
        width = high - low
        factor = np.divide(levels, width, out=np.zeros(part.size), where=width > 0)
        exact, step = (part - low) * factor, width / levels
        if seed is None:
            codes = np.rint(exact)
        else:
            codes = np.floor(exact)
            bound = ((exact - codes) * 2.0**31).astype(np.int64)
            codes = np.minimum(codes + (words(seed, start, part.size) >> 1 < bound), levels)
        is_from_low = np.abs(low) <= np.abs(high)
        out[start : start + _PART] = np.where(
            is_from_low, low + codes * step, high + (levels - codes) * -step
        )
    return out


def _scratch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the arrays `codes`, `padded` and `ends` of a task."""
    codes, ends = aligned_empty(_TILE + BLOCK, np.uint8), aligned_empty(3 * BLOCK, np.float64)
    return codes, np.zeros(BLOCK, np.float32), ends


# --- the numbers of each lane --------------------------------------------------------------------


@block("numbers", "one", "two", "three")
def _fill_block(e: Emitter) -> None:
    """Write three numbers of each of the BLOCK lanes."""
    for k, name in enumerate(("one", "two", "three")):
        e.store(e.splat(e.args[name]), e.element(e.args["numbers"], k * BLOCK), 8)


@inline
def _fill(numbers, ranges, bucket, start, levels, numbers_of):
    """Write the three numbers of each of the BLOCK elements from `start` on.

    numbers.size == 3 * BLOCK; ``numbers_of(low, high, levels)`` returns the numbers. Lanes after
    the last bucket, which are cut off, get its numbers. Return the end of the elements for which
    the numbers hold.
    """
    last = ranges.size // 2 - 1
    b = min(start // bucket, last)
    end = (b + 1) * bucket
    lane = 0
    while lane < BLOCK:
        stop = min(end - start, BLOCK) if b < last else BLOCK
        low, high = np.float64(ranges[2 * b]), np.float64(ranges[2 * b + 1])
        one, two, three = numbers_of(low, high, levels)
        if lane == 0 and stop == BLOCK:
            _fill_block(numbers, one, two, three)
            return end
        for k in range(lane, stop):  # stop <= BLOCK
            numbers[k], numbers[BLOCK + k], numbers[2 * BLOCK + k] = one, two, three
        lane = stop
        b, end = b + 1, end + bucket
    return start


@inline
def _factor_of(low, high, levels):
    """Return the numbers that `codes_of` needs: the low, the factor, and the last code."""
    return low, levels / (high - low) if high > low else 0.0, levels


@inline
def _end_of(low, high, levels):
    """Return the numbers of `_decoded`: the end, its code, and the step."""
    step = (high - low) / levels
    if abs(low) <= abs(high):
        return low, 0.0, step
    return high, levels, step


def _numbers(e: Emitter, name: str, count: int, first: int = 0) -> list[Value]:
    """Emit the loads of the three numbers of some lanes from an array."""
    places = [e.element(e.args[name], k * BLOCK + first) for k in range(3)]
    return [e.load(place, doubles(count), 8) for place in places]


# --- quantize ------------------------------------------------------------------------------------


def _decoded(e: Emitter, codes: Value, first: int = 0) -> Value:
    """Emit the values of codes, given as float64, of the lanes from `first` on.

    For each lane, `ends` has the end from which levels are counted, its code, and the step.
    """
    count = codes.type.count
    end, code, step = _numbers(e, "ends", count, first)
    exact = e.builder.fadd(end, e.builder.fmul(e.builder.fsub(codes, code), step))
    return e.builder.fptrunc(exact, floats(count))


def _quantize_block(stochastic: bool, leaves_errors: bool) -> Intrinsic:
    """Make the block that quantizes 32 elements of x from i, or `start` of the tensor, on.

    A code takes a byte. `numbers` has the low, the factor and the last code of each lane, and
    `ends` what `_decoded` needs.
    """
    # Lanes whose numbers fit into the registers, where random words do not fill them anyway.
    count = BLOCK // 4 if leaves_errors and not stochastic else BLOCK

    @block("x", "i", "numbers", "ends", "rounded_to", "seed", "start", "codes", "at")
    def quantize_block(e: Emitter) -> None:
        source, target, halves = e.address("x", "i"), e.address("codes", "at"), None
        e.fetch(source)
        if stochastic:
            (halves,) = emit_words(e)
        for first in range(0, BLOCK, count):
            place = e.element(source, first)
            x = e.load(place, floats(count))
            codes = codes_of(e, x, halves, first)
            narrow = e.builder.trunc(e.builder.fptosi(codes, lanes(32, count)), lanes(8, count))
            e.store(narrow, e.element(target, first), align=1)
            if leaves_errors:
                e.store(e.builder.fsub(x, e.rounded(_decoded(e, codes, first))), place)

    def codes_of(e: Emitter, x: Value, halves: Value, first: int) -> Value:
        """Emit the codes of some lanes as float64, given the random words of all, halved."""
        builder, word = e.builder, lanes(32, count)
        low, factor, last = _numbers(e, "numbers", count, first)
        r = builder.fmul(builder.fsub(builder.fpext(x, doubles(count)), low), factor)
        if not stochastic:
            return e.call("llvm.rint", r)
        whole = e.call("llvm.floor", r)
        fraction = builder.fmul(builder.fsub(r, whole), doubles(count)([2.0**31] * count))
        own = e.picked(halves, range(first, first + count))
        up = builder.icmp_signed("<", own, builder.fptosi(fraction, word))
        one, zero = doubles(count)([1.0] * count), doubles(count)([0.0] * count)
        codes = builder.fadd(whole, builder.select(up, one, zero))
        # r may exceed the last level because its factor is rounded.
        return builder.select(builder.fcmp_ordered(">", codes, last), last, codes)

    return quantize_block


@subroutine
def _sum_tile(gradient, residual, decay, sums, backup, streaming, bucket, keys, ranges):
    """Write sums and the ranges of their buckets; return the bits of the largest magnitude.

    All arrays have as many elements; but backup may have none, keys.size == 2, and ranges.size ==
    2 * ceil(sums.size / bucket).
    """
    if backup.size != 0:
        whole = sums.size - sums.size % BLOCK
        for i in range(0, whole, BLOCK):
            copy_block(residual, i, backup, i, streaming)
        for i in range(whole, sums.size):
            backup[i] = residual[i]
    top = np.int32(0)
    for b in range(ranges.size // 2):
        start, stop = b * bucket, min((b + 1) * bucket, sums.size)
        whole = stop - (stop - start) % BLOCK
        add_range(gradient, residual, start, whole, decay, sums, backup, keys, 0)
        low, high = keys[0], keys[1]
        for i in range(whole, stop):
            sums[i] = gradient[i] + decay * residual[i]
            key = key_of(np.int32(float_bits(sums[i])))
            low, high = min(low, key), max(high, key)
        top = max(top, max(high, np.int32(~low)))
        ranges[2 * b] = bits_float(np.uint32(key_of(low))) + np.float32(0)  # −0 becomes +0
        ranges[2 * b + 1] = bits_float(np.uint32(key_of(high))) + np.float32(0)
    return top


_pack = calling("in uint8[], out uint8[]")


@factory(lambda: itertools.product((False, True), (False, True)))
def _quantizer(stochastic: bool, leaves_errors: bool) -> Kernel:
    one_block = _quantize_block(stochastic, leaves_errors)
    output = "out" if leaves_errors else "in"

    @subroutine
    def code_blocks(x, gradient, residual, first, limit, buckets, codes):
        # x begins with element `first`; x.size is a multiple of BLOCK, and at most codes.size.
        # The numbers hold for the elements before `limit`; return the new limit. gradient and
        # residual begin with the terms of x, and are empty if x is no sum.
        rounded_to, seed, ranges, bucket, levels, ends, numbers = buckets
        for i in range(0, x.size, BLOCK):
            if leaves_errors and residual.size != 0:
                fetch_terms(gradient, residual, i + _TILE)  # while this block is coded
            start = first + i
            if start + BLOCK > limit:
                limit = _fill(numbers, ranges, bucket, start, levels, _factor_of)
                if leaves_errors:
                    _fill(ends, ranges, bucket, start, levels, _end_of)
            one_block(x, i, numbers, ends, rounded_to, seed, np.uint64(start), codes, i)
        return limit

    @kernel(
        f"{output} float32[], {TERMS}, boolean, int64, out int32[], uint64, {output} float32[], "
        "int64, int64, uint64, uint64, "
        "(out uint8[], out float32[], out float64[], out float64[]), out uint8[]",
        variant=f"{stochastic} {leaves_errors}",
        vectorized=False,
    )
    def quantize_tiles(
        x, terms, streaming, rounded_to, keys, first, ranges, bucket, bits, seed, pack, room, out
    ):
        # gradient begins with element `first`, a multiple of _TILE; out.size == ceil(gradient.size
        # * bits / 8). `pack` is the address of a kernel of `packer`. codes.size == _TILE + BLOCK;
        # padded has BLOCK elements, ends and numbers three times as many. Without a residual, x is
        # the gradient; residual, new_residual and backup are empty. With one, `leaves_errors` is
        # true; x has room for the sums of a tile, residual and new_residual are as long as the
        # gradient, backup is or has no elements, and keys.size == 2. The ranges are those of all
        # buckets, and get those of the sums. Return the bit pattern of the largest magnitude of
        # the sums; after one that is not finite, no codes are written.
        gradient, residual, decay, new_residual, backup = terms
        codes, padded, ends, numbers = room
        limit, levels, top = np.int64(first), np.float64((1 << bits) - 1), np.int32(0)
        buckets = rounded_to, seed, ranges, bucket, levels, ends, numbers
        for tile in range(0, gradient.size, _TILE):
            end, start = min(tile + _TILE, gradient.size), np.int64(first) + tile
            values = x[tile:end]
            if leaves_errors and residual.size != 0:
                values = x[: end - tile]
                saved = backup[tile:end] if backup.size != 0 else backup
                own_ranges = ranges[2 * (start // bucket) :][
                    : 2 * ((end - tile - 1) // bucket + 1)
                ]
                own_terms = gradient[tile:end], residual[tile:end], decay
                outputs = values, saved, streaming, bucket, keys, own_ranges
                top = max(top, _sum_tile(*own_terms, *outputs))
                if top >= np.int32(INFINITY_BITS):
                    continue
            part = out[tile * bits // 8 : (tile + _TILE) * bits // 8]
            target = codes if bits < 8 else part  # codes of 8 bits need no packing
            whole = values.size - values.size % BLOCK
            own = values[:whole], gradient[tile:], residual[tile:], start, limit
            limit = code_blocks(*own, buckets, target)
            if whole < values.size:
                start, last = start + whole, codes[_TILE:]
                for k in range(values.size - whole):  # fewer than BLOCK
                    padded[k] = values[whole + k]
                none = residual[:0]
                code_blocks(padded, none, none, start, 0, buckets, last)
                for k in range(values.size - whole):
                    target[whole + k] = last[k]
                    if leaves_errors:
                        values[whole + k] = padded[k]
            if bits < 8:
                _pack(pack, codes[: values.size], part)
            if leaves_errors and residual.size != 0:
                for i in range(0, whole, BLOCK):
                    store_errors(values, i, terms, tile + i, streaming)
                for i in range(whole, values.size):
                    new_residual[tile + i] = values[i]
        if leaves_errors and streaming:
            fence()
        return top

    return quantize_tiles


# --- dequantize ----------------------------------------------------------------------------------


@block("codes", "at", "ends", "store", "scale", "out", "i")
def _dequantize_block(e: Emitter) -> None:
    """Decode 32 codes from `at` to elements of `out` from i on."""
    codes = e.builder.zext(e.load(e.address("codes", "at"), lanes(8), 1), lanes(32))
    values = _decoded(e, e.builder.sitofp(codes, doubles()))
    e.store_as(values, e.address("out", "i"))


@block("codes", "at", "values", "store", "scale", "out", "i")
def _look_up_block(e: Emitter) -> None:
    """Decode 32 codes as `_dequantize_block` does, by a list of the values of all codes."""
    codes = e.builder.zext(e.load(e.address("codes", "at"), lanes(8), 1), lanes(32))
    values = e.looked_up_floats(e.args["values"], codes, BLOCK)
    e.store_as(values, e.address("out", "i"))


@subroutine
def _dequantize_blocks(codes, first, limit, buckets, store, scale, lists, out):
    """Decode whole blocks; see `code_blocks`. codes.size >= out.size.

    Where a bucket has two blocks or more and there are at most BLOCK codes, `values` lists the
    value of each code of the bucket, so that blocks within it are looked up.
    """
    ranges, bucket, levels = buckets
    ends, all_codes, values = lists
    looks_up = levels < BLOCK and bucket >= 2 * BLOCK
    for i in range(0, out.size, BLOCK):
        start = first + i
        if start + BLOCK > limit:
            limit = _fill(ends, ranges, bucket, start, levels, _end_of)
            if looks_up:
                _dequantize_block(all_codes, 0, ends, WRITE, scale, values, 0)
        if looks_up and start + BLOCK <= limit:
            _look_up_block(codes, i, values, store, scale, out, i)
        else:
            _dequantize_block(codes, i, ends, store, scale, out, i)
    return limit


_unpack = calling("in uint8[], out uint8[]")


@kernel(
    "in uint8[], uint64, in float32[], int64, int64, int64, float32, uint64, (out uint8[], "
    "out float32[], out float64[], in uint8[], out float32[]), out float32[]",
    vectorized=False,
)
def _dequantize_tiles(data, first, ranges, bucket, bits, store, scale, unpack, room, out):
    # out begins with element `first`, a multiple of BLOCK; data.size == ceil(out.size * bits / 8).
    # `unpack` is the address of a kernel of `unpacker`. quantize_tiles describes the scratch
    # arrays, but all_codes.size == values.size == BLOCK; codes of 8 bits need no unpacking.
    codes, padded, ends, all_codes, values = room
    limit, levels = np.int64(first), np.float64((1 << bits) - 1)
    buckets, lists = (ranges, bucket, levels), (ends, all_codes, values)
    for tile in range(0, out.size, _TILE):
        target, source = out[tile : tile + _TILE], codes
        if bits < 8:
            part = data[tile * bits // 8 : (tile + _TILE) * bits // 8]
            _unpack(unpack, part, codes[: target.size])
        else:
            source = data[tile : tile + _TILE]
        whole = target.size - target.size % BLOCK
        start, own = np.int64(first) + tile, target[:whole]
        limit = _dequantize_blocks(source, start, limit, buckets, store, scale, lists, own)
        if whole < target.size:
            for k in range(target.size - whole):  # fewer than BLOCK
                codes[k], padded[k] = source[whole + k], target[whole + k]
            own = start + whole, 0, buckets, store & ADD, scale, lists
            _dequantize_blocks(codes, *own, padded)
            for k in range(target.size - whole):
                target[whole + k] = padded[k]
    if store == STREAM:
        fence()
