"""Sums of the magnitudes of symbols by row and by column.

A symbol is twice a level's magnitude, plus 1 where it is negative.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.jit import subroutine

_TILE = 1 << 12  # of which magnitudes up to 127 fit 31 bits
_FLUSH = 1 << 23  # rows whose magnitudes of a column fit 31 bits


@subroutine(variant="")
def add_magnitudes(symbols, width, narrow, rows, columns):
    """Set sums of rows, and add to those of columns.

    narrow.size == columns.size, which is width, or 0 for no columns; it is 0, here and behind.
    rows.size >= the rows that begin here.
    """
    for row in range((symbols.size + width - 1) // width):
        here = symbols[row * width : min((row + 1) * width, symbols.size)]
        total = np.int64(0)
        for tile in range(0, here.size, _TILE):
            part, inside = np.int32(0), here[tile : tile + _TILE]
            for j in range(inside.size):
                part += np.int32(inside[j] >> np.uint8(1))
            total += part
        rows[row] = total
        if narrow.size > 0:  # here.size <= width
            for j in range(here.size):
                narrow[j] = np.int32(narrow[j] + np.int32(here[j] >> np.uint8(1)))
        if row % _FLUSH == _FLUSH - 1:
            for j in range(narrow.size):
                columns[j] += narrow[j]
                narrow[j] = 0
    for j in range(narrow.size):
        columns[j] += narrow[j]
        narrow[j] = 0
