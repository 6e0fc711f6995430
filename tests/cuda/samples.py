"""Sample values and sizes near the edge cases of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from shim import ShimDevice
from sweeps import thinned

from gcodec.runtime.device import Device

_T = TypeVar("_T")

# Zero, few, around a warp, a word and a tile, and several tiles.
SIZES = (0, 1, 3, 31, 33, 255, 4095, 4096, 4097, 9001)
LARGE = 1 << 18  # used in one call of each kernel


def some_of(gpu: Device, all_values: Sequence[_T], every: int) -> list[_T]:
    """Return every second or so of the samples for the shim, unless the run is long; else all."""
    return thinned(all_values, every) if isinstance(gpu, ShimDevice) else list(all_values)


def gradient(n: int, seed: int = 0) -> np.ndarray:
    """Return float32 gradients of all magnitudes, with subnormals, equal values and both zeros."""
    random = np.random.default_rng([n, seed])
    values = random.standard_normal(n).astype(np.float32)
    wide = values * np.float32(2.0) ** random.integers(-149, 30, n).astype(np.float32)
    x = np.where(random.random(n) < 0.3, wide, values).astype(np.float32)
    tiny = random.integers(0, 0x800000, n).astype(np.uint32) | (random.integers(0, 2, n) << 31)
    x = np.where(random.random(n) < 0.1, tiny.astype(np.uint32).view(np.float32), x)
    x[random.random(n) < 0.05] = 0.0
    x[random.random(n) < 0.05] = -0.0
    x[random.random(n) < 0.05] = 1.0
    return np.ascontiguousarray(x, np.float32)


def arbitrary_floats(n: int, seed: int = 0) -> np.ndarray:
    """Return float32 values with arbitrary bits, including NaN and infinities."""
    x = gradient(n, seed)
    random = np.random.default_rng([n, seed, 1])
    bits = random.integers(0, 1 << 32, n, dtype=np.uint32)
    x = np.where(random.random(n) < 0.2, bits.view(np.float32), x)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf], np.float32)
    pick = random.random(n) < 0.1
    x[pick] = special[random.integers(0, 4, int(pick.sum()))]
    return np.ascontiguousarray(x, np.float32)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether arrays have the same dtype, shape and bits, where all NaN count as equal."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "f":
        nan = np.isnan(a)
        if not np.array_equal(nan, np.isnan(b)):
            return False
        a, b = a[~nan], b[~nan]
    return a.tobytes() == b.tobytes()
