"""Min-max quantization, in float64.

Source: ``docs/wire-format.md``, minmax.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import fields, philox

Floats = NDArray[np.float32]


def bucket_of(n: int, bucket: int) -> int:
    """Return the number of elements that share a range."""
    return bucket if 0 < bucket < n else max(n, 1)


def ranges(x: Floats, bucket: int) -> list[tuple[float, float]]:
    """Return the least and largest value of each bucket; zeros are +0."""
    size = bucket_of(len(x), bucket)
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf")
    if not len(x):
        return []
    starts = range(0, len(x), size)
    least, largest = (f.reduceat(x, starts).astype(float) for f in (np.minimum, np.maximum))
    return list(zip((least + 0.0).tolist(), (largest + 0.0).tolist(), strict=True))


def _each(numbers: Sequence[float], n: int, bucket: int) -> Any:
    """Return the number of the bucket of each element."""
    return np.repeat(np.array(numbers, float), bucket_of(n, bucket))[:n]


def codes(x: Floats, bits: int, bucket: int, seed: int | None) -> list[int]:
    """Return the level of each element; a seed enables stochastic rounding."""
    top = 2**bits - 1
    pairs = ranges(x, bucket)
    low, high = (_each([pair[k] for pair in pairs], len(x), bucket) for k in (0, 1))
    width = high - low
    factor = np.divide(top, width, out=np.zeros_like(width), where=width > 0)
    r = (x.astype(float) - low) * factor
    if seed is None:
        q = np.rint(r)  # ties to even
    else:
        words = np.array(philox.words(seed, len(x)), np.int64)
        q = np.floor(r)
        q += (words >> 1) < ((r - q) * 2.0**31).astype(np.int64)
        q = np.minimum(q, top)
    results: list[int] = q.astype(int).tolist()
    return results


def encode(x: Floats, bits: int, bucket: int = 0, seed: int | None = None) -> tuple[bytes, int]:
    """Return the payload and its bits."""
    x = np.asarray(x, np.float32)
    head = b""
    for low, high in ranges(x, bucket):
        head += struct.pack(">ff", low, high)
    body = fields.pack(codes(x, bits, bucket, seed), bits)
    return head + body, 8 * len(head) + bits * len(x)


def decode(data: bytes, n: int, bits: int, bucket: int = 0) -> Floats:
    """Return the n values of a payload, or raise ValueError."""
    size = bucket_of(n, bucket)
    count, top = (n + size - 1) // size, 2**bits - 1
    pairs = [struct.unpack(">ff", data[8 * b : 8 * b + 8]) for b in range(count)]
    for low, high in pairs:
        wrong_zero = any(v == 0 and math.copysign(1, v) < 0 for v in (low, high))
        if not (math.isfinite(low) and math.isfinite(high) and low <= high) or wrong_zero:
            raise ValueError("wrong range")
    q = np.array(fields.unpack(data[8 * count :], n, bits), float)
    low, high = (_each([pair[k] for pair in pairs], n, bucket) for k in (0, 1))
    step = (high - low) / top
    # Start from the end with the smaller magnitude.
    from_low = np.abs(low) <= np.abs(high)
    return np.where(from_low, low + q * step, high + (q - top) * step).astype(np.float32)
