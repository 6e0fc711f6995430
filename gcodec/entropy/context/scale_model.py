"""The scale model: the expected magnitude of each element, from the scales of its row and column.

Rows of a gradient differ in scale, and so do its columns. One integer for each row and one for
each column therefore predict the magnitude of an element well, and the prediction needs no
neighboring elements. A `RowLayout` cuts a tensor into rows of `width` elements; the last row may
be shorter. Let R(i) be the sum of the magnitudes of the n(i) elements of row i, C(j) that of the
h(j) elements of column j, and T that of all n elements. Then, in quarter octaves,

    row(i) = 40 + log(R(i) / n(i))      column(j) = 64 + log((C(j) / h(j)) / (T / n))

where log is 4·log2, rounded to the nearest integer. Scales are limited to 1 … 127; 0 marks a row
or column whose sum is 0. Neighboring columns may share a scale, and all scales may be rounded to
half an octave or more; both pay where a scale costs more bits than it saves.

The class of an element is row(i) + column(j) − 64, limited to 0 … 63. Class 40 expects a magnitude
of 1, and each class more expects one that is a quarter octave larger. The product of row means and
column means is the maximum-likelihood estimate if magnitudes are Poisson distributed with such
products as means; for other distributions it is nearly as good. The class selects the rANS model
of the element; see `gcodec.entropy.context.coder`.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from gcodec.arrays.source import is_plain_array
from gcodec.entropy import rans
from gcodec.entropy.context import scale_lists
from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.computed_symbols import ComputedSymbols, Symbols
from gcodec.kernels.context import class_map, scale_fit, scale_logs
from gcodec.kernels.context.class_map import CENTER, CLASSES
from gcodec.kernels.context.scale_fit import SHIFTS
from gcodec.kernels.context.scale_lists import MOST
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.numeric.convert import selected
from gcodec.runtime.memory import flattened

ONE = 40  # the class that expects a magnitude of 1
ONES = ONE, CENTER  # scales of a row with mean 1, and of a column with the mean of all elements
LEAST_ROWS = 8  # of a layout with column scales
LEAST_WIDTH = 8  # of rows, if there are several
_COARSEST = 8  # largest quantum
_SPARSE = 4  # strides below this would save too little, so all elements are used
_SMALL = 1 << 16  # elements below which finer scales may cost more than they save
_BLOCK = 128  # width of rows if the shape suggests no other


class RowLayout(NamedTuple):
    """How a tensor is read as a matrix, and how precise its scales are.

    Attributes
    ----------
    width : int
        Elements of a row; the last row may have fewer.
    group : int
        Number of neighboring columns that share a scale; 0 if columns have no scales.
    quantum : int
        Precision of scales in quarter octaves: 1, 2, 4 or 8.
    """

    width: int
    group: int
    quantum: int = 1

    def check(self, n: int) -> None:
        """Raise `Corrupt` unless a tensor of n elements may have this layout."""
        if not min(LEAST_WIDTH, n) <= self.width <= n:
            raise Corrupt(f"rows of {self.width} among {n} elements")
        if self.group and (n < LEAST_ROWS * self.width or self.group > self.width):
            raise Corrupt(f"a scale for {self.group} of {self.width} columns, {n} elements")


class Scales(NamedTuple):
    """Scales of the rows and columns of a tensor.

    Attributes
    ----------
    layout : RowLayout
    rows : (ceil(n / width),) uint8 array
    columns : (width,) uint8 array
        Empty if columns have no scales.
    """

    layout: RowLayout
    rows: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, symbols: Symbols, layout: RowLayout) -> Scales:
        """Compute the scales of (n,) uint8 symbols, n > 0; see `class_map`."""
        (sums,) = class_map.magnitude_sums(symbols, [(layout.width, layout.group > 0)])
        return cls.of_sums(symbols.size, layout, *sums)

    @classmethod
    def of_sums(cls, n: int, layout: RowLayout, rows: np.ndarray, columns: np.ndarray) -> Scales:
        """Compute the scales of n elements from the sums of magnitudes by row and by column."""
        return cls(layout, *scale_logs.scales_of_sums(n, layout, ONES, rows, columns))

    def fit(self, n: int) -> bool:
        """Return whether these are scales of n elements."""
        width, both = self.layout.width, (self.rows, self.columns)
        if width < 1 or not all(is_plain_array(scales, ("uint8",)) for scales in both):
            return False
        if self.rows.size != -(-n // width) or self.columns.size not in (0, width):
            return False
        return n > 0 and all(scales.max(initial=0) <= MOST for scales in both)

    @property
    def decoded_layout(self) -> RowLayout:
        """Layout as a decoder infers it: the quantum follows from the scales alone."""
        bits = int(np.bitwise_or.reduce(self.rows) | np.bitwise_or.reduce(self.columns))
        bits |= _COARSEST
        return self.layout._replace(quantum=bits & -bits)

    def classes(self, start: int, stop: int, room: np.ndarray) -> np.ndarray:
        """Write the classes of a range of elements to a (stop - start,) uint8 array; return it."""
        class_map.map_classes(*self.arrays, start, room)
        return room

    def classes_at(self, positions: np.ndarray) -> np.ndarray:
        """Return the classes of a few elements, as int64."""
        row, column = np.divmod(positions, self.layout.width)
        column_scale = self.columns[column].astype(np.int64) if self.columns.size else CENTER
        return np.clip(self.rows[row] + (column_scale - CENTER), 0, CLASSES - 1)

    def class_sizes(self, n: int) -> np.ndarray:
        """Return the number of elements of each class, of n elements, as (64,) int64."""
        width, sizes = self.layout.width, np.zeros(CLASSES, np.int64)
        last = n - (self.rows.size - 1) * width  # elements of the last row
        for rows, count in ((self.rows[:-1], width), (self.rows[-1:], last)):
            by_column = np.zeros(CENTER + 1, np.int64)
            by_column[CENTER] = count
            if self.columns.size:
                by_column = byte_counts(self.columns[:count])
            sums = np.convolve(byte_counts(rows), by_column)  # elements by the sum of both scales
            classes = np.clip(np.arange(sums.size) - CENTER, 0, CLASSES - 1)
            np.add.at(sizes, classes, sums)
        return sizes

    @property
    def possible_classes(self) -> slice:
        """The range of the classes that elements may have."""
        columns = self.columns if self.columns.size else np.array([CENTER], np.uint8)
        ends = (
            int(self.rows.min()) + int(columns.min()),
            int(self.rows.max()) + int(columns.max()),
        )
        first, last = (min(max(end - CENTER, 0), CLASSES - 1) for end in ends)
        return slice(first, last + 1)

    @property
    def arrays(self) -> class_map.ScaleArrays:
        """The arguments from which kernels compute classes."""
        return self.rows, self.columns, self.layout.width

    def put(self, string: BitString, least_saving: int = 0) -> None:
        """Append the scales to a string; see `scale_lists.write`."""
        for scales in self._lists:
            scale_lists.write(scales, string, least_saving)

    def nbits(self) -> int:
        """Return the approximate number of bits of the scales."""
        return sum(self.lists_nbits())

    def lists_nbits(self) -> list[int]:
        """Return the approximate bits of the rows, and of the columns if they have scales."""
        return list(map(scale_lists.nbits, self._lists))

    @property
    def _lists(self) -> list[np.ndarray]:
        """The lists that a payload stores: scales of rows, and scales of groups of columns."""
        group = self.layout.group
        return [self.rows, np.ascontiguousarray(self.columns[::group])] if group else [self.rows]

    @classmethod
    def read(
        cls, layout: RowLayout, n: int, data: np.ndarray, at: int, end: int
    ) -> tuple[Scales, int]:
        """Read the scales of n > 0 elements from bit `at` on; also return the next bit.

        Raises
        ------
        FormatError
        """
        layout.check(n)
        width, group, _ = layout
        rows, at = scale_lists.read(data, at, end, -(-n // width))
        columns = np.empty(0, np.uint8)
        if group:
            by_group, at = scale_lists.read(data, at, end, -(-width // group))
            columns = np.repeat(by_group, group)[:width]
        return cls(layout, rows, columns), at


@functools.lru_cache(maxsize=256)
def row_layouts(shape: tuple[int, ...]) -> tuple[RowLayout, ...]:
    """Return the candidate layouts of a nonempty tensor, the most likely one first.

    The first candidates have a row for each index of the first dimension. With more than two
    dimensions, the columns of an index of the second dimension may share a scale, or a row may be
    cut at the second or third dimension. The last candidates are rows of 128 elements and a single
    row.
    """
    n, widths = math.prod(shape), [math.prod(shape[at:]) for at in range(1, len(shape))]
    suitable = [w for w in dict.fromkeys(widths) if w >= LEAST_WIDTH and LEAST_ROWS * w <= n]
    layouts = [RowLayout(width, 1) for width in suitable[:3]]
    if suitable and len(widths) > 1 and 1 < widths[1] < suitable[0]:
        layouts.insert(1, RowLayout(suitable[0], widths[1]))
    if n < _SMALL:
        layouts += [layout._replace(quantum=2) for layout in layouts]
    if n >= 2 * _BLOCK:
        layouts.append(RowLayout(_BLOCK, 0))
    return (*layouts, RowLayout(n, 0))


def sampled_rows(
    values: np.ndarray | ComputedSymbols, width: int, sample: int, sparse: int = _SPARSE
) -> np.ndarray:
    """Return about `sample` of (n,) values, in equidistant rows.

    All values are returned if this would be more than one row out of `sparse`.
    """
    rows = values.size // width
    stride = rows // max(sample // width, LEAST_ROWS)
    if isinstance(values, ComputedSymbols):
        return values.whole() if stride < sparse else values.rows(width, stride)
    if stride < sparse:
        return values

    def every_row(array: np.ndarray) -> np.ndarray:
        return flattened(array[: rows * width].reshape(rows, width)[::stride])

    sampled: np.ndarray = selected(values, every_row)
    return sampled


def sampled_matrix(
    values: np.ndarray, width: int, sample: int, period: int
) -> tuple[np.ndarray, int]:
    """Return a sample of rows and columns, and its row width; or all values of a small tensor.

    The sample has about as many rows as columns, both equidistant, because the scales of rows and
    of columns are what varies most within a gradient.

    Parameters
    ----------
    values : (n,) array
    width : int
        Width of the rows.
    sample : int
        Approximate number of values to return.
    period : int
        Period with which the scales of columns repeat. The sample covers all of its positions.
    """
    rows = values.size // width
    if values.size < _SPARSE * sample:
        return values, width
    down = rows // min(rows, max(math.isqrt(sample), sample // width))
    across = coprime_stride(max(width * -(-rows // down) // sample, 1), period)

    def some_columns(array: np.ndarray) -> np.ndarray:
        return flattened(array[: rows * width].reshape(rows, width)[::down, ::across])

    return selected(values, some_columns), -(-width // across)


def coprime_stride(stride: int, period: int) -> int:
    """Return the least stride from `stride` on that reaches all positions of a period."""
    while math.gcd(stride, period) > 1:
        stride += 1
    return stride


LEAST = 1 << 10  # symbols below which scales are not refined
_POINT = 12  # fractional bits of costs
_MOVED = 1 << 14  # scales that are moved at a time, so that their costs stay in a cache
_PART = 1 << 16  # elements of a single row that are added up at a time
_SAMPLES = 1 << 10  # resolution of the relative frequencies of scales


def refined(symbols: np.ndarray, scales: Scales, costs: np.ndarray) -> Scales:
    """Move each scale to a neighbor that probably makes the string shorter.

    Parameters
    ----------
    symbols : (n,) uint8 array
    scales : Scales
    costs : (64, 128) int64 array
        Bits by class and magnitude, in units of 2^-28.
    """
    if symbols.size < LEAST:
        return scales
    layout, rows, columns = scales
    width, group, quantum = layout
    rounded = (costs >> rans.POINT - _POINT).astype(np.int32)
    if not group:
        # A single row is added up in parts, which take less memory for scales of columns.
        parts, part = (rows, width) if rows.size > 1 else (rows, min(width, _PART))
        if rows.size == 1:
            parts = np.repeat(rows, -(-symbols.size // part))
        columns = np.full(part, CENTER, np.uint8)
        row_costs = scale_fit.row_costs(symbols, parts, columns, rounded, quantum)
        if rows.size == 1:
            row_costs = row_costs.sum(axis=0, keepdims=True)
        return scales._replace(rows=_moved(rows, row_costs, quantum))
    row_costs = scale_fit.row_costs(symbols, rows, columns, rounded, quantum)
    rows = _moved(rows, row_costs, quantum)
    column_costs = scale_fit.column_costs(symbols, rows, columns, rounded, quantum)
    group_costs = column_costs
    if group > 1:
        group_costs = np.add.reduceat(column_costs, np.arange(0, width, group), axis=0)
    by_group = _moved(columns[::group], group_costs, quantum)
    return Scales(layout, rows, np.repeat(by_group, group)[:width])


def _moved(scales: np.ndarray, costs: np.ndarray, quantum: int) -> np.ndarray:
    """Return for each of (k,) scales the neighbor of least cost; `costs` is (k, SHIFTS)."""
    shifts = (np.arange(SHIFTS) - SHIFTS // 2) * quantum
    most = MOST // quantum * quantum
    order = np.argsort(np.abs(shifts), kind="stable")  # of equal costs, the nearest neighbor wins
    list_costs, moved = _list_costs(scales), np.empty(scales.size, np.uint8)
    for at in range(0, scales.size, _MOVED):
        own, part = scales[at : at + _MOVED], slice(at, at + _MOVED)
        neighbors = np.clip(own.astype(np.int64)[:, None] + shifts, quantum, most)
        total = costs[part] + list_costs[neighbors]
        best = neighbors[np.arange(own.size), order[total[:, order].argmin(axis=1)]]
        moved[part] = np.where(own > 0, best, 0)
    return moved


def _list_costs(scales: np.ndarray) -> np.ndarray:
    """Return the approximate cost of each scale from 0 to 127 in a list like this one."""
    counts = np.bincount(scales, minlength=MOST + 1)
    frequencies = np.maximum(counts * _SAMPLES // scales.size, 1)
    logs = rans.log2_table()
    return logs[_SAMPLES] - logs[frequencies] >> rans.POINT - _POINT
