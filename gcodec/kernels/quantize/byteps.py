"""The sequential loops of BytePS's compressors.

They are the sum of magnitudes, the draws of a xorshift128+ generator, the heap of the largest
magnitudes, and the levels of dithering with their Elias delta words. Each loop keeps the order and
the roundings of BytePS's source, compiled without fast mathematics.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.numeric.words import leading_zeros, peek, put
from gcodec.runtime.jit import Kernel, factory, inline, kernel
from gcodec.runtime.memory import float_bits

WORD_BITS = 32

_TWO_64 = 2.0**64
_LEAST_CAPACITY = 4096  # bytes
_DONE, _FULL, _CUT, _TOO_LONG, _BEYOND, _LEVEL, _TOO_LARGE = range(7)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_ONE = np.uint64(1)


class DitheredWords(NamedTuple):
    """The bit string of a dithered array.

    Attributes
    ----------
    data : (4 * ceil(nbits / 32),) uint8 array
        Little-endian words; the first bit is the most significant one of the first word.
    nbits : int
    largest : int
        The largest level; 0 if all levels are 0.
    """

    data: np.ndarray
    nbits: int
    largest: int


def draw_positions(state: np.ndarray, n: int, k: int) -> np.ndarray:
    """Draw k positions below n with replacement; advance `state`, a (2,) uint64 array."""
    out = np.empty(k, np.uint32)
    _draw_positions(np.uint64(n), state, out)
    return out


def select_by_heap(x: np.ndarray, k: int) -> np.ndarray:
    """Return the positions of the k largest magnitudes, in the order of libstdc++'s heap.

    Parameters
    ----------
    x : (n,) float32 array
        Finite.
    k : int
        From 1 to n.

    Returns
    -------
    (k,) uint32 array
    """
    keys, out = np.empty(k, np.uint32), np.empty(k, np.uint32)
    _select_by_heap(x, keys, out)
    return out


def dither(
    x: np.ndarray, norm: float, levels: int, natural: bool, state: np.ndarray
) -> DitheredWords:
    """Round magnitudes at random to levels, and write these in Elias delta words.

    Parameters
    ----------
    x : (n,) float32 array
        Finite.
    norm : float
        Divisor of the magnitudes; not infinite.
    levels : int
        Level of the norm, from 1 to 2^30; a power of two if `natural`.
    natural : bool
        Whether levels are powers of two; otherwise they are any integers.
    state : (2,) uint64 array
        State of the generator, which advances by one draw for each element.
    """
    capacity = 4 * x.size + _LEAST_CAPACITY  # enough for most data; other data need another pass
    start = state.copy()
    while True:
        data, result = np.empty(capacity, np.uint8), np.zeros(3, np.int64)
        _ditherer(natural)(x, norm, levels, state, data, result)
        status, nbits, largest = result.tolist()
        if status == _DONE:
            data = data[: 4 * -(-nbits // WORD_BITS)]
            data[-(-nbits // 8) :] = 0
            data.view(np.uint32).byteswap(inplace=True)
            return DitheredWords(data, nbits, largest)
        state[:] = start
        capacity *= 2


def undither(
    data: np.ndarray, nbits: int, scale: np.float32, levels: int, natural: bool, out: np.ndarray
) -> None:
    """Decode the words of `dither`.

    Parameters
    ----------
    data : (4 * ceil(nbits / 32),) uint8 array
        Little-endian words.
    nbits : int
    scale : float32
        Finite.
    levels : int
    natural : bool
    out : (n,) float32 array

    Raises
    ------
    FormatError
        If a word is cut off, or longer than any level or gap; if a position lies beyond the
        tensor, a level is invalid, a value exceeds float32, or the padding is not zero.
    """
    result = np.zeros(2, np.int64)
    out[:] = 0
    # The kernel reads bytes, the most significant bit first.
    data = data.view("<u4").byteswap().view(np.uint8)
    _undither(data, nbits, np.float32(scale), np.float32(levels), natural, out, result)
    status, at = result.tolist()
    if status == _CUT:
        raise Truncated(f"the word at bit {at} is cut off", at // 8)
    problems = {
        _TOO_LONG: "the word at bit {} is longer than any gap or level",
        _BEYOND: "the gap at bit {} leads beyond the tensor",
        _LEVEL: "the level at bit {} is not a power of two",
        _TOO_LARGE: "the level at bit {} gives a value beyond float32",
        _FULL: "the padding after bit {} is not zero",
    }
    if status != _DONE:
        raise Corrupt(problems[status].format(at), at // 8)


@inline
def _next(a, b):
    """Return the next draw of a generator with state (a, b), and its next state."""
    t = a ^ (a << np.uint64(23))
    t ^= t >> np.uint64(17)
    t ^= b ^ (b >> np.uint64(26))
    return t + b, b, t


@kernel("in float32[]")
def sum_magnitudes(x):
    """Add up the magnitudes of a (n,) float32 array in float64, from first to last."""
    total = 0.0
    for i in range(x.size):
        total += np.float64(abs(x[i]))
    return total


@kernel("in float32[]")
def sum_rounded_squares(x):
    """Round the squares of a (n,) float32 array to float32; add them up in float64, in order."""
    total = 0.0
    for i in range(x.size):
        total += np.float64(np.float32(x[i] * x[i]))
    return total


@kernel("uint64, out uint64[], out uint32[]")
def _draw_positions(n, state, out):
    # n > 0, state.size == 2
    a, b = state[0], state[1]
    for i in range(out.size):
        drawn, a, b = _next(a, b)
        out[i] = np.uint32(drawn % n)
    state[0], state[1] = a, b


@inline
def _rise(keys, places, hole, key, place):
    """Insert an entry into a heap with the smallest key on top, from a hole upward."""
    while hole > 0:
        parent = (hole - 1) // 2
        if keys[parent] <= key:
            break
        keys[hole], places[hole] = keys[parent], places[parent]
        hole = parent
    keys[hole], places[hole] = key, place  # hole < keys.size, as in the beginning


@kernel("in float32[], out uint32[], out uint32[]")
def _select_by_heap(x, keys, places):
    # Keys are the bits of magnitudes. 0 < keys.size == places.size <= x.size
    k = keys.size
    for i in range(k):
        _rise(keys, places, i, np.uint32(float_bits(x[i]) & _MAGNITUDE), np.uint32(i))
    last = k - 1
    for i in range(k, x.size):
        key = np.uint32(float_bits(x[i]) & _MAGNITUDE)
        if key <= keys[0]:
            continue
        if last > 0:
            # Remove the top: the hole sinks to a leaf, and the last entry rises from there.
            moved, place = keys[last], places[last]
            hole = child = 0
            while child < (last - 1) // 2:
                child = 2 * (child + 1)  # < last
                if keys[child] > keys[child - 1]:
                    child -= 1
                keys[hole], places[hole] = keys[child], places[child]
                hole = child
            if last % 2 == 0 and child == (last - 2) // 2:
                child = 2 * (child + 1)  # == last
                keys[hole], places[hole] = keys[child - 1], places[child - 1]
                hole = child - 1
            _rise(keys, places, hole, moved, place)
        _rise(keys, places, last, key, np.uint32(i))


@inline
def _length_of(x):
    return np.uint64(64) - leading_zeros(x)


@inline
def _delta(x):
    """Return the Elias delta word of a uint64 from 1 to 2^33 − 1, and its bits, at most 43."""
    length = _length_of(x)
    below = length - _ONE
    word = (length << below) | (x & ((_ONE << below) - _ONE))
    return word, below + np.uint64(2) * _length_of(length) - _ONE


@factory(lambda: ((False,), (True,)))
def _ditherer(natural: bool) -> Kernel:
    @inline
    def level_of(magnitude, norm, levels, drawn):
        # If the norm is 0, the quotient is NaN or Inf.
        if natural:
            normalized = np.float64(magnitude) / norm * levels
            if not normalized < 2.0**31:
                return np.uint64(0)
            upper = np.uint64(np.ceil(normalized))
            low = np.uint64(0)
            if upper > _ONE:  # the largest power of two below `upper`
                low = _ONE << (_length_of(upper - _ONE) - _ONE)
            step = low if low > np.uint64(0) else _ONE
            chance = (normalized - np.float64(low)) / np.float64(step)
            return low + (step if np.float64(drawn) < chance * _TWO_64 else np.uint64(0))
        rounded = np.float32(np.float64(magnitude) / norm * levels)
        if not rounded < np.float32(2.0**31):
            return np.uint64(0)
        floor = np.float32(np.floor(rounded))
        chance = np.float64(np.float32(rounded - floor))
        up = np.float32(1) if np.float64(drawn) < chance * _TWO_64 else np.float32(0)
        return np.uint64(np.float32(floor + up))

    @kernel(
        "in float32[], float64, int64, out uint64[], out uint8[], out int64[]",
        variant=f"{natural}",
    )
    def dither_all(x, norm, levels, state, data, result):
        # state.size == 2; result: the status, the number of bits, the largest level.
        a, b = state[0], state[1]
        count = np.float64(levels)
        acc, have, at = np.uint64(0), np.uint64(0), np.int64(0)
        before, largest = np.int64(-1), np.uint64(0)
        for i in range(x.size):
            drawn, a, b = _next(a, b)
            level = level_of(abs(x[i]), norm, count, drawn)
            if level == np.uint64(0):
                continue
            if at + 16 > data.size:  # each `put` advances by at most 7 bytes, and writes 8
                result[0] = _FULL
                return
            largest = max(largest, level)
            gap, gap_nbits = _delta(np.uint64(i - before))
            before = i
            word, nbits = _delta(level)
            word |= np.uint64(float_bits(x[i]) >> np.uint32(31)) << nbits
            acc, have, at = put(data, at, acc, have, gap, gap_nbits)
            acc, have, at = put(data, at, acc, have, word, nbits + _ONE)
        result[0], result[1], result[2] = _DONE, 8 * at + np.int64(have), np.int64(largest)
        state[0], state[1] = a, b

    return dither_all


@inline
def _read_delta(window):
    """Return the number, below 2^33, whose word begins a window of 64 bits, and its bits.

    The number is 0 if the word is too long.
    """
    zeros = leading_zeros(window)
    if zeros > np.uint64(5):
        return np.uint64(0), zeros
    length = window >> (np.uint64(63) - np.uint64(2) * zeros)  # from 1 to 63
    if length > np.uint64(33):
        return np.uint64(0), np.uint64(0)
    nbits = np.uint64(2) * zeros + length  # at most 43
    below = length - _ONE
    word = window >> (np.uint64(64) - nbits)
    return (_ONE << below) | (word & ((_ONE << below) - _ONE)), nbits


@kernel("in uint8[], int64, float32, float32, boolean, out float32[], out int64[]")
def _undither(data, nbits, scale, levels, natural, out, result):
    # data: bytes, most significant bit first; result: the status and the bit that it refers to.
    at, i = np.int64(0), np.int64(-1)
    while at < nbits:
        result[1] = at
        gap, used = _read_delta(peek(data, at))
        if gap == np.uint64(0) or at + np.int64(used) >= nbits:
            result[0] = _CUT if at + np.int64(used) >= nbits else _TOO_LONG
            return
        if gap > np.uint64(out.size - 1 - i):
            result[0] = _BEYOND
            return
        i += np.int64(gap)
        at += np.int64(used)
        result[1] = at
        window = peek(data, at)
        level, used = _read_delta(window << _ONE)
        if level == np.uint64(0) or at + 1 + np.int64(used) > nbits:
            result[0] = _CUT if at + 1 + np.int64(used) > nbits else _TOO_LONG
            return
        if level > np.uint64(0xFFFFFFFF):
            result[0] = _TOO_LONG
            return
        if natural and level & (level - _ONE):
            result[0] = _LEVEL
            return
        value = np.float32(np.float32(np.float32(np.uint32(level)) * scale) / levels)
        if not abs(value) < np.float32(np.inf):
            result[0] = _TOO_LARGE
            return
        out[i] = -value if window >> np.uint64(63) else value  # 0 <= i < out.size
        at += 1 + np.int64(used)
    result[1] = nbits
    result[0] = _FULL if peek(data, nbits) else _DONE
