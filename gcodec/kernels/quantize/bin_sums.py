"""Bins of equal width, and the sum and the number of the values in each."""

from __future__ import annotations

import numpy as np

from gcodec.runtime.jit import kernel


def sort_into(
    values: np.ndarray, width: np.float32, bins: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the bin of each value, and the sum and the number of the values in each bin.

    The bin of v is v/width + bins // 2, computed in float32, rounded, ties to even, and moved to
    the nearest of 0 to bins − 1. Each sum is computed in the order of its values.

    Parameters
    ----------
    values : (n,) float32 array
        No NaN.
    width : float32
        Above 0 and finite.
    bins : int
        From 2 to 256.

    Returns
    -------
    codes : (n,) uint8 array
    sums : (bins,) float64 array
    counts : (bins,) int64 array
    """
    codes = np.empty(values.size, np.uint8)
    sums, counts = np.zeros(bins), np.zeros(bins, np.int64)
    _sort_into(values, width, codes, sums, counts)
    return codes, sums, counts


@kernel("in float32[], float32, out uint8[], out float64[], out int64[]")
def _sort_into(values, width, codes, sums, counts):
    # codes.size == values.size; sums.size == counts.size. As no number is NaN, all indices are
    # from 0 to sums.size − 1.
    middle, last = np.float32(sums.size // 2), np.float32(sums.size - 1)
    for i in range(values.size):
        number = np.rint(np.float32(values[i] / width) + middle)
        code = np.uint8(min(max(number, np.float32(0)), last))
        codes[i] = code
        sums[code] += np.float64(values[i])
        counts[code] += 1
