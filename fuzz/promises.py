"""Promises that hold for all inputs, and the limits within which targets decode."""

from __future__ import annotations

import numpy as np

import gcodec

LIMITS = gcodec.Limits(max_elements=1 << 16, max_bytes=1 << 19)


class BrokenPromiseError(AssertionError):
    """A promise about all inputs did not hold for these bytes."""


def promise(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenPromiseError(what)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    with np.errstate(invalid="ignore"):
        nan = np.isnan(a) & np.isnan(b)
        return a.dtype == b.dtype and a.shape == b.shape and bool(np.all((a == b) | nan))
