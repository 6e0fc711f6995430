"""Launchers of products.cu; see `gcodec.kernels.products`. Factors and sums are on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.cuda.grid import THREADS, device_with, striding_blocks
from gcodec.kernels.products import block_of
from gcodec.scalars import Later, wanted

_RANKS = 4  # rows of factors that are multiplied at a time


def along_rows(matrix: Any, top: Any, factors: np.ndarray) -> np.ndarray:
    """Return the sums of products with each row of a matrix."""
    device, (m, k), ranks = device_with(matrix), matrix.shape, len(factors)
    sums, given = device.empty(ranks * m, np.float64), device.to_device(factors.astype(np.int32))
    what = *_values(matrix, top), np.int64(block_of(k)[1]), given, np.int64(ranks)
    grid = striding_blocks(m, 1, THREADS // 32)
    for first in range(0, ranks, _RANKS):
        device.launch("products", "multiply_rows", grid, THREADS, *what, np.int64(first), sums)
    return device.to_host(sums).reshape(ranks, m)


def along_columns(matrix: Any, top: Any, factors: np.ndarray) -> np.ndarray:
    """Return the sums of products with each column of a matrix."""
    device, (m, k), ranks = device_with(matrix), matrix.shape, len(factors)
    height = block_of(k)[0]
    blocks = -(-m // height)
    sums, given = device.empty(ranks * k, np.float64), device.to_device(factors.astype(np.int32))
    what = *_values(matrix, top), np.int64(height), given, np.int64(ranks)
    grid = -(-k // min(k, THREADS)), blocks
    apart, sizes = device.empty(_RANKS * blocks * k, np.uint64), (np.int64(blocks), np.int64(k))
    for first in map(np.int64, range(0, ranks, _RANKS)):
        apart[:] = 0
        device.launch("products", "multiply_columns", grid, THREADS, *what, first, apart)
        added = apart, *sizes, np.int64(ranks), first, sums
        device.launch("products", "add_blocks", striding_blocks(_RANKS * k), THREADS, *added)
    return device.to_host(sums).reshape(ranks, k)


def put_product(p: np.ndarray, q: np.ndarray, out: Any) -> None:
    """Set values to PᵀQ."""
    device, (ranks, m), k = device_with(out), p.shape, q.shape[1]
    given = (device.to_device(np.ascontiguousarray(part).view(np.uint32)) for part in (p, q))
    arguments = *given, np.int64(ranks), np.int64(m), np.int64(k), out.view(np.uint32)
    device.launch("products", "put_products", striding_blocks(m * k), THREADS, *arguments)


def _values(matrix: Any, top: Any) -> tuple[Any, np.int64, np.int64, Any]:
    """Return a matrix and its largest magnitude, which the host learns of with the sums."""
    (m, k), flat = matrix.shape, matrix.reshape(-1).view(np.uint32)
    wanted(top)
    bits = (
        top.words if type(top) is Later else device_with(matrix).to_device(np.array([top], "u4"))
    )
    return flat, np.int64(m), np.int64(k), bits
