"""Sample values and sizes near the edge cases of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import pytest
from shim import ORDERS
from sweeps import in_turn, thinned

from gcodec.runtime.device import Device

_T = TypeVar("_T")

# Zero, few, around a warp, a word and a tile, and several tiles.
SIZES = (0, 1, 3, 31, 33, 255, 4095, 4096, 4097, 9001)
LARGE = 1 << 18  # used in one call of each kernel


def sizes_for(gpu: Device, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes, with the large one for a real device and for one thread order of the shim."""
    return (*sizes, *[LARGE] * (getattr(gpu, "order", "shuffled") == "shuffled"))


def third_of(gpu: Device, all_values: Sequence[_T], every: int = 1) -> list[_T]:
    """Return a third of the samples for each thread order of the shim, and all for a device.

    Unless the run is long, the orders of the shim share every second or so of the samples.
    """
    order = getattr(gpu, "order", None)
    if order is None:
        return list(all_values)
    return thinned(all_values, every)[ORDERS.index(order) :: len(ORDERS)]


def orders_in_turn(cases: Sequence[object]) -> list[Any]:
    """Return values of `gpu` and of a parameter with many cases, whose kernels are the same.

    Unless the run is long, the orders of the shim take turns. A device runs all cases.
    """
    on_device = [pytest.param("gpu", case, marks=pytest.mark.gpu) for case in cases]
    return [(order, case) for case, order in in_turn(cases, ORDERS)] + on_device


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
