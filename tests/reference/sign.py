"""Signs and a scale.

Source: ``docs/wire-format.md``, sign.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from . import fields, sums

Floats = NDArray[np.float32]


def scale_of(x: Floats, setting: str) -> np.float32:
    """Return the scale: ``l1``, ``l2`` or ``none``."""
    n = max(len(x), 1)
    if setting == "l1":
        return np.float32(float(sums.sum_abs(x)) / n)
    if setting == "l2":
        return np.float32(math.sqrt(float(sums.sum_squares(x)) / n))
    assert setting == "none"
    return np.float32(1)


def encode(x: Floats, setting: str) -> tuple[bytes, np.float32]:
    """Return the payload and the scale."""
    x = np.asarray(x, np.float32)
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf")
    return fields.pack((x < 0).tolist(), 1), scale_of(x, setting)


def decode(data: bytes, n: int, scale: float) -> Floats:
    """Return the n values of a payload, or raise ValueError."""
    s = np.float32(scale)
    return np.where(np.array(fields.unpack(data, n, 1), bool), -s, s)
