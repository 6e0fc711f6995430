"""Positions as gaps in Rice words, whose parameter follows the gaps: one for each 32 of them.

Of rising positions, a gap is how many lie between one and the one before it, or the start. A word
of the parameter r is gap >> r zeros, a one, and the r low bits of the gap. Before the words of a
block of 32 stands its parameter: in 6 bits where a group of 4096 begins, so that reading can begin
there; else by its difference d to that of the block before, as 2d − 1 zeros and a one where d > 0,
as −2d zeros and a one where not.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.bit_string import BitString, written
from gcodec.kernels.numeric.words import leading_zeros, peek, put
from gcodec.kernels.prefix.codewords import CORRUPT, TRUNCATED
from gcodec.runtime import pool
from gcodec.runtime.jit import inline, kernel, subroutine

LOG2_GROUP = 12
_GROUP = 1 << LOG2_GROUP
BLOCK = 32
_FIRST_NBITS = 6  # of a parameter
_MOST_RICE = 61  # no gap below 2^62 needs more
MOST_HEADER_NBITS = 2 * _MOST_RICE + 1
_PUT = 56  # bits that are put at once


def plan(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Choose the parameters.

    Parameters
    ----------
    positions : (k,) int64 array
        Rising.

    Returns
    -------
    parameters : (ceil(k / 32),) uint8 array
    offsets : (ceil(k / 4096) + 1,) int64 array
        Bit where each group begins, and where the last ends.
    """
    parameters = np.empty(-(-positions.size // BLOCK), np.uint8)
    offsets = np.zeros(-(-positions.size // _GROUP) + 1, np.int64)

    def task(start: int, stop: int) -> None:
        before = int(positions[start - 1]) if start else -1
        blocks = parameters[start // BLOCK : -(-stop // BLOCK)]
        groups = offsets[start // _GROUP + 1 : -(-stop // _GROUP) + 1]
        _choose_parameters(positions[start:stop], before, blocks, groups)

    pool.run(task, positions.size, _GROUP)
    np.cumsum(offsets, out=offsets)
    return parameters, offsets


def write(positions: np.ndarray, parameters: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Write the string that was planned: a (ceil(nbits / 8),) uint8 array."""

    def task(start: int, stop: int) -> BitString:
        nbits = int(offsets[-(-stop // _GROUP)] - offsets[start // _GROUP])
        string = BitString(0, nbits // 8 + 1)
        before = int(positions[start - 1]) if start else -1
        blocks = parameters[start // BLOCK : -(-stop // BLOCK)]
        room = np.empty((2, BLOCK), np.uint64)
        _write_gaps(positions[start:stop], before, blocks, *room, string.data, string.state)
        return string

    return written(task, positions.size, _GROUP)[0]


@inline
def _header_nbits(rice, last):
    """Return the bits of a parameter, last < 0 at the begin of a group."""
    if last < 0:
        return _FIRST_NBITS
    return 2 * (rice - last) if rice > last else 2 * (last - rice) + 1


@kernel("in int64[], int64, out uint8[], out int64[]")
def _choose_parameters(positions, before, parameters, nbits):
    # parameters and nbits have one for each block and group of the positions.
    total = 0
    last = -1
    for b in range(parameters.size):
        part = positions[b * BLOCK : min((b + 1) * BLOCK, positions.size)]
        if b * BLOCK % _GROUP == 0:
            last, total = -1, 0
        # About where the mean gap is 1.44 times 2^r the words are shortest.
        mean = np.uint64((part[part.size - 1] - before - part.size) // part.size)
        middle = 63 - np.int64(leading_zeros(np.uint64(mean - (mean >> np.uint64(2)) + 1)))
        first = min(max(middle - 1, 0), _MOST_RICE - 2)
        # Unsigned, since vectors of 64 bits have no other shift.
        right = np.uint64(first)
        quotient = np.uint64(part[0] - before - 1) >> right
        sums, halves, quarters = quotient, quotient >> np.uint64(1), quotient >> np.uint64(2)
        for i in range(1, part.size):
            quotient = np.uint64(part[i] - part[i - 1] - 1) >> right
            sums += quotient
            halves += quotient >> np.uint64(1)
            quarters += quotient >> np.uint64(2)
        one, two, three = np.int64(sums), np.int64(halves), np.int64(quarters)
        before = part[part.size - 1]
        best = first
        least = one + _header_nbits(first, last)
        if two + part.size + _header_nbits(first + 1, last) < least:
            best, least = first + 1, two + part.size + _header_nbits(first + 1, last)
        if three + 2 * part.size + _header_nbits(first + 2, last) < least:
            best, least = first + 2, three + 2 * part.size + _header_nbits(first + 2, last)
        parameters[b] = np.uint8(best)
        last = best
        total += least + part.size * (first + 1)
        nbits[b * BLOCK // _GROUP] = total


@inline
def _put_zeros(out, at, acc, have, count):
    while count > 0:
        acc, have, at = put(out, at, acc, have, np.uint64(0), np.uint64(min(count, _PUT)))
        count -= _PUT
    return acc, have, at


@subroutine(variant="gap")
def _put_word(out, at, acc, have, word, nbits, rice):
    """Put a word of any length, given without its zeros."""
    if nbits > np.uint64(_PUT):
        acc, have, at = _put_zeros(out, at, acc, have, np.int64(nbits) - rice - 1)
        nbits = np.uint64(rice + 1)
        if nbits > np.uint64(_PUT):
            nbits -= np.uint64(_PUT)
            acc, have, at = put(out, at, acc, have, word >> np.uint64(_PUT), nbits)
            nbits = np.uint64(_PUT)
            word &= np.uint64((1 << _PUT) - 1)
    return put(out, at, acc, have, word, nbits)


@kernel("in int64[], int64, in uint8[], out uint64[], out uint64[], out uint8[], out uint64[]")
def _write_gaps(positions, before, parameters, words, lengths, out, state):
    # out has room for all bits, and the slack that putting needs.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    last = -1
    for b in range(parameters.size):
        rice = np.int64(parameters[b])
        if b * BLOCK % _GROUP == 0:
            acc, have, at = put(out, at, acc, have, np.uint64(rice), np.uint64(_FIRST_NBITS))
        else:
            nbits = _header_nbits(rice, last)
            acc, have, at = _put_zeros(out, at, acc, have, nbits - _PUT)
            nbits = min(nbits, _PUT)
            acc, have, at = put(out, at, acc, have, np.uint64(1), np.uint64(nbits))
        last = rice
        one = np.uint64(1) << np.uint64(rice)
        low, right, least = one - np.uint64(1), np.uint64(rice), np.uint64(rice + 1)
        part = positions[b * BLOCK : min((b + 1) * BLOCK, positions.size)]
        gap = np.uint64(part[0] - before - 1)
        words[0], lengths[0] = one | (gap & low), (gap >> right) + least
        for i in range(1, part.size):  # part.size <= BLOCK == words.size == lengths.size
            gap = np.uint64(part[i] - part[i - 1] - 1)
            words[i], lengths[i] = one | (gap & low), (gap >> right) + least
        before = part[part.size - 1]
        i = 0
        while i + 4 <= part.size:  # four words at once
            behind = lengths[i + 2] + lengths[i + 3]
            together = lengths[i] + lengths[i + 1] + behind
            if together <= np.uint64(_PUT):
                upper = words[i] << lengths[i + 1] | words[i + 1]
                lower = words[i + 2] << lengths[i + 3] | words[i + 3]
                word = upper << behind | lower
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
    """Count zeros before a one: (zeros, bit behind the one), or (.., TRUNCATED or CORRUPT)."""
    count = 0
    while True:
        if at >= end:
            return np.int64(0), np.int64(TRUNCATED)
        word = peek(data, at)  # zeros behind the data
        found = np.int64(leading_zeros(word))
        count += found
        at += found
        if count > most:  # of which some may be behind the end
            return np.int64(0), np.int64(TRUNCATED if at >= end else CORRUPT)
        if found < 64:
            return count, at + 1


@inline
def _low(word, zeros, rice):
    """Return the `rice` bits behind as many zeros and a one, of all those of a word."""
    return (word << np.uint64(zeros) << np.uint64(1)) >> np.uint64(63 - rice) >> np.uint64(1)


def read_blocks(
    data: np.ndarray,
    end: int,
    n: int,
    every: int,
    known: bool,
    starts: np.ndarray,
    lasts: np.ndarray,
    positions: np.ndarray,
) -> None:
    """Read blocks of positions.

    Parameters
    ----------
    data : uint8 array
    end : int
        The bit where the string ends.
    n : int
        Elements, up to 2^62.
    every : int
        Positions of a block, but for the last: a multiple of a group.
    known : bool
        Whether blocks are known to begin where `starts` and `lasts` say, and must.
    starts, lasts : (count + 1,) int64 array
        The bit where each block begins and the last ends, and the position, from 1 on, before
        each and of the last. If not known, those behind the first become what is found.
        starts[-1] becomes TRUNCATED or CORRUPT where something is wrong.
    positions : int64 array
        Those that are read.
    """
    _read_gaps(data, end, n, every, known, starts, lasts, positions)


@kernel("in uint8[], int64, int64, int64, boolean, out int64[], out int64[], out int64[]")
def _read_gaps(data, end, n, every, known, starts, lasts, positions):
    blocks = starts.size - 1
    for b in range(blocks):
        at, last = starts[b], np.uint64(lasts[b])
        rice = np.int64(0)
        i, stop = b * every, min((b + 1) * every, positions.size)
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
                    # Another word of the same 64 bits, if it is all there.
                    word = word << np.uint64(used - 1) << np.uint64(1)
                    more = np.int64(leading_zeros(word))
                    if i < upto and used + more + rice + 1 <= 64:
                        at += more + rice + 1
                        last += (np.uint64(more) << np.uint64(rice)) + _low(word, more, rice)
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
                # No zeros pass n >> rice, or 2 where rice is 61: nothing here passes 64 bits.
                if last > np.uint64(n) or at > end:
                    starts[blocks] = TRUNCATED if at > end else CORRUPT
                    return
        if known:
            if at != starts[b + 1] or np.int64(last) != lasts[b + 1]:
                starts[blocks] = CORRUPT
                return
        else:
            starts[b + 1], lasts[b + 1] = at, np.int64(last)
