"""Drawn tensors on which choosing a codec is slow or the choice is close.

The tensors have 64 Ki to 4 Mi values: densities from uniform to Student's t with two degrees of
freedom, sparse values and sparse rows, scales of rows and columns, exact and noisy low rank,
singular values that fall as a power, and tensors that are no matrices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

SHAPES = ((256, 256), (64, 1024), (512, 512), (1024, 1024), (128, 8192), (2048, 2048))
ERRORS = (0.5, 0.3, 0.1, 0.02, 0.001)
BITS = (0.2, 1.0, 4.0)
_RANKS = (4, 16, 48)
_POWERS = (0.5, 0.7, 1.0, 1.5)
_BASIS = 256  # singular vectors of a matrix whose singular values fall


def matrices(m: int, k: int, seed: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    """Yield matrices of (m, k) float32 values, with their names."""
    random = np.random.default_rng(seed)
    normal = random.standard_normal((m, k), np.float32)
    yield "normal", normal
    yield "uniform", random.random((m, k), np.float32) - np.float32(0.5)
    yield "laplace", np.copysign(random.standard_exponential((m, k), np.float32), normal)
    yield "student", (normal / np.sqrt(random.chisquare(2, (m, k)) / 2)).astype(np.float32)
    yield "sparse values", np.where(random.random((m, k)) < 0.01, normal, np.float32(0))
    yield "sparse rows", np.where(random.random((m, 1)) < 0.05, normal, np.float32(0))
    rows, columns = random.standard_normal((m, 1)), random.standard_normal((1, k))
    yield "scaled", (normal * np.exp(1.5 * rows + columns)).astype(np.float32)
    for rank in _RANKS:
        if 2 * rank < min(m, k):
            left, right = random.standard_normal((m, rank)), random.standard_normal((rank, k))
            product = left @ right / rank**0.5
            yield f"rank {rank}", product.astype(np.float32)
            yield f"rank {rank} + noise", (product + 0.1 * normal).astype(np.float32)
    count = min(m, k, _BASIS)
    u = np.linalg.qr(random.standard_normal((m, count)))[0]
    v = np.linalg.qr(random.standard_normal((k, count)))[0]
    for power in _POWERS:
        values = np.arange(1.0, count + 1) ** -power
        yield f"singular values i^-{power:g}", ((u * values) @ v.T).astype(np.float32)


def other_tensors(seed: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    """Yield tensors of other shapes and dtypes, or with few distinct values."""
    random = np.random.default_rng(seed)
    normal = random.standard_normal(1 << 20, np.float32)
    yield "vector", normal
    yield "sparse vector", np.where(random.random(1 << 20) < 0.002, normal, np.float32(0))
    yield "constant", np.full(1 << 20, 0.3, np.float32)
    yield "convolution", random.standard_normal((128, 64, 3, 3), np.float32)
    yield "float16", normal.reshape(1024, 1024).astype(np.float16)
    yield "integers", np.round(3 * normal).reshape(1024, 1024)
