"""Distribution of the squares of values and transform coefficients over the places in a chunk."""

from __future__ import annotations

import numpy as np

from gcodec.runtime.jit import kernel


def shares_of(x: np.ndarray, coefficients: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """Sum the shares of each place in a chunk in the squares of the chunk's values.

    Parameters
    ----------
    x, coefficients : (m·size,) float32 array
        Chunks of values, and their transform coefficients.
    size : int
        Number of values in a chunk.

    Returns
    -------
    shares : (2, size) float64 array
        Squares of the values, and of the coefficients, at each place, relative to the sum of
        squares of the chunk's values; summed over chunks in order.
    live : int
        Number of chunks that are not all zero; the other chunks have no share.
    """
    shares = np.zeros((2, size))
    live = _add_shares(x, coefficients, size, shares.reshape(-1))
    return shares, int(live)


@kernel("in float32[], in float32[], int64, out float64[]")
def _add_shares(x, coefficients, size, shares):
    # x.size == coefficients.size, a multiple of size; shares.size == 2 * size.
    live, before, after = 0, shares[:size], shares[size:]
    for start in range(0, x.size, size):
        values, transformed = x[start : start + size], coefficients[start : start + size]
        total = np.float64(0)
        for k in range(size):
            total += np.float64(values[k]) * np.float64(values[k])
        if total > 0:
            live += 1
            for k in range(size):
                value, coefficient = np.float64(values[k]), np.float64(transformed[k])
                before[k] += value * value / total
                after[k] += coefficient * coefficient / total
    return live
