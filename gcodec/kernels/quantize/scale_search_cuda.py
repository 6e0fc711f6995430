"""Launchers of scale_search.cu: the search for the scale of minifloats, in kernels alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.numeric.log_histogram import BINS
from gcodec.kernels.numeric.log_histogram_cuda import PART
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.deferred import Deferred

_STATE = 160  # bytes of a `Search`
_GRID, _TRIED, _NEARBY = 1 << 12, 80, 24  # most scales: of the grid, tried at all, tried at last
_TOP = 1 << 12  # elements that are not in bins
_BLOCK, _WARP = 1024, 32


class Rule(NamedTuple):
    """What a search looks for.

    Attributes
    ----------
    number : int
        0 for "histogram", 1 for "gennorm", 2 for "co3".
    tables : float64 array
        Rows of 65 numbers: ratios of moments and β, their inverses, negative, and logarithms of
        scales; then roots of 2, and powers of it: those of an octave, and near 1.
    middles : float64 array
        Of each two levels the middle, then the differences, then those of squares.
    first, last : float
        The least level above 0, and the largest.
    most : float
        The largest scale.
    mantissa : int
    """

    number: int
    tables: np.ndarray
    middles: np.ndarray
    first: float
    last: float
    most: float
    mantissa: int


class Values(NamedTuple):
    """A tensor, or its sum with a multiple of a residual, and a sample of that.

    Attributes
    ----------
    some : (m,) float32 array
        The sample, where there is a residual the sum.
    every : (n,) float32 array
        Of which it is a sample.
    nonzero : (1,) uint64 array
        How many of the sample of the tensor are not 0: if too few, all are looked at.
    runs : int64 array
        Runs of a small sample of either, one behind the other; of no elements, where it is all.
    length : int
        Elements of a run.
    """

    some: Any
    every: Any
    nonzero: Any
    runs: np.ndarray
    length: int


def nonzero_of(some: Any) -> Any:
    """Count the elements of a sample that are not 0."""
    device, n = device_with(some), some.size
    counts = device.zeros(1, np.uint64)
    arguments = some.view(np.uint32), np.int64(n), counts
    device.launch("scale_search", "count_nonzero", striding_blocks(n), THREADS, *arguments)
    return counts


def all_corrected(x: Any, residual: Any, decay: np.float32, nonzero: Any) -> Any:
    """Return x + decay·residual, if a sample has too few elements; else what is not looked at."""
    device, n = device_with(x), x.size
    out = device.empty(n, np.float32)
    both = x.view(np.uint32), residual.view(np.uint32), decay.view(np.uint32)
    arguments = *both, np.int64(n), nonzero, out.view(np.uint32)
    device.launch("scale_search", "correct_all", striding_blocks(n), THREADS, *arguments)
    return out


def search(values: Values, rule: Rule) -> Deferred:
    """Find the scale, which stays on the device."""
    device = device_with(values.some)

    def launch(name: str, grid: int, threads: int, *arguments: Any) -> None:
        device.launch("scale_search", name, grid, threads, *arguments)

    state = device.zeros(_STATE, np.uint8)
    sizes = (np.int64(part.size) for part in (values.some, values.every))
    words = (part.view(np.uint32) for part in (values.some, values.every))
    given = *(one for pair in zip(words, sizes, strict=True) for one in pair), values.nonzero
    grid = striding_blocks(values.every.size, PART)
    counts, seen = device.zeros(2 * BINS, np.uint64), device.zeros(3 * BINS, np.uint32)
    launch("count_picked", grid, THREADS, *given, counts)
    launch("choose_unit", 1, THREADS, counts, state)
    launch("count_lifted", grid, THREADS, *given, state, counts)
    runs = values.runs.size // 2
    near = device.to_device(values.runs), np.int64(runs), np.int64(values.length), seen
    sampled = striding_blocks(runs * values.length or values.every.size)
    launch("note_sample", sampled, THREADS, *given, state, *near)
    above, totals, rest = (device.empty(BINS + 1, np.float64) for _ in range(3))
    lows, highs = (device.empty(BINS, np.float64) for _ in range(2))
    room = device.empty(BINS, np.int64), device.empty(6 * BINS, np.float64)
    spans = lows, highs
    launch("add_bins", 1, _BLOCK, counts, seen, state, above, totals, rest, *spans, *room)
    tables, middles = device.to_device(rule.tables), device.to_device(rule.middles)
    steps = np.int32(rule.middles.size // 3)
    ends = np.float64(rule.first), np.float64(rule.last), np.float64(rule.most)
    bins, ladder = (above, totals, *spans), (middles, steps)
    how = np.int32(rule.number), tables, *ladder, *ends[:2]
    launch("start_search", 1, _WARP, *how, *bins, state)
    scales, tried, errors = (device.empty(k, np.float64) for k in (_GRID, _TRIED, _TRIED))
    launch("measure_grid", _GRID // 128, 128, tables, *ladder, *bins, state, scales)
    chosen = *bins, scales, state, tried, errors
    launch("choose_tried", 1, THREADS, tables, *ladder, ends[2], *chosen)
    listed, largest = device.zeros(1 + 2 * _TOP, np.uint64), device.empty(_TOP, np.uint32)
    launch("list_largest", striding_blocks(values.every.size), THREADS, *given, state, listed)
    launch("order_largest", _TOP // THREADS, THREADS, listed, largest)
    parts = listed, largest, *ladder, ends[1], np.uint32(rule.mantissa), above, rest, state
    launch("measure_tried", _TRIED - _NEARBY, THREADS, *given, *parts, tried, errors)
    launch("choose_nearby", 1, 128, tables, ends[2], state, tried, errors)
    launch("measure_tried", _NEARBY, THREADS, *given, *parts, tried, errors)
    found = device.empty(1, np.float32)
    launch("end_search", 1, _WARP, ends[2], state, tried, errors, found.view(np.uint32))
    return Deferred(device, found)
