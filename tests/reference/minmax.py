"""Min-max quantization, one float64 operation at a time.

Source: ``docs/wire-format.md``, minmax.
"""

from __future__ import annotations

import math
import struct

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
    results, numbers = [], x.tolist()
    for start in range(0, len(x), size):
        values = numbers[start : start + size]
        if not all(math.isfinite(value) for value in values):
            raise ValueError("NaN or Inf")
        results.append((min(values) + 0.0, max(values) + 0.0))
    return results


def codes(x: Floats, bits: int, bucket: int, seed: int | None) -> list[int]:
    """Return the level of each element; a seed enables stochastic rounding."""
    size = bucket_of(len(x), bucket)
    top = 2**bits - 1
    pairs = ranges(x, bucket)
    words = None if seed is None else philox.words(seed, len(x))
    results = []
    for i, value in enumerate(x.tolist()):
        low, high = pairs[i // size]
        if high == low:
            results.append(0)
            continue
        factor = top / (high - low)
        r = (value - low) * factor
        if words is None:
            q = round(r)  # ties to even
        else:
            q = math.floor(r)
            rest = r - q
            q += (words[i] >> 1) < int(rest * 2.0**31)
            q = min(q, top)
        results.append(int(q))
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
    count = (n + size - 1) // size
    pairs = [struct.unpack(">ff", data[8 * b : 8 * b + 8]) for b in range(count)]
    for low, high in pairs:
        wrong_zero = any(v == 0 and math.copysign(1, v) < 0 for v in (low, high))
        if not (math.isfinite(low) and math.isfinite(high) and low <= high) or wrong_zero:
            raise ValueError("wrong range")
    levels = fields.unpack(data[8 * count :], n, bits)
    out = []
    for i, q in enumerate(levels):
        low, high = pairs[i // size]
        top = 2**bits - 1
        step = (high - low) / top
        # Start from the end with the smaller magnitude.
        out.append(low + q * step if abs(low) <= abs(high) else high + (q - top) * step)
    return np.array(out, np.float64).astype(np.float32)
