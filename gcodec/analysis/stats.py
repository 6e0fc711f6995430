"""Statistics of one tensor, in float64 and in chunks, so that large tensors need little memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
Chunk = NDArray[np.float64]

BINS = 15
"""Number of bins of the histogram; odd, so that the middle bin is centered on zero."""
SPAN = 4.0
"""The histogram covers -SPAN to SPAN times the rms; its end bins also count all values beyond."""

_EDGES = np.linspace(-SPAN, SPAN, BINS + 1)[1:-1]  # between the bins
_CHUNK = 1 << 17
_BLOCK = 1 << 12  # consecutive values in a sample
_MIN_ROWS = 16  # of a sample of rows; with fewer, the tensor is sampled as a flat one
_SAFE_MAGNITUDES = (1e-120, 1e120)  # whose squares neither overflow nor underflow in float64


class Summary(NamedTuple):
    """A summary of all values of a tensor.

    Attributes
    ----------
    size : int
        Number of values.
    nonfinite : int
        Number of NaN and Inf.
    zeros : int
        Number of exact zeros of either sign.
    rms : float
        Root mean square of the finite values; NaN if there are none.
    max_abs : float
        Largest magnitude of the finite values; NaN if there are none.
    """

    size: int
    nonfinite: int
    zeros: int
    rms: float
    max_abs: float


def summarize(values: Values) -> Summary:
    """Summarize the values of a tensor in one pass.

    Parameters
    ----------
    values : array
        Values of any shape and any float dtype, including bfloat16.
    """
    count = zeros = 0
    squares = _Squares()
    for chunk in _chunks(values):
        if not squares.add(chunk):
            chunk = chunk[np.isfinite(chunk)]
            squares.add(chunk)
        count += chunk.size
        zeros += chunk.size - int(np.count_nonzero(chunk))
    nonfinite = values.size - count
    if not count:
        return Summary(values.size, nonfinite, 0, math.nan, math.nan)
    return Summary(values.size, nonfinite, zeros, squares.root_mean(count), squares.largest)


def unit_of(largest: float) -> float:
    """Return a unit in which the square of the largest magnitude is a normal float64."""
    low, high = _SAFE_MAGNITUDES
    return 1.0 if not largest or low < largest < high else largest


class _Squares:
    """A sum of squares that neither overflows nor underflows, and the largest magnitude."""

    def __init__(self) -> None:
        self.largest = 0.0
        self._parts: list[tuple[float, float]] = []  # units, and sums of squares in these units

    def add(self, chunk: Chunk) -> bool:
        """Add the values of a chunk if all are finite; return whether they are."""
        if not chunk.size:
            return True
        largest = max(float(chunk.max()), -float(chunk.min()))  # NaN where one is NaN
        if not math.isfinite(largest):
            return False
        if largest:  # zeros have no unit, and add nothing
            unit = unit_of(largest)
            scaled = chunk if unit == 1 else chunk / unit
            self._parts.append((unit, float(np.sum(np.square(scaled)))))
            self.largest = max(self.largest, largest)
        return True

    def root_mean(self, count: int) -> float:
        """Return the square root of the sum divided by `count`."""
        unit = max((unit for unit, _ in self._parts), default=1.0)
        total = math.fsum(total * (own / unit) ** 2 for own, total in self._parts)
        return unit * math.sqrt(total / count)


def histogram(values: Values, rms: float) -> tuple[int, ...]:
    """Count the finite values in `BINS` equal bins over ±`SPAN` times their root mean square."""
    counts = np.zeros(BINS, np.int64)
    for chunk in _chunks(values):
        finite = chunk[np.isfinite(chunk)]
        scaled = finite / rms if rms else finite  # with rms 0 all values are in the middle bin
        counts += np.bincount(np.searchsorted(_EDGES, scaled, "right"), minlength=BINS)
    return tuple(counts.tolist())


def energy_rank(values: Values, share: float) -> int:
    """Count the largest singular values of a matrix that contain a share of its energy.

    Parameters
    ----------
    values : array
        Matrix of any float dtype. An array of more dimensions is taken for a matrix with a row for
        each index of the first dimension. NaN and Inf count as 0.
    share : float
        Share of the sum of the squared singular values, from 0 to 1.

    Returns
    -------
    int
        0 if all values are 0.
    """
    matrix = values.reshape(values.shape[0], -1)
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    largest = summarize(values).max_abs
    if not largest > 0:  # NaN where no value is finite
        return 0
    gram = np.zeros((matrix.shape[0],) * 2)
    width = max(1, _CHUNK // matrix.shape[0])
    for start in range(0, matrix.shape[1], width):
        block = widened(matrix[:, start : start + width])
        block[~np.isfinite(block)] = 0
        block /= largest  # this unit keeps the squares within the range of float64
        gram += block @ block.T
    energies = np.cumsum(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0))
    # Rounding must not add a singular value to an exact share.
    return 1 + int(np.searchsorted(energies, share * (1 - 1e-12) * energies[-1]))


def sample(values: Values, count: int | None, seed: int) -> Values:
    """Return about `count` values, in blocks that are spread over the whole tensor.

    A sample of a matrix, or of a tensor with more dimensions, consists of whole rows, so that
    codecs that work with rows perform on the sample as on the tensor.

    Parameters
    ----------
    values : array
        The tensor.
    count : int or None
        Size of the sample, at least 1; None takes all values. A tensor of at most `count` values
        is returned as it is.
    seed : int
        Seed for the positions of the blocks, from 0 to 2**64 - 1.

    Returns
    -------
    array
        A flat array, or whole rows of the tensor.
    """
    if count is None or values.size <= count:
        return values
    row = values.size // values.shape[0]
    if values.ndim > 1 and count >= _MIN_ROWS * row:
        rows = count // row
        parts = _spread(values.shape[0], rows, min(-(-_BLOCK // row), rows // _MIN_ROWS), seed)
        return np.concatenate([values[start:stop] for start, stop in parts])
    flat = values.reshape(-1)
    parts = _spread(flat.size, count, _BLOCK, seed)
    return np.concatenate([flat[start:stop] for start, stop in parts])


def _spread(size: int, count: int, block: int, seed: int) -> list[tuple[int, int]]:
    """Return the ranges of blocks with about `count` of `size` items, one in each equal part."""
    blocks = -(-count // block)
    random = np.random.default_rng(seed)
    parts = []
    for i in range(blocks):
        # Each block lies within its own part of the tensor, so blocks do not overlap.
        low, high = i * size // blocks, (i + 1) * size // blocks
        taken = min((i + 1) * count // blocks - i * count // blocks, high - low)
        start = low + int(random.integers(high - low - taken + 1))
        parts.append((start, start + taken))
    return parts


def rms_error(values: Values, decoded: Values | None = None) -> float:
    """Return the root mean square of x − x̂, or of x if `decoded` is None; 0 for no values.

    Parameters
    ----------
    values, decoded : array
        The tensor and its decoded version, of the same shape.
    """
    pairs = zip(_chunks(values), _chunks(values if decoded is None else decoded), strict=True)
    squares = _Squares()
    for x, y in pairs:
        with np.errstate(over="ignore", invalid="ignore"):
            chunk = x if decoded is None else x - y
        if not squares.add(chunk):
            return math.inf
    return squares.root_mean(values.size) if values.size else 0.0


def widened(values: Values) -> Chunk:
    """Return values as float64, without NumPy's warning of a signaling NaN."""
    with np.errstate(invalid="ignore"):
        return values.astype(np.float64)


def _chunks(values: Values) -> Iterator[Chunk]:
    flat = values.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield widened(flat[start : start + _CHUNK])
