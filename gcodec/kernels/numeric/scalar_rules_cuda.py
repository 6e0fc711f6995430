"""Launchers of scalar_rules.cu; see `gcodec.kernels.numeric.scalar_rules`.

The numbers stay on the device.
"""

from __future__ import annotations

import numpy as np

from gcodec.runtime.deferred import Deferred


def negative(number: Deferred) -> Deferred:
    """Return −number."""
    return _computed("negative", number)


def mean_of(total: Deferred, n: int, *, root: bool) -> Deferred:
    """Return total / n, or its square root."""
    return _computed("mean_of", total, max(n, 1), root)


def bounded_rms(squares: Deferred, n: int, factor: float, least: float, most: float) -> Deferred:
    """Return factor·√(squares / n), clipped to bounds."""
    return _computed("bounded_rms", squares, max(n, 1), factor, least, most)


def size_of(bits: Deferred) -> Deferred:
    """Return the float32 number of a bit pattern."""
    return Deferred(bits.device, bits.words.view(np.float32))


def clipped_size(
    total: Deferred, squares: Deferred, largest: Deferred, n: int, clip: float
) -> Deferred:
    """Return the largest magnitude, or `clip` standard deviations."""
    return _computed("clipped_size", total, squares, largest, n, clip)


def _computed(name: str, number: Deferred, *args: Deferred | float) -> Deferred:
    out = number.device.empty(1, np.float32)
    number.device.launch("scalar_rules", name, 1, 1, number, *args, out)
    return Deferred(number.device, out)
