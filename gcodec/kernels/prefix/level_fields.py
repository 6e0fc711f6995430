"""Levels and their signs in fields of equal width, most significant bit first.

The field of level k is the number 2k, or 2k − 1 for −k, in as many bits as 2s has, where s is the
largest level. A symbol is twice the level, plus 1 if the value is negative.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString, SymbolsOf, parts_of, written
from gcodec.kernels.bits.coded_mask import CodedMask, spread_part
from gcodec.kernels.bits.fields import read_fields
from gcodec.kernels.numeric.words import load_word, peek, put, swapped
from gcodec.kernels.quantize.levels import KINDS, symbol_dtype
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, inline, kernel
from gcodec.runtime.memory import Drainable, release

_ONE, _EIGHT, _SIXTEEN, _HALF = (np.uint64(k) for k in (1, 8, 16, 32))
_ODD, _BYTES = np.uint64(0x0101010101010101), np.uint64(0x00FF00FF00FF00FF)
_PAIRS, _QUADS = np.uint64(0x0000FFFF0000FFFF), np.uint64(0x00000000FFFFFFFF)


def width_of(s: int) -> int:
    """Return the bits of a field of levels up to s."""
    return (2 * s).bit_length()


def write(
    symbols: SymbolsOf | np.ndarray | Drainable, s: int, coded: CodedMask, unit: int, lead: int
) -> tuple[np.ndarray, int]:
    """Write the fields of the coded elements of a tensor.

    Parameters
    ----------
    symbols : callable or (n,) array
        The symbols of all elements, of `symbol_dtype(s)`; see `dense_string.write`.
    s : int
        The largest level.
    coded : CodedMask
        The elements that have a field; see `dense_string.write`.
    unit : int
        Ranges of symbols begin at multiples of this number, a power of two up to 2^17.
    lead : int
        Number of free bytes before the fields.

    Returns
    -------
    data : uint8 array
        Lead and fields.
    nbits : int
        Bits of `data`.
    """
    get, dtype, width = parts_of(symbols), symbol_dtype(s), width_of(s)
    is_wide = dtype.itemsize > 1
    loop, chunk = _writer(dtype) if is_wide else _write_bytes, coded.chunk(is_wide)

    def task(start: int, stop: int) -> BitString:
        string = BitString(0 if start else lead, -(-(stop - start) * width // 8))
        room = np.empty(min(stop - start, chunk), dtype)
        for at in range(start, stop, chunk):
            end = min(at + chunk, stop)
            part = get(at, end, room[: end - at])
            _, mask = coded.part(at, end, end - at)
            loop(part if mask is None else part[mask], width, string.data, string.state)
            release(symbols, at, end)
        return string

    data, nbits, _ = written(task, coded.n, unit)
    return data, nbits


@dispatched("gcodec.kernels.prefix.level_fields_cuda")
def read(
    data: np.ndarray, first: int, s: int, coded: CodedMask, take: Callable[[int, np.ndarray], None]
) -> None:
    """Read the fields of the coded elements of a tensor.

    Parameters
    ----------
    data : uint8 array
        Contains all fields.
    first : int
        Bit where the fields begin.
    s : int
        The largest level.
    coded : CodedMask
        The elements that have a field. The symbols of all others are 0.
    take : callable
        Receives the first element of a range, and its symbols, of `symbol_dtype(s)`. Called on the
        threads of the pool, for all ranges in any order.

    Raises
    ------
    Corrupt
        If a field contains a level above s.
    """
    dtype, width = symbol_dtype(s), width_of(s)
    loop, chunk = _reader(dtype), coded.chunk(dtype.itemsize > 1)

    def task(start: int, stop: int) -> None:
        room, bit = np.empty(min(stop - start, chunk), dtype), first + width * coded.before(start)
        for at in range(start, stop, chunk):
            bounds, mask = coded.part(at, min(at + chunk, stop), chunk)
            symbols = room[: bounds[-1]]
            if loop(data, bit, width, symbols) > 2 * s:
                fields = read_fields(data, bit, width, symbols.size)
                raise field_error(bit + width * int(np.argmax(fields > 2 * s)))
            take(at, symbols if mask is None else spread_part(symbols, mask))
            bit += width * symbols.size

    pool.run(task, coded.n)


def field_error(at: int) -> Corrupt:
    """Return the error of a field at a bit that contains a level above s."""
    return Corrupt(f"the payload has no valid word at its bit {at}")


@inline
def _field(symbol):
    odd = np.uint64(symbol) & _ONE
    return np.uint64(symbol) - odd - odd


@inline
def _symbol(field):
    odd = field & _ONE
    return field + odd + odd


@kernel("in uint8[], int64, out uint8[], out uint64[]", vectorized=False)
def _write_bytes(symbols, width, out, state):
    # out has room for all fields, and the slack that `put` needs. A field has at most 8 bits.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    one, two, four = np.uint64(width), np.uint64(2 * width), np.uint64(4 * width)
    whole = symbols.size // 8 * 8
    for i in range(0, whole, 8):
        fields = load_word(symbols, i)  # the first symbol is in the lowest byte
        fields -= (fields & _ODD) << _ONE
        fields = (fields & _BYTES) << one | fields >> _EIGHT & _BYTES
        fields = (fields & _PAIRS) << two | fields >> _SIXTEEN & _PAIRS
        upper, lower = fields & _QUADS, fields >> _HALF
        if width < 8:  # so that one `put` takes eight fields
            acc, have, at = put(out, at, acc, have, upper << four | lower, four + four)
        else:
            acc, have, at = put(out, at, acc, have, upper, four)
            acc, have, at = put(out, at, acc, have, lower, four)
    for i in range(whole, symbols.size):
        acc, have, at = put(out, at, acc, have, _field(symbols[i]), one)
    state[0], state[1], state[2] = np.uint64(at), acc, have


@factory(lambda: ((kind,) for kind in KINDS[1:]))
def _writer(kind: np.dtype[np.generic]) -> Kernel:
    @kernel(
        f"in {kind.name}[], int64, out uint8[], out uint64[]", variant=kind.name, vectorized=False
    )
    def write_levels(symbols, width, out, state):
        # out has room for all fields, and the slack that `put` needs. A field has at most 26 bits.
        at, acc, have = np.int64(state[0]), state[1], state[2]
        one, two, four = np.uint64(width), np.uint64(2 * width), np.uint64(4 * width)
        whole = symbols.size // 4 * 4
        for i in range(0, whole, 4):
            upper = _field(symbols[i]) << one | _field(symbols[i + 1])
            lower = _field(symbols[i + 2]) << one | _field(symbols[i + 3])
            if width <= 14:  # so that one `put` takes four fields
                acc, have, at = put(out, at, acc, have, upper << two | lower, four)
            else:
                acc, have, at = put(out, at, acc, have, upper, two)
                acc, have, at = put(out, at, acc, have, lower, two)
        for i in range(whole, symbols.size):
            acc, have, at = put(out, at, acc, have, _field(symbols[i]), one)
        state[0], state[1], state[2] = np.uint64(at), acc, have

    return write_levels


@factory(lambda: ((kind,) for kind in KINDS))
def _reader(kind: np.dtype[np.generic]) -> Kernel:
    @kernel(f"in uint8[], int64, int64, out {kind.name}[]", variant=kind.name, vectorized=False)
    def read_levels(data, first, width, symbols):
        # Returns the largest field. `data` contains all fields, each of at most 26 bits, so that a
        # word contains two of them from any bit on.
        at, largest = first, np.uint64(0)
        left, right = np.uint64(width), np.uint64(64 - width)
        pairs = max(8 * (data.size - 8) - at, -1) // (2 * width) + 1  # whose words are in the data
        paired = 2 * min(pairs, symbols.size // 2)
        for i in range(0, paired, 2):
            word = swapped(load_word(data, at >> 3)) << np.uint64(at & 7)
            upper, lower = word >> right, word << left >> right
            symbols[i], symbols[i + 1] = _symbol(upper), _symbol(lower)
            largest = max(largest, upper, lower)
            at += 2 * width
        for i in range(paired, symbols.size):
            field = peek(data, at) >> right
            symbols[i] = _symbol(field)
            largest = max(largest, field)
            at += width
        return largest

    return read_levels
