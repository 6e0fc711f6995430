"""Statistics of one tensor, in float64 and in chunks, for tensors that barely fit in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
_BLOCK = 1 << 12
# Squares of magnitudes between these neither overflow nor vanish in float64.
_TAME = (1e-120, 1e120)


class Summary(NamedTuple):
    """What a table says about the values of a tensor.

    Attributes
    ----------
    size : int
        All values, those that are not finite included.
    zeros : int
        Exact zeros of either sign.
    rms : float
        Root mean square of the finite values; NaN where there are none.
    max_abs : float
        Largest magnitude of the finite values; NaN where there are none.
    histogram : tuple of int
        Finite values by `BINS` equal steps over ±`SPAN` times the rms.
    """

    size: int
    zeros: int
    rms: float
    max_abs: float
    histogram: tuple[int, ...]


def summarize(values: Values) -> Summary:
    """Summarise the values of a tensor of floats.

    Parameters
    ----------
    values : array
        Of any shape and any float dtype, bfloat16 included.
    """
    finite = zeros = 0
    largest = 0.0
    for chunk in _finite_chunks(values):
        finite += chunk.size
        zeros += int(np.count_nonzero(chunk == 0))
        largest = max(largest, float(np.max(np.abs(chunk), initial=0.0)))
    if not finite:
        return Summary(values.size, 0, math.nan, math.nan, (0,) * BINS)
    rms = _root_mean_square(lambda: _finite_chunks(values))
    return Summary(values.size, zeros, rms, largest, _histogram(values, rms))


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
    places: list[int] = []
    for chunk in _chunks(values):
        wrong = ~np.isfinite(chunk)
        found = int(np.count_nonzero(wrong))
        if found and len(places) < most:
            places += (at + np.flatnonzero(wrong)[: most - len(places)]).tolist()
        count += found
        at += chunk.size
    return count, tuple(places)


def sample(values: Values, count: int, seed: int) -> Values:
    """Take about `count` values, in blocks that are spread over the whole tensor.

    Parameters
    ----------
    values : array
    count : int
        At least 1; a tensor of no more values is taken whole.
    seed : int
        Of where the blocks lie, 0 to 2**64 - 1.

    Returns
    -------
    flat array
    """
    flat = values.reshape(-1)
    if flat.size <= count:
        return flat
    blocks = -(-count // _BLOCK)
    random = np.random.default_rng(seed)
    parts = []
    for i in range(blocks):
        # A block lies anywhere in its own share of the tensor, so none overlap.
        low, high = i * flat.size // blocks, (i + 1) * flat.size // blocks
        size = min((i + 1) * count // blocks - i * count // blocks, high - low)
        start = low + int(random.integers(high - low - size + 1))
        parts.append(flat[start : start + size])
    return np.concatenate(parts)


def rms_error(values: Values, decoded: Values | None = None) -> float:
    """Return the root mean square of x − x̂, or of x where `decoded` is None; 0 for no values.

    Parameters
    ----------
    values, decoded : array
        Of the same shape.
    """
    if decoded is None:
        return _root_mean_square(lambda: _chunks(values))
    other = decoded
    return _root_mean_square(
        lambda: (x - y for x, y in zip(_chunks(values), _chunks(other), strict=True))
    )


def _root_mean_square(chunks: Callable[[], Iterator[Chunk]]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        largest = max((float(np.max(np.abs(chunk), initial=0.0)) for chunk in chunks()), default=0)
        if not largest or not math.isfinite(largest):
            return largest
        unit = 1.0 if _TAME[0] < largest < _TAME[1] else largest
        size = 0
        squares = []
        for chunk in chunks():
            size += chunk.size
            squares.append(float(np.sum(np.square(chunk / unit))))
    return unit * math.sqrt(math.fsum(squares) / size)


def _histogram(values: Values, rms: float) -> tuple[int, ...]:
    counts = np.zeros(BINS, np.int64)
    for chunk in _finite_chunks(values):
        # Where all values are zero, so is the rms, and all belong in the middle.
        steps = chunk / rms if rms else chunk
        places = np.floor((np.clip(steps, -SPAN, SPAN) + SPAN) * (BINS / (2 * SPAN)))
        counts += np.bincount(np.minimum(places, BINS - 1).astype(np.intp), minlength=BINS)
    return tuple(counts.tolist())


def _chunks(values: Values) -> Iterator[Chunk]:
    flat = values.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        yield flat[start : start + _CHUNK].astype(np.float64)


def _finite_chunks(values: Values) -> Iterator[Chunk]:
    for chunk in _chunks(values):
        finite = np.isfinite(chunk)
        yield chunk if finite.all() else chunk[finite]
