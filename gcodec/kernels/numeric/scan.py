"""Prefix sums of sizes on the host; `scan_cuda` computes those of a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gcodec.runtime.jit import kernel


def starts_of(sizes: np.ndarray | Sequence[int]) -> np.ndarray:
    """Return the sum preceding each of (n,) sizes, and the total, as (n + 1,) int64."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.add.accumulate(sizes, out=starts[1:])
    return starts


def sums_of(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the sum preceding each of (n,) uint64 values, and the total, as (n + 1,) int64.

    Also return the bitwise or of the values, or -1 if a sum has more than 63 bits.
    """
    sums = np.empty(values.size + 1, np.int64)
    return sums, int(_add_up(values, sums))


def differences_of(sums: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the differences of (n + 1,) int64 sums as uint64, and the bitwise or of all."""
    values = np.empty(sums.size - 1, np.uint64)
    return values, int(_subtract(sums, values))


@kernel("in uint64[], out int64[]", vectorized=False)
def _add_up(values, sums):
    # sums.size == values.size + 1. A sum of two numbers from 0 on that overflows is below 0.
    bits, total, signs = np.int64(0), np.int64(0), np.int64(0)
    sums[0] = 0
    for i in range(values.size):
        value = np.int64(values[i])
        total += value
        bits |= value
        signs |= value | total
        sums[i + 1] = total
    return bits if signs >= 0 else np.int64(-1)


@kernel("in int64[], out uint64[]", vectorized=False)
def _subtract(sums, values):
    # sums.size == values.size + 1; the sums do not fall.
    bits = np.int64(0)
    for i in range(values.size):
        value = sums[i + 1] - sums[i]
        values[i] = np.uint64(value)
        bits |= value
    return bits
