"""Low-rank factors, one number at a time.

Source: ``docs/wire-format.md``, powersgd.
"""

from __future__ import annotations

import math
import struct

import numpy as np
from numpy.typing import NDArray

from . import philox, sums

Row = list[float]
Factors = tuple[list[Row], list[Row]]


def sizes(shape: tuple[int, ...], rank: int) -> tuple[int, int] | None:
    """Return m and k; None for tensors that are sent as values."""
    if len(shape) < 2:
        return None
    m, k = shape[0], math.prod(shape[1:])
    return None if (m + k) * rank >= m * k else (m, k)


def start(seed: int, rank: int, k: int, prior: list[Row] | None) -> list[Row]:
    """Return the start matrix of the power method."""
    rows = []
    for j in range(rank):
        row = []
        for t in range(k):
            word = philox.word(seed, j * k + t, 2)
            row.append(float(sum(word.to_bytes(4, "little")) - 510))
        rows.append(prior[j] if prior and any(prior[j]) else row)
    return rows


def exponent(numbers: Row) -> int:
    """Return the least e with all magnitudes below 2^e; 0 if all are 0."""
    largest = max((abs(number) for number in numbers), default=0.0)
    e = 0
    while largest and largest >= math.ldexp(1, e):
        e += 1
    while largest and largest < math.ldexp(1, e - 1):
        e -= 1
    return e


def integers(numbers: Row, nbits: int) -> tuple[list[int], int]:
    """Return integers of approximately `nbits` bits, and their common exponent of 2."""
    e = exponent(numbers) - nbits
    return [round(math.ldexp(number, -e)) for number in numbers], e


def block_sizes(k: int) -> tuple[int, int]:
    """Return rows and columns of a block."""
    width = min(k, 8192)
    return min(max(262144 // width, 1), 8192), width


def sum_of(products: list[int], block: int) -> float:
    """Sum exactly within blocks, and round the sum over blocks to binary64."""
    total = 0.0
    for at in range(0, len(products), block):
        inside = sum(products[at : at + block])
        assert abs(inside) <= 2**53
        total += float(inside)
    return total


def orthonormal(rows: list[Row]) -> list[Row]:
    results: list[NDArray[np.float64]] = []
    for row in rows:
        before = np.array(row, np.float64)
        rest = before.copy()
        for other in results:
            c = sums.tree_sum(other * rest)
            rest = rest - c * other
        square = sums.tree_sum(rest * rest)
        if square > sums.tree_sum(before * before) * 2.0**-40:
            results.append(rest / np.sqrt(square))
        else:
            results.append(np.zeros(len(row)))
    return [row.tolist() for row in results]


def factors(
    x: NDArray[np.float32], rank: int, seed: int = 0, prior: list[Row] | None = None
) -> Factors:
    """Return P and Q of a matrix."""
    m, k = x.shape
    height, width = block_sizes(k)
    flat, unit = integers([float(value) for value in x.reshape(-1)], 24)
    matrix = [flat[i * k : i * k + k] for i in range(m)]
    q = [integers(row, 16) for row in start(seed, rank, k, prior)]
    results = []
    for row, e in q:
        sums_of_row = [
            sum_of([a * b for a, b in zip(row, of, strict=True)], width) for of in matrix
        ]
        results.append([math.ldexp(total, e + unit) for total in sums_of_row])
    p = [integers(row, 16) for row in orthonormal(results)]
    last = []
    for row, e in p:
        collected = []
        for t in range(k):
            total = sum_of([row[i] * matrix[i][t] for i in range(m)], height)
            collected.append(float(np.float32(math.ldexp(total, e + unit))))
        last.append(collected)
    return [[math.ldexp(number, e) for number in row] for row, e in p], last


def encode(x: NDArray[np.float32], rank: int, seed: int = 0) -> bytes:
    """Return the payload."""
    x = np.asarray(x, np.float32)
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf")
    actual = sizes(x.shape, rank)
    if actual is None:
        numbers = [float(value) for value in x.reshape(-1)]
    else:
        p, q = factors(x.reshape(actual), rank, seed)
        numbers = [number for row in p + q for number in row]
    return b"".join(struct.pack("<f", number) for number in numbers)


def decode(data: bytes, shape: tuple[int, ...], rank: int) -> NDArray[np.float32]:
    """Return the values of a payload, or raise ValueError."""
    actual = sizes(shape, rank)
    n = math.prod(shape)
    count = n if actual is None else rank * sum(actual)
    if len(data) != 4 * count:
        raise ValueError("length")
    numbers = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError("not finite")
    if actual is None:
        return numbers.reshape(shape)
    m, k = actual
    out = np.empty(n, np.float32)
    with np.errstate(all="ignore"):
        for i in range(m):
            for t in range(k):
                total = np.float32(0)
                for j in range(rank):
                    product = np.float32(numbers[j * m + i] * numbers[rank * m + j * k + t])
                    total = product if j == 0 else np.float32(total + product)
                out[i * k + t] = total
    if not np.isfinite(out).all():
        raise ValueError("passes float32")
    return out.reshape(shape)
