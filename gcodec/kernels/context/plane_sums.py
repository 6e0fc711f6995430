"""Sums of bytes by row and by column, and numbers of the bytes that are not 0."""

from __future__ import annotations

import functools
import operator

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.jit import kernel

_COUNT = 20  # bits of a sum of bytes, above which a narrow counter counts the bytes
_FLUSH = 1 << 11  # rows whose sums and counts fit into a narrow counter


def plane_sums(
    symbols: np.ndarray, width: int, has_columns: bool
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Sum (n,) uint8 symbols by row and by column, and count those that are not 0.

    Parameters
    ----------
    symbols : (n,) uint8 array
    width : int
        Elements of a row; the last row may be shorter.
    has_columns : bool
        Whether columns are summed too.

    Returns
    -------
    rows, columns : (sums, counts)
        int64 arrays: ceil(n / width) sums and counts of rows; `width` of columns, or none.
    """
    row_sums = np.zeros(-(-symbols.size // width), np.int64)
    row_counts = np.zeros_like(row_sums)
    height = width if has_columns else 0

    def task(start: int, stop: int) -> np.ndarray:
        narrow, columns = np.zeros(height, np.int32), np.zeros(2 * height, np.int64)
        first, last = start // width, -(-stop // width)
        rows = row_sums[first:last], row_counts[first:last]
        _add_rows(symbols[start:stop], width, narrow, *rows, columns)
        return columns

    columns = functools.reduce(operator.iadd, pool.run(task, symbols.size, width))
    return (row_sums, row_counts), (columns[:height], columns[height:])


@kernel("in uint8[], int64, out int32[], out int64[], out int64[], out int64[]")
def _add_rows(symbols, width, narrow, sums, counts, columns):
    # sums.size == counts.size == ceil(symbols.size / width); narrow.size is `width` or 0, and
    # columns.size twice that. `narrow` is 0 before and after the call.
    for row in range(sums.size):
        line = symbols[row * width : min((row + 1) * width, symbols.size)]
        total, count = np.int64(0), np.int64(0)
        for first in range(0, line.size, 4096):
            part, few, some = line[first : first + 4096], np.int32(0), np.int32(0)
            for j in range(part.size):
                few += np.int32(part[j])
                some += np.int32(part[j] != 0)
            total += few
            count += some
        sums[row], counts[row] = total, count
        if narrow.size > 0:  # line.size <= width
            for j in range(line.size):
                value = np.int32(line[j]) | np.int32(np.int32(line[j] != 0) << np.int32(_COUNT))
                narrow[j] = np.int32(narrow[j] + value)
        if row % _FLUSH == _FLUSH - 1 or row == sums.size - 1:
            for j in range(narrow.size):
                columns[j] += narrow[j] & ((1 << _COUNT) - 1)
                columns[narrow.size + j] += narrow[j] >> _COUNT
                narrow[j] = 0
