"""Lists of exceptions: where they are, by the gaps between them, and what they are, in Rice words.

See `gcodec.entropy.context.outliers`.
"""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.numeric.words import peek, put
from gcodec.kernels.prefix.rice_words import LARGEST, MISSING, put_rice, read_rice
from gcodec.runtime.jit import kernel, subroutine

RICE_NBITS = 5  # bits of a parameter

_NBITS = 40  # bits of numbers at most
_ROOM = 16  # bytes more than words take
_LARGE, _BEHIND, _MINUS = 1, 2, 3  # what may be wrong


def put_lists(places: np.ndarray, symbols: np.ndarray, string: BitString) -> None:
    """Put (k,) int64 places, which rise, and (k,) int64 symbols at the end of a string, k > 0."""
    found = np.zeros(2 * (LARGEST + 1), np.int64)
    _tell_both(places, symbols, found)
    sizes = found.reshape(2, -1).tolist()
    fewest = [min(each) for each in sizes]
    ks = [each.index(nbits) for each, nbits in zip(sizes, fewest, strict=True)]
    string.reserve(sum(fewest) // 8 + _ROOM)
    _put_both(places, symbols, *ks, string.data, string.state)


def read_lists(
    data: np.ndarray, at: int, end: int, count: int, n: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Read so many places, below n, and symbols, from bit `at` on; return the next bit too.

    Raises
    ------
    FormatError
    """
    if 2 * (RICE_NBITS + count) > end - at:
        raise Truncated(f"the bits end within a list of exceptions, at bit {end}")
    places, symbols = np.empty(count, np.int64), np.empty(count, np.int64)
    wrong = np.zeros(1, np.int64)
    after = int(_read_both(data, at, end, n, places, symbols, wrong))
    if after == MISSING:
        raise Truncated(f"the bits end within a list of exceptions, at bit {end}")
    if wrong[0] == _LARGE:
        raise Corrupt(f"a list of exceptions has a number of more than {_NBITS} bits")
    if wrong[0] == _BEHIND:
        raise Corrupt(f"an exception lies at element {places[-1]} of {n}")
    if wrong[0] == _MINUS:
        raise Corrupt("an exception is −0")
    return places, symbols, after


@kernel("in int64[], in int64[], out int64[]")
def _tell_both(places, symbols, sizes):
    # Bits of Rice words of each parameter, added to zeros: of gaps, and of symbols.
    of_gaps, of_symbols = sizes[: LARGEST + 1], sizes[LARGEST + 1 :]
    before = np.int64(-1)
    for i in range(places.size):
        for k in range(LARGEST + 1):
            of_gaps[k] += ((places[i] - before - 1) >> k) + k + 1
            of_symbols[k] += (symbols[i] >> k) + k + 1
        before = places[i]


@kernel("in int64[], in int64[], int64, int64, out uint8[], out uint64[]")
def _put_both(places, symbols, of_gaps, of_symbols, out, state):
    # out has room for all bits, and the slack that putting needs.
    at, acc, have = np.int64(state[0]), state[1], state[2]
    acc, have, at = put(out, at, acc, have, np.uint64(of_gaps), np.uint64(RICE_NBITS))
    before = np.int64(-1)
    for i in range(places.size):
        acc, have, at = put_rice(out, at, acc, have, places[i] - before - 1, of_gaps)
        before = places[i]
    acc, have, at = put(out, at, acc, have, np.uint64(of_symbols), np.uint64(RICE_NBITS))
    for i in range(symbols.size):
        acc, have, at = put_rice(out, at, acc, have, symbols[i], of_symbols)
    state[0], state[1], state[2] = np.uint64(at), acc, have


@subroutine(variant="")
def _read_numbers(data, at, end, out, wrong):
    """Read a parameter and as many numbers as there is room for; return the next bit."""
    if end - at < RICE_NBITS:
        return np.int64(MISSING)
    k = np.int64(peek(data, at) >> np.uint64(64 - RICE_NBITS))
    at += RICE_NBITS
    for i in range(out.size):
        out[i], at = read_rice(data, at, end, k)
        if at < 0:
            return np.int64(MISSING)
        if out[i] >> _NBITS:
            wrong[0] = _LARGE
    return at


@kernel("in uint8[], int64, int64, int64, out int64[], out int64[], out int64[]")
def _read_both(data, at, end, n, places, symbols, wrong):
    # 0 <= at; end <= 8 * data.size; wrong.size == 1, and 0.
    at = _read_numbers(data, at, end, places, wrong)
    if at < 0:
        return at
    at = _read_numbers(data, at, end, symbols, wrong)
    if at < 0 or wrong[0]:
        return at
    # Below 2^40 each, of fewer than 2^23 a MiB of data: sums do not wrap around.
    before = np.int64(-1)
    for i in range(places.size):
        places[i] += before + 1
        before = places[i]
        if symbols[i] == 1:
            wrong[0] = _MINUS
    if before >= n:
        wrong[0] = _BEHIND
    return at
