"""Symbols to code, and comparison of the outcomes for damaged strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gcodec
from gcodec.kernels.quantize.levels import symbol_dtype
from gcodec.runtime.deferred import Deferred


def symbols(n: int, s: int, share: float = 1.0, spread: float = 2.0) -> np.ndarray:
    """Draw symbols of levels up to s, mostly small; the given share is nonzero by construction."""
    random = np.random.default_rng([n, s])
    levels = np.minimum(np.abs(random.standard_cauchy(n)) * spread, s).astype(np.int64)
    levels[random.random(n) >= share] = 0
    codes = 2 * levels + ((levels > 0) & (random.random(n) < 0.5))
    return codes.astype(symbol_dtype(s))


def outcome(action: Callable[[], Any]) -> Any:
    """Return the result of an action, or the type of the `FormatError` that it raises."""
    try:
        return action()
    except gcodec.FormatError as error:
        return type(error)


def agree(one: Any, two: Any) -> bool:
    """Return whether two outcomes are equal, or both errors."""
    if isinstance(one, type) or isinstance(two, type):
        return one is two
    return np.array_equal(one, two)


def broken(data: np.ndarray, first: int, seed: int) -> np.ndarray:
    """Return a copy of some bytes with a few flipped bits, at bit `first` or later."""
    random = np.random.default_rng(seed)
    wrong = data.copy()
    for at in random.integers(first // 8, data.size, 1 + seed % 3):
        wrong[at] ^= np.uint8(1 << random.integers(0, 8))
    return wrong


def resolved(number: Any) -> Any:
    """Return a number, fetched from the device if it is a `Deferred`."""
    return number.value if isinstance(number, Deferred) else number
