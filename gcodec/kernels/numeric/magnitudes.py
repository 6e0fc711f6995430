"""Sums of the magnitudes of symbols by row and by column.

A symbol is twice the magnitude of its level, plus 1 if the level is negative.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.words import load_word
from gcodec.runtime.jit import kernel, subroutine

_TILE = 1 << 12  # symbols whose magnitudes up to 127 sum to less than 2^31
_FLUSH = 1 << 23  # rows whose magnitudes in a column sum to less than 2^31
_NARROW = 24  # width of the widest rows that are added up word by word
_FITTING = 1 << 9  # rows whose magnitudes in a column sum to less than 2^16
_ALL, _LOWEST = np.uint64(2**64 - 1), np.uint64(0xFFFF)
_SIZES, _EACH = np.uint64(0x007F007F007F007F), np.uint64(0x0001000100010001)
_ONE, _NINE, _TOP = np.uint64(1), np.uint64(9), np.uint64(48)


@subroutine
def _add_narrow(symbols, width, rows, columns):
    """Set the sums of at most _FITTING rows, and add to the sums of columns.

    columns.size == width, or 0 for no columns; symbols.size >= rows.size * width + 8.
    """
    for column in range(0, width, 8):
        inside = _ALL >> np.uint64(8 * max(column + 8 - width, 0))
        # Sums of magnitudes in even and in odd columns, in 16 bits each.
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


@kernel("in uint8[], int64, out int32[], out int64[], out int64[]")
def add_magnitudes(symbols, width, narrow, rows, columns):
    """Set the sums of rows, and add to the sums of columns.

    columns.size == width, or 0 for no columns. narrow.size == columns.size; its elements are 0
    before and after the call. rows.size is at least the number of rows that begin in symbols.
    """
    first = 0
    if width <= _NARROW:
        # A word may extend beyond its row, but not beyond the last symbol.
        first = max((symbols.size - 8) // width, 0)
        for start in range(0, first, _FITTING):
            chunk = rows[start : min(start + _FITTING, first)]
            _add_narrow(symbols[start * width :], width, chunk, columns)
    for row in range(first, (symbols.size + width - 1) // width):
        line = symbols[row * width : min((row + 1) * width, symbols.size)]
        total = np.int64(0)
        for start in range(0, line.size, _TILE):
            part, tile = np.int32(0), line[start : start + _TILE]
            for j in range(tile.size):
                part += np.int32(tile[j] >> np.uint8(1))
            total += part
        rows[row] = total
        if narrow.size > 0:  # line.size <= width
            for j in range(line.size):
                narrow[j] = np.int32(narrow[j] + np.int32(line[j] >> np.uint8(1)))
        if row % _FLUSH == _FLUSH - 1:
            for j in range(narrow.size):
                columns[j] += narrow[j]
                narrow[j] = 0
    for j in range(narrow.size):
        columns[j] += narrow[j]
        narrow[j] = 0
