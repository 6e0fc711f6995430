"""float16 numbers of blocks with a mean and a deviation: from float32, and back.

The number of x is (x − mean)/deviation as float16. The mean of a block is the sum of its elements
in their order, in float64, over their count. The deviation is the root of the sum of the squares
of x − mean in float64, in the order of `gcodec.kernels.numeric.reduce`, over the root of the
count. A number h stands for h·deviation + mean, with both results rounded to float32.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.convert import half_to_single, single_to_half
from gcodec.kernels.numeric.reduce import LANES, TILE, float_of_bits, fold, largest_bits
from gcodec.runtime import pool
from gcodec.runtime.cover import store_of
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import ADD, BLOCK
from gcodec.runtime.memory import bits_float, float_bits

_PART = 1 << 16  # elements that stay in a cache, at least a block
_TOGETHER = 8  # blocks that are summed at the same time
_LEAST = np.float32(2.0**-23)  # deviation
_FINITE = np.float32(np.finfo(np.float32).max)
_MOST_HALF = np.float32(65504)  # largest float16
_INFINITY = np.uint16(0x7C00)  # bits of a float16


def write_means(x: np.ndarray, block_size: int, means: np.ndarray) -> float:
    """Write the means of blocks of a (n,) float32 array, and return its largest magnitude.

    The mean of a block whose magnitude is not finite is arbitrary.
    """

    def task(start: int, stop: int) -> int:
        blocks = slice(start // block_size, -(-stop // block_size))
        return int(_means(x[start:stop], block_size, np.empty(_TOGETHER), means[blocks]))

    return float_of_bits(max(pool.run(task, x.size, block_size, x)))


def quantize(
    x: np.ndarray, block_size: int, means: np.ndarray, deviations: np.ndarray, out: np.ndarray
) -> None:
    """Write the deviations of blocks of a (n,) float32 array, and its numbers.

    Parameters
    ----------
    x : (n,) float32 array
        Magnitudes up to 2^126.
    block_size : int
    means : (blocks,) float32 array
        As `write_means` writes them.
    deviations : (blocks,) float32 array
        At least 2^-23 each.
    out : (2n,) uint8 array
        Little-endian float16, limited to ±65504.
    """
    step = max(_PART // block_size, 1) * block_size
    tiles = -(-min(block_size, x.size) // TILE)

    def task(start: int, stop: int) -> None:
        for at in range(start, stop, step):
            end = min(at + step, stop)
            blocks = slice(at // block_size, -(-end // block_size))
            own = x[at:end], block_size, means[blocks]
            deviations[blocks] = _deviations(*own, tiles)
            _scores(*own, deviations[blocks], out[2 * at : 2 * end].view(np.uint16))

    pool.run(task, x.size, block_size, x)


def _deviations(x: np.ndarray, block_size: int, means: np.ndarray, tiles: int) -> np.ndarray:
    """Return the deviations of blocks of up to `tiles` tiles."""
    sums = np.zeros(tiles * means.size)
    _centered_squares(x, block_size, tiles, means, np.empty(LANES), sums)
    if tiles > 1:
        sums = np.array([fold(row) for row in sums.reshape(-1, tiles)])
    counts = np.full(means.size, min(block_size, x.size), np.float64)
    counts[-1] = x.size - (means.size - 1) * block_size
    with np.errstate(over="ignore", under="ignore"):
        lengths = np.minimum(np.sqrt(sums).astype(np.float32), _FINITE)
        return np.maximum(lengths / np.sqrt(counts).astype(np.float32), _LEAST)


def dequantize(
    numbers: np.ndarray,
    block_size: int,
    means: np.ndarray,
    deviations: np.ndarray,
    out: np.ndarray,
    add: np.float32 | None = None,
) -> None:
    """Write the values of n numbers to (n,) float32 `out`, or add a multiple of them.

    Parameters
    ----------
    numbers : (2n,) uint8 array
        As `quantize` writes them.
    block_size : int
    means, deviations : (blocks,) float32 array
    out : (n,) float32 array
    add : float32, optional
        Factor of the values that are added; each product is rounded first.
    """
    stored = store_of(add, False)

    def task(start: int, stop: int) -> None:
        for at in range(start, stop, _PART):
            end = min(at + _PART, stop)
            halves = _aligned(numbers, at, end)
            _standard_values(halves, at, block_size, means, deviations, *stored, out[at:end])

    pool.run(task, out.size, BLOCK)


def first_nonfinite(numbers: np.ndarray) -> int | None:
    """Return the place of the first of n numbers that is NaN or infinity; None if all are finite.

    `numbers` is a (2n,) uint8 array.
    """
    for at in range(0, numbers.size // 2, _PART):
        exponents = _aligned(numbers, at, at + _PART) & _INFINITY
        if exponents.max() == _INFINITY:
            return at + int(np.argmax(exponents))
    return None


def _aligned(numbers: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return the bits of numbers, a copy where their bytes have an odd address."""
    return np.require(numbers[2 * start : 2 * stop].view(np.uint16), requirements="A")


@kernel("in float32[], int64, out float64[], out float32[]")
def _means(x, block_size, totals, means):
    # means.size == ceil(x.size / block_size). totals.size == _TOGETHER: as many sums grow
    # at the same time, because each addition waits for the preceding one of its block.
    top = np.uint32(0)
    whole = x.size // block_size // _TOGETHER * _TOGETHER
    for first in range(0, whole, _TOGETHER):
        blocks = x[first * block_size : (first + _TOGETHER) * block_size]
        totals[:] = 0.0
        for at in range(0, block_size, TILE):
            end = min(at + TILE, block_size)
            for k in range(_TOGETHER):
                top = largest_bits(blocks[k * block_size + at : k * block_size + end], top)
            for i in range(at, end):
                for k in range(_TOGETHER):
                    totals[k] += np.float64(blocks[k * block_size + i])
        for k in range(_TOGETHER):
            means[first + k] = np.float32(totals[k] / np.float64(block_size))
    for b in range(whole, means.size):
        values = x[b * block_size : min((b + 1) * block_size, x.size)]
        top, total = largest_bits(values, top), 0.0
        for i in range(values.size):
            total += np.float64(values[i])
        means[b] = np.float32(total / np.float64(values.size))
    return top


@kernel("in float32[], int64, int64, in float32[], out float64[], out float64[]")
def _centered_squares(x, block_size, tiles, means, lanes, sums):
    # lanes.size == LANES; means.size == ceil(x.size / block_size). `sums` has `tiles` zeros for
    # each block. Each tile replaces one of them, and a shorter block leaves the others.
    for b in range(means.size):
        values, mean = x[b * block_size : min((b + 1) * block_size, x.size)], means[b]
        for tile in range((values.size + TILE - 1) // TILE):
            part = values[tile * TILE : min((tile + 1) * TILE, values.size)]
            width = LANES
            while width > 1 and width // 2 >= part.size:
                width //= 2
            # Lanes from `width` on would be 0, and adding them would change nothing.
            lanes[:width] = 0.0
            for row in range(0, part.size, LANES):
                own = part[row : min(row + LANES, part.size)]
                for t in range(own.size):  # up to width
                    centered = np.float64(np.float32(own[t] - mean))
                    lanes[t] += centered * centered
            while width > 1:
                width //= 2
                for t in range(width):  # t + width < 2 * width <= LANES
                    lanes[t] += lanes[t + width]
            sums[b * tiles + tile] = lanes[0]


@kernel("in float32[], int64, in float32[], in float32[], out uint16[]")
def _scores(x, block_size, means, deviations, out):
    # out.size == x.size; means.size == deviations.size == ceil(x.size / block_size)
    for b in range(means.size):
        start, stop = b * block_size, min((b + 1) * block_size, x.size)
        values, own, mean, deviation = x[start:stop], out[start:stop], means[b], deviations[b]
        for i in range(own.size):  # values.size == own.size
            score = np.float32(np.float32(values[i] - mean) / deviation)
            score = score if score > -_MOST_HALF else -_MOST_HALF
            score = score if score < _MOST_HALF else _MOST_HALF
            own[i] = np.uint16(single_to_half(float_bits(score)))


@kernel("in uint16[], int64, int64, in float32[], in float32[], int64, float32, out float32[]")
def _standard_values(halves, first, block_size, means, deviations, store, times, out):
    # out begins with element `first`, and means and deviations have those of all blocks;
    # halves.size == out.size; store: WRITE or ADD.
    start = 0
    while start < out.size:
        b = (first + start) // block_size
        stop = min((b + 1) * block_size - first, out.size)
        bits, own = halves[start:stop], out[start:stop]
        mean, deviation = means[b], deviations[b]
        for i in range(own.size):  # bits.size == own.size
            half = bits_float(half_to_single(np.uint32(bits[i])))
            value = np.float32(np.float32(half * deviation) + mean)
            if store == ADD:
                own[i] += np.float32(times * value)
            else:
                own[i] = value
        start = stop
