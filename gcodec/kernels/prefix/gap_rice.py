"""Positions as gaps in Rice words with adaptive parameters: one for each block of 32 gaps.

A gap is the number of positions skipped since the preceding position, or since the start. The word
of a gap for the parameter r is gap >> r zeros, a one, and the r low bits of the gap. A block of 32
words begins with its parameter. At the begin of a group of 4096, where reading can start, the
parameter has 6 bits; elsewhere it is coded by its difference d from that of the preceding block,
as 2d − 1 zeros and a one if d > 0, otherwise as −2d zeros and a one.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.bit_string import BitString, written
from gcodec.kernels.numeric.words import (
    MOST_PUT,
    leading_zeros,
    peek,
    put,
    put_long,
    put_zeros,
)
from gcodec.kernels.prefix.codewords import CORRUPT, TRUNCATED
from gcodec.kernels.prefix.value_classes import ComputedPositions
from gcodec.runtime import pool
from gcodec.runtime.jit import inline, kernel, subroutine

LOG2_GROUP = 12
_GROUP = 1 << LOG2_GROUP
BLOCK = 32
_CHUNK = 1 << 18  # positions whose parameters are chosen at a time, a multiple of a group
_FIRST_NBITS = 6  # bits of the parameter that begins a group
_MOST_RICE = 61  # largest parameter: gaps are below 2^62
MOST_HEADER_NBITS = 2 * _MOST_RICE + 1


def plan(positions: np.ndarray | ComputedPositions) -> tuple[np.ndarray, np.ndarray]:
    """Choose the Rice parameters.

    Parameters
    ----------
    positions : (k,) int64 array
        Rising positions.

    Returns
    -------
    parameters : (ceil(k / 32),) uint8 array
        Parameter of each block.
    offsets : (ceil(k / 4096) + 1,) int64 array
        Bit where each group begins, and where the last ends.
    """
    parameters = np.empty(-(-positions.size // BLOCK), np.uint8)
    offsets = np.zeros(-(-positions.size // _GROUP) + 1, np.int64)

    def task(start: int, stop: int) -> None:
        for at in range(start, stop, _CHUNK):
            before, end = int(positions[at - 1]) if at else -1, min(at + _CHUNK, stop)
            blocks = parameters[at // BLOCK : -(-end // BLOCK)]
            groups = offsets[at // _GROUP + 1 : -(-end // _GROUP) + 1]
            _choose_parameters(positions[at:end], before, blocks, groups)

    pool.run(task, positions.size, _GROUP)
    np.cumsum(offsets, out=offsets)
    return parameters, offsets


def write(
    positions: np.ndarray | ComputedPositions, parameters: np.ndarray, offsets: np.ndarray
) -> np.ndarray:
    """Return the string that `plan` chose as a (ceil(nbits / 8),) uint8 array."""

    def task(start: int, stop: int) -> BitString:
        nbits = int(offsets[-(-stop // _GROUP)] - offsets[start // _GROUP])
        string = BitString(0, nbits // 8 + 1)
        room = np.empty((2, BLOCK), np.uint64)
        for at in range(start, stop, _CHUNK):
            before, end = int(positions[at - 1]) if at else -1, min(at + _CHUNK, stop)
            blocks = parameters[at // BLOCK : -(-end // BLOCK)]
            _write_gaps(positions[at:end], before, blocks, *room, string.data, string.state)
        return string

    return written(task, positions.size, _GROUP)[0]


@inline
def _header_nbits(rice, last):
    """Return the bits of a parameter after the parameter `last`, < 0 at the begin of a group."""
    if last < 0:
        return _FIRST_NBITS
    return 2 * (rice - last) if rice > last else 2 * (last - rice) + 1


@kernel("in int64[], int64, out uint8[], out int64[]")
def _choose_parameters(positions, before, parameters, nbits):
    # `parameters` has an element for each block of the positions, `nbits` one for each group.
    total = 0
    last = -1
    for b in range(parameters.size):
        part = positions[b * BLOCK : min((b + 1) * BLOCK, positions.size)]
        if b * BLOCK % _GROUP == 0:
            last, total = -1, 0
        # Words are shortest where the mean gap is about 1.44 times 2^r.
        mean = np.uint64((part[part.size - 1] - before - part.size) // part.size)
        middle = 63 - np.int64(leading_zeros(np.uint64(mean - (mean >> np.uint64(2)) + 1)))
        first = min(max(middle - 1, 0), _MOST_RICE - 2)
        # Unsigned, since vectors of 64-bit lanes have only logical shifts.
        right = np.uint64(first)
        sums = halves = quarters = np.uint64(0)
        for i in range(part.size):
            quotient = np.uint64(part[i] - before - 1) >> right
            before = part[i]
            sums += quotient
            halves += quotient >> np.uint64(1)
            quarters += quotient >> np.uint64(2)
        best = first
        least = np.int64(sums) + _header_nbits(first, last)
        for k in range(1, 3):
            quotients = halves if k == 1 else quarters
            length = np.int64(quotients) + k * part.size + _header_nbits(first + k, last)
            if length < least:
                best, least = first + k, length
        parameters[b] = np.uint8(best)
        last = best
        total += least + part.size * (first + 1)
        nbits[b * BLOCK // _GROUP] = total


@subroutine
def _put_word(out, at, acc, have, word, nbits, rice):
    """Put a word of any length; `word` lacks its leading zeros."""
    if nbits > np.uint64(MOST_PUT):
        acc, have, at = put_zeros(out, at, acc, have, np.int64(nbits) - rice - 1)
        nbits = np.uint64(rice + 1)
    return put_long(out, at, acc, have, word, nbits)


@kernel("in int64[], int64, in uint8[], out uint64[], out uint64[], out uint8[], out uint64[]")
def _write_gaps(positions, before, parameters, words, lengths, out, state):
    # out has room for all bits, and for the slack of `put`.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    last = -1
    for b in range(parameters.size):
        rice = np.int64(parameters[b])
        if b * BLOCK % _GROUP == 0:
            acc, have, at = put(out, at, acc, have, np.uint64(rice), np.uint64(_FIRST_NBITS))
        else:
            nbits = _header_nbits(rice, last)
            acc, have, at = put_zeros(out, at, acc, have, nbits - MOST_PUT)
            nbits = min(nbits, MOST_PUT)
            acc, have, at = put(out, at, acc, have, np.uint64(1), np.uint64(nbits))
        last = rice
        one = np.uint64(1) << np.uint64(rice)
        low, right, least = one - np.uint64(1), np.uint64(rice), np.uint64(rice + 1)
        part = positions[b * BLOCK : min((b + 1) * BLOCK, positions.size)]
        for i in range(part.size):  # part.size <= BLOCK == words.size == lengths.size
            gap = np.uint64(part[i] - before - 1)
            before = part[i]
            words[i], lengths[i] = one | (gap & low), (gap >> right) + least
        i = 0
        while i + 4 <= part.size:  # four words at once
            lower_nbits = lengths[i + 2] + lengths[i + 3]
            together = lengths[i] + lengths[i + 1] + lower_nbits
            if together <= np.uint64(MOST_PUT):
                upper = words[i] << lengths[i + 1] | words[i + 1]
                lower = words[i + 2] << lengths[i + 3] | words[i + 3]
                word = upper << lower_nbits | lower
                acc, have, at = put(out, at, acc, have, word, together)
            else:
                for j in range(i, i + 4):
                    acc, have, at = _put_word(out, at, acc, have, words[j], lengths[j], rice)
            i += 4
        for j in range(i, part.size):
            acc, have, at = _put_word(out, at, acc, have, words[j], lengths[j], rice)
    state[0], state[1], state[2] = np.uint64(at), acc, have


@inline
def _zeros(data, at, end, most):
    """Count zeros before a one: (zeros, bit after the one), or (0, TRUNCATED or CORRUPT)."""
    count = 0
    while True:
        if at >= end:
            return np.int64(0), np.int64(TRUNCATED)
        word = peek(data, at)  # zeros after the data
        leading = np.int64(leading_zeros(word))
        count += leading
        at += leading
        if count > most:  # zeros of which the last may lie after the end
            return np.int64(0), np.int64(TRUNCATED if at >= end else CORRUPT)
        if leading < 64:
            return count, at + 1


@inline
def _low(word, zeros, rice):
    """Return the `rice` bits of `word` that follow its leading zeros and a one."""
    return (word << np.uint64(zeros) << np.uint64(1)) >> np.uint64(63 - rice) >> np.uint64(1)


@kernel(
    "in uint8[], int64, int64, int64, boolean, out int64[], out int64[], out int64[]",
    vectorized=False,
)
def read_gap_blocks(data, end, n, block_size, chained, starts, lasts, positions):
    """Read blocks of positions.

    Parameters
    ----------
    data : uint8 array
    end : int
        Bit where the string ends.
    n : int
        Number of elements, up to 2^62; positions are below it.
    block_size : int
        Positions of each block but the last, a multiple of a group.
    chained : bool
        Whether `starts` and `lasts` are set; each block must then end where the next one begins.
    starts, lasts : (count + 1,) int64 array
        Bit where each block begins and the last ends; position, counted from 1, before each block
        and of the last element. If not `chained`, only the first of both is set, and the reader
        writes the others. On an error, starts[-1] becomes TRUNCATED or CORRUPT.
    positions : int64 array
        Receives the positions.
    """
    blocks = starts.size - 1
    for b in range(blocks):
        at, last = starts[b], np.uint64(lasts[b])
        rice = np.int64(0)
        i, stop = b * block_size, min((b + 1) * block_size, positions.size)
        while i < stop:
            if i % _GROUP == 0:
                rice = np.int64(peek(data, at) >> np.uint64(64 - _FIRST_NBITS))
                at += _FIRST_NBITS
            else:
                step, at = _zeros(data, at, end, MOST_HEADER_NBITS - 1)
                if at < 0:
                    starts[blocks] = at
                    return
                rice += (step + 1) >> 1 if step & 1 else -(step >> 1)
            if rice < 0 or rice > _MOST_RICE:
                starts[blocks] = CORRUPT
                return
            upto = min(i + BLOCK, stop)  # stop <= positions.size
            while i < upto:
                word = peek(data, at)
                zeros = np.int64(leading_zeros(word))
                used = zeros + rice + 1
                if used <= 64:
                    at += used
                    last += (np.uint64(zeros) << np.uint64(rice)) + _low(word, zeros, rice)
                    positions[i] = np.int64(last)
                    last += np.uint64(1)
                    i += 1
                    # Another word of the same 64 bits, if they contain all of it.
                    word = word << np.uint64(used - 1) << np.uint64(1)
                    zeros = np.int64(leading_zeros(word))
                    if i < upto and used + zeros + rice + 1 <= 64:
                        at += zeros + rice + 1
                        last += (np.uint64(zeros) << np.uint64(rice)) + _low(word, zeros, rice)
                        positions[i] = np.int64(last)
                        last += np.uint64(1)
                        i += 1
                else:
                    zeros, at = _zeros(data, at, end, n >> rice)
                    if at < 0:
                        starts[blocks] = at
                        return
                    last += np.uint64(zeros) << np.uint64(rice)
                    if rice:
                        last += peek(data, at) >> np.uint64(64 - rice)
                    at += rice
                    positions[i] = np.int64(last)
                    last += np.uint64(1)
                    i += 1
                # Zeros are at most n >> rice, or 2 if rice is 61, so nothing passes 64 bits.
                if last > np.uint64(n) or at > end:
                    starts[blocks] = TRUNCATED if at > end else CORRUPT
                    return
        if chained:
            if at != starts[b + 1] or np.int64(last) != lasts[b + 1]:
                starts[blocks] = CORRUPT
                return
        else:
            starts[b + 1], lasts[b + 1] = at, np.int64(last)
