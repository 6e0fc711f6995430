"""Launchers of context_plan.cu: how symbols by class are best written, without asking the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.context import class_map_cuda
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.context.class_tally import TILE
from gcodec.runtime.cuda_grid import THREADS, device_with, striding_blocks
from gcodec.runtime.device import Device

COUNTS = CLASSES * 256
_LISTED = 128  # threads that count scales
_BLOCKS = 1 << 11  # at most

Matrices = Sequence[tuple[int, int, int]]  # width, group and quantum of each


class Constants(NamedTuple):
    """What plans are made by, on a device.

    Attributes
    ----------
    costs : (64 · 256, tables) int64 array
        What symbols cost by static tables, in units of 2^-28 bits.
    frequencies : (tables · 64 · 256,) uint16 array
        Those of these tables.
    logs : (m,) int64 array
        log2 of numbers in such units; m − 1 is the largest.
    tables : int
    ones : (int, int)
        Scales of the mean 1, of rows and of columns.
    """

    costs: Any
    frequencies: Any
    logs: Any
    tables: int
    ones: tuple[int, int]


class Scales(NamedTuple):
    """The scales of the best matrix, and what symbols there are by class.

    Attributes
    ----------
    rows, columns : uint8 arrays
        With room for those of any matrix.
    sizes : (2,) int64 array
        Columns that have scales, and the width of a row.
    which : (1,) int64 array
        Number of the matrix.
    lists : (2,) int64 array
        Bits of the lists of scales.
    counts : (64 · 256,) uint64 array
    """

    rows: Any
    columns: Any
    sizes: Any
    which: Any
    lists: Any
    counts: Any


class Chosen(NamedTuple):
    """The best table.

    Attributes
    ----------
    told : (4,) int64 array
        Its number, the states that take turns, the log2 of the symbols of a run, and bits in all.
    ends : (5,) int64 array
        First and last class of the table that is sent.
    frequencies : (64 · 256,) uint16 array
    tops : (64,) uint8 array
        The largest magnitude of each class.
    """

    told: Any
    ends: Any
    frequencies: Any
    tops: Any


class _Cuts(NamedTuple):
    """Matrices as kernels take them; see `Cut` in context_plan.cu.

    Attributes
    ----------
    table : (8 · count,) int64 array
    sums, scales : int
        Room for these, in all.
    """

    table: np.ndarray
    sums: int
    scales: int

    @property
    def lines(self) -> list[list[int]]:
        """The numbers of each matrix."""
        found: list[list[int]] = self.table.reshape(-1, 8).tolist()
        return found

    @classmethod
    def apart(cls, n: int, every: Matrices) -> _Cuts:
        """Lay scales side by side, and sums, which matrices of the same rows share."""
        told: list[tuple[int, ...]] = []
        places, sums, at = dict[tuple[int, bool], tuple[int, int]](), 0, 0
        for width, group, quantum in every:
            height, across = -(-n // width), width if group else 0
            if (width, group > 0) not in places:
                places[width, group > 0] = sums, sums + height
                sums += height + across
            told.append((n, width, group, quantum, *places[width, group > 0], at, at + height))
            at += height + across
        return cls(np.array(told, np.int64).reshape(-1), sums, at)

    @classmethod
    def together(cls, n: int, every: Matrices) -> _Cuts:
        """Lay sums and scales where those of any other matrix would lie: first rows."""
        height = max(-(-n // width) for width, _, _ in every)
        across = max((width for width, group, _ in every if group), default=0)
        told = [(n, *matrix, 0, height, 0, height) for matrix in every]
        return cls(np.array(told, np.int64).reshape(-1), *[height + across] * 2)


def best_scales(
    symbols: Any,
    some: Any,
    every: Matrices,
    steps: tuple[int, int],
    seen: int,
    constants: Constants,
    alike: bool = True,
) -> Scales:
    """Find the scales of (n,) uint8 symbols in the matrix that is best for some of them.

    Parameters
    ----------
    symbols, some : uint8 arrays
        All symbols, and rows of them, or all again.
    every : sequence of (width, group, quantum)
    steps : (int, int)
        Symbols of every so-manieth tile are counted, of all, or none for 0, and of some.
    seen : int
        How many of `some` that are.
    constants : Constants
    alike : bool
        Whether `some` are of these very symbols.
    """
    device, n, whole = device_with(symbols), symbols.size, _Cuts.together(symbols.size, every)
    which, lists = device.zeros(1, np.int64), device.empty(2, np.int64)
    counts, scales = device.zeros(COUNTS, np.uint64), device.empty(whole.scales, np.uint8)
    width, group, _ = every[0]
    sizes = device.to_device(np.array([width if group else 0, width], np.int64))
    height, cuts = whole.lines[0][7], device.to_device(whole.table)
    rows, columns = scales[:height], scales[height:]
    known = alike and len(every) > 1 and some.size == n
    if len(every) > 1:
        how = n // some.size, every, steps[1], seen, constants
        places, made, found = _choose(some, *how, which, sizes)
        if known:
            taken = made, found, np.int64(height), scales, counts
            grid = striding_blocks(max(whole.scales, COUNTS))
            device.launch("context_plan", "take_chosen", grid, THREADS, places, which, *taken)
    if not known:
        sums = _sums_chosen(symbols, every, sizes, whole)
        _find(device, cuts, which, 0, sums, constants, scales)
        if steps[0]:
            _count_chosen(symbols, rows, columns, sizes, steps[0], counts)
    _size_lists(device, cuts, which, 0, scales, constants, lists)
    return Scales(rows, columns, sizes, which, lists, counts)


def best_matrix(
    some: Any, times: int, every: Matrices, step: int, seen: int, constants: Constants
) -> Any:
    """Return the number of the matrix that is best, as `best_scales` does, as a (1,) array."""
    device = device_with(some)
    which, sizes = device.zeros(1, np.int64), device.empty(2, np.int64)
    _choose(some, times, every, step, seen, constants, which, sizes)
    return which


def _choose(
    some: Any,
    times: int,
    every: Matrices,
    step: int,
    seen: int,
    constants: Constants,
    which: Any,
    sizes: Any,
) -> tuple[Any, Any, Any]:
    """Choose the matrix; return where scales of each lie, these, and counts."""
    device, tried = device_with(some), _Cuts.apart(some.size, every)
    places = device.to_device(tried.table)
    made = device.empty(tried.scales, np.uint8)
    _find(device, places, which, len(every), _sums(some, tried), constants, made)
    found = _counted(some, every, made, tried, step)
    nbits = _priced(device, found, constants)
    told = device.empty(2 * len(every), np.int64)
    _size_lists(device, places, which, len(every), made, constants, told)
    of = np.int64(len(every)), nbits, np.int64(constants.tables), told
    shares = np.int64(some.size), np.int64(times), np.int64(seen)
    device.launch("context_plan", "choose_matrix", 1, 1, places, *of, *shares, which, sizes)
    return places, made, found


def counted(scales: Scales, symbols: Any, step: int) -> Scales:
    """Count other symbols of every `step`-th tile by class."""
    counts = device_with(symbols).zeros(COUNTS, np.uint64)
    _count_chosen(symbols, *scales[:3], step, counts)
    return scales._replace(counts=counts)


def best_table(scales: Scales, n: int, seen: int, constants: Constants) -> Chosen:
    """Choose the table for n symbols, of which there are counts of so many."""
    device, counts = device_with(scales.counts), scales.counts
    nbits = _priced(device, counts, constants)
    frequencies, tops = device.empty(COUNTS, np.uint16), device.empty(CLASSES, np.uint8)
    ends, told = device.zeros(5, np.int64), device.empty(4, np.int64)
    device.launch("context_plan", "make_own", 1, CLASSES, counts, frequencies, ends)
    own = counts, frequencies, constants.logs, ends
    device.launch("context_plan", "price_own", 1, 256, *own)
    known = nbits, np.int64(constants.tables), constants.frequencies, ends, scales.lists
    made = np.int64(n), np.int64(seen), frequencies, tops, told
    device.launch("context_plan", "choose_class_table", 1, 256, *known, *made)
    return Chosen(told, ends, frequencies, tops)


def classes(scales: Scales, n: int) -> Any:
    """Return the classes of n elements."""
    device = device_with(scales.rows)
    out, of = device.empty(n, np.uint8), (scales.rows, scales.columns, scales.sizes)
    device.launch("class_map", "map_chosen", striding_blocks(n), THREADS, *of, out, np.int64(n))
    return out


def joined(
    symbols: Any, scales: Scales, tops: Any, room: int, every: Any = None
) -> tuple[Any, Any]:
    """Put classes above symbols; list those that their class does not have, as many as fit.

    The list begins with how many there are; places and symbols follow, in any order. `every` has
    symbols as uint32 that are not cut off, to be listed in place of those that are.
    """
    device, n = device_with(symbols), symbols.size
    out, listed = device.empty(n, np.uint16), device.empty(1 + 2 * room, np.uint64)
    listed[:1] = 0
    wide = device.empty(0, np.uint32) if every is None else every
    of = symbols, np.int64(n), wide, np.int64(wide.size), scales.rows, scales.columns
    arguments = *of, scales.sizes, tops, out, listed, np.int64(room)
    device.launch("class_map", "join_chosen", striding_blocks(n), THREADS, *arguments)
    return out, listed


def _count_chosen(
    symbols: Any, rows: Any, columns: Any, sizes: Any, step: int, counts: Any
) -> None:
    """Add up symbols of every `step`-th tile by class."""
    grid, given = (
        min(-(-symbols.size // (step * TILE)), _BLOCKS),
        (symbols, np.int64(symbols.size)),
    )
    own = rows, columns, sizes, np.int64(step), counts
    device_with(symbols).launch("class_map", "count_chosen", grid, THREADS, *given, *own)


def _find(
    device: Device, cuts: Any, which: Any, count: int, sums: Any, constants: Constants, out: Any
) -> None:
    """Find the scales of so many matrices, or for 0 of the chosen one."""
    ones = (np.int64(one) for one in constants.ones)
    arguments = cuts, which, np.bool_(count == 0), sums, *ones, out
    device.launch("context_plan", "find_scales", count or 1, THREADS, *arguments)


def _size_lists(
    device: Device, cuts: Any, which: Any, count: int, scales: Any, constants: Constants, out: Any
) -> None:
    """Find the bits of their lists."""
    logs = constants.logs, np.int64(constants.logs.size - 1)
    arguments = cuts, which, np.bool_(count == 0), scales, *logs, out
    device.launch("context_plan", "size_lists", 2 * (count or 1), _LISTED, *arguments)


def _priced(device: Device, counts: Any, constants: Constants) -> Any:
    """Find the bits of each (64, 256) counts by each static table."""
    grid = constants.tables, counts.size // COUNTS
    nbits = device.empty(grid[0] * grid[1], np.int64)
    arguments = counts, constants.costs.reshape(-1), nbits
    device.launch("context_plan", "price_counts", grid, THREADS, *arguments)
    return nbits


def _sums(symbols: Any, cuts: _Cuts) -> Any:
    """Add up the magnitudes of rows and columns of each matrix."""
    sums, done = device_with(symbols).zeros(cuts.sums, np.uint64), set[int]()
    for _, width, group, _, rows, columns, _, _ in cuts.lines:
        if rows not in done:
            done.add(rows)
            across = sums[columns : columns + (width if group else 0)]
            class_map_cuda.add_magnitudes(symbols, width, sums[rows:columns], across)
    return sums


def _sums_chosen(symbols: Any, every: Matrices, sizes: Any, cuts: _Cuts) -> Any:
    """Add up those of the chosen matrix."""
    device, n, height = device_with(symbols), symbols.size, cuts.lines[0][7]
    sums, given = device.zeros(cuts.sums, np.uint64), (symbols, np.int64(n), sizes)
    grid = max(class_map_cuda.row_blocks(-(-n // width), width) for width, _, _ in every)
    device.launch("class_map", "sum_rows_chosen", grid, THREADS, *given, sums[:height])
    if width := cuts.sums - height:
        grids = class_map_cuda.column_blocks(-(-n // width), width)
        device.launch("class_map", "sum_columns_chosen", grids, THREADS, *given, sums[height:])
    return sums


def _counted(symbols: Any, every: Matrices, scales: Any, cuts: _Cuts, step: int) -> Any:
    """Count symbols by class, in each matrix."""
    device, n = device_with(symbols), symbols.size
    counts = device.zeros(COUNTS * len(every), np.uint64)
    grid = min(-(-n // (step * TILE)), _BLOCKS)
    for k, (_, width, group, _, _, _, rows, columns) in enumerate(cuts.lines):
        across = width if group else 0
        of = scales[rows:columns], scales[columns : columns + across]
        sizes = np.int64(across), np.int64(width), np.int64(step)
        own = counts[COUNTS * k : COUNTS * (k + 1)]
        device.launch(
            "class_map", "count_classes", grid, THREADS, symbols, np.int64(n), *of, *sizes, own
        )
    return counts
