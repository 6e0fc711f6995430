"""Launchers of products.cu.

See `gcodec.kernels.numeric.products` and `gcodec.kernels.numeric.low_rank`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.numeric.arithmetic import add_scaled
from gcodec.kernels.numeric.products import block_of
from gcodec.kernels.numeric.reduce import LANES, max_abs_bits
from gcodec.kernels.numeric.reduce_cuda import tiles
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, launch_striding, striding_blocks
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import Device, beside, host
from gcodec.runtime.memory import flattened

_RANKS = 4  # rows of factors that a kernel multiplies at a time


class _Matrix(NamedTuple):
    """A matrix as kernels take it: its values, its sizes, and the bits of its top magnitude."""

    values: Array
    m: int
    k: int
    top: Deferred | Array


class _Fixed(NamedTuple):
    """See `gcodec.kernels.numeric.low_rank.Fixed`."""

    integers: Array
    units: Array


def put_product(p: Array, q: Array, out: Array) -> None:
    """Set values to PᵀQ."""
    (ranks, m), k = p.shape, q.shape[1]
    arguments = p, q, ranks, m, k, out
    launch_striding(device_with(out), "products", "put_products", m * k, *arguments)


def add_product(p: Array, q: Array, scale: np.float32, out: Array) -> None:
    """Add scaled values of PᵀQ."""
    product = device_with(out).empty(out.size, np.float32)
    put_product(p, q, product)
    add_scaled(product, scale, out)


def prepared(matrix: Array, top: int) -> Array:
    """Return the matrix, whose values kernels round as they read them."""
    return matrix


def times_transposed(matrix: Array, q: Any, top: int | None = None) -> np.ndarray:
    """Return Q·Mᵀ on the host."""
    return _times(_along_rows, matrix, q, top)


def times(matrix: Array, p: Any, top: int | None = None) -> np.ndarray:
    """Return P·M on the host."""
    return _times(_along_columns, matrix, p, top)


def step(matrix: Array, rank: int, seed: int, stream: int, before: Array, top: Deferred) -> Array:
    """Compute factors by one step of the power method."""
    device, (m, k) = device_with(matrix), matrix.shape
    values = _Matrix(matrix, m, k, top)
    rows, previous = device.empty(rank * k, np.float64), before
    if before is None:
        previous = device.empty(1, np.uint32)
    arguments = seed, stream, k, previous, before is not None, rows
    device.launch("products", "start_rows", rank, THREADS, *arguments)
    left = _along_rows(device, values, _fixed(device, rows, rank))
    ortho, sums = device.empty(left.size, np.float64), device.empty(2 * tiles(m) + 2, np.float64)
    device.launch("products", "make_orthonormal", 1, LANES, left, rank, m, ortho, sums)
    p = _fixed(device, ortho, rank)
    right, out = _along_columns(device, values, p), device.empty(rank * (m + k), np.float32)
    launch_striding(device, "products", "put_factors", out.size, *p, m, right, k, rank, out)
    return out


def passes_float32(p: Array, q: Array) -> Deferred:
    """Return whether a value of PᵀQ is not finite."""
    device, (rank, m), k = device_with(p), p.shape, q.shape[1]
    tops, bound = device.empty(2 * rank, np.uint32), device.empty(1, np.float64)
    for factors, n, out in ((p, m, tops[:rank]), (q, k, tops[rank:])):
        device.launch("products", "largest_of_rows", rank, THREADS, factors, n, out)
    device.launch("products", "bound_product", 1, 1, tops, rank, bound)
    passes = device.zeros(1, np.uint32)
    arguments = p, q, rank, m, k, bound, passes
    launch_striding(device, "products", "pass_float32", m * k, *arguments)
    return Deferred(device, passes, lambda words: bool(words[0]))


def _times(
    multiply: Callable[[Device, _Matrix, _Fixed], Array], matrix: Array, rows: Any, top: int | None
) -> np.ndarray:
    """Multiply a matrix by rows of integers that are on the host."""
    bits: Any = max_abs_bits(flattened(matrix)) if top is None else None
    if top is not None:
        bits = beside(np.array([top], np.uint32), matrix)
    integers = np.ascontiguousarray(rows.integers, np.int32).reshape(-1)
    factors = _Fixed(beside(integers, matrix), beside(rows.units.reshape(-1), matrix))
    m, k = matrix.shape
    products = host(multiply(device_with(matrix), _Matrix(matrix, m, k, bits), factors))
    return products.reshape(len(rows.integers), -1)


def _fixed(device: Device, rows: Array, rank: int) -> _Fixed:
    """Round rows of numbers to 16 bits and a sign."""
    fixed = _Fixed(device.empty(rows.size, np.int32), device.empty(rank, np.float64))
    device.launch("products", "fix_rows", rank, THREADS, rows, rows.size // rank, *fixed)
    return fixed


def _along_rows(device: Device, matrix: _Matrix, factors: _Fixed) -> Array:
    """Multiply each row of a matrix by factors."""
    rank = factors.units.size
    sums, width = device.empty(rank * matrix.m, np.float64), block_of(matrix.k)[1]
    grid = striding_blocks(matrix.m, 1, THREADS // 32)
    for first in range(0, rank, _RANKS):
        arguments = *matrix, width, factors.integers, rank, first, sums
        device.launch("products", "multiply_rows", grid, THREADS, *arguments)
    return _scaled(device, sums, factors, matrix)


def _along_columns(device: Device, matrix: _Matrix, factors: _Fixed) -> Array:
    """Multiply each column of a matrix by factors."""
    k, rank, height = matrix.k, factors.units.size, block_of(matrix.k)[0]
    blocks = -(-matrix.m // height)
    sums, parts = device.empty(rank * k, np.float64), device.empty(_RANKS * blocks * k, np.uint64)
    grid = -(-k // min(k, THREADS)), blocks
    for first in range(0, rank, _RANKS):
        parts[:] = 0
        arguments = *matrix, height, factors.integers, rank, first, parts
        device.launch("products", "multiply_columns", grid, THREADS, *arguments)
        added = parts, blocks, k, rank, first, sums
        launch_striding(device, "products", "add_blocks", _RANKS * k, *added)
    return _scaled(device, sums, factors, matrix)


def _scaled(device: Device, sums: Array, factors: _Fixed, matrix: _Matrix) -> Array:
    """Convert sums of integer products to the numbers that they represent."""
    rank, rows = factors.units.size, device.empty(sums.size, np.float64)
    arguments = sums, factors.units, matrix.top, rank, sums.size // rank, rows
    launch_striding(device, "products", "scale_rows", sums.size, *arguments)
    return rows
