"""Lists of outliers: the gaps between their positions, and their symbols, in Rice words.

See `gcodec.entropy.context.outliers`.
"""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.numeric.words import leading_zeros, peek, put
from gcodec.kernels.prefix.codewords import CORRUPT, RICE, TRUNCATED
from gcodec.kernels.prefix.rice_words import LARGEST, put_rice
from gcodec.runtime.jit import kernel, subroutine

RICE_NBITS = 5  # bits of a Rice parameter
NUMBER_NBITS = 40  # bits of the largest number in a list

_SLACK = 16  # bytes that writing needs in addition
_FAR = np.int64(1 << 62)  # a place after the last element of any tensor
_TOO_LARGE, _BEYOND, _NEGATIVE_ZERO = 1, 2, 3  # faults of a list

_read_word = RICE.value


def put_lists(places: np.ndarray, symbols: np.ndarray, string: BitString) -> None:
    """Append (k,) increasing int64 positions and (k,) int64 symbols to a string, k > 0."""
    gaps, plan = np.empty(places.size, np.int64), np.empty(3, np.int64)
    _plan_lists(places, symbols, gaps, plan)
    *parameters, nbits = plan.tolist()
    string.reserve(nbits // 8 + _SLACK)
    _put_lists(gaps, symbols, *parameters, string.data, string.state)


def read_lists(
    data: np.ndarray, at: int, end: int, count: int, n: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Read `count` positions below n, and their symbols, from bit `at` on.

    Returns
    -------
    places, symbols : (count,) int64 array
    after : int
        Position of the next bit.

    Raises
    ------
    FormatError
    """
    if 2 * (RICE_NBITS + count) > end - at:
        raise Truncated(f"a list of outliers is cut off at bit {end}")
    places, symbols = np.empty(count, np.int64), np.empty(count, np.int64)
    fault = np.zeros(1, np.int64)
    after = int(_read_lists(data, at, end, n, places, symbols, fault))
    if after == TRUNCATED:
        raise Truncated(f"a list of outliers is cut off at bit {end}")
    if after == CORRUPT or fault[0] == _TOO_LARGE:
        raise Corrupt(f"a list of outliers has a number of more than {NUMBER_NBITS} bits")
    if fault[0] == _BEYOND:
        raise Corrupt(f"an outlier lies at element {places[-1]} of {n}")
    if fault[0] == _NEGATIVE_ZERO:
        raise Corrupt("an outlier is −0")
    return places, symbols, after


@subroutine
def _nbits(numbers, k):
    """Return the bits of the words of numbers >= 0 with the parameter k."""
    zeros, shift = np.uint64(0), np.uint64(k)  # vectors have logical shifts of 64 bits only
    for i in range(numbers.size):
        zeros += np.uint64(numbers[i]) >> shift
    return np.int64(zeros) + numbers.size * (k + 1)


@subroutine
def _best_parameter(numbers):
    """Return the first parameter with the fewest bits, and these bits, which are convex in it."""
    # Words are short where 2^k is about the mean, to which the words for k = 0 add one bit.
    mean = np.uint64(_nbits(numbers, 0) // numbers.size)
    k = min(63 - np.int64(leading_zeros(mean)), LARGEST)
    best = _nbits(numbers, k)
    while k > 0:
        nbits = _nbits(numbers, k - 1)
        if nbits > best:
            break
        k, best = k - 1, nbits
    while k < LARGEST:
        nbits = _nbits(numbers, k + 1)
        if nbits >= best:
            break
        k, best = k + 1, nbits
    return k, best


@kernel("in int64[], in int64[], out int64[], out int64[]")
def _plan_lists(places, symbols, gaps, plan):
    # symbols.size == gaps.size == places.size > 0; plan gets both parameters, and the bits.
    before = np.int64(-1)
    for i in range(places.size):
        gaps[i] = places[i] - before - 1
        before = places[i]
    plan[0], gap_nbits = _best_parameter(gaps)
    plan[1], symbol_nbits = _best_parameter(symbols)
    plan[2] = gap_nbits + symbol_nbits


@kernel("in int64[], in int64[], int64, int64, out uint8[], out uint64[]", vectorized=False)
def _put_lists(gaps, symbols, gap_k, symbol_k, out, state):
    # `out` has room for all bits, and for the slack of `put`.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    acc, have, at = put(out, at, acc, have, np.uint64(gap_k), np.uint64(RICE_NBITS))
    for i in range(gaps.size):
        acc, have, at = put_rice(out, at, acc, have, gaps[i], gap_k)
    acc, have, at = put(out, at, acc, have, np.uint64(symbol_k), np.uint64(RICE_NBITS))
    for i in range(symbols.size):
        acc, have, at = put_rice(out, at, acc, have, symbols[i], symbol_k)
    state[0], state[1], state[2] = np.uint64(at), acc, have


@subroutine
def _read_numbers(data, at, end, out, fault):
    """Read a parameter and out.size numbers; return the next bit, or TRUNCATED or CORRUPT."""
    if end - at < RICE_NBITS:
        return np.int64(TRUNCATED)
    k = peek(data, at) >> np.uint64(64 - RICE_NBITS)
    at += RICE_NBITS
    for i in range(out.size):
        number, at = _read_word(data, at, end, k)
        if at < 0:
            return at
        if number >> np.uint64(NUMBER_NBITS):
            fault[0] = _TOO_LARGE
        out[i] = np.int64(number)
    return at


@kernel("in uint8[], int64, int64, int64, out int64[], out int64[], out int64[]", vectorized=False)
def _read_lists(data, at, end, n, places, symbols, fault):
    # 0 <= at; end <= 8 * data.size; fault has a single element, 0.
    at = _read_numbers(data, at, end, places, fault)
    if at < 0:
        return at
    at = _read_numbers(data, at, end, symbols, fault)
    if at < 0 or fault[0]:
        return at
    before = np.int64(-1)
    for i in range(places.size):
        places[i] = min(places[i] + before + 1, _FAR)  # so that no sum overflows
        before = places[i]
        if symbols[i] == 1:
            fault[0] = _NEGATIVE_ZERO
    if before >= n:
        fault[0] = _BEYOND
    return at
