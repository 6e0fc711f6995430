"""The scale model: how large levels are in each row, and in each column.

Elements lie in rows of `width`. With R(i) the sum of the magnitudes of row i and n(i) its
elements, C(j) and h(j) those of column j, T and n those of all,

    row(i) = 40 + log(R(i) / n(i))      column(j) = 64 + log((C(j) / h(j)) / (T / n))

in quarter octaves, log being 4·log2 rounded to the nearest integer; both are at least 1, at most
127, and 0 where the sum is 0. So row + column − 64 − 40 says, in quarter octaves, what magnitude
to expect: a mean of each row and one of each column give the most likely factors of levels that
are Poisson of their product, and are nearly as good for others. Columns side by side may share a
scale, and scales may be rounded to half an octave or more, where each costs more than it saves.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from gcodec.entropy import rans
from gcodec.entropy.context import scale_lists
from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context import class_map, scale_fit, scale_logs
from gcodec.kernels.context.class_map import CENTER, CLASSES
from gcodec.kernels.context.scale_fit import SHIFTS
from gcodec.kernels.context.scale_lists import MOST
from gcodec.runtime.memory import flattened

ONE = 40  # the class where a magnitude of 1 is expected
ONES = ONE, CENTER  # scales of rows of a mean of 1, and of columns of that of all
LEAST_ROWS = 8  # of a matrix with scales of columns
LEAST_WIDTH = 8  # of rows, if there are several
_COARSEST = 8  # quantum
_SPARSE = 4  # from which share of the rows on a sample is smaller
_SMALL = 1 << 16  # elements below which finer scales may cost more than they save
_BLOCK = 128  # elements of a row, where nothing better is known


class RowLayout(NamedTuple):
    """What a tensor is cut into.

    Attributes
    ----------
    width : int
        Elements of a row; the last row may have fewer.
    group : int
        Columns side by side that share a scale; 0 where columns have none.
    quantum : int
        Quarter octaves by which scales differ: 1, 2, 4 or 8.
    """

    width: int
    group: int
    quantum: int = 1

    def check(self, n: int) -> None:
        """Raise `Corrupt` unless n elements may lie in such rows."""
        if not min(LEAST_WIDTH, n) <= self.width <= n:
            raise Corrupt(f"rows of {self.width} among {n} elements")
        if self.group and (n < LEAST_ROWS * self.width or self.group > self.width):
            raise Corrupt(f"a scale for {self.group} of {self.width} columns, {n} elements")


class Scales(NamedTuple):
    """Scales of rows and of columns.

    Attributes
    ----------
    matrix : Matrix
    rows : (ceil(n / width),) uint8 array
    columns : (width,) uint8 array, or of no elements
        None where columns are all alike.
    """

    matrix: RowLayout
    rows: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, symbols: np.ndarray, matrix: RowLayout) -> Scales:
        """Find the scales of (n,) uint8 symbols, n > 0; see `class_map`."""
        (sums,) = class_map.magnitude_sums(symbols, [(matrix.width, matrix.group > 0)])
        return cls.of_sums(symbols.size, matrix, *sums)

    @classmethod
    def of_sums(cls, n: int, matrix: RowLayout, rows: np.ndarray, columns: np.ndarray) -> Scales:
        """Find the scales of n elements by the sums of their magnitudes."""
        return cls(matrix, *scale_logs.scales_of_sums(n, matrix, ONES, rows, columns))

    @property
    def told(self) -> RowLayout:
        """The matrix as a reader sees it: he knows the quantum by the scales alone."""
        bits = int(np.bitwise_or.reduce(np.append(self.rows, self.columns), initial=0)) | _COARSEST
        return self.matrix._replace(quantum=bits & -bits)

    def classes(self, start: int, stop: int, room: np.ndarray) -> np.ndarray:
        """Return the classes of a range of elements, in a uint8 array of as many."""
        class_map.map_classes(*self.arrays, start, room)
        return room

    def classes_at(self, places: np.ndarray) -> np.ndarray:
        """Return the classes of a few elements, as int64."""
        row, column = np.divmod(places, self.matrix.width)
        beside = self.columns[column].astype(np.int64) if self.columns.size else CENTER
        found: np.ndarray = np.clip(self.rows[row] + (beside - CENTER), 0, CLASSES - 1)
        return found

    @property
    def arrays(self) -> class_map.ScaleArrays:
        """What tells kernels the classes of elements."""
        return self.rows, self.columns, self.matrix.width

    def put(self, string: BitString) -> None:
        """Put the scales at the end of a string."""
        scale_lists.write(self.rows, string)
        if self.matrix.group:
            scale_lists.write(self._each, string)

    def nbits(self) -> int:
        """Return about how many bits the scales take."""
        found = scale_lists.nbits(self.rows)
        return found + scale_lists.nbits(self._each) if self.matrix.group else found

    @property
    def _each(self) -> np.ndarray:
        """The scales of columns as they are told: one for each group."""
        return np.ascontiguousarray(self.columns[:: self.matrix.group])

    @classmethod
    def read(
        cls, matrix: RowLayout, n: int, data: np.ndarray, at: int, end: int
    ) -> tuple[Scales, int]:
        """Read the scales of n > 0 elements from bit `at` on; return the next bit too.

        Raises
        ------
        FormatError
        """
        matrix.check(n)
        width, group, _ = matrix
        rows, at = scale_lists.read(data, at, end, -(-n // width))
        columns = np.empty(0, np.uint8)
        if group:
            each, at = scale_lists.read(data, at, end, -(-width // group))
            columns = np.repeat(each, group)[:width]
        return cls(matrix, rows, columns), at


@functools.lru_cache(maxsize=256)
def matrices(shape: tuple[int, ...]) -> tuple[RowLayout, ...]:
    """Return what a tensor of this shape, not empty, may be cut into; first the likeliest.

    That is the first dimension by the rest; where there are more than two, columns of the second
    dimension may share a scale, or rows may end with it. Else rows are blocks, or there is one.
    """
    n, widths = math.prod(shape), [math.prod(shape[at:]) for at in range(1, len(shape))]
    fit = [w for w in dict.fromkeys(widths) if w >= LEAST_WIDTH and LEAST_ROWS * w <= n]
    found = [RowLayout(width, 1) for width in fit[:3]]
    if fit and len(widths) > 1 and 1 < widths[1] < fit[0]:
        found.insert(1, RowLayout(fit[0], widths[1]))
    if n < _SMALL:
        found += [matrix._replace(quantum=2) for matrix in found]
    if n >= 2 * _BLOCK:
        found.append(RowLayout(_BLOCK, 0))
    return (*found, RowLayout(n, 0))


def some_rows(values: np.ndarray, width: int, sample: int) -> np.ndarray:
    """Return rows of (n,) values at equal distances, of about a sample in all; or all of few."""
    rows = values.size // width
    every = rows // max(sample // width, LEAST_ROWS)
    if every < _SPARSE:
        return values
    return flattened(values[: rows * width].reshape(rows, width)[::every])


def thinned(
    values: np.ndarray, width: int, sample: int, period: int = 1
) -> tuple[np.ndarray, int]:
    """Return about a sample of (n,) values in rows of a width, and its own width; or all of few.

    It is of rows and columns at equal distances, about as many of these as of those: what differs
    most in a gradient are the scales of rows, and those of columns. Where those of columns repeat
    with a period, columns are from all over it.
    """
    rows = values.size // width
    if values.size < _SPARSE * sample:
        return values, width
    down = rows // min(rows, max(math.isqrt(sample), sample // width))
    across = apart(max(width * -(-rows // down) // sample, 1), period)
    found = values[: rows * width].reshape(rows, width)[::down, ::across]
    return flattened(found), found.shape[1]


def apart(distance: int, period: int) -> int:
    """Return a distance, this or a little more, that leads to all places of a period."""
    while math.gcd(distance, period) > 1:
        distance += 1
    return distance


LEAST = 1 << 10  # symbols, below which scales stay as they are
_POINT = 12  # bits of costs behind the point
_SAMPLES = 1 << 10  # how often scales occur is told in parts of this


def refined(symbols: np.ndarray, scales: Scales, costs: np.ndarray) -> Scales:
    """Move scales to where a string of (n,) uint8 symbols is probably shorter.

    Parameters
    ----------
    symbols : (n,) uint8 array
    scales : Scales
    costs : (64, 128) int64 array
        Of each class and magnitude, in units of 2^-28 bits.
    """
    if symbols.size < LEAST:
        return scales
    matrix, rows, columns = scales
    quantum, group = matrix.quantum, matrix.group
    short = (costs >> rans.POINT - _POINT).astype(np.int32)
    every = columns if group else np.full(matrix.width, CENTER, np.uint8)
    rows = _moved(rows, scale_fit.row_costs(symbols, rows, every, short, quantum), quantum)
    if not group:
        return Scales(matrix, rows, columns)
    sums = scale_fit.column_costs(symbols, rows, every, short, quantum)
    sums = np.add.reduceat(sums, np.arange(0, matrix.width, group), axis=0)
    each = _moved(columns[::group], sums, quantum)
    return Scales(matrix, rows, np.repeat(each, group)[: matrix.width])


def _moved(scales: np.ndarray, sums: np.ndarray, quantum: int) -> np.ndarray:
    """Return the scales with the least sums, for (k, SHIFTS) of them."""
    moves = (np.arange(SHIFTS) - SHIFTS // 2) * quantum
    most = MOST // quantum * quantum
    every = np.clip(scales.astype(np.int64)[:, None] + moves, quantum, most)
    paid = sums + _list_costs(scales)[every]
    order = np.argsort(np.abs(moves), kind="stable")  # of equals, the nearest
    best = every[np.arange(scales.size), order[paid[:, order].argmin(axis=1)]]
    found: np.ndarray = np.where(scales > 0, best, 0).astype(np.uint8)
    return found


def _list_costs(scales: np.ndarray) -> np.ndarray:
    """Return about what each scale from 0 to 127 costs in a list of such."""
    counts = np.bincount(scales, minlength=MOST + 1)
    shares = np.maximum(counts * _SAMPLES // scales.size, 1)
    logs = rans.log2_table()
    found: np.ndarray = logs[_SAMPLES] - logs[shares] >> rans.POINT - _POINT
    return found
