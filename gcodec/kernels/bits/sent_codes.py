"""Two-bit codes of which few are sent: where these are, and their signs, or the codes of these.

Codes are those of MXNet: 11, 10 for a negative one, and 00 for not sent; 16 in a word.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.words import count_ones, leading_zeros, swapped
from gcodec.kernels.quantize.threshold import TWO_BIT
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel

_SENT = 0xAAAAAAAA  # upper bits of the 16 codes of a word
_WORD = 16  # codes


@dispatched("gcodec.kernels.bits.sent_codes_cuda")
def sent(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the codes that are sent.

    Parameters
    ----------
    codes : (4·ceil(n / 16),) uint8 array

    Returns
    -------
    positions : (k,) int64 array
        Rising.
    signs : (ceil(k / 8),) uint8 array
        A bit for each, the first highest: 1 where it is negative.

    Both are on the host, wherever the codes are.
    """
    words = np.require(codes, requirements=["C", "A"]).view(np.uint32)
    positions = np.empty(int(_count(words)), np.int64)
    signs = np.zeros(-(-positions.size // 8), np.uint8)
    _find(words, positions, signs)
    return positions, signs


def codes_of(positions: np.ndarray, signs: np.ndarray, n: int) -> np.ndarray:
    """Return the codes of n elements, given what `sent` finds of them."""
    codes = np.zeros(TWO_BIT.nbytes(n), np.uint8)
    _place_codes(positions, signs, codes)
    return codes


@dispatched("gcodec.kernels.bits.sent_codes_cuda")
def turned(codes: np.ndarray) -> np.ndarray:
    """Return (n,) symbols for codes, or codes for symbols: 2 and 3 are t and −t in these."""
    found: np.ndarray = codes ^ (codes >> np.uint8(1))
    return found


@inline
def _sent(words, i):
    """Return the upper bit of each sent code of word i, the first code highest."""
    return np.uint32(swapped(words[i]) & np.uint32(_SENT))


@kernel("in uint32[]")
def _count(words):
    count = 0
    for i in range(words.size):
        count += np.int64(count_ones(_sent(words, i)))
    return count


@kernel("in uint32[], out int64[], out uint8[]")
def _find(words, positions, signs):
    # positions.size is what _count returns, and signs has a bit for each.
    found = 0
    for i in range(words.size):
        word = swapped(words[i])
        bits = _sent(words, i)
        while bits:
            lead = leading_zeros(bits)
            positions[found] = i * _WORD + np.int64(lead) // 2
            # The lower bit of the code, just behind the upper one, is 1 for +.
            plus = np.uint32(word >> np.uint32(np.uint32(30) - lead)) & np.uint32(1)
            signs[found >> 3] |= np.uint8(np.uint32(1) - plus) << np.uint8(7 - (found & 7))
            found += 1
            bits = np.uint32(bits ^ np.uint32(np.uint32(0x80000000) >> lead))


@kernel("in int64[], in uint8[], out uint8[]")
def _place_codes(positions, signs, codes):
    # signs has a bit for each position; codes has a field of 2 bits for each element.
    for i in range(positions.size):
        minus = np.int64(signs[i >> 3] >> np.uint8(7 - (i & 7))) & 1
        place = positions[i]
        codes[place >> 2] |= np.uint8((3 - minus) << (6 - 2 * (place & 3)))
