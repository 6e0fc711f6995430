"""k different positions out of n, drawn at random, from a seed that both ends know.

Draw w is u·n / 2^64 rounded down, where u has the words 2w, its lower half, and 2w + 1 of the
stream SELECTION. The positions are the first k different draws; or, where k is more than half of
n, all but the first n − k different draws.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.philox import SELECTION, words
from gcodec.kernels.numeric.words import high_product, trailing_zeros
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel

_DENSE = 512  # elements for each draw up to which draws are marked in a bitmap of all
_MOST = 1 << 18  # draws at a time
_WORD = 64


@dispatched("gcodec.kernels.numeric.draw_cuda", by="beside")
def draw(n: int, k: int, seed: int, beside: np.ndarray | None = None) -> np.ndarray:
    """Draw k of n positions.

    Parameters
    ----------
    n, k : int
        0 <= k <= n < 2^63.
    seed : int
        From 0 to 2**64 - 1.
    beside : array, optional
        On whose device positions are drawn, and lie, if it is on one.

    Returns
    -------
    (k,) int64 array
        Positions, rising. The memory that is used goes with k, whatever n is.
    """
    others = 2 * k > n
    count = n - k if others else k
    if not others and n > _DENSE * count:
        return _sorted_draws(n, count, seed)
    marks = np.zeros(-(-n // _WORD), np.uint64)
    found = at = 0
    while found < count:
        # As many as are missing, so that there are never too many, whatever draws are equal.
        more = min(count - found, _MOST)
        found += _mark(_draws(n, at, more, seed), marks)
        at += more
    out = np.empty(k, np.int64)
    _list_marks(marks, n, others, out)
    return out


def _sorted_draws(n: int, count: int, seed: int) -> np.ndarray:
    """Return the first `count` different draws, rising."""
    found = np.empty(0, np.int64)
    at = 0
    while found.size < count:
        more = count - found.size
        # Stable sorting makes use of what is in order already.
        drawn = np.sort(_draws(n, at, more, seed))
        found = np.sort(np.concatenate([found, drawn]), kind="stable")
        found = found[np.diff(found, prepend=-1) > 0]
        at += more
    return found


def _draws(n: int, at: int, count: int, seed: int) -> np.ndarray:
    """Return (count,) int64 draws from number `at` on."""
    out = np.empty(count, np.int64)
    _scale_draws(words(seed, 2 * at, 2 * count, SELECTION), np.uint64(n), out)
    return out


@kernel("in uint32[], uint64, out int64[]")
def _scale_draws(words, n, out):
    # words.size == 2 * out.size
    for i in range(out.size):
        u = np.uint64(words[2 * i + 1]) << np.uint64(32) | np.uint64(words[2 * i])
        out[i] = np.int64(high_product(u, n))


@kernel("in int64[], out uint64[]")
def _mark(draws, marks):
    # Draws are below n, of which marks has a bit each. Returned is how many are new.
    new = np.uint64(0)
    for i in range(draws.size):
        word, bit = draws[i] >> 6, np.uint64(draws[i] & 63)
        before = marks[word]
        new += ~(before >> bit) & np.uint64(1)
        marks[word] = before | np.uint64(1) << bit
    return np.int64(new)


@kernel("in uint64[], int64, boolean, out int64[]")
def _list_marks(marks, n, others, out):
    # out.size is how many of the first n bits of `marks` are 1, or are 0 if the others are meant
    at = 0
    for w in range(marks.size):
        word = ~marks[w] if others else marks[w]
        left = n - w * _WORD
        if left < _WORD:
            word &= (np.uint64(1) << np.uint64(left)) - np.uint64(1)
        while word:
            out[at] = w * _WORD + np.int64(trailing_zeros(word))
            at += 1
            word &= word - np.uint64(1)
