"""Philox4x32-10, the source of random bits (``docs/wire-format.md``, rule E5).

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK = 0xFFFFFFFF

Block = tuple[int, int, int, int]


@functools.lru_cache(maxsize=1 << 16)
def block(key: int, counter: Block) -> Block:
    """Return the four 32-bit words of ``counter`` under a 64-bit ``key``."""
    c0, c1, c2, c3 = rounds(key, *counter)
    return c0, c1, c2, c3


def rounds(key: int, c0: Any, c1: Any, c2: Any, c3: Any) -> tuple[Any, Any, Any, Any]:
    """Return the words of one counter of integers, or of many of uint64 arrays."""
    k0, k1 = key & MASK, key >> 32 & MASK
    for _ in range(ROUNDS):
        product0 = MULTIPLIERS[0] * c0
        product1 = MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & MASK,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & MASK,
        )
        k0 = (k0 + WEYL[0]) & MASK
        k1 = (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def word(seed: int, index: int, stream: int = 0) -> int:
    """Return random word ``index`` of a stream: 0 is for rounding, 1 for selection."""
    quarter = index >> 2
    counter = (quarter & MASK, quarter >> 32 & MASK, stream & MASK, stream >> 32 & MASK)
    return block(seed, counter)[index & 3]


def words(seed: int, count: int, stream: int = 0) -> list[int]:
    """Return random words 0 to ``count - 1`` of a stream."""
    quarters = np.arange((count + 3) // 4, dtype=np.uint64)
    zeros = np.zeros_like(quarters)
    high, low = zeros + (stream >> 32 & MASK), zeros + (stream & MASK)
    results = rounds(seed, quarters & MASK, quarters >> 32, low, high)
    numbers: list[int] = np.stack(results, axis=1).reshape(-1)[:count].tolist()
    return numbers
