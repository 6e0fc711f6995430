"""Launchers of context_plan.cu: a device plans a context-coded string without asking the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from gcodec.kernels.bits.listed_cuda import listed_later
from gcodec.kernels.context.class_map import CLASSES, COUNTS
from gcodec.kernels.context.class_map_cuda import (
    count_classes,
    map_device_classes,
    sum_magnitudes,
)
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import THREADS, device_with, launch_striding
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import Device

_LIST_THREADS = 128  # threads that count the scales of a list
Matrices = Sequence[tuple[int, int, int]]  # width, group and quantum of each matrix


class Constants(NamedTuple):
    """Costs and tables by which strings are planned, on a device.

    Attributes
    ----------
    costs : (64 · 256, tables) int64 array
        Costs of symbols with the static tables, in units of 2^-28 bits.
    frequencies : (tables · 64 · 256,) uint16 array
        Frequencies of the static tables.
    logs : (m,) int64 array
        log2 of 0 … m − 1 in units of 2^-28.
    tables : int
        Number of static tables.
    ones : (int, int)
        Scale of a row whose mean is 1; scale of a column whose mean is that of all elements.
    class_nbits : (64,) int64 array
        See `class_tables.class_nbits`.
    """

    costs: Array
    frequencies: Array
    logs: Array
    tables: int
    ones: tuple[int, int]
    class_nbits: Array


class Scales(NamedTuple):
    """The scales of the best matrix, and the counts of symbols by class.

    The first three fields are `class_map_cuda.DeviceScales`.

    Attributes
    ----------
    rows, columns : uint8 array
        Each has room for the scales of any candidate.
    sizes : (2,) int64 array
        Number of column scales; width of a row.
    which : (1,) int64 array
        Number of the matrix.
    lists : (2,) int64 array
        Bits of the lists of scales.
    counts : (64 · 256,) uint64 array
    """

    rows: Array
    columns: Array
    sizes: Array
    which: Array
    lists: Array
    counts: Array


class Chosen(NamedTuple):
    """The best table.

    Attributes
    ----------
    decision : (4,) int64 array
        Number of the table, interleaved states, log2 of the symbols of a run, total bits.
    ends : (5,) int64 array
        First and last class of the table, if the message contains it; then scratch.
    frequencies : (64 · 256,) uint16 array
    tops : (64,) uint8 array
        Largest magnitude of each class.
    """

    decision: Array
    ends: Array
    frequencies: Array
    tops: Array


class _Cut(NamedTuple):
    """A candidate matrix, with the fields of a `Cut` in context_plan.cu, in the same order.

    Attributes
    ----------
    across : int
        Number of column scales: the width, or 0 for a matrix without column scales.
    width : int
        Elements of a row.
    n : int
        Number of symbols.
    group, quantum : int
        Adjacent columns that share a scale, or 0; unit of the scales.
    row_sums, column_sums, rows, columns : int
        Index of the first row sum and column sum, and of the first row scale and column scale.
    """

    across: int
    width: int
    n: int
    group: int
    quantum: int
    row_sums: int
    column_sums: int
    rows: int
    columns: int


class _Cuts(NamedTuple):
    """The candidate matrices as kernels read them.

    Attributes
    ----------
    matrices : list of _Cut
    table : (9 · count,) int64 array on the device
        Their fields.
    sums, scales : int
        Total size of the arrays of sums and of scales.
    """

    matrices: list[_Cut]
    table: Array
    sums: int
    scales: int

    @classmethod
    def apart(cls, device: Device, n: int, matrices: Matrices) -> _Cuts:
        """Give each matrix scales of its own; matrices with the same rows share their sums."""
        cuts: list[_Cut] = []
        places, sums, at = dict[tuple[int, bool], tuple[int, int]](), 0, 0
        for width, group, quantum in matrices:
            height, across = -(-n // width), width if group else 0
            if (width, group > 0) not in places:
                places[width, group > 0] = sums, sums + height
                sums += height + across
            own = places[width, group > 0]
            cuts.append(_Cut(across, width, n, group, quantum, *own, at, at + height))
            at += height + across
        return cls(cuts, _uploaded(device, cuts), sums, at)

    @classmethod
    def together(cls, device: Device, n: int, matrices: Matrices) -> _Cuts:
        """Place the sums and scales of all matrices in the same arrays, rows first."""
        height = max(-(-n // width) for width, _, _ in matrices)
        size = height + max((width for width, group, _ in matrices if group), default=0)
        cuts = [
            _Cut(width if group else 0, width, n, group, quantum, 0, height, 0, height)
            for width, group, quantum in matrices
        ]
        return cls(cuts, _uploaded(device, cuts), size, size)

    def sizes(self, k: int) -> Array:
        """Return the sizes of a matrix; see `class_map_cuda.DeviceScales`."""
        first = len(_Cut._fields) * k
        return self.table[first : first + 2]


def _uploaded(device: Device, cuts: list[_Cut]) -> Array:
    return device.to_device(np.array(cuts, np.int64).reshape(-1))


def best_scales(
    symbols: Array,
    sample: Array,
    matrices: Matrices,
    steps: tuple[int, int],
    seen: int,
    constants: Constants,
    same_symbols: bool = True,
) -> Scales:
    """Find the scales of (n,) uint8 symbols in the matrix that is best for a sample.

    Parameters
    ----------
    symbols, sample : uint8 array
        All symbols; a sample of rows, or all symbols again.
    matrices : sequence of (width, group, quantum)
    steps : (int, int)
        Distance, in tiles, of the tiles whose symbols are counted: for all symbols, where 0 counts
        none, and for the sample.
    seen : int
        Number of counted symbols of the sample.
    constants : Constants
    same_symbols : bool
        Whether the sample consists of these symbols, not of other ones.
    """
    device, n = device_with(symbols), symbols.size
    cuts = _Cuts.together(device, n, matrices)
    which, lists = device.zeros(1, np.int64), device.empty(2, np.int64)
    counts, scales = device.zeros(COUNTS, np.uint64), device.empty(cuts.scales, np.uint8)
    height, sizes = cuts.matrices[0].columns, cuts.sizes(0)
    rows, columns = scales[:height], scales[height:]
    is_done = same_symbols and len(matrices) > 1 and sample.size == n
    if len(matrices) > 1:
        sizes = device.empty(2, np.int64)
        tried, tried_scales, tried_counts = _choose(
            sample, n // sample.size, matrices, steps[1], seen, constants, which, sizes
        )
        if is_done:
            arguments = tried, which, tried_scales, tried_counts, height, scales, counts
            size = max(cuts.scales, COUNTS)
            launch_striding(device, "context_plan", "take_chosen", size, *arguments)
    if not is_done:
        sums = device.zeros(cuts.sums, np.uint64)
        widths = [width for width, _, _ in matrices]
        sum_magnitudes(symbols, sizes, widths, sums[:height], sums[height:])
        _find(device, cuts.table, which, 0, sums, constants, scales)
        if steps[0]:
            count_classes(symbols, (rows, columns, sizes), steps[0], counts)
    if steps[0] > 1:
        _select_counts(symbols, (rows, columns, sizes), constants, counts)
    _size_lists(device, cuts.table, which, 0, scales, constants, lists)
    return Scales(rows, columns, sizes, which, lists, counts)


def best_layout(
    sample: Array, times: int, matrices: Matrices, step: int, seen: int, constants: Constants
) -> Array:
    """Return the number of the best matrix for a sample as a (1,) array; see `best_scales`.

    `times` is the ratio of the number of all symbols to that of the sample.
    """
    device = device_with(sample)
    which, sizes = device.zeros(1, np.int64), device.empty(2, np.int64)
    _choose(sample, times, matrices, step, seen, constants, which, sizes)
    return which


def _choose(
    sample: Array,
    times: int,
    matrices: Matrices,
    step: int,
    seen: int,
    constants: Constants,
    which: Array,
    sizes: Array,
) -> tuple[Array, Array, Array]:
    """Write the number and the sizes of the best matrix.

    Return the table, the scales and the counts of all candidates.
    """
    device, count = device_with(sample), len(matrices)
    cuts = _Cuts.apart(device, sample.size, matrices)
    sums, scales = device.zeros(cuts.sums, np.uint64), device.empty(cuts.scales, np.uint8)
    counts, lists = device.zeros(COUNTS * count, np.uint64), device.empty(2 * count, np.int64)
    summed = set[int]()
    for k, cut in enumerate(cuts.matrices):
        if cut.row_sums not in summed:
            summed.add(cut.row_sums)
            row_sums = sums[cut.row_sums : cut.column_sums]
            column_sums = sums[cut.column_sums : cut.column_sums + cut.across]
            sum_magnitudes(sample, cuts.sizes(k), [cut.width], row_sums, column_sums)
    _find(device, cuts.table, which, count, sums, constants, scales)
    for k, cut in enumerate(cuts.matrices):
        rows = scales[cut.rows : cut.columns]
        columns = scales[cut.columns : cut.columns + cut.across]
        own_counts = counts[COUNTS * k : COUNTS * (k + 1)]
        count_classes(sample, (rows, columns, cuts.sizes(k)), step, own_counts)
    nbits = _priced(device, counts, constants)
    _size_lists(device, cuts.table, which, count, scales, constants, lists)
    costs = cuts.table, count, nbits, constants.tables, lists
    arguments = *costs, sample.size, times, seen, which, sizes
    device.launch("context_plan", "choose_matrix", 1, 1, *arguments)
    return cuts.table, scales, counts


def counted(scales: Scales, symbols: Array, step: int, constants: Constants) -> Scales:
    """Replace the counts by those of other symbols, in every `step`-th tile.

    All symbols are counted if these tiles miss classes that take many bits.
    """
    counts = device_with(symbols).zeros(COUNTS, np.uint64)
    count_classes(symbols, scales[:3], step, counts)
    if step > 1:
        _select_counts(symbols, scales[:3], constants, counts)
    return scales._replace(counts=counts)


def _select_counts(
    symbols: Array, scales: tuple[Array, Array, Array], constants: Constants, counts: Array
) -> None:
    """Replace the counts of a sample by those of all symbols if it misses classes of many bits."""
    device = device_with(symbols)
    all_counts = device.zeros(COUNTS, np.uint64)
    count_classes(symbols, scales, 1, all_counts)
    arguments = all_counts, constants.class_nbits, symbols.size, counts
    device.launch("context_plan", "select_counts", 1, 256, *arguments)


def best_table(scales: Scales, n: int, constants: Constants) -> Chosen:
    """Choose the table for n symbols from the counts of all of them, or of a sample."""
    device, counts = device_with(scales.counts), scales.counts
    nbits = _priced(device, counts, constants)
    frequencies, tops = device.empty(COUNTS, np.uint16), device.empty(CLASSES, np.uint8)
    ends, decision = device.zeros(5, np.int64), device.empty(4, np.int64)
    device.launch("context_plan", "make_own", 1, CLASSES, counts, frequencies, ends)
    arguments = counts, frequencies, constants.logs, ends
    device.launch("context_plan", "price_own", 1, 256, *arguments)
    costs = nbits, constants.tables, constants.frequencies, ends, scales.lists, counts
    results = frequencies, tops, decision
    device.launch("context_plan", "choose_class_table", 1, 256, *costs, n, *results)
    return Chosen(decision, ends, frequencies, tops)


def classes(scales: Scales, n: int) -> Array:
    """Return the classes of n elements."""
    out = device_with(scales.rows).empty(n, np.uint8)
    map_device_classes(scales[:3], 0, out)
    return out


def joined(
    symbols: Array, scales: Scales, tops: Array, unlimited: Array | None = None
) -> tuple[Array, Deferred]:
    """Join classes and symbols, and list the symbols above the largest of their class.

    Parameters
    ----------
    symbols : (n,) uint8 array
    scales : Scales
    tops : (64,) uint8 array
        Largest magnitude of each class.
    unlimited : (n,) uint32 array, optional
        The symbols before they were limited to uint8, which the list then contains.

    Returns
    -------
    joined : (n,) uint16 array
    listed : Deferred
        Their positions in increasing order, and the symbols, as int64.
    """
    device, n = device_with(symbols), symbols.size
    out = device.empty(n, np.uint16)
    wide = device.empty(0, np.uint32) if unlimited is None else unlimited
    arguments = symbols, n, wide, wide.size, *scales[:3], tops, out
    launch = partial(launch_striding, device, "class_map", "join_and_list", n, *arguments)
    return out, listed_later(device, launch, n)


def _find(
    device: Device,
    cuts: Array,
    which: Array,
    count: int,
    sums: Array,
    constants: Constants,
    out: Array,
) -> None:
    """Find the scales of the first `count` matrices, or of the chosen one if it is 0."""
    arguments = cuts, which, count == 0, sums, *constants.ones, out
    device.launch("context_plan", "find_scales", count or 1, THREADS, *arguments)


def _size_lists(
    device: Device,
    cuts: Array,
    which: Array,
    count: int,
    scales: Array,
    constants: Constants,
    out: Array,
) -> None:
    """Find the bits of the lists of scales of the same matrices as `_find`."""
    arguments = cuts, which, count == 0, scales, constants.logs, constants.logs.size - 1, out
    device.launch("context_plan", "size_lists", 2 * (count or 1), _LIST_THREADS, *arguments)


def _priced(device: Device, counts: Array, constants: Constants) -> Array:
    """Return the bits of each (64, 256) counts with each static table."""
    grid = constants.tables, counts.size // COUNTS
    nbits = device.empty(grid[0] * grid[1], np.int64)
    device.launch("context_plan", "price_counts", grid, THREADS, counts, constants.costs, nbits)
    return nbits
