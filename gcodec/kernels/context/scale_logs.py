"""Scales of rows and columns: logarithms of mean magnitudes, in quarter octaves.

A scale is `one` plus 4·log2 of a mean, rounded to the nearest integer and then to a multiple of
the quantum; it is 0 if all magnitudes are 0. See `gcodec.entropy.context.scale_model`.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.scale_lists import MOST
from gcodec.runtime.jit import inline, kernel
from gcodec.runtime.memory import double_bits

_PER_OCTAVE = 4
_POINT, _BIAS = np.uint64(52), 1023  # of a float64
_FRACTION = np.uint64((1 << 52) - 1)
# 2^(1/8), 2^(3/8), 2^(5/8), 2^(7/8): the mantissas at which the nearest quarter octave changes.
_TURNS = np.array([1.0905077326652577, 1.2968395546510096, 1.5422108254079407, 1.8340080864093424])
_FIRST, _SECOND, _THIRD, _FOURTH = _TURNS.view(np.uint64) & _FRACTION


def scales_of_sums(
    n: int,
    matrix: tuple[int, int, int],
    ones: tuple[int, int],
    rows: np.ndarray,
    columns: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute scales from the sums of the magnitudes of each row and each column.

    Parameters
    ----------
    n : int
        Number of elements. The last row may be shorter than the others.
    matrix : (int, int, int)
        Width of a row; number of adjacent columns that share a scale, or 0 for no column scales;
        quantum, a power of two.
    ones : (int, int)
        Scale of a row whose mean is 1; scale of a column whose mean is that of all elements.
    rows : (ceil(n / width),) int64 array
    columns : (width,) int64 array
        Ignored if there are no column scales.

    Returns
    -------
    rows : (ceil(n / width),) uint8 array
    columns : (width,) uint8 array, or an empty one
    """
    width, group, _ = matrix
    row_scales = np.empty(rows.size, np.uint8)
    column_scales = np.empty(width if group else 0, np.uint8)
    find_scales(rows, columns, n, *matrix, *ones, row_scales, column_scales)
    return row_scales, column_scales


@inline
def _scale(mean, one, quantum):
    """Return the scale of a positive mean."""
    bits = double_bits(mean)
    fraction = bits & _FRACTION
    quarter = np.int64(fraction >= _FIRST) + np.int64(fraction >= _SECOND)
    quarter += np.int64(fraction >= _THIRD) + np.int64(fraction >= _FOURTH)
    scale = one + _PER_OCTAVE * (np.int64(bits >> _POINT) - _BIAS) + quarter
    scale = (scale + quantum // 2) & -quantum
    return np.uint8(min(max(scale, quantum), MOST & -quantum))


@kernel(
    "in int64[], in int64[], int64, (int64, int64, int64), (int64, int64), out uint8[], "
    "out uint8[]",
    vectorized=False,
)
def find_scales(rows, columns, n, matrix, ones, row_scales, column_scales):
    """Write scales; see `scales_of_sums`."""
    # row_scales.size == rows.size == ceil(n / width); column_scales.size == columns.size == width,
    # or column_scales is empty.
    width, group, quantum = matrix
    row_one, column_one = ones
    total, last = np.int64(0), n - (rows.size - 1) * width  # `last` is the size of the last row
    for i in range(rows.size):
        total += rows[i]
        scale = _scale(np.float64(rows[i]) / np.float64(width), row_one, quantum)
        row_scales[i] = scale if rows[i] > 0 else np.uint8(0)
    i = rows.size - 1
    if rows[i] > 0:
        row_scales[i] = _scale(np.float64(rows[i]) / np.float64(last), row_one, quantum)
    inverse = np.float64(n) / np.float64(max(total, 1))
    if group == 1:
        for j in range(column_scales.size):
            mean = np.float64(columns[j]) * inverse / np.float64(rows.size - (j >= last))
            scale = _scale(mean, column_one, quantum)
            column_scales[j] = scale if columns[j] > 0 else np.uint8(0)
        return
    for first in range(0, column_scales.size, max(group, 1)):
        group_scales = column_scales[first : first + group]
        members = columns[first : first + group]
        group_sum, count = np.int64(0), group_scales.size * rows.size
        for j in range(members.size):
            group_sum += members[j]
            count -= first + j >= last
        scale = np.uint8(0)
        if group_sum > 0:
            mean = np.float64(group_sum) * inverse / np.float64(count)
            scale = _scale(mean, column_one, quantum)
        for j in range(group_scales.size):
            group_scales[j] = scale
