"""Dequantization of codes of one or two bits to ±level and 0.

A `LevelCode` defines the layout and the meaning of the fields, and has a kernel of its own.
`adder` adds many arrays of codes while the sum is in the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from gcodec.kernels.numeric.arithmetic import copy_block
from gcodec.runtime.cover import cover, head_of, store_of, streams
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, Kernel, factory, kernel
from gcodec.runtime.lanes import (
    ADD,
    BLOCK,
    SIGN,
    STREAM,
    Emitter,
    Value,
    block,
    fence,
    floats,
    lanes,
)
from gcodec.runtime.memory import aligned_empty


class LevelCode(NamedTuple):
    """Layout and meaning of codes of 1 or 2 bits.

    Attributes
    ----------
    width : int
        Number of bits of a field, 1 or 2.
    order : "msb" or "lsb"
        Position of the first field of a byte: its most or its least significant bits.
    spread : bool
        Whether each byte contains a single field.
    shift : int
        With `spread`, the position of the field's lowest bit in the byte.
    meaning : "sent-plus", "minus-plus" or "shifted"
        Meaning of a field of 2 bits. sent-plus: 11 is +, 10 is −, 00 and 01 are 0. minus-plus: 01
        is +, 10 is −, 00 is 0. shifted: 00 is −, 01 is 0, 10 is +. A field of 1 bit is − for 0 and
        + for 1.
    """

    width: Literal[1, 2]
    order: Literal["msb", "lsb"] = "msb"
    spread: bool = False
    shift: int = 0
    meaning: Literal["sent-plus", "minus-plus", "shifted"] = "sent-plus"

    @property
    def per_byte(self) -> int:
        """Number of elements in a byte."""
        return 1 if self.spread else 8 // self.width

    def nbytes(self, n: int) -> int:
        """Return the number of bytes of n elements."""
        return -(-n // self.per_byte)

    def left_shift(self, k: int) -> int:
        """Return the shift that moves element k of its byte to the top of 32 bits."""
        if self.spread:
            place = self.shift
        elif self.order == "msb":
            place = 8 - self.width * (k % self.per_byte + 1)
        else:
            place = self.width * (k % self.per_byte)
        return 32 - self.width - place


LEVELS_1BIT, LEVELS_2BIT = LevelCode(1), LevelCode(2)
LEVELS_LOW_FIRST = LevelCode(2, order="lsb", meaning="minus-plus")
LEVELS_IN_BYTES = LevelCode(2, spread=True, meaning="minus-plus")
LEVELS_STRIDED = tuple(LevelCode(2, spread=True, shift=2 * f, meaning="shifted") for f in range(4))
_CODES = (LEVELS_1BIT, LEVELS_2BIT, LEVELS_LOW_FIRST, LEVELS_IN_BYTES, LEVELS_STRIDED[0])
_ADDED = (LEVELS_1BIT, LEVELS_2BIT, LEVELS_LOW_FIRST)  # codes that `adder` accepts
_TILE = 1 << 12  # elements of the sum in the first-level cache


@dispatched("gcodec.kernels.bits.dequantize_cuda")
def dequantize(
    data: np.ndarray,
    code: LevelCode,
    level: np.float32,
    out: np.ndarray,
    add: np.float32 | None = None,
) -> None:
    """Write the values of the fields of `data` to `out`, or add a multiple of them.

    Parameters
    ----------
    data : (at least code.nbytes(n),) uint8 array
    code : LevelCode
    level : float32
        Value of +.
    out : (n,) float32 array
    add : float32, optional
        Factor of the values to add; each product is rounded before it is added.
    """
    head = head_of(out, code.per_byte)
    store, scale = store_of(add, streams(out[head:]))
    loop = _loop(code._replace(shift=0))  # kernels get the shift
    numbers = code.left_shift(0), level

    def blocks(start: int, stop: int) -> None:
        part = data[code.nbytes(start) : code.nbytes(stop)]
        loop(part, *numbers, store, scale, out[start:stop])

    def padded(start: int, stop: int) -> None:
        packed = np.zeros(code.nbytes(BLOCK), np.uint8)
        part = data[code.nbytes(start) : code.nbytes(stop)]
        packed[: part.size] = part
        values = np.zeros(BLOCK, np.float32)
        values[: stop - start] = out[start:stop]
        loop(packed, *numbers, store & ADD, scale, values)
        out[start:stop] = values[: stop - start]

    cover(blocks, padded, head, out.size)


class LevelString(NamedTuple):
    """Array of codes, and the meaning of a code.

    Attributes
    ----------
    data : (code.nbytes(n),) uint8 array
        Codes of n elements.
    code : LevelCode
        A code of 1 bit, or a code of 2 bits that shares bytes with others.
    level : float32
        Value of +.
    """

    data: np.ndarray
    code: LevelCode
    level: np.float32


def adder(
    strings: Sequence[LevelString], scales: Sequence[np.float32], streaming: bool
) -> Callable[[int, int, np.ndarray, bool], None]:
    """Return a function that adds multiples of the values of strings, in their order.

    The result has the same bits as that of `dequantize` for each string.

    Parameters
    ----------
    strings : sequence of LevelString
        Strings on the host that have the same code and the same number of elements.
    scales : sequence of float32
        Factor of each string.
    streaming : bool
        Whether the sums bypass the cache; `out` must then start at a multiple of 16 bytes.

    Returns
    -------
    callable
        Function of `start`, `stop`, `out` and `is_fresh`. It adds the elements `start`, which is a
        multiple of 32, to `stop - 1` to float32 `out`, which has no −0; or if `is_fresh`, to
        zeros.
    """
    code = strings[0].code
    # The kernel adds two strings at once. A string whose values are all zeros changes no sum.
    count = len(strings) + len(strings) % 2
    levels, zeros = np.zeros((2, count), np.float32)
    with np.errstate(all="ignore"):
        for k, (string, scale) in enumerate(zip(strings, scales, strict=True)):
            levels[k], zeros[k] = scale * string.level, scale * np.float32(0)
    loop = _adding(code, streaming)

    def add(start: int, stop: int, out: np.ndarray, is_fresh: bool) -> None:
        begin, end = code.nbytes(start), code.nbytes(stop)
        stride = code.nbytes(-(-out.size // BLOCK) * BLOCK)
        packed = np.empty((count, stride), np.uint8)
        for row, string in zip(packed, strings, strict=False):
            row[: end - begin] = string.data[begin:end]
        room = aligned_empty(_TILE, np.float32)
        loop(packed.reshape(-1), stride, levels, zeros, int(is_fresh), room, out)

    return add


@factory(lambda: itertools.product(_ADDED, (False, True)))
def _adding(code: LevelCode, streaming: bool) -> Kernel:
    """Make the kernel that adds strings of a code; the sums may bypass the cache."""
    two_blocks = _added_blocks(code)
    per_byte = code.per_byte

    @kernel(
        "in uint8[], int64, in float32[], in float32[], int64, out float32[], out float32[]",
        variant=f"{code} {'stream' if streaming else 'write'}",
    )
    def add_strings(data, stride, levels, zeros, is_fresh, room, out):
        # data.size == levels.size * stride, levels.size is even, and room.size == _TILE. The last
        # block of a string may extend beyond `out`, but not beyond `room`.
        for tile in range(0, out.size, _TILE):
            values = out[tile : tile + _TILE]
            total = room[: values.size]
            if is_fresh:
                for k in range(total.size):
                    total[k] = 0
            else:
                for k in range(total.size):
                    total[k] = values[k]
            for k in range(0, levels.size, 2):
                at = k * stride + tile // per_byte
                level, zero = levels[k], zeros[k]
                next_level, next_zero = levels[k + 1], zeros[k + 1]
                for i in range(0, values.size, BLOCK):
                    first = at + i // per_byte
                    two_blocks(
                        data, first, first + stride, level, zero, next_level, next_zero, room, i
                    )
            streamed = total.size - total.size % BLOCK if streaming else 0
            for i in range(0, streamed, BLOCK):
                copy_block(room, i, values, i, True)
            for k in range(streamed, total.size):
                values[k] = total[k]
        if streaming:
            fence()

    return add_strings


def _added_blocks(code: LevelCode) -> Intrinsic:
    """Make the block that adds 32 elements of two strings, from the bytes `at` and `after`.

    The accumulator is in the first-level cache, so the block with the fewest instructions is the
    fastest: it moves each field to the lowest bits of its lane and looks the value up.
    """
    # The bytes of a word are in little-endian order.
    places = [
        32 - code.width - code.left_shift(k) + 8 * (k // code.per_byte % 4) for k in range(BLOCK)
    ]

    def values(e: Emitter, at: str, level: str, zero: str) -> Value:
        """Emit the values of a string."""
        builder, kind = e.builder, lanes(32)
        words = e.load(e.address("data", at), lanes(32, BLOCK * code.width // 32), align=1)
        own_words = e.picked(words, [k * code.width // 32 for k in range(BLOCK)])
        fields = builder.lshr(own_words, kind(places))
        plus, none = e.args[level], e.args[zero]
        minus = builder.fneg(plus)
        if code.width == 1:
            return e.one_of_four([minus, plus, minus, plus], fields)  # ignores a second bit
        if code.meaning == "sent-plus":
            return e.one_of_four([none, none, minus, plus], fields)
        return e.one_of_four([none, plus, minus, minus], fields)

    @block("data", "at", "after", "level", "zero", "next_level", "next_zero", "out", "i")
    def add_blocks(e: Emitter) -> None:
        target = e.address("out", "i")
        first = e.builder.fadd(e.load(target, floats()), values(e, "at", "level", "zero"))
        both = e.builder.fadd(first, values(e, "after", "next_level", "next_zero"))
        e.store(both, target)

    return add_blocks


@factory(lambda: ((code,) for code in _CODES))
def _loop(code: LevelCode) -> Kernel:
    """Make the kernel that decodes whole blocks for a code."""
    one_block = _block(code)
    per_byte = code.per_byte

    @kernel("in uint8[], int32, float32, int64, float32, out float32[]", variant=f"{code}")
    def dequantize_blocks(data, shift, level, store, scale, out):
        # out.size is a multiple of BLOCK, data.size == out.size // per_byte. Only a code with a
        # field in each byte uses `shift`, its `left_shift`. Two concurrent streams use more of
        # the memory bandwidth than one, except for stores past the cache.
        half = 0 if store == STREAM else out.size // (2 * BLOCK) * BLOCK
        for i in range(0, half, BLOCK):
            for k in (i, half + i):
                one_block(data, k // per_byte, shift, level, store, scale, out, k)
        for k in range(2 * half, out.size, BLOCK):
            one_block(data, k // per_byte, shift, level, store, scale, out, k)
        if store == STREAM:
            fence()

    return dequantize_blocks


def _block(code: LevelCode) -> Intrinsic:
    """Make the block that decodes 32 elements of `out` from i, from the bytes from `at`."""

    @block("data", "at", "shift", "level", "store", "scale", "out", "i")
    def dequantize_block(e: Emitter) -> None:
        values = e.builder.bitcast(_levels(e, code, _fields_on_top(e, code)), floats())
        e.store_as(values, e.address("out", "i"))

    return dequantize_block


def _fields_on_top(e: Emitter, code: LevelCode) -> Value:
    """Emit the fields of a block, each in the top bits of its lane."""
    count = BLOCK // code.per_byte
    packed = e.load(e.address("data", "at"), lanes(8, count), align=1)
    wide = e.builder.zext(packed, lanes(32, count))
    spread = e.picked(wide, [k // code.per_byte for k in range(BLOCK)])
    if code.spread:
        return e.builder.shl(spread, e.splat(e.args["shift"]))
    return e.builder.shl(spread, lanes(32)([code.left_shift(k) for k in range(BLOCK)]))


def _levels(e: Emitter, code: LevelCode, fields: Value) -> Value:
    """Emit the bit patterns of the values of fields."""
    builder = e.builder
    vector = lanes(32)
    level = builder.bitcast(e.splat(e.args["level"]), vector)
    sign, thirty_one = vector([SIGN] * BLOCK), vector([31] * BLOCK)
    if code.width == 1:
        return builder.xor(level, builder.and_(builder.not_(fields), sign))
    upper, lower = fields, builder.shl(fields, vector([1] * BLOCK))
    if code.meaning == "sent-plus":
        sent, minus = upper, builder.not_(lower)
    elif code.meaning == "minus-plus":
        sent, minus = builder.or_(upper, lower), upper
    else:
        sent, minus = builder.not_(lower), builder.not_(upper)
    flipped = builder.xor(level, builder.and_(minus, sign))
    return builder.and_(flipped, builder.ashr(sent, thirty_one))
