"""randomk: the elements that a seed selects, its payload, its fields of a frame.

Source: ``docs/wire-format.md``, randomk. Values are those of ``sparse_values``.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import leb128, philox, sparse_values, topk
from .universal import Bits, Corrupt, Truncated, to_bytes, to_text

Floats = NDArray[np.float32]

DEFAULT_RATIO = 0.01


class Setting(NamedTuple):
    """The parameters of a message; ``k`` is None if the ratio determines it."""

    value: str = "float32"
    unbiased: bool = False
    k: int | None = None
    ratio: float = DEFAULT_RATIO


def different(n: int, count: int, seed: int) -> set[int]:
    """Return the first `count` distinct draws from n elements."""
    actual: set[int] = set()
    w = 0
    while len(actual) < count:
        low, high = philox.word(seed, 2 * w, 1), philox.word(seed, 2 * w + 1, 1)
        actual.add((high << 32 | low) * n >> 64)
        w += 1
    return actual


def drawn(n: int, k: int, seed: int) -> list[int]:
    """Return the positions of the sent elements."""
    if 2 * k <= n:
        return sorted(different(n, k, seed))
    return sorted(set(range(n)) - different(n, n - k, seed))


def factor(n: int, k: int) -> np.float32:
    """Return the factor of unbiased values."""
    return np.float32(np.float64(n) / np.float64(k))


def _scaled(values: Floats, n: int, setting: Setting) -> Floats:
    if not setting.unbiased or not len(values):
        return values
    with np.errstate(over="ignore", under="ignore"):
        out: Floats = values * factor(n, len(values))
    return out


def encode(x: Floats, setting: Setting, seed: int) -> tuple[bytes, int]:
    """Return payload and bits, or raise `ValueError` for a gradient that an encoder rejects."""
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf")
    n = len(x)
    places = drawn(n, topk.count(n, setting.k, setting.ratio), seed)
    text = sparse_values.write([x[i] for i in places], setting.value)
    values = sparse_values.read(Bits(text), len(places), setting.value)
    if not np.isfinite(_scaled(values, n, setting)).all():
        raise ValueError("a value that is infinite when it is scaled")
    return to_bytes(text), len(text)


def read(data: bytes, nbits: int, n: int, setting: Setting, seed: int) -> tuple[list[int], Floats]:
    """Return positions and values, or raise `Truncated` or `Corrupt`."""
    k = topk.count(n, setting.k, setting.ratio)
    wanted = sparse_values.nbits(k, setting.value)
    if len(data) < (wanted + 7) // 8:
        raise Truncated("fewer bytes than the values have")
    text = to_text(data)
    if nbits != wanted or len(data) != (nbits + 7) // 8 or "1" in text[nbits:]:
        raise Corrupt("another number of bits, or fill that is not zero")
    values = _scaled(sparse_values.read(Bits(text[:nbits]), k, setting.value), n, setting)
    if not np.isfinite(values).all():
        raise Corrupt("a value that is infinite when it is scaled")
    return drawn(n, k, seed), values


def decode(data: bytes, nbits: int, n: int, setting: Setting, seed: int) -> Floats:
    """Return the n values of a payload."""
    return topk.scattered(*read(data, nbits, n, setting, seed), n)


def parameters(setting: Setting) -> bytes:
    """Return the parameters of a frame, without defaults at the end."""
    value = bytes([sparse_values.VALUES.index(setting.value)])
    if setting.k is not None:
        assert setting.ratio == DEFAULT_RATIO
        return value + bytes([setting.unbiased]) + leb128.encode(setting.k + 1)
    if setting.ratio != DEFAULT_RATIO:
        return value + bytes([setting.unbiased, 0]) + struct.pack("<d", setting.ratio)
    if setting.unbiased:
        return value + b"\1"
    return value if setting.value != "float32" else b""


def scalars(seed: int) -> bytes:
    """Return the scalars of a frame."""
    return leb128.encode(seed)
