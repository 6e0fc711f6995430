"""Pairs of old and new tensors of every dtype, and frames with other payloads, for patches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

import gcodec

FLOATS = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
DTYPES = FLOATS | {name: np.dtype(name) for name in INTEGERS}


def patterns(x: np.ndarray) -> np.ndarray:
    """Return the bit patterns of a tensor, flat."""
    return np.ascontiguousarray(x).reshape(-1).view(f"u{x.dtype.itemsize}")


def weights(dtype: np.dtype[Any], n: int = 6000) -> np.ndarray:
    """Return weights of all magnitudes."""
    rng = np.random.default_rng(2)
    values = rng.standard_normal(n) * np.exp2(rng.integers(-8, 4, n))
    if dtype.kind not in "fV":
        info = np.iinfo(dtype)
        return (values * 20).astype(np.int64).clip(info.min, info.max).astype(dtype)
    return values.astype(dtype)


def changed(old: np.ndarray, share: float, most: int) -> np.ndarray:
    """Return a tensor of which a share differs by up to `most` units of its bit pattern."""
    rng = np.random.default_rng(4)
    bits = patterns(old).copy()
    step = rng.integers(1, most + 1, bits.size).astype(bits.dtype)
    step = np.where(rng.random(bits.size) < 0.5, step, (~step + 1).astype(bits.dtype))
    bits += np.where(rng.random(bits.size) < share, step, 0).astype(bits.dtype)
    return bits.view(old.dtype).reshape(old.shape)


def pairs(dtype: np.dtype[Any]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield names, and old and new tensors."""
    old = weights(dtype)
    yield "the same", old, old.copy()
    for share in (0.0003, 0.01, 0.3, 0.9, 1.0):
        yield f"{share} by one", old, changed(old, share, 1)
        yield f"{share} by some", old, changed(old, share, 100)
    noise = np.random.default_rng(1).integers(0, 256, (2, 5000 * dtype.itemsize), np.uint8)
    yield "unrelated", noise[0].view(dtype), noise[1].view(dtype)
    yield "constant", np.ones(3000, dtype), np.full(3000, 3).astype(dtype)
    yield "matrix", old.reshape(60, 100), changed(old, 0.02, 3).reshape(60, 100)
    yield "empty", np.empty((3, 0), dtype), np.empty((3, 0), dtype)
    yield "scalar", np.array(1, dtype), np.array(2, dtype)
    if dtype in FLOATS.values():
        kinds = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0]).astype(dtype)
        ends = patterns(kinds).copy()
        ends[0] |= ends.dtype.type(1)  # a payload
        signed = np.concatenate([ends, ends ^ ends.dtype.type(1 << 8 * dtype.itemsize - 1)])
        repeated = np.repeat(signed, signed.size).view(dtype)
        yield "special", repeated, np.tile(signed, signed.size).view(dtype)


def small_pair(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return an old and a new tensor of 120 elements, of a dtype of `DTYPES` or "bool"."""
    rng = np.random.default_rng(3)
    if name == "bool":
        old = rng.standard_normal(120).astype(bool)
        return old, old ^ (rng.random(120) < 0.2)
    old = rng.standard_normal(120).astype(DTYPES[name])
    return old, changed(old, 0.2, 4)


def damaged(payload: bytes, first: int = 0) -> Iterator[bytes]:
    """Yield a payload cut at each byte, a byte more, and with bits from `first` on flipped."""
    yield from (payload[:k] for k in range(len(payload)))
    yield from (payload + b"\0", payload + b"\x01")
    for bit in range(first, 8 * len(payload)):
        data = bytearray(payload)
        data[bit // 8] ^= 1 << bit % 8
        yield bytes(data)


def repaired(frame: bytes, payload: bytes) -> gcodec.Frame:
    """Return a frame with another payload."""
    read = gcodec.Frame.from_bytes(frame)
    data = np.frombuffer(payload, np.uint8)
    changed_payload = read.payload._replace(data=data, nbits=8 * data.size)
    return gcodec.Frame(read.codec, read.dtype, read.shape, changed_payload)
