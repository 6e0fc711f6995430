"""Conversion between two-bit codes of MXNet and the positions and signs of the transmitted ones.

A code is 11 for +, 10 for −, and 00 for an element that is not transmitted; a word has 16 codes.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.words import count_ones, leading_zeros, swapped
from gcodec.kernels.quantize.threshold import TWO_BIT
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel

_SENT = 0xAAAAAAAA  # upper bits of the 16 codes of a word
_WORD = 16  # codes in a word
_CHUNK = 1 << 18  # codes that fit into a cache
_PART = 1 << 14  # words whose codes are counted together


@dispatched("gcodec.kernels.bits.sent_codes_cuda")
def sent(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the transmitted codes.

    Parameters
    ----------
    codes : (4·ceil(n / 16),) uint8 array

    Returns
    -------
    positions : (k,) int64 array
        Positions of the transmitted codes, rising; on the host.
    signs : (ceil(k / 8),) uint8 array
        One bit for each code, the first highest: 1 if it is negative; on the host.
    """
    words = _words_of(codes)
    positions = np.empty(int(_count(words)), np.int64)
    signs = np.zeros(-(-positions.size // 8), np.uint8)
    _find(words, positions, signs)
    return positions, signs


def _words_of(codes: np.ndarray) -> np.ndarray:
    return np.require(codes, requirements=["C", "A"]).view(np.uint32)


class SentPositions:
    """The positions that `sent` returns, computed from the codes where they are read.

    Parameters
    ----------
    codes : (4·ceil(n / 16),) uint8 array
        On the host.

    Attributes
    ----------
    size : int
        Number of transmitted codes.
    """

    def __init__(self, codes: np.ndarray) -> None:
        self._words = _words_of(codes)
        counts = [_count(self._words[at : at + _PART]) for at in range(0, self._words.size, _PART)]
        self._before = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.size = int(self._before[-1])

    def __getitem__(self, places: int | slice) -> np.ndarray:
        """Return an array of the positions of a slice, or of one position."""
        if isinstance(places, int):
            at = places % self.size
            return self[at : at + 1][0]
        start, stop, _ = places.indices(self.size)
        first = int(np.searchsorted(self._before, start, "right")) - 1
        last = max(int(np.searchsorted(self._before, stop)), first)
        before = int(self._before[first])
        positions = np.empty(int(self._before[last]) - before, np.int64)
        words = self._words[first * _PART : last * _PART]
        _find(words, positions, np.zeros(-(-positions.size // 8), np.uint8))
        positions += first * _PART * _WORD
        return positions[start - before : stop - before]


def codes_of(positions: np.ndarray, signs: np.ndarray, n: int) -> np.ndarray:
    """Return the codes of n elements, given the positions and signs from `sent`."""
    codes = np.zeros(TWO_BIT.nbytes(n), np.uint8)
    _place_codes(positions, signs, codes)
    return codes


@dispatched("gcodec.kernels.bits.sent_codes_cuda")
def turned(codes: np.ndarray) -> np.ndarray:
    """Replace (n,) codes by symbols, or symbols by codes; symbols 2 and 3 mean t and −t."""
    for start in range(0, codes.size, _CHUNK):
        part = codes[start : start + _CHUNK]
        part ^= (part > 1).view(np.uint8)
    return codes


@inline
def _sent(words, i):
    """Return the upper bits of the codes of word i, the first code highest."""
    return np.uint32(swapped(words[i]) & np.uint32(_SENT))


@kernel("in uint32[]")
def _count(words):
    count = 0
    for i in range(words.size):
        count += np.int64(count_ones(_sent(words, i)))
    return count


@kernel("in uint32[], out int64[], out uint8[]")
def _find(words, positions, signs):
    # positions.size is the result of _count; signs has a bit for each position.
    place = 0
    for i in range(words.size):
        word = swapped(words[i])
        bits = _sent(words, i)
        while bits:
            lead = leading_zeros(bits)
            positions[place] = i * _WORD + np.int64(lead) // 2
            # The lower bit of the code, which follows the upper bit, is 1 for +.
            plus = np.uint32(word >> np.uint32(np.uint32(30) - lead)) & np.uint32(1)
            signs[place >> 3] |= np.uint8(np.uint32(1) - plus) << np.uint8(7 - (place & 7))
            place += 1
            bits = np.uint32(bits ^ np.uint32(np.uint32(0x80000000) >> lead))


@kernel("in int64[], in uint8[], out uint8[]")
def _place_codes(positions, signs, codes):
    # signs has a bit for each position; codes has a field of 2 bits for each element.
    for i in range(positions.size):
        minus = np.int64(signs[i >> 3] >> np.uint8(7 - (i & 7))) & 1
        place = positions[i]
        codes[place >> 2] |= np.uint8((3 - minus) << (6 - 2 * (place & 3)))
