"""Products of a matrix with few rows of factors, with the same bits on all devices.

Libraries and processors differ in the order in which a matrix product sums. So both operands are
rounded to integers: matrix values up to 2^24, factors up to 2^16. A block sums at most 2^13
products, so these sums are exact in float64, in any order. The sums of blocks are added one after
the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gcodec.kernels.numeric.arithmetic import copy_block
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, kernel
from gcodec.runtime.lanes import ADD, BLOCK, WRITE, Emitter, Value, block, floats
from gcodec.runtime.memory import aligned_empty

VALUE_NBITS, FACTOR_NBITS = 24, 16
SUM = 1 << 53 - VALUE_NBITS - FACTOR_NBITS  # products that a block sums

_BLOCK = 1 << 18  # values that are converted to float64 at a time
_SMALL = 1 << 20  # values of a matrix whose integers are kept for further products
_CHUNK = 1 << 16  # values of a product that stay in the cache
_ROWS = 2  # of a product, whose sums fit into the registers of any processor


def block_of(columns: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of the blocks of a matrix."""
    width = min(columns, SUM)
    return min(max(_BLOCK // max(width, 1), 1), SUM), width


def unit_of(top: int) -> float:
    """Return the unit of integers, a power of two, given the bits of the largest float32 value."""
    _, exponent = math.frexp(float(np.uint32(top).view(np.float32)))
    return math.ldexp(1.0, exponent - VALUE_NBITS)


def prepare(matrix: np.ndarray, top: int) -> np.ndarray:
    """Return the integers of a small (m, k) float32 matrix as float64, or else the matrix.

    Products take the result in place of the matrix, and are exact without blocks.
    """
    if matrix.size > _SMALL or max(matrix.shape) > SUM:
        return matrix
    integers = np.empty(matrix.shape)
    _round_to_units(matrix.reshape(-1), 1 / unit_of(top), integers.reshape(-1))
    return integers


def along_rows(matrix: np.ndarray, top: int, factors: np.ndarray) -> np.ndarray:
    """Return the sums of products with each row of a matrix, as (r, m) float64.

    Parameters
    ----------
    matrix : (m, k) float32 or float64 array
        Finite values, which are rounded to multiples of the unit, see `unit_of`; or the float64
        integers that `prepare` returns.
    top : int
        Bits of the largest magnitude.
    factors : (r, k) float64 array
        Integers.
    """
    if matrix.dtype == np.float64:
        return factors @ matrix.T
    sums = np.zeros((matrix.shape[0], len(factors)))
    transposed = np.ascontiguousarray(factors.T)
    for rows, columns, integers in _blocks(matrix, unit_of(top)):
        sums[rows] += integers @ transposed[columns]
    return np.ascontiguousarray(sums.T)


def along_columns(matrix: np.ndarray, top: int, factors: np.ndarray) -> np.ndarray:
    """Return the sums of products of each column with (r, m) factors, as (r, k) float64.

    See `along_rows`.
    """
    if matrix.dtype == np.float64:
        return factors @ matrix
    sums = np.zeros((matrix.shape[1], len(factors)))
    transposed = np.ascontiguousarray(factors.T)
    for rows, columns, integers in _blocks(matrix, unit_of(top)):
        sums[columns] += integers.T @ transposed[rows]
    return np.ascontiguousarray(sums.T)


@dispatched("gcodec.kernels.numeric.products_cuda", by="out")
def put_product(p: np.ndarray, q: np.ndarray, out: np.ndarray) -> None:
    """Set `out` to PᵀQ. Sums are in the order of rows; each product and each sum is rounded.

    Parameters
    ----------
    p, q : (r, m) and (r, k) float32 arrays
        Factors in the same memory as `out`; r is at least 1.
    out : (m·k,) float32 array
    """
    _store_product(p, q, WRITE, np.float32(1), out)


@dispatched("gcodec.kernels.numeric.products_cuda", by="out")
def add_product(p: np.ndarray, q: np.ndarray, scale: np.float32, out: np.ndarray) -> None:
    """Add scale·PᵀQ to `out`; the product and each step are rounded. See `put_product`."""
    _store_product(p, q, ADD, scale, out)


def product_range(p: np.ndarray, q: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return the elements `start` to `stop - 1` of PᵀQ on the host; see `put_product`."""
    k = q.shape[1]
    first, last = start // k, -(-stop // k)
    rows = np.empty((last - first) * k, np.float32)
    if start < stop:
        put_product(p[:, first:last], q, rows)
    return rows[start - first * k : stop - first * k].copy()


def _store_product(
    p: np.ndarray, q: np.ndarray, store: int, scale: np.float32, out: np.ndarray
) -> None:
    ranks, k = q.shape
    left, right = np.ascontiguousarray(p.T).reshape(-1), _tiles_of(q)

    # A segment is one call of the kernel: calls would wait for the interpreter's lock.
    def task(start: int, stop: int) -> None:
        edge = np.empty(_ROWS * BLOCK, np.float32)
        rows = left[start // k * ranks : stop // k * ranks]
        _multiply(rows, right, ranks, k, store, scale, edge, out[start:stop])

    pool.run(task, out.size, k)


def _tiles_of(q: np.ndarray) -> np.ndarray:
    """Return the tiles of BLOCK columns of an (r, k) float32 array, the last one with zeros."""
    ranks, k = q.shape
    # Where tiles begin at cache lines, no load crosses them.
    tiles = aligned_empty(-(-k // BLOCK) * ranks * BLOCK, np.float32)
    _fill_tiles(np.ascontiguousarray(q).reshape(-1), ranks, k, tiles)
    return tiles


@kernel("in float32[], int64, int64, out float32[]")
def _fill_tiles(q, ranks, k, tiles):
    # q.size == ranks * k; tiles.size == ceil(k / BLOCK) * ranks * BLOCK
    for j in range(ranks):
        for first in range(0, k, BLOCK):
            at, start = first * ranks + j * BLOCK, j * k + first
            if first + BLOCK <= k:
                copy_block(q, start, tiles, at, False)
            else:
                for t in range(BLOCK):
                    tiles[at + t] = q[start + t] if first + t < k else np.float32(0)


def _tile_of(rows: int) -> Intrinsic:
    """Make the block that multiplies `rows` rows of a left factor by 32 columns of a right one.

    The sums stay in registers.
    """
    factors = ("left", "first", "ranks", "right", "tile")

    @block(*factors, "store", "scale", "out", "to", "stride")
    def product_tile(e: Emitter) -> None:
        builder, ranks = e.builder, e.args["ranks"]
        zero, one, size = (ranks.type(number) for number in (0, 1, BLOCK))
        sources, targets = [e.address("left", "first")], [e.address("out", "to")]
        for _ in range(rows - 1):
            sources.append(builder.gep(sources[-1], [ranks]))
            targets.append(builder.gep(targets[-1], [e.args["stride"]]))
        tile = e.address("right", "tile")

        def terms(j: Value) -> list[Value]:
            columns = e.load(builder.gep(tile, [builder.mul(j, size)]), floats())
            numbers = [e.splat(builder.load(builder.gep(source, [j]))) for source in sources]
            return [builder.fmul(number, columns) for number in numbers]

        def add(j: Value, *sums: Value) -> list[Value]:
            added = zip(sums, terms(j), strict=True)
            return [builder.fadd(total, term) for total, term in added]

        sums = e.count(one, ranks, one, terms(zero), add)
        for total, target in zip(sums, targets, strict=True):
            e.store_as(total, target)

    return product_tile


_put_rows, _put_row = _tile_of(_ROWS), _tile_of(1)


@kernel(
    "in float32[], in float32[], int64, int64, int64, float32, out float32[], out float32[]",
    vectorized=False,
)
def _multiply(left, right, ranks, k, store, scale, edge, out):
    # left.size == rows * ranks; right.size == ceil(k / BLOCK) * ranks * BLOCK; ranks > 0;
    # k > 0; edge.size == _ROWS * BLOCK; out.size == rows * k
    rows, height = out.size // k, max(_CHUNK // k, _ROWS)
    for first in range(0, rows, height):
        last = min(first + height, rows)
        for column in range(0, k, BLOCK):
            tile, width = column * ranks, min(BLOCK, k - column)
            i = first
            while i < last:
                many, at, to = i + _ROWS <= last, i * ranks, i * k + column
                target, place, stride, own_store = out, to, k, store
                if width < BLOCK:
                    target, place, stride, own_store = edge, 0, BLOCK, WRITE
                if many:
                    _put_rows(
                        left, at, ranks, right, tile, own_store, scale, target, place, stride
                    )
                else:
                    _put_row(left, at, ranks, right, tile, own_store, scale, target, place, stride)
                if width < BLOCK:
                    for row in range(_ROWS if many else 1):
                        for t in range(width):
                            value = edge[row * BLOCK + t]
                            if store == ADD:
                                value = out[to + row * k + t] + scale * value
                            out[to + row * k + t] = value
                i += _ROWS if many else 1


@kernel("in float32[], float64, out float64[]")
def _round_to_units(values, inverse, out):
    # values.size == out.size
    for i in range(out.size):
        out[i] = np.rint(np.float64(values[i]) * inverse)


def _blocks(matrix: np.ndarray, unit: float) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Cut a matrix into blocks of integers; each block overwrites the preceding one."""
    m, k = matrix.shape
    height, width = block_of(k)
    buffer = np.empty((height, width))
    for row in range(0, m, height):
        for column in range(0, k, width):
            rows, columns = slice(row, row + height), slice(column, column + width)
            part = matrix[rows, columns]
            integers = buffer[: part.shape[0], : part.shape[1]]
            if width == k:
                _round_to_units(part.reshape(-1), 1 / unit, integers.reshape(-1))
            else:
                for source, target in zip(part, integers, strict=True):
                    _round_to_units(source, 1 / unit, target)
            yield rows, columns, integers
