"""How a transform of small chunks spreads their squares over coefficients."""

from __future__ import annotations

import numpy as np

from gcodec.runtime.jit import kernel


def shares_of(x: np.ndarray, coefficients: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """Add up the shares that places in a chunk have in the squares of its values.

    Parameters
    ----------
    x, coefficients : (m·size,) float32 array
        Chunks, and what became of them.
    size : int

    Returns
    -------
    shares : (2, size) float64 array
        Of the squares of values, and of coefficients: shares in the sum of those of values, added
        up over chunks in order.
    live : int
        Chunks that are not all zero; others have no share.
    """
    shares = np.zeros((2, size))
    live = _add_shares(x, coefficients, size, shares.reshape(-1))
    return shares, int(live)


@kernel("in float32[], in float32[], int64, out float64[]")
def _add_shares(x, coefficients, size, shares):
    # x.size == coefficients.size, a multiple of size; shares.size == 2 * size.
    live, before, after = 0, shares[:size], shares[size:]
    for start in range(0, x.size, size):
        values, others = x[start : start + size], coefficients[start : start + size]
        total = np.float64(0)
        for k in range(size):
            total += np.float64(values[k]) * np.float64(values[k])
        if total > 0:
            live += 1
            for k in range(size):
                value, other = np.float64(values[k]), np.float64(others[k])
                before[k] += value * value / total
                after[k] += other * other / total
    return live
