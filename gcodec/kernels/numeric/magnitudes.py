"""Sums of the magnitudes of symbols by row and by column.

A symbol is twice a level's magnitude, plus 1 where it is negative.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.words import load_word
from gcodec.runtime.jit import subroutine

_TILE = 1 << 12  # of which magnitudes up to 127 fit 31 bits
_FLUSH = 1 << 23  # rows whose magnitudes of a column fit 31 bits
_NARROW = 24  # elements of rows that are added up by words
_FITTING = 1 << 9  # rows whose magnitudes of a column fit 16 bits
_ALL, _LOWEST = np.uint64(2**64 - 1), np.uint64(0xFFFF)
_SIZES, _EACH = np.uint64(0x007F007F007F007F), np.uint64(0x0001000100010001)
_ONE, _NINE, _TOP = np.uint64(1), np.uint64(9), np.uint64(48)


@subroutine(variant="")
def _add_narrow(symbols, width, rows, columns):
    """Set sums of at most _FITTING rows, and add to those of columns, if there are some.

    columns.size == width or 0, and symbols.size >= rows.size * width + 8.
    """
    for column in range(0, width, 8):
        inside = _ALL >> np.uint64(8 * max(column + 8 - width, 0))
        # Magnitudes of even places and of odd ones, each in 16 bits.
        of_even = of_odd = np.uint64(0)
        for row in range(rows.size):
            word = load_word(symbols, row * width + column) & inside
            even, odd = word >> _ONE & _SIZES, word >> _NINE & _SIZES
            of_even += even
            of_odd += odd
            total = np.int64((even + odd) * _EACH >> _TOP)
            rows[row] = total + (rows[row] if column else 0)
        for j in range(column, min(column + 8, columns.size)):
            both = of_odd if (j - column) & 1 else of_even
            columns[j] += np.int64(both >> np.uint64((j - column) // 2 * 16) & _LOWEST)


@subroutine(variant="")
def add_magnitudes(symbols, width, narrow, rows, columns):
    """Set sums of rows, and add to those of columns.

    narrow.size == columns.size, which is width, or 0 for no columns; it is 0, here and behind.
    rows.size >= the rows that begin here.
    """
    first = 0
    if width <= _NARROW:
        # A word may pass its row, but not the last symbol.
        first = max((symbols.size - 8) // width, 0)
        for start in range(0, first, _FITTING):
            some = rows[start : min(start + _FITTING, first)]
            _add_narrow(symbols[start * width :], width, some, columns)
    for row in range(first, (symbols.size + width - 1) // width):
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
