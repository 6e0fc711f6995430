"""Formulas for the scalars of a message, given sums over a tensor.

If the sums are on a device, the scalars are `gcodec.runtime.deferred.Deferred` numbers there.
"""

from __future__ import annotations

import math

import numpy as np

from gcodec.runtime.deferred import binary32
from gcodec.runtime.device import dispatched

_NO_DEVIATION = 2.0**-40  # relative to the mean square


@dispatched("gcodec.kernels.numeric.scalar_rules_cuda")
def negative(number: float) -> float:
    """Return −number."""
    return -number


@dispatched("gcodec.kernels.numeric.scalar_rules_cuda")
def mean_of(total: float, n: int, *, root: bool) -> float:
    """Return total / n, or its square root, as float32; the result is 0 for n = 0."""
    mean = total / max(n, 1)
    return binary32(math.sqrt(mean) if root else mean)


@dispatched("gcodec.kernels.numeric.scalar_rules_cuda")
def bounded_rms(squares: float, n: int, factor: float, least: float, most: float) -> float:
    """Return factor·√(squares / n) as float32, clipped to the range from `least` to `most`."""
    return binary32(min(max(factor * math.sqrt(squares / max(n, 1)), least), most))


@dispatched("gcodec.kernels.numeric.scalar_rules_cuda")
def size_of(bits: int) -> float:
    """Return the float32 number of a bit pattern."""
    return binary32(np.uint32(bits).view(np.float32))


@dispatched("gcodec.kernels.numeric.scalar_rules_cuda")
def clipped_size(total: float, squares: float, largest: int, n: int, clip: float) -> float:
    """Return the largest magnitude of n values, or `clip` standard deviations if they are less.

    The largest magnitude is returned if the variance is so small that it may be a rounding error.

    Parameters
    ----------
    total, squares, largest
        See `gcodec.kernels.numeric.reduce.Moments`.
    n : int
    clip : float
    """
    if not largest:
        return 0.0
    mean, square = total / n, squares / n
    variance = max(0.0, square - mean * mean)
    top = np.uint32(largest).view(np.float32)
    scale = binary32(min(float(top), clip * math.sqrt(variance)))
    return binary32(top) if variance < _NO_DEVIATION * square or scale == 0 else scale
