"""Launchers of products.cu that make factors of a matrix.

See `gcodec.codecs.powersgd.low_rank`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.numeric.products import block_of
from gcodec.kernels.numeric.products_cuda import factors_of
from gcodec.kernels.numeric.reduce import LANES
from gcodec.kernels.numeric.reduce_cuda import tiles
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import Device

_RANKS = 4  # rows of factors that are multiplied at a time


class _Fixed(NamedTuple):
    """See `gcodec.codecs.powersgd.low_rank.Fixed`."""

    integers: Any
    units: Any


def step(matrix: Any, rank: int, seed: int, stream: int, before: Any, top: Any) -> Any:
    """Find factors by one step of the power method."""
    device, (m, k), ranks = device_with(matrix), matrix.shape, np.int64(rank)
    rows, given = device.empty(rank * k, np.float64), before
    if before is None:
        given = device.empty(1, np.uint32)
    start = np.uint64(seed), np.uint64(stream), np.int64(k), given.reshape(-1).view(np.uint32)
    any_before = np.bool_(before is not None)
    device.launch("products", "start_rows", rank, THREADS, *start, any_before, rows)
    values = matrix.reshape(-1).view(np.uint32), np.int64(m), np.int64(k), top.words
    left = _along_rows(device, values, _fixed(device, rows, rank))
    made, sums = device.empty(left.size, np.float64), device.empty(2 * tiles(m) + 2, np.float64)
    device.launch("products", "make_orthonormal", 1, LANES, left, ranks, np.int64(m), made, sums)
    p = _fixed(device, made, rank)
    right, out = _along_columns(device, values, p), device.empty(rank * (m + k), np.float32)
    both = *p, np.int64(m), right, np.int64(k), ranks
    grid = striding_blocks(out.size)
    device.launch("products", "put_factors", grid, THREADS, *both, out.view(np.uint32))
    return out


def passes_float32(p: Any, q: Any) -> Deferred:
    """Tell whether some value of PᵀQ is not finite."""
    device, (rank, m), k = device_with(p), p.shape, q.shape[1]
    given = factors_of(p, q)
    tops, bound = device.empty(2 * rank, np.uint32), device.empty(1, np.float64)
    for part, n, at in ((given[0], m, 0), (given[1], k, rank)):
        room = tops[at : at + rank]
        device.launch("products", "largest_of_rows", rank, THREADS, part, np.int64(n), room)
    device.launch("products", "bound_product", 1, 1, tops, np.int64(rank), bound)
    found, grid = device.zeros(1, np.uint32), striding_blocks(m * k)
    device.launch("products", "pass_float32", grid, THREADS, *given, bound, found)
    return Deferred(device, found, lambda words: bool(words[0]))


def _fixed(device: Device, rows: Any, rank: int) -> _Fixed:
    """Round rows of numbers to 16 bits and a sign."""
    made = _Fixed(device.empty(rows.size, np.int32), device.empty(rank, np.float64))
    n = np.int64(rows.size // rank)
    device.launch("products", "fix_rows", rank, THREADS, rows, n, *made)
    return made


def _along_rows(device: Device, values: Any, factors: _Fixed) -> Any:
    """Multiply each row of a matrix by factors."""
    (_, m, k, _), rank = values, factors.units.size
    sums = device.empty(rank * int(m), np.float64)
    what = *values, np.int64(block_of(int(k))[1]), factors.integers, np.int64(rank)
    grid = striding_blocks(int(m), 1, THREADS // 32)
    for first in range(0, rank, _RANKS):
        device.launch("products", "multiply_rows", grid, THREADS, *what, np.int64(first), sums)
    return _scaled(device, sums, factors, values)


def _along_columns(device: Device, values: Any, factors: _Fixed) -> Any:
    """Multiply each column by factors."""
    m, k, rank = int(values[1]), int(values[2]), factors.units.size
    height = block_of(k)[0]
    blocks = -(-m // height)
    sums, apart = device.empty(rank * k, np.float64), device.empty(_RANKS * blocks * k, np.uint64)
    what = *values, np.int64(height), factors.integers, np.int64(rank)
    grid, sizes = (-(-k // min(k, THREADS)), blocks), (np.int64(blocks), np.int64(k))
    for first in map(np.int64, range(0, rank, _RANKS)):
        apart[:] = 0
        device.launch("products", "multiply_columns", grid, THREADS, *what, first, apart)
        added = apart, *sizes, np.int64(rank), first, sums
        device.launch("products", "add_blocks", striding_blocks(_RANKS * k), THREADS, *added)
    return _scaled(device, sums, factors, values)


def _scaled(device: Device, sums: Any, factors: _Fixed, values: Any) -> Any:
    rank = factors.units.size
    rows, n = device.empty(sums.size, np.float64), np.int64(sums.size // rank)
    arguments = sums, factors.units, values[3], np.int64(rank), n, rows
    device.launch("products", "scale_rows", striding_blocks(rows.size), THREADS, *arguments)
    return rows
