"""Random draws of k distinct positions out of n, from a seed that encoder and decoder share.

Draw w is u·n / 2^64, rounded down. The number u consists of words 2w (the lower half) and 2w + 1
of the stream SELECTION. The positions are the first k distinct draws. If k is more than half of n,
they are all positions except the first n − k distinct draws.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gcodec.kernels.numeric.philox import SELECTION, words
from gcodec.kernels.numeric.words import count_ones, high_product, trailing_zeros
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel

_DENSE = 512  # elements per draw up to which a bitmap of all elements marks the draws
_MAX_DRAWS = 1 << 18  # at a time
_WORD = 64
_PART = 1 << 18  # elements whose positions are listed at a time


@dispatched("gcodec.kernels.numeric.draw_cuda", by="beside")
def draw(n: int, k: int, seed: int, beside: np.ndarray | None = None) -> np.ndarray:
    """Draw k of n positions.

    Parameters
    ----------
    n, k : int
        0 <= k <= n < 2^63.
    seed : int
        Seed from 0 to 2**64 - 1.
    beside : array, optional
        If this array is on a device, that device draws the positions and holds them.

    Returns
    -------
    (k,) int64 array
        Positions, rising. The function uses memory in proportion to k, whatever n is.
    """
    if n > _DENSE * k:
        return _sorted_draws(n, k, seed)
    marks = _marks(n, min(k, n - k), seed)
    out = np.empty(k, np.int64)
    _list_marks(marks, n, 2 * k > n, out)
    return out


def draw_parts(n: int, k: int, seed: int) -> Iterator[np.ndarray]:
    """Draw what `draw` draws, and return it in parts; the next part overwrites the last one."""
    if n > _DENSE * k:
        return iter([_sorted_draws(n, k, seed)])
    return _parts_of(_marks(n, min(k, n - k), seed), n, k)


def _parts_of(marks: np.ndarray, n: int, k: int) -> Iterator[np.ndarray]:
    """Yield the k positions of marks in parts."""
    out = np.empty(min(k, _PART), np.int64)
    for at in range(0, n, _PART):
        part = marks[at // _WORD : (at + _PART) // _WORD]
        positions = out[: _list_marks(part, min(n - at, _PART), 2 * k > n, out)]
        positions += at
        yield positions


def _marks(n: int, count: int, seed: int) -> np.ndarray:
    """Return a bitmap of the first `count` distinct draws, in words of 64 elements."""
    marks = np.zeros(-(-n // _WORD), np.uint64)
    distinct = at = 0
    while distinct < count:
        # No more draws than are missing, so there are never too many, even if all are distinct.
        missing = min(count - distinct, _MAX_DRAWS)
        distinct += _mark(_draws(n, at, missing, seed), marks)
        at += missing
    return marks


def _sorted_draws(n: int, count: int, seed: int) -> np.ndarray:
    """Return the first `count` distinct draws, rising."""
    distinct = np.empty(0, np.int64)
    at = 0
    while distinct.size < count:
        missing = count - distinct.size
        # A stable sort is fast for two sorted parts.
        drawn = np.sort(_draws(n, at, missing, seed))
        distinct = np.sort(np.concatenate([distinct, drawn]), kind="stable")
        distinct = distinct[np.diff(distinct, prepend=-1) > 0]
        at += missing
    return distinct


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
    # Draws are below n; marks has a bit for each of n positions. Returns the number of new marks.
    new = np.uint64(0)
    for i in range(draws.size):
        word, bit = draws[i] >> 6, np.uint64(draws[i] & 63)
        before = marks[word]
        new += ~(before >> bit) & np.uint64(1)
        marks[word] = before | np.uint64(1) << bit
    return np.int64(new)


@kernel("in uint64[], int64, boolean, out int64[]")
def _list_marks(marks, n, complement, out):
    # Lists the ones, or zeros for the complement, in the first n bits of `marks`. Returns their
    # number, which out.size is not below.
    # Few words have more than two, so two places are written at once, whether or not they count.
    at = 0
    for w in range(marks.size):
        word = ~marks[w] if complement else marks[w]
        left = n - w * _WORD
        if left < _WORD:
            word &= (np.uint64(1) << np.uint64(left)) - np.uint64(1)
        end = at + np.int64(count_ones(word))
        for k in range(at, max(end, min(at + 2, out.size))):  # end <= out.size
            out[k] = w * _WORD + np.int64(trailing_zeros(word))
            word &= word - np.uint64(1)
        at = end
    return at
