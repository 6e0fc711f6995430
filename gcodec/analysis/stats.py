"""Statistics of one tensor, in float64 and in chunks, for tensors that barely fit in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
Chunk = NDArray[np.float64]

BINS = 15
"""Bins of the histogram: an odd number, so that the middle one is centred on zero."""
SPAN = 4.0
"""The histogram reaches from -SPAN to SPAN times the rms; its end bins hold what lies beyond."""

_CHUNK = 1 << 17
_BLOCK = 1 << 12  # neighbours in a sample
_FEW = 16  # rows of which a sample has at least as many, or it is one of a flat tensor
# Squares of magnitudes between these neither overflow nor vanish in float64.
_TAME = (1e-120, 1e120)


class Summary(NamedTuple):
    """What a table says about all values of a tensor.

    Attributes
    ----------
    size : int
        All values, those that are not finite included.
    nonfinite : int
        NaN and Inf among them.
    zeros : int
        Exact zeros of either sign.
    rms : float
        Root mean square of the finite values; NaN where there are none.
    max_abs : float
        Largest magnitude of the finite values; NaN where there are none.
    """

    size: int
    nonfinite: int
    zeros: int
    rms: float
    max_abs: float


def summarize(values: Values) -> Summary:
    """Summarise the values of a tensor of floats, in one pass.

    Parameters
    ----------
    values : array
        Of any shape and any float dtype, bfloat16 included.
    """
    finite = zeros = 0
    squares = _Squares()
    for chunk in _chunks(values):
        known = chunk if squares.add(chunk) else chunk[np.isfinite(chunk)]
        if known is not chunk:
            squares.add(known)
        finite += known.size
        zeros += known.size - int(np.count_nonzero(known))
    nonfinite = values.size - finite
    if not finite:
        return Summary(values.size, nonfinite, 0, math.nan, math.nan)
    return Summary(values.size, nonfinite, zeros, squares.root_mean(finite), squares.largest)


class _Squares:
    """A sum of squares that neither overflows nor vanishes, and the largest magnitude."""

    def __init__(self) -> None:
        self.largest = 0.0
        self._parts: list[tuple[float, float]] = []  # a unit, and a sum in its square

    def add(self, chunk: Chunk) -> bool:
        """Add the values of a chunk, or none and return False if they are not all finite."""
        if not chunk.size:
            return True
        largest = max(float(chunk.max()), -float(chunk.min()))  # NaN where one is NaN
        if not math.isfinite(largest):
            return False
        unit = 1.0 if not largest or _TAME[0] < largest < _TAME[1] else largest
        scaled = chunk if unit == 1 else chunk / unit
        self._parts.append((unit, float(np.sum(np.square(scaled)))))
        self.largest = max(self.largest, largest)
        return True

    def root_mean(self, count: int) -> float:
        """Return the root of the sum over `count`."""
        unit = max((unit for unit, total in self._parts if total), default=1.0)
        total = math.fsum(total * (own / unit) ** 2 for own, total in self._parts)
        return unit * math.sqrt(total / count)


def histogram(values: Values, rms: float) -> tuple[int, ...]:
    """Count finite values by `BINS` equal steps over ±`SPAN` times their root mean square."""
    counts = np.zeros(BINS, np.int64)
    for chunk in _chunks(values):
        known = chunk[np.isfinite(chunk)]
        # Where all values are zero, so is the rms, and all belong in the middle.
        steps = known / rms if rms else known
        places = np.floor((np.clip(steps, -SPAN, SPAN) + SPAN) * (BINS / (2 * SPAN)))
        counts += np.bincount(np.minimum(places, BINS - 1).astype(np.intp), minlength=BINS)
    return tuple(counts.tolist())


def find_nonfinite(values: Values, most: int = 3) -> tuple[int, tuple[int, ...]]:
    """Count NaN and Inf.

    Parameters
    ----------
    values : array
    most : int
        How many of them to locate.

    Returns
    -------
    count : int
    places : tuple of int
        The flat indices of the first ones, in C order.
    """
    count, at = 0, 0
    first: list[int] = []
    for chunk in _chunks(values):
        places = np.flatnonzero(~np.isfinite(chunk))
        first += (at + places[: most - len(first)]).tolist()
        count += places.size
        at += chunk.size
    return count, tuple(first)


def sample(values: Values, count: int, seed: int) -> Values:
    """Take about `count` values, in blocks that are spread over the whole tensor.

    Of matrices, and tensors of more dimensions, these are whole rows: what codecs make of the
    sample is then what they make of the rest.

    Parameters
    ----------
    values : array
    count : int
        At least 1; a tensor of no more values is returned as it is.
    seed : int
        Of where the blocks lie, 0 to 2**64 - 1.

    Returns
    -------
    array
        Flat, or of the tensor's shape but for the first dimension.
    """
    if values.size <= count:
        return values
    row = values.size // values.shape[0]
    if values.ndim > 1 and count >= _FEW * row:
        rows = count // row
        parts = _spread(values.shape[0], rows, min(-(-_BLOCK // row), rows // _FEW), seed)
        return np.concatenate([values[start:stop] for start, stop in parts])
    flat = values.reshape(-1)
    parts = _spread(flat.size, count, _BLOCK, seed)
    return np.concatenate([flat[start:stop] for start, stop in parts])


def _spread(size: int, count: int, block: int, seed: int) -> list[tuple[int, int]]:
    """Return where blocks of about `count` of `size` begin and end, one in each equal share."""
    blocks = -(-count // block)
    random = np.random.default_rng(seed)
    parts = []
    for i in range(blocks):
        # A block lies anywhere in its own share of the tensor, so none overlap.
        low, high = i * size // blocks, (i + 1) * size // blocks
        taken = min((i + 1) * count // blocks - i * count // blocks, high - low)
        start = low + int(random.integers(high - low - taken + 1))
        parts.append((start, start + taken))
    return parts


def rms_error(values: Values, decoded: Values | None = None) -> float:
    """Return the root mean square of x − x̂, or of x where `decoded` is None; 0 for no values.

    Parameters
    ----------
    values, decoded : array
        Of the same shape.
    """
    pairs = zip(_chunks(values), _chunks(values if decoded is None else decoded), strict=True)
    squares = _Squares()
    for x, y in pairs:
        with np.errstate(over="ignore", invalid="ignore"):
            chunk = x if decoded is None else x - y
        if not squares.add(chunk):
            return math.inf
    return squares.root_mean(values.size) if values.size else 0.0


def _chunks(values: Values) -> Iterator[Chunk]:
    flat = values.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield flat[start : start + _CHUNK].astype(np.float64)
