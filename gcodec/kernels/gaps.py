"""Two-bit codes of which few are sent: their signs, then the gaps between them as Rice codes.

Payload, MSB first: for each sent code, in order, 1 if it is negative; then for each the number g
of codes since the one before it (or the start) that are not sent: g >> k zeros, a one, and the k
low bits of g. The codes themselves are those of MXNet: 11, 10, and 00 for not sent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.jit import inline, kernel
from gcodec.kernels.pack import check_padding
from gcodec.kernels.threshold import TWO_BIT
from gcodec.kernels.words import count_ones, leading_zeros, load_word, store_word, swapped

MOST_RICE = 47
_SENT = 0xAAAAAAAA  # upper bits of the 16 codes of a word
_WORD = 16  # codes
_SLACK = 8  # bytes behind a payload that a word may reach
_WINDOW = 56  # bits that a word holds from any bit of its first byte on


class Plan(NamedTuple):
    """How a tensor's sent codes are written.

    Attributes
    ----------
    sent : int
        Codes that are sent.
    rice : int
        The least Rice parameter k that makes the payload shortest.
    nbits : int
        Bits of the payload.
    """

    sent: int
    rice: int
    nbits: int


def plan(codes: np.ndarray, below: int | None = None) -> Plan | None:
    """Find the shortest payload of packed codes.

    Parameters
    ----------
    codes : (4·ceil(n / 16),) uint8 array
    below : int, optional
        Return None, the sooner the better, unless it has fewer bits than this.
    """
    words = _words(codes)
    found = np.zeros(2, np.int64)
    _count(words, found)
    count, end = int(found[0]), int(found[1])
    if count == 0:
        return Plan(0, 0, 0) if below is None or below > 0 else None
    skipped = end - count
    if below is not None:
        least = min(_least(count, skipped, k) for k in range(MOST_RICE + 1))
        if least >= below:
            return None
    # The length is convex in k: three neighbours at a time, until the best has neighbours.
    first = max((skipped // count).bit_length() - 2, 0)
    totals = np.zeros(3, np.int64)
    while True:
        _quotients(words, first, totals)
        lengths = [count * (2 + first + k) + int(total) for k, total in enumerate(totals)]
        best = lengths.index(min(lengths))
        if best == 0 and first > 0:
            first -= 1
        elif best == 2 and first + 2 < MOST_RICE:
            first += 1
        else:
            break
    if below is not None and lengths[best] >= below:
        return None
    return Plan(count, first + best, lengths[best])


def _least(count: int, skipped: int, rice: int) -> int:
    """Bound the length from below by the sum of the gaps alone."""
    return count * (2 + rice) + max(skipped - count * ((1 << rice) - 1), 0) // (1 << rice)


def write(codes: np.ndarray, made: Plan) -> np.ndarray:
    """Write the payload of packed codes by their plan: (ceil(nbits / 8),) uint8."""
    size = -(-made.nbits // 8)
    out = np.zeros(size + _SLACK, np.uint8)
    _write(_words(codes), made.sent, made.rice, out)
    return out[:size]


def read(data: np.ndarray, nbits: int, count: int, rice: int, n: int) -> np.ndarray:
    """Read a payload of `count` sent codes among n: the packed codes.

    Raises
    ------
    Truncated, Corrupt
    """
    if count > n:
        raise Corrupt(f"{count} of {n} elements cannot have been sent")
    if nbits < count * (2 + rice):
        raise Truncated(f"the payload has {nbits} bits for {count} sent elements")
    check_padding(data, nbits)
    padded = np.zeros(data.size + _SLACK, np.uint8)
    padded[: data.size] = data
    codes = np.zeros(TWO_BIT.nbytes(n), np.uint8)
    end = np.zeros(1, np.int64)
    _read(padded, nbits, count, rice, n, codes, end)
    if end[0] != nbits:
        raise Corrupt("the gaps do not end where the payload ends", max(int(end[0]), 0) // 8)
    best = plan(codes)
    assert best is not None
    if best.rice != rice:
        raise Corrupt(f"the Rice parameter {rice} is not the one that makes the payload shortest")
    return codes


def _words(codes: np.ndarray) -> np.ndarray:
    return np.require(codes, requirements=["C", "A"]).view(np.uint32)


@inline
def _sent(words, i):
    """Return the upper bit of each sent code of word i, the first code highest."""
    return np.uint32(swapped(words[i]) & np.uint32(_SENT))


@kernel("in uint32[], out int64[]")
def _count(words, found):
    # found.size == 2: sent codes, and the place behind the last of them
    count, end = 0, 0
    for i in range(words.size):
        bits = _sent(words, i)
        count += np.int64(count_ones(bits))
        if bits:
            # The lowest of the bits is the last code.
            low = np.uint32(bits & np.uint32(~bits + np.uint32(1)))
            end = i * _WORD + np.int64(leading_zeros(low)) // 2 + 1
    found[0], found[1] = count, end


@kernel("in uint32[], int64, out int64[]")
def _quotients(words, first, totals):
    # totals.size == 3: the sums of gap >> k for k = first, first + 1, first + 2
    before = -1
    one, two, three = 0, 0, 0
    for i in range(words.size):
        bits = _sent(words, i)
        while bits:
            lead = leading_zeros(bits)
            place = i * _WORD + np.int64(lead) // 2
            gap = (place - before - 1) >> first
            one, two, three = one + gap, two + (gap >> 1), three + (gap >> 2)
            before = place
            bits = np.uint32(bits ^ np.uint32(np.uint32(0x80000000) >> lead))
    totals[0], totals[1], totals[2] = one, two, three


@inline
def _put(out, at, value, width):
    """Write the `width` <= _WINDOW bits of value at bit `at`, where all is zero so far."""
    byte = at >> 3
    shift = np.uint64(64 - (at & 7) - width)
    word = swapped(load_word(out, byte)) | np.uint64(value) << shift
    store_word(out, byte, swapped(word))


@kernel("in uint32[], int64, int64, out uint8[]")
def _write(words, count, rice, out):
    # out holds the bits that the plan tells, and _SLACK bytes: so a word fits at each of them.
    signs, gaps = 0, count
    before = -1
    low = (np.int64(1) << rice) - 1
    for i in range(words.size):
        word = swapped(words[i])
        bits = _sent(words, i)
        while bits:
            lead = leading_zeros(bits)
            place = i * _WORD + np.int64(lead) // 2
            gap = place - before - 1
            before = place
            # The lower bit of the code, just behind the upper one, is 1 for +.
            plus = np.uint32(word >> np.uint32(np.uint32(30) - lead)) & np.uint32(1)
            _put(out, signs, np.uint64(1) - np.uint64(plus), 1)
            signs += 1
            gaps += gap >> rice  # that many zeros
            _put(out, gaps, np.uint64((low + 1) | (gap & low)), rice + 1)
            gaps += rice + 1
            bits = np.uint32(bits ^ np.uint32(np.uint32(0x80000000) >> lead))


@inline
def _window(data, at):
    """Return the bits from `at` on, at the top of a word: at least _WINDOW of them."""
    return swapped(load_word(data, at >> 3)) << np.uint64(at & 7)


@kernel("in uint8[], int64, int64, int64, int64, out uint8[], out int64[]")
def _read(data, nbits, count, rice, n, codes, end):
    # data has _SLACK bytes behind its nbits, of which there are at least `count`; rice <
    # _WINDOW; codes holds n fields of 2 bits. end[0] becomes where the gaps end, or -1.
    end[0] = -1
    at = count
    before = -1
    for sent in range(count):
        quotient = 0
        while True:
            if at >= nbits:  # so the word at at >> 3 lies in data
                return
            zeros = min(np.int64(leading_zeros(_window(data, at))), _WINDOW)
            quotient += zeros
            at += zeros
            if zeros < _WINDOW:
                break
        at += 1
        if at + rice > nbits or quotient > n >> rice:
            return
        rest = np.int64(0)
        if rice:
            rest = np.int64(_window(data, at) >> np.uint64(64 - rice))
        at += rice
        place = before + 1 + (quotient << rice) + rest
        if place >= n:
            return
        before = place
        minus = np.int64(data[sent >> 3] >> np.uint8(7 - (sent & 7))) & 1  # sent < count <= nbits
        codes[place >> 2] |= np.uint8((3 - minus) << (6 - 2 * (place & 3)))  # place < n
    end[0] = at
