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
from gcodec.runtime.jit import inline, kernel, subroutine

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
    least = np.uint8(MOST)
    for i in range(at, at + k):
        least = min(least, magnitudes[i])
    best, nbits = 0, np.int64(k * (NBITS + 1 + MOST))
    for code in range(_FIXED + 1):
        if code < _FIXED:
            total = np.int64(_sum_of_quotients(magnitudes, at, k, least, code)) + k * (1 + code)
        else:
            total = k * _width(np.int64(least))
        if total < nbits:
            best, nbits = code, total
    return np.int64(least), best


@inline
def _sum_of_quotients(magnitudes, at, k, least, code):
    """Return the zeros of k Rice words, fewer than 2^32; lanes of 32 bits add them up."""
    zeros, shift = np.uint32(0), np.uint32(code)
    for i in range(at, at + k):
        distance = np.uint32(magnitudes[i]) - np.uint32(least)
        zeros = np.uint32(zeros + np.uint32(np.uint32(distance) >> shift))
    return zeros


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


@subroutine
def _zeros_from(data, at):
    """Count the zeros from bit `at` on, up to a one or beyond MOST."""
    zeros, more = np.int64(0), np.int64(64)
    while more == 64 and zeros <= MOST:
        more = np.int64(leading_zeros(peek(data, at + zeros)))
        zeros += more
    return zeros


@kernel("in uint8[], int64, int64, int64, out uint8[]")
def _read(data, at, end, k, magnitudes):
    # 0 <= at; bits after the data are read as 0. magnitudes.size is a multiple of k.
    for first in range(0, magnitudes.size, k):
        head = np.int64(peek(data, at) >> np.uint64(64 - HEAD_NBITS))
        at += HEAD_NBITS
        least, code = head >> 3, head & 7
        width = code if code < _FIXED else _width(least)
        word, left = peek(data, at), np.int64(64)  # the bits from `at` on, and their number
        for i in range(first, first + k):
            zeros, nbits = np.int64(0), width
            if code < _FIXED:
                zeros = np.int64(leading_zeros(word))
                if zeros + width < left:  # so the word contains the one and the low bits
                    word <<= np.uint64(zeros)
                else:
                    zeros = _zeros_from(data, at)
                    word, left = peek(data, at + zeros), zeros + 64
                word <<= np.uint64(1)
                nbits += zeros + 1
            elif width > left:
                word, left = peek(data, at), np.int64(64)
            distance = zeros << code | np.int64(word >> np.uint64(1) >> np.uint64(63 - width))
            word <<= np.uint64(width)
            left -= nbits
            at += nbits
            if at > end:
                return np.int64(TRUNCATED)
            if least + distance > MOST:
                return np.int64(CORRUPT)
            magnitudes[i] = np.uint8(least + distance)
        if _best_code(magnitudes, first, k) != (least, code):
            return np.int64(CORRUPT)
    return np.int64(at)
