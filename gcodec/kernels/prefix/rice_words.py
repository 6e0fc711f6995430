"""Single Rice words, for kernels that read and write short lists of numbers."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.words import leading_zeros, peek, put
from gcodec.runtime.jit import subroutine

LARGEST = 31  # largest parameter
MISSING = -1  # in place of the next bit, if the string ends within a word

_MOST_ZEROS = 1 << 31  # words with more zeros are read as 2^62
_ONE, _WORD = np.uint64(1), 64


@subroutine
def read_rice(data, at, end, k):
    """Read the word at bit `at`; return the number and the next bit, at most `end`.

    0 <= at, end <= 8 * data.size, 0 <= k <= LARGEST.
    """
    zeros, place = np.int64(0), at
    word = peek(data, place)
    while word == 0 and place < end:
        zeros, place = zeros + _WORD, place + _WORD
        word = peek(data, place)
    leading = np.int64(leading_zeros(word)) if place < end else 0
    zeros, place = zeros + leading, place + leading + 1  # leading < _WORD, as the word is not 0
    low = peek(data, place) >> _ONE >> np.uint64(63 - k)
    if place + k > end:
        return np.int64(0), np.int64(MISSING)
    number = (zeros << k) + np.int64(low) if zeros < _MOST_ZEROS else np.int64(1) << 62
    return number, place + k


@subroutine
def put_rice(out, at, acc, have, number, k):
    """Put the word of a number >= 0; see `words.put` for the other arguments."""
    zeros, low = number >> k, np.int64((1 << k) - 1)
    while zeros > 24:
        acc, have, at = put(out, at, acc, have, np.uint64(0), np.uint64(24))
        zeros -= 24
    word = np.uint64(number & low | 1 << k)
    return put(out, at, acc, have, word, np.uint64(zeros + k + 1))
