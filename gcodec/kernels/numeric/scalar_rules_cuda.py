"""Launchers of scalar_rules.cu; see `gcodec.kernels.numeric.scalar_rules`.

Numbers stay on the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.runtime.deferred import Deferred

_U32 = np.uint32


def negative(number: Deferred) -> Deferred:
    """Return −number."""
    return _made("negative", number.device, number.words.view(_U32))


def mean_of(total: Deferred, n: int, *, root: bool) -> Deferred:
    """Return total / n, or its root."""
    return _made("mean_of", total.device, total.words, np.float64(max(n, 1)), np.int32(root))


def bounded_rms(squares: Deferred, n: int, factor: float, least: float, most: float) -> Deferred:
    """Return factor·√(squares / n), within bounds."""
    numbers = map(np.float64, (max(n, 1), factor, least, most))
    return _made("bounded_rms", squares.device, squares.words, *numbers)


def size_of(bits: Deferred) -> Deferred:
    """Return the float32 that these are the bits of."""
    return Deferred(bits.device, bits.words.view(np.float32))


def clipped_size(
    total: Deferred, squares: Deferred, largest: Deferred, n: int, clip: float
) -> Deferred:
    """Return the largest magnitude, or `clip` standard deviations."""
    sums = total.words, squares.words, largest.words.view(_U32)
    return _made("clipped_size", total.device, *sums, np.float64(n), np.float64(clip))


def _made(name: str, device: Any, *args: Any) -> Deferred:
    out = device.empty(1, _U32)
    device.launch("scalar_rules", name, 1, 1, *args, out)
    return Deferred(device, out.view(np.float32))
