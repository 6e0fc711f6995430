"""Scales of rows and columns: logarithms of the means of their magnitudes, in quarter octaves.

A scale is `one` plus 4·log2 of a mean, rounded to the nearest integer and then to a multiple of a
quantum; 0 where all magnitudes are. See `gcodec.entropy.context.scale_model`.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.list_sizes import MOST
from gcodec.runtime.jit import inline, kernel, subroutine
from gcodec.runtime.memory import double_bits

_PER_OCTAVE = 4
_POINT, _BIAS = np.uint64(52), 1023  # of a float64
_FRACTION = np.uint64((1 << 52) - 1)
# 2^(1/8), 2^(3/8), 2^(5/8), 2^(7/8): where the nearest quarter octave changes.
_TURNS = np.array([1.0905077326652577, 1.2968395546510096, 1.5422108254079407, 1.8340080864093424])
_FIRST, _SECOND, _THIRD, _FOURTH = _TURNS.view(np.uint64) & _FRACTION


def scales_of_sums(
    n: int,
    matrix: tuple[int, int, int],
    ones: tuple[int, int],
    rows: np.ndarray,
    columns: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return scales, given the sums of the magnitudes of each row and of each column.

    Parameters
    ----------
    n : int
        Elements, which lie in rows; the last of them may have fewer.
    matrix : (int, int, int)
        Elements of a row; columns side by side that share a scale, or 0; quantum, a power of two.
    ones : (int, int)
        Scales of rows of the mean 1, and of columns of the mean of all elements.
    rows : (ceil(n / width),) int64 array
    columns : (width,) int64 array
        Not looked at where they have no scales.

    Returns
    -------
    rows : (ceil(n / width),) uint8 array
    columns : (width,) uint8 array, or of no elements
    """
    width, group, quantum = matrix
    found = np.empty(rows.size, np.uint8), np.empty(width if group else 0, np.uint8)
    _find_scales(rows, columns, n, width, group, quantum, *ones, *found)
    return found


@inline
def _scale(mean, one, quantum):
    """Return the scale of a mean, which is above 0."""
    bits = double_bits(mean)
    rest = bits & _FRACTION
    quarter = np.int64(rest >= _FIRST) + np.int64(rest >= _SECOND)
    quarter += np.int64(rest >= _THIRD) + np.int64(rest >= _FOURTH)
    found = one + _PER_OCTAVE * (np.int64(bits >> _POINT) - _BIAS) + quarter
    found = (found + quantum // 2) & -quantum
    return np.uint8(min(max(found, quantum), MOST & -quantum))


@subroutine(variant="")
def find_scales(rows, columns, n, width, group, quantum, row_one, column_one, down, across):
    """Write scales; see `scales_of_sums`.

    down.size == rows.size == ceil(n / width); across.size == columns.size == width, or it is 0.
    """
    total, last = np.int64(0), n - (rows.size - 1) * width  # elements of the last row
    for i in range(rows.size):
        total += rows[i]
        scale = _scale(np.float64(rows[i]) / np.float64(width), row_one, quantum)
        down[i] = scale if rows[i] > 0 else np.uint8(0)
    i = rows.size - 1
    if rows[i] > 0:
        down[i] = _scale(np.float64(rows[i]) / np.float64(last), row_one, quantum)
    inverse = np.float64(n) / np.float64(max(total, 1))
    if group == 1:
        for j in range(across.size):
            mean = np.float64(columns[j]) * inverse / np.float64(rows.size - (j >= last))
            scale = _scale(mean, column_one, quantum)
            across[j] = scale if columns[j] > 0 else np.uint8(0)
        return
    for first in range(0, across.size, max(group, 1)):
        here, members = across[first : first + group], columns[first : first + group]
        some, count = np.int64(0), here.size * rows.size
        for j in range(members.size):
            some += members[j]
            count -= first + j >= last
        scale = np.uint8(0)
        if some > 0:
            scale = _scale(np.float64(some) * inverse / np.float64(count), column_one, quantum)
        for j in range(here.size):
            here[j] = scale


@kernel(
    "in int64[], in int64[], int64, int64, int64, int64, int64, int64, out uint8[], out uint8[]"
)
def _find_scales(rows, columns, n, width, group, quantum, row_one, column_one, down, across):
    find_scales(rows, columns, n, width, group, quantum, row_one, column_one, down, across)
