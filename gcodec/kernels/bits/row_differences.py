"""Differences of bytes from the bytes a row above.

The highest bit of a difference is 1 where the highest bits differ: they are the signs of floats.
The others are the difference of the other bits, modulo 128. Rows form bands of 64 rows. The first
row of a band keeps its bytes, so that bands are independent of each other.
"""

from __future__ import annotations

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel

BAND = 64  # rows of a band; the last band may be shorter
_HIGHEST, _OTHERS = np.uint8(128), np.uint8(127)


@dispatched("gcodec.kernels.bits.row_differences_cuda")
def subtract_above(symbols: np.ndarray, row: int) -> np.ndarray:
    """Return the differences of (n,) bytes in rows of `row` > 0; the last row may be shorter."""
    differences = np.empty(symbols.size, np.uint8)

    def task(start: int, stop: int) -> None:
        _subtract_above(symbols[start:stop], row, differences[start:stop])

    pool.run(task, symbols.size, BAND * row)
    return differences


@dispatched("gcodec.kernels.bits.row_differences_cuda")
def add_above(differences: np.ndarray, row: int) -> None:
    """Replace differences by the bytes; see `subtract_above`."""
    pool.run(
        lambda start, stop: _add_above(row, differences[start:stop]), differences.size, BAND * row
    )


@inline
def _joined(high, low):
    return np.uint8((high & _HIGHEST) | (low & _OTHERS))


@kernel("in uint8[], int64, out uint8[]")
def _subtract_above(symbols, row, differences):
    # differences.size == symbols.size, row > 0; the first byte is that of a band
    for first in range(0, symbols.size, row):
        own, target = symbols[first : first + row], differences[first : first + row]
        if first // row % BAND == 0:
            for i in range(own.size):  # target.size == own.size
                target[i] = own[i]
            continue
        above = symbols[first - row : first - row + own.size]
        for i in range(own.size):  # above.size == target.size == own.size
            target[i] = _joined(own[i] ^ above[i], np.uint8(own[i] - above[i]))


@kernel("int64, out uint8[]")
def _add_above(row, symbols):
    # row > 0; the first byte is that of a band
    for first in range(row, symbols.size, row):
        if first // row % BAND == 0:
            continue
        own = symbols[first : first + row]
        above = symbols[first - row : first - row + own.size]
        for i in range(own.size):  # above.size == own.size
            own[i] = _joined(own[i] ^ above[i], np.uint8(own[i] + above[i]))
