"""Former names, until all imports use `source` and `nonfinite`."""
# ruff: noqa: D103

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.arrays.nonfinite import (
    NonFinite,
    check_corrected,
    check_finite,
    check_top,
    nonfinite_error,
    with_policy,
)
from gcodec.arrays.source import NUMPY_DTYPES, Tensor, inspect, outlet, size_of
from gcodec.runtime.memory import empty_beside

__all__ = [
    "NUMPY_DTYPES",
    "NonFinite",
    "Tensor",
    "check_corrected",
    "check_finite",
    "check_sum",
    "check_top",
    "empty_like_shape",
    "intake",
    "nonfinite_error",
    "outlet",
    "size_of",
    "with_policy",
    "writable",
]

check_sum = check_top


def intake(x: Any, name: str = "x", **options: bool) -> Tensor:
    return inspect(x, name).read(**options)


def writable(array: Any, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
    return inspect(array, name).target(dtype, shape)


def empty_like_shape(size: int, beside: Any = None) -> np.ndarray:
    return empty_beside(size, np.float32, beside)
