"""Integers below 2^15 with their lengths: 4 bits of length, and the bits without the highest one.

The length of 0 is 0.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.numeric.words import leading_zeros, peek, put
from gcodec.runtime.jit import kernel

LENGTH_NBITS = 4
_MOST_NBYTES = 3  # of an integer
_ONE = np.uint64(1)


def write_sized(numbers: np.ndarray, string: BitString) -> None:
    """Append (n,) int64 numbers to a string."""
    string.reserve(_MOST_NBYTES * numbers.size)
    _write_sized(numbers, string.data, string.state)


def read_sized(data: np.ndarray, at: int, end: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Read numbers from bit `at` of a uint8 array up to bit `end`.

    Returns
    -------
    numbers : (n,) int64 array
        `count` numbers, or fewer if the bits end.
    ends : (n,) int64 array
        The bit after each number.
    """
    numbers, ends = np.empty((2, count), np.int64)
    read = _read_sized(data, at, end, numbers, ends)
    return numbers[:read], ends[:read]


@kernel("in int64[], out uint8[], out uint64[]", vectorized=False)
def _write_sized(numbers, out, state):
    # After byte state[0], `out` has 3 bytes for each number and the slack of a string.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    for k in range(numbers.size):
        number = np.uint64(numbers[k])
        length = np.uint64(64) - leading_zeros(number)
        tail = max(length, _ONE) - _ONE
        bits = length << tail | number & ((_ONE << tail) - _ONE)
        acc, have, at = put(out, at, acc, have, bits, np.uint64(LENGTH_NBITS) + tail)
    state[0], state[1], state[2] = np.uint64(at), acc, have


@kernel("in uint8[], int64, int64, out int64[], out int64[]", vectorized=False)
def _read_sized(data, at, end, numbers, ends):
    """Return how many numbers precede the end."""
    # ends.size == numbers.size; `peek` reads zeros after the data
    for k in range(numbers.size):
        word = peek(data, at)
        length = np.int64(word >> np.uint64(64 - LENGTH_NBITS))
        tail = max(length, 1) - 1  # at most 14
        at += LENGTH_NBITS + tail
        if at > end:
            return k
        lower = (word << np.uint64(LENGTH_NBITS)) >> np.uint64(63 - tail) >> _ONE
        numbers[k] = np.int64(lower) | (1 << tail if length > 0 else 0)
        ends[k] = at
    return numbers.size
