"""Stochastic rounding of |x|/s to 0 or 1, with the sign: TernGrad's quantiser, and three packs.

r = |x|/s, rounded once to float32, and 1 from |x| = s on. The element is sent where r is 1 or
(u >> 1) < int32(r·2^31), u being its random word. Sources: Wen et al., "TernGrad", NIPS 2017;
wenwei202/terngrad ec4f75e for the strided pack.
"""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.dequantize import (
    LEVELS_IN_BYTES,
    LEVELS_LOW_FIRST,
    LEVELS_STRIDED,
    dequantize,
)
from gcodec.kernels.bits.pack import FieldLayout, check_length, check_padding, pad_error
from gcodec.kernels.numeric import convert
from gcodec.kernels.numeric.philox import COUNTER_SPAN
from gcodec.kernels.numeric.words import load_word, store_word
from gcodec.kernels.quantize.ternary_block import four_per_byte, one_per_byte, ternary_block
from gcodec.runtime import pool
from gcodec.runtime.cover import cover
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, kernel
from gcodec.runtime.lanes import BLOCK
from gcodec.runtime.memory import aligned_empty

Pack = Literal["chapter", "terngrad", "base3"]

CHAPTER = FieldLayout(width=2, order="lsb")
STRIDED = FieldLayout(width=2, order="lsb", strided=True, pad="count")
TRITS = 5  # in a byte of base3
_POWERS = tuple(3**k for k in range(TRITS))
_LARGEST = 3**TRITS - 1  # byte of base3
# Five codes in the bytes of a word, times this: the sum of code times power is its fifth byte, and
# no byte below it carries, as each holds at most that sum.
_COLLECT = sum(power << 8 * (TRITS - 1 - k) for k, power in enumerate(_POWERS))

_TILE = TRITS * 512  # elements; a multiple of BLOCK and of TRITS
_CHUNK = 128 * _TILE  # elements whose codes stay in the second cache
_SLACK = 8  # bytes behind codes that a word may reach


def packed_nbytes(n: int, pack: Pack) -> int:
    """Bytes of n packed codes."""
    if pack == "base3":
        return -(-n // TRITS)
    return (STRIDED if pack == "terngrad" else CHAPTER).nbytes(n)


@dispatched("gcodec.kernels.quantize.ternary_cuda")
def quantize(x: np.ndarray, scale: np.float32, seed: int, pack: Pack) -> np.ndarray:
    """Quantise a (n,) float32 array and pack the codes.

    Parameters
    ----------
    x : (n,) float32 array
        Finite.
    scale : float32
        Not negative; 0 only where all of x is 0.
    seed : int
    pack : Pack

    Returns
    -------
    (packed_nbytes(n, pack),) uint8 array
    """
    level = scale if scale > 0 else np.float32(np.inf)  # 0/0 would be no number
    out = aligned_empty(packed_nbytes(x.size, pack), np.uint8)
    if pack == "chapter":
        _quantize_chapter(x, level, np.uint64(seed), out)
    elif pack == "terngrad":
        _quantize_strided(convert.whole(x), level, np.uint64(seed), out)
    else:
        _quantize_base3(x, level, np.uint64(seed), out)
    return out


def dequantize_ternary(
    data: np.ndarray,
    scale: np.float32,
    out: np.ndarray,
    pack: Pack,
    add: np.float32 | None = None,
) -> None:
    """Write 0 and ±scale to the (n,) float32 `out`, or add a multiple; see `dequantize`.

    The bytes must be such as `check` passes.
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
    # The pad codes, up to four behind n, lie in the last four bytes.
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
    """Say that a code is none."""
    return Corrupt("the code 11 stands for nothing", at)


def digits_error() -> Corrupt:
    """Say that a byte of ``base3`` is none."""
    return Corrupt(f"a byte is above {_LARGEST}, which no five codes give")


def pad_digits_error(at: int) -> Corrupt:
    """Say that a pad code of ``base3`` is wrong."""
    return Corrupt("a pad code is not zero", at)


_chapter_block = ternary_block(four_per_byte)
_digits_block = ternary_block(one_per_byte(0, 1, 2))


# --- chapter: four codes in a byte, the first lowest ---------------------------------------------


def _quantize_chapter(x: np.ndarray, scale: np.float32, seed: np.uint64, out: np.ndarray) -> None:
    def blocks(start: int, stop: int) -> None:
        part = out[start // 4 : stop // 4]
        _chapter_blocks(x[start:stop], scale, seed, np.uint64(start), part)

    def padded(start: int, stop: int) -> None:
        some, packed = np.zeros(BLOCK, np.float32), np.empty(BLOCK // 4, np.uint8)
        some[: stop - start] = x[start:stop]
        _chapter_blocks(some, scale, seed, np.uint64(start), packed)
        out[start // 4 :] = packed[: out.size - start // 4]

    cover(blocks, padded, 0, x.size, x)


@kernel("in float32[], float32, uint64, uint64, out uint8[]")
def _chapter_blocks(x, scale, seed, start, out):
    # x.size is a multiple of BLOCK, out.size == x.size // 4
    span = start >> COUNTER_SPAN
    if (start + np.uint64(x.size)) >> COUNTER_SPAN == span:  # as it nearly always is
        for i in range(0, x.size, BLOCK):
            _chapter_block(x, i, scale, seed, start + np.uint64(i), span, out, i // 4)
    else:
        for i in range(0, x.size, BLOCK):
            here = start + np.uint64(i)
            _chapter_block(x, i, scale, seed, here, here >> COUNTER_SPAN, out, i // 4)


@kernel("in uint8[]")
def _code_11_bits(data):
    # Both bits of a field set, gathered over all bytes.
    found = np.uint8(0)
    for i in range(data.size):
        found = np.uint8(found | np.uint8(data[i] & np.uint8(data[i] >> np.uint8(1))))
    return found & np.uint8(0x55)


# --- terngrad: byte i holds codes i, i + Q, i + 2Q, i + 3Q of Q bytes, each plus one -------------


def _quantize_strided(x: np.ndarray, scale: np.float32, seed: np.uint64, out: np.ndarray) -> None:
    size = out.size

    def task(start: int, stop: int) -> None:
        codes = np.empty(_TILE + 2 * BLOCK, np.uint8)
        rest = np.zeros(BLOCK, np.float32)
        out[start:stop] = 0
        for field in range(4):
            part = x[: (field + 1) * size]
            first = field * size + start
            _stride(field)(part, scale, seed, codes, rest, first, out[start:stop])

    pool.run(task, size)
    for pad in range(4 * size - x.size):
        field, at = divmod(x.size + pad, size)
        out[at] |= pad << 2 * field


@factory(lambda: ((field,) for field in range(4)))
def _stride(field: int) -> Kernel:
    """Make the kernel that adds the codes of one field to the bytes."""
    one_block = ternary_block(one_per_byte(1 << 2 * field, 2 << 2 * field, 0))

    @kernel(
        "in float32[], float32, uint64, out uint8[], out float32[], int64, out uint8[]",
        variant=f"{field}",
    )
    def add_stride(x, scale, seed, codes, rest, first, out):
        # Byte i of out takes the code of element first + i, where x has it.
        # codes.size == _TILE + 2 * BLOCK, rest.size == BLOCK
        for tile in range(0, out.size, _TILE):
            begin = first + tile
            end = min(begin + min(_TILE, out.size - tile), x.size)
            aligned = begin - begin % BLOCK  # random words come in blocks
            for i in range(aligned, end, BLOCK):  # i - aligned < _TILE + BLOCK
                here, start = i - aligned, np.uint64(i)
                span = start >> COUNTER_SPAN
                if i + BLOCK <= x.size:
                    one_block(x, i, scale, seed, start, span, codes, here)
                else:
                    for k in range(x.size - i):  # fewer than BLOCK
                        rest[k] = x[i + k]
                    one_block(rest, 0, scale, seed, start, span, codes, here)
            mine = codes[begin - aligned :][: max(end - begin, 0)]
            part = out[tile : tile + mine.size]
            for i in range(part.size):  # part.size == mine.size
                part[i] |= mine[i]

    return add_stride


# --- base3: five codes in a byte, the first with weight 1 ----------------------------------------


def _quantize_base3(x: np.ndarray, scale: np.float32, seed: np.uint64, out: np.ndarray) -> None:
    def task(start: int, stop: int) -> None:
        codes = np.zeros(_TILE + _SLACK, np.uint8)
        rest = np.zeros(BLOCK, np.float32)
        part = out[start // TRITS : -(-stop // TRITS)]
        _base3_tiles(x[start:stop], scale, seed, np.uint64(start), codes, rest, part)

    pool.run(task, x.size, _TILE, x)


@kernel("in float32[], float32, uint64, uint64, out uint8[], out float32[], out uint8[]")
def _base3_tiles(x, scale, seed, start, codes, rest, out):
    # out.size == ceil(x.size / TRITS); codes.size == _TILE + _SLACK; rest is BLOCK zeros
    five, top = np.uint64((1 << 8 * TRITS) - 1), np.uint64(8 * (TRITS - 1))
    for tile in range(0, x.size, _TILE):
        values = x[tile : tile + _TILE]
        whole = values.size - values.size % BLOCK
        for i in range(0, whole, BLOCK):
            here = start + np.uint64(tile + i)
            _digits_block(values, i, scale, seed, here, here >> COUNTER_SPAN, codes, i)
        if whole < values.size:  # whole + BLOCK <= _TILE
            for i in range(values.size - whole):
                rest[i] = values[whole + i]
            here = start + np.uint64(tile + whole)
            _digits_block(rest, 0, scale, seed, here, here >> COUNTER_SPAN, codes, whole)
        for i in range(values.size, values.size + TRITS):  # pad codes; TRITS <= _SLACK
            codes[i] = np.uint8(0)
        part = out[tile // TRITS : (tile + _TILE) // TRITS]
        for j in range(part.size):  # TRITS * j + 8 <= codes.size
            word = load_word(codes, j * TRITS) & five
            part[j] = np.uint8((word * np.uint64(_COLLECT)) >> top)


@dispatched("gcodec.kernels.quantize.ternary_cuda")
def dequantize_base3(
    data: np.ndarray, scale: np.float32, out: np.ndarray, add: np.float32 | None
) -> None:
    """Write what the trits of bytes stand for; see `dequantize_ternary`."""

    def task(start: int, stop: int) -> None:
        codes = np.empty(min(_CHUNK, stop - start) + TRITS + _SLACK, np.uint8)
        for at in range(start, stop, _CHUNK):
            part = out[at : min(at + _CHUNK, stop)]
            _digits(data[at // TRITS : -(-(at + part.size) // TRITS)], _digit_table(), codes)
            dequantize(codes[: part.size], LEVELS_IN_BYTES, scale, part, add)

    pool.run(task, out.size, _CHUNK)


@functools.cache
def _digit_table() -> np.ndarray:
    """Return the five codes of each byte as the bytes of a word."""
    byte = np.arange(256, dtype=np.uint64)
    table = np.zeros(256, np.uint64)
    for k, power in enumerate(_POWERS):
        table |= byte // np.uint64(power) % np.uint64(3) << np.uint64(8 * k)
    return table


@kernel("in uint8[], in uint64[], out uint8[]")
def _digits(data, table, codes):
    # table.size == 256; codes.size >= TRITS * data.size + _SLACK
    for j in range(data.size):
        store_word(codes, j * TRITS, table[data[j]])
