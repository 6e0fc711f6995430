"""Launchers of scale_search.cu: the search for the scale of minifloats, without the host."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from gcodec.kernels.numeric.log_histogram import BINS
from gcodec.kernels.numeric.log_histogram_cuda import PART
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, launch_parts, launch_striding
from gcodec.runtime.deferred import Deferred

_SOURCE = "scale_search"
_STATE = 160  # bytes of a `Search`
_GRID, _TRIED, _NEARBY = 1 << 12, 80, 24  # most scales: of the grid, tried at all, tried at last
_TOP = 1 << 12  # most elements outside the bins
_BLOCK, _WARP = 1024, 32


class Rule(NamedTuple):
    """A rule by which a scale is chosen, and the tables for it.

    Attributes
    ----------
    number : int
        0 for "histogram", 1 for "gennorm", 2 for "co3".
    tables : float64 array
        Rows of 65 numbers: ratios of moments, β, their negative inverses, logarithms of scales;
        then roots of 2, and powers of 2 in an octave, and near 1.
    middles : float64 array
        For each two adjacent levels their middle, then the differences, then those of squares.
    first, last : float
        The least level above 0, and the largest.
    most : float
        The largest scale.
    mantissa : int
        Bits of the mantissa.
    """

    number: int
    tables: np.ndarray
    middles: np.ndarray
    first: float
    last: float
    most: float
    mantissa: int


def nonzero_of(values: Array) -> Array:
    """Return the number of elements that are not 0, as a (1,) uint64 array."""
    device, n = device_with(values), values.size
    counts = device.zeros(1, np.uint64)
    launch_striding(device, _SOURCE, "count_nonzero", n, values, n, counts)
    return counts


def all_corrected(x: Array, residual: Array, decay: np.float32, nonzero: Array) -> Array:
    """Return x + decay·residual if `nonzero` is too small for a sample; else undefined values."""
    device, n = device_with(x), x.size
    out = device.empty(n, np.float32)
    arguments = x, residual, decay.view(np.uint32), n, nonzero, out
    launch_striding(device, _SOURCE, "correct_all", n, *arguments)
    return out


def search(
    sample: Array, tensor: Array, nonzero: Array, runs: np.ndarray, run_length: int, rule: Rule
) -> Deferred:
    """Find the scale of a tensor, which stays on the device.

    Parameters
    ----------
    sample : (m,) float32 array
        A sample of the tensor, with the residual added if there is one.
    tensor : (n,) float32 array
        The tensor, likewise; `sample` is used instead unless it has too few nonzero elements.
    nonzero : (1,) uint64 array
        Number of nonzero elements of the sample, before a residual is added.
    runs : int64 array
        First elements of the runs of a small sample of `sample`, then of `tensor`. Empty if the
        small samples contain all elements.
    run_length : int
        Number of elements of a run.
    rule : Rule
    """
    device, size = device_with(sample), tensor.size
    launch = partial(device.launch, _SOURCE)
    stride = partial(launch_striding, device, _SOURCE)
    state = device.zeros(_STATE, np.uint8)
    values = sample, sample.size, tensor, size, nonzero
    counts, seen = device.zeros(2 * BINS, np.uint64), device.zeros(3 * BINS, np.uint32)
    launch_parts(device, _SOURCE, "count_picked", size, PART, *values, counts)
    launch("choose_unit", 1, THREADS, counts, state)
    launch_parts(device, _SOURCE, "count_lifted", size, PART, *values, state, counts)
    count = runs.size // 2
    near = device.to_device(runs), count, run_length, seen
    stride("note_sample", count * run_length or size, *values, state, *near)
    above, totals, remainders = (device.empty(BINS + 1, np.float64) for _ in range(3))
    spans = device.empty(BINS, np.float64), device.empty(BINS, np.float64)
    room = device.empty(BINS, np.int64), device.empty(6 * BINS, np.float64)
    launch("add_bins", 1, _BLOCK, counts, seen, state, above, totals, remainders, *spans, *room)
    tables, middles = device.to_device(rule.tables), device.to_device(rule.middles)
    bins, ladder = (above, totals, *spans), (middles, rule.middles.size // 3)
    ends = rule.first, rule.last
    launch("start_search", 1, _WARP, rule.number, tables, *ladder, *ends, *bins, state)
    scales, tried, errors = (device.empty(k, np.float64) for k in (_GRID, _TRIED, _TRIED))
    launch("measure_grid", _GRID // 128, 128, tables, *ladder, *bins, state, scales)
    trials = scales, state, tried, errors
    launch("choose_tried", 1, THREADS, tables, *ladder, rule.most, *bins, *trials)
    listed, largest = device.zeros(1 + 2 * _TOP, np.uint64), device.empty(_TOP, np.uint32)
    stride("list_largest", size, *values, state, listed)
    launch("order_largest", _TOP // THREADS, THREADS, listed, largest)
    parts = listed, largest, *ladder, rule.last, rule.mantissa, above, remainders, state
    launch("measure_tried", _TRIED - _NEARBY, THREADS, *values, *parts, tried, errors)
    launch("choose_nearby", 1, 128, tables, rule.most, state, tried, errors)
    launch("measure_tried", _NEARBY, THREADS, *values, *parts, tried, errors)
    scale = device.empty(1, np.float32)
    launch("end_search", 1, _WARP, rule.most, state, tried, errors, scale)
    return Deferred(device, scale)
