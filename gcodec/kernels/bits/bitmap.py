"""Bitmaps of positions: one bit per element, the first the most significant of its byte."""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.numeric.words import leading_zeros, peek
from gcodec.kernels.prefix.value_classes import ComputedPositions
from gcodec.runtime.jit import kernel

_PART = 1 << 18  # positions that stay in a cache


def write(positions: np.ndarray | ComputedPositions, n: int) -> np.ndarray:
    """Return the (ceil(n / 8),) uint8 bitmap of (k,) int64 positions below n."""
    bits = np.zeros(-(-n // 8), np.uint8)
    for at in range(0, positions.size, _PART):
        _set_bits(positions[at : at + _PART], bits)
    return bits


def read(data: np.ndarray, first: int, n: int, k: int) -> np.ndarray:
    """Return the (k,) int64 positions of a bitmap of n bits from bit `first` on.

    Raises
    ------
    Corrupt
        The number of positions is not k.
    """
    positions = np.empty(k, np.int64)
    count = _find_bits(data, first, n, positions)
    if count != k:
        number = "more" if count > k else f"{count}"
        raise Corrupt(f"the map has {number} of {k} elements")
    return positions


@kernel("in int64[], out uint8[]")
def _set_bits(positions, bits):
    # Positions are below 8 * bits.size.
    for i in range(positions.size):
        bits[positions[i] >> 3] |= np.uint8(0x80 >> (positions[i] & 7))


@kernel("in uint8[], int64, int64, out int64[]")
def _find_bits(data, first, n, positions):
    # Returns the number of one bits, or positions.size + 1 if it is larger.
    count = 0
    for base in range(0, n, 64):
        word = peek(data, first + base)
        if n - base < 64:
            word &= ~(np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(n - base))
        while word:
            if count == positions.size:
                return count + 1
            lead = leading_zeros(word)
            positions[count] = base + np.int64(lead)
            count += 1
            word &= ~(np.uint64(1 << 63) >> lead)
    return count
