"""A naive QSGD coder: one loop over the elements, one over the bits of each codeword."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=False)
def encode(x, words, factor, s, out):
    """Write sign and omega(level + 1) of each element to the zeroed `out`; return the bits."""
    at = 0
    for i in range(x.size):
        r = abs(x[i]) * factor
        level = np.uint32(r)
        level += (words[i] >> 1) < np.uint32((r - level) * np.float32(2.0**31))
        level = min(level, s)
        if x[i] < 0 and level:
            out[at >> 3] |= 128 >> (at & 7)
        at += 1
        word, nbits, value = 0, 1, level + 1
        while value > 1:
            word |= value << nbits
            length = 0
            while value >> length:
                length += 1
            nbits += length
            value = length - 1
        for bit in range(nbits - 1, -1, -1):
            if word >> bit & 1:
                out[at >> 3] |= 128 >> (at & 7)
            at += 1
    return at


@numba.njit(cache=False)
def decode(data, scale, out):
    """Read the output of `encode`."""
    at = 0
    for i in range(out.size):
        negative = data[at >> 3] >> (7 - (at & 7)) & 1
        at += 1
        value = 1
        while data[at >> 3] >> (7 - (at & 7)) & 1:
            length, value_ = value + 1, 0
            for _ in range(length):
                value_ = value_ << 1 | (data[at >> 3] >> (7 - (at & 7)) & 1)
                at += 1
            value = value_
        at += 1
        size = np.float32(value - 1) * scale
        out[i] = -size if negative else size
