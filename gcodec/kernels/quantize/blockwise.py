"""Codes of a table of numbers, with a scale for each block: from float32 to codes, and back.

The code of x is that of the number next to (x − shift)·factor, with a factor for each block; see
`value_table`. Code c of a block stands for values[c]·scale, or values[c]/scale. A byte holds one
code of 8 bits, or two of 4, the first in the high half.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal, get_args

import numpy as np

from gcodec.kernels.quantize.value_table import Cells, ValueTable
from gcodec.runtime import pool
from gcodec.runtime.cover import streams
from gcodec.runtime.jit import Kernel, factory, inline, kernel
from gcodec.runtime.lanes import BLOCK, Emitter, block, fence, floats, lanes

Store = Literal["write", "stream", "add"]

_HALF = BLOCK // 2
_CELL = 17  # bits of a float32 that a cell drops


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
    per_byte, cells = table.per_byte, table.cells
    loop = _quantizer(per_byte)

    def task(start: int, stop: int) -> None:
        scratch = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.uint8)
        part = out[start // per_byte : -(-stop // per_byte)]
        numbers = cells.entries, cells.first, cells.per_sign
        loop(x[start:stop], start, block_size, factors, shift, *numbers, *scratch, part)

    pool.run(task, x.size, BLOCK, x)


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
    store: Store = "add" if add is not None else "write"
    if add is None and is_aligned and streams(out):
        store = "stream"
    loop, times = _dequantizer(per_byte, divides, store), np.float32(1 if add is None else add)
    numbers = _pairs(values) if per_byte == 2 else values

    def task(start: int, stop: int) -> None:
        scratch = np.empty(BLOCK, np.float32), np.zeros(BLOCK, np.uint8)
        part = codes[start // per_byte : -(-stop // per_byte)]
        loop(part, start, block_size, scales, numbers, times, *scratch, out[start:stop])

    pool.run(task, out.size, BLOCK)


def nearest(numbers: np.ndarray, cells: Cells) -> np.ndarray:
    """Return the codes of (n,) float32 numbers, a byte each, without a kernel."""
    bits = numbers.view(np.uint32).astype(np.int64)
    magnitudes = bits & 0x7FFFFFFF
    places = np.clip((magnitudes >> _CELL) - cells.first, 0, cells.per_sign - 1)
    entries = cells.entries[places + (bits >> 31) * cells.per_sign].astype(np.int64)
    is_above = magnitudes > (entries & 0x7FFFFFFF)
    codes: np.ndarray = (entries >> np.where(is_above, 40, 32)).astype(np.uint8)
    return codes


def _pairs(values: np.ndarray) -> np.ndarray:
    """Return the two numbers of each byte as (256,) uint64."""
    pairs = np.empty((16, 16, 2), np.float32)
    pairs[..., 0], pairs[..., 1] = values[:, np.newaxis], values
    return pairs.reshape(-1).view(np.uint64)


# --- blocks --------------------------------------------------------------------------------------


def _quantize_block(per_byte: int) -> Any:
    """Make the block that writes the codes of 32 elements of x from i on, from byte `at` on."""

    @block("x", "i", "factor", "shift", "entries", "first", "count", "out", "at")
    def codes(e: Emitter) -> None:
        from llvmlite import ir

        builder, kind, source = e.builder, lanes(32, _HALF), e.address("x", "i")
        e.fetch(source)
        narrow = ir.IntType(32)
        first, count = (
            e.splat(builder.trunc(e.args[k], narrow), _HALF) for k in ("first", "count")
        )
        last = builder.sub(count, kind([1] * _HALF))
        zero = kind([0] * _HALF)
        halves = []
        for at in (0, _HALF):
            x = e.load(e.element(source, at), floats(_HALF))
            r = builder.fmul(
                builder.fsub(x, e.splat(e.args["shift"], _HALF)), e.splat(e.args["factor"], _HALF)
            )
            size = e.magnitude_bits(r)
            place = builder.sub(builder.lshr(size, kind([_CELL] * _HALF)), first)
            place = builder.select(builder.icmp_signed(">", place, zero), place, zero)
            place = builder.select(builder.icmp_signed("<", place, last), place, last)
            sign = builder.ashr(builder.bitcast(r, kind), kind([31] * _HALF))
            place = builder.add(place, builder.and_(sign, count))
            entries = e.gathered(e.args["entries"], e.indices(place), lanes(64, _HALF))
            top = builder.trunc(entries, kind)
            both = builder.trunc(builder.lshr(entries, entries.type([32] * _HALF)), kind)
            second = builder.lshr(both, kind([8] * _HALF))
            code = builder.select(builder.icmp_signed(">", size, top), second, both)
            halves.append(builder.trunc(code, lanes(8, _HALF)))
        codes = e.joined(halves)
        if per_byte == 2:
            pairs = builder.bitcast(codes, lanes(16, _HALF))  # the first code is the low byte
            joined = builder.mul(pairs, pairs.type([1 << 12 | 1] * _HALF))
            codes = builder.trunc(builder.lshr(joined, pairs.type([8] * _HALF)), lanes(8, _HALF))
        e.store(codes, e.address("out", "at"), align=1)

    return codes


def _dequantize_block(per_byte: int, divides: bool, store: Store) -> Any:
    """Make the block that decodes the codes from byte `at` to 32 elements of `out` from i on."""

    @block("codes", "at", "size", "numbers", "scale", "out", "i")
    def values(e: Emitter) -> None:
        builder, source = e.builder, e.address("codes", "at")
        count = BLOCK // per_byte
        codes = builder.zext(e.load(source, lanes(8, count), align=1), lanes(32, count))
        kind = lanes(64, count) if per_byte == 2 else floats()
        entries = e.gathered(e.args["numbers"], e.indices(codes), kind)
        numbers = builder.bitcast(entries, floats()) if per_byte == 2 else entries
        size = e.splat(e.args["size"])
        scaled = builder.fdiv(numbers, size) if divides else builder.fmul(numbers, size)
        e.store_as(store, scaled, e.address("out", "i"))

    return values


# --- loops ---------------------------------------------------------------------------------------


@inline
def _stop(start, first, size, block_size):
    """Return the block of element `start` of an array, and the end of the block in the array.

    The array has `size` elements and begins with element `first` of the tensor.
    """
    b = (first + start) // block_size
    return b, min((b + 1) * block_size - first, size)


@factory(lambda: itertools.product((1, 2)))
def _quantizer(per_byte: int) -> Kernel:
    one_block = _quantize_block(per_byte)

    @kernel(
        "in float32[], int64, int64, in float32[], float32, in uint64[], int64, int64, "
        "out float32[], out uint8[], out uint8[]",
        variant=f"{per_byte}",
    )
    def blockwise_codes(
        x, first, block_size, factors, shift, entries, lowest, count, padded, last, out
    ):
        # x begins with element `first`, a multiple of BLOCK, and factors has the factors of all
        # blocks; out.size == ceil(x.size / per_byte); entries.size == 2 * count; padded and last
        # have BLOCK elements. Blocks are even where per_byte is 2.
        start = 0
        while start < x.size:
            b, stop = _stop(start, first, x.size, block_size)
            whole = stop - (stop - start) % BLOCK
            numbers = factors[b], shift, entries, lowest, count
            for i in range(start, whole, BLOCK):
                one_block(x, i, *numbers, out, i // per_byte)
            if whole < stop:
                for k in range(BLOCK):
                    padded[k] = x[whole + k] if k < stop - whole else np.float32(0)
                one_block(padded, 0, *numbers, last, 0)
                for k in range((stop - whole + per_byte - 1) // per_byte):
                    out[whole // per_byte + k] = last[k]
            start = stop

    return blockwise_codes


@factory(
    lambda: ((p, d, s) for p, d in ((1, False), (1, True), (2, False)) for s in get_args(Store))
)
def _dequantizer(per_byte: int, divides: bool, store: Store) -> Kernel:
    one_block = _dequantize_block(per_byte, divides, store)
    last_block = _dequantize_block(per_byte, divides, "add" if store == "add" else "write")
    streaming = store == "stream"
    table = "float32[]" if per_byte == 1 else "uint64[]"

    @kernel(
        f"in uint8[], int64, int64, in float32[], in {table}, float32, out float32[], "
        "out uint8[], out float32[]",
        variant=f"{per_byte} {divides} {store}",
    )
    def blockwise_values(codes, first, block_size, scales, numbers, times, padded, last, out):
        # out begins with element `first`, a multiple of BLOCK, and scales has the scales of all
        # blocks; codes.size == ceil(out.size / per_byte); numbers has 256 elements, padded and
        # last have BLOCK. Blocks are even where per_byte is 2.
        start = 0
        while start < out.size:
            b, stop = _stop(start, first, out.size, block_size)
            whole = stop - (stop - start) % BLOCK
            size = scales[b]
            for i in range(start, whole, BLOCK):
                one_block(codes, i // per_byte, size, numbers, times, out, i)
            if whole < stop:
                for k in range(stop - whole):  # fewer than BLOCK
                    padded[k] = out[whole + k]
                for k in range((stop - whole + per_byte - 1) // per_byte):
                    last[k] = codes[whole // per_byte + k]
                last_block(last, 0, size, numbers, times, padded, 0)
                for k in range(stop - whole):
                    out[whole + k] = padded[k]
            start = stop
        if streaming:
            fence()

    return blockwise_values
