"""Magnitudes of 7 bits, in words of a code that each chunk selects.

A chunk begins with its least magnitude in 7 bits and, in 3 bits, the code for the distance d of
each magnitude from the least. Codes 0 to 6 are Rice codes with the parameter r of that number: d
>> r zeros, a one, and the r low bits of d. Code 7 has a fixed width, the bit length of 127 less
the least magnitude. The writer selects the first of the shortest codes, and the reader rejects any
other.
"""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.numeric.words import leading_zeros, peek, put
from gcodec.kernels.prefix.codewords import CORRUPT, TRUNCATED
from gcodec.kernels.prefix.rice_words import put_rice
from gcodec.runtime.jit import kernel, subroutine

MOST = 127
NBITS = 7  # bits of a magnitude
HEAD_NBITS = 10
_FIXED = 7  # the code of fixed width


def write(magnitudes: np.ndarray, string: BitString) -> None:
    """Append the magnitudes of m chunks, an (m, k) uint8 array, to a string."""
    m, k = magnitudes.shape
    string.reserve(m * (HEAD_NBITS + NBITS * k) // 8 + 1)
    _write(magnitudes.reshape(-1), k, string.data, string.state)


def read(data: np.ndarray, first: int, end: int, m: int, k: int) -> tuple[np.ndarray, int]:
    """Read magnitudes from bit `first` on; return them as (m, k) uint8, and the next bit.

    Raises
    ------
    Truncated, Corrupt
    """
    if end - first < m * HEAD_NBITS:  # checked before memory is allocated for the magnitudes
        raise Truncated(f"the payload has {end - first} bits for the magnitudes of {m} chunks")
    magnitudes = np.empty(m * k, np.uint8)
    after = int(_read(data, first, end, k, magnitudes))
    if after == TRUNCATED:
        raise Truncated("the payload ends within its magnitudes")
    if after == CORRUPT:
        raise Corrupt("the magnitudes of a chunk are not in the words of its shortest code")
    return magnitudes.reshape(m, k), after


@subroutine
def _best_code(magnitudes, at, k):
    """Return the least of k > 0 magnitudes from `at` on, and their shortest code."""
    least = np.int64(MOST)
    for i in range(at, at + k):
        least = min(least, np.int64(magnitudes[i]))
    best, nbits = 0, np.int64(k * (NBITS + 1 + MOST))
    for code in range(_FIXED + 1):
        total = 0
        if code < _FIXED:
            for i in range(at, at + k):
                total += ((np.int64(magnitudes[i]) - least) >> code) + 1 + code
        else:
            total = k * _width(least)
        if total < nbits:
            best, nbits = code, total
    return least, best


@subroutine
def _width(least):
    """Return the bit length of the largest distance from the least magnitude."""
    return 64 - np.int64(leading_zeros(np.uint64(MOST - least)))


@kernel("in uint8[], int64, out uint8[], out uint64[]")
def _write(magnitudes, k, out, state):
    # out has room for all bits, and for the slack of `put`.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    for first in range(0, magnitudes.size, k):
        least, code = _best_code(magnitudes, first, k)
        head = np.uint64(least << 3 | code)
        acc, have, at = put(out, at, acc, have, head, np.uint64(HEAD_NBITS))
        for i in range(first, first + k):
            distance = np.int64(magnitudes[i]) - least
            if code < _FIXED:
                acc, have, at = put_rice(out, at, acc, have, distance, np.int64(code))
            else:
                nbits = np.uint64(_width(least))
                acc, have, at = put(out, at, acc, have, np.uint64(distance), nbits)
    state[0], state[1], state[2] = np.uint64(at), acc, have


@kernel("in uint8[], int64, int64, int64, out uint8[]")
def _read(data, at, end, k, magnitudes):
    # 0 <= at; bits after the data are read as 0. magnitudes.size is a multiple of k.
    for first in range(0, magnitudes.size, k):
        head = np.int64(peek(data, at) >> np.uint64(64 - HEAD_NBITS))
        at += HEAD_NBITS
        least, code = head >> 3, head & 7
        width = code if code < _FIXED else _width(least)
        for i in range(first, first + k):
            distance = np.int64(0)
            if code < _FIXED:
                zeros = np.int64(0)
                word = peek(data, at)
                while word == 0 and zeros <= MOST:
                    zeros += 64
                    word = peek(data, at + zeros)
                zeros += np.int64(leading_zeros(word)) if word else 0
                at += zeros + 1
                distance = zeros << code
            if width:
                distance |= np.int64(peek(data, at) >> np.uint64(64 - width))
                at += width
            if at > end:
                return np.int64(TRUNCATED)
            if least + distance > MOST:
                return np.int64(CORRUPT)
            magnitudes[i] = np.uint8(least + distance)
        if _best_code(magnitudes, first, k) != (least, code):
            return np.int64(CORRUPT)
    return np.int64(at)
