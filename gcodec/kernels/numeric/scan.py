"""Prefix sums of sizes on the host; `scan_cuda` computes those of a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def starts_of(sizes: np.ndarray | Sequence[int]) -> np.ndarray:
    """Return the sum preceding each of (n,) sizes, and the total, as (n + 1,) int64."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.add.accumulate(sizes, out=starts[1:])
    return starts
