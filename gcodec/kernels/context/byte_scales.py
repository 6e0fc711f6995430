"""Sums of bytes by row and by column, and bytes that are shifted by the classes of elements.

Bytes are exponents, perhaps with the upper bits of a mantissa, so they are about logarithms of
magnitudes; `unit` is what a byte grows by in an octave. Classes are in quarter octaves, see
`class_map`. The byte 0 marks zeros, which have no logarithm: no sum contains them, and they
are never shifted.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import numpy as np

from gcodec.kernels.context.class_map import TILE, ScaleArrays, fill_classes
from gcodec.runtime import pool
from gcodec.runtime.jit import inline, kernel

_COUNT = 20  # bits of a sum of bytes, above which a narrow counter counts the bytes
_FLUSH = 1 << 11  # rows whose sums and counts fit into a narrow counter

Sums = tuple[np.ndarray, np.ndarray]
"""Sums of bytes, and numbers of the bytes that are not 0, of each row or column."""


class LineSums:
    """Sums by row and by column, which grow with each range of rows.

    Parameters
    ----------
    n, width : int
        Elements in all, and of a row; the last row may be shorter.
    has_columns : bool
        Whether columns are summed too.

    Attributes
    ----------
    rows, columns : Sums
    """

    def __init__(self, n: int, width: int, has_columns: bool) -> None:
        self._n, self._width = n, width
        self._height = width if has_columns else 0
        count = -(-n // width)
        self.rows: Sums = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._columns = np.zeros(2 * self._height, np.int64)

    @property
    def columns(self) -> Sums:
        """Sums by column, of no elements without columns."""
        return self._columns[: self._height], self._columns[self._height :]

    def add(self, start: int, symbols: np.ndarray, columns: np.ndarray) -> None:
        """Add symbols from element `start` on, the first one of a row, to rows and `columns`."""
        narrow, first = np.zeros(self._height, np.int32), start // self._width
        rows = (part[first : first + -(-symbols.size // self._width)] for part in self.rows)
        _add_byte_rows(symbols, self._width, narrow, *rows, columns)

    def run(self, parts: Callable[[int, int], np.ndarray], step: int) -> LineSums:
        """Add all symbols on the threads of the pool; ``parts(start, stop)`` returns a range."""
        unit = max(step // self._width, 1) * self._width

        def task(start: int, stop: int) -> np.ndarray:
            columns = np.zeros_like(self._columns)
            for at in range(start, stop, unit):
                self.add(at, parts(at, min(at + unit, stop)), columns)
            return columns

        self._columns = functools.reduce(operator.iadd, pool.run(task, self._n, unit))
        return self


def lower(symbols: np.ndarray, scales: ScaleArrays, unit: int, start: int) -> None:
    """Lower (n,) bytes by the octaves of their classes, in place and on the calling thread.

    A byte b from 1 on becomes 1 + (b − 1 − k) mod 255, where k is a quarter of the class times the
    unit, rounded.

    Parameters
    ----------
    symbols : (n,) uint8 array
    scales : (rows, columns, width)
        See `class_map`.
    unit : int
        From 1 to 8.
    start : int
        The first element.
    """
    _lower_bytes(symbols, *scales, start, unit, np.empty(TILE, np.uint8))


def raise_again(symbols: np.ndarray, scales: ScaleArrays, unit: int, start: int) -> None:
    """Undo `lower`."""
    _raise_bytes(symbols, *scales, start, unit, np.empty(TILE, np.uint8))


@kernel("in uint8[], int64, out int32[], out int64[], out int64[], out int64[]")
def _add_byte_rows(symbols, width, narrow, sums, counts, columns):
    # sums.size == counts.size == ceil(symbols.size / width); narrow.size is `width` or 0, and
    # columns.size twice that. `narrow` is 0 before and after the call.
    for row in range(sums.size):
        line = symbols[row * width : min((row + 1) * width, symbols.size)]
        total, count = np.int64(0), np.int64(0)
        for first in range(0, line.size, 4096):
            part, part_sum, part_count = line[first : first + 4096], np.int32(0), np.int32(0)
            for j in range(part.size):
                part_sum += np.int32(part[j])
                part_count += np.int32(part[j] != 0)
            total += part_sum
            count += part_count
        sums[row], counts[row] = total, count
        if narrow.size > 0:  # line.size <= width
            for j in range(line.size):
                value = np.int32(line[j]) | np.int32(np.int32(line[j] != 0) << np.int32(_COUNT))
                narrow[j] = np.int32(narrow[j] + value)
        if row % _FLUSH == _FLUSH - 1 or row == sums.size - 1:
            for j in range(narrow.size):
                columns[j] += narrow[j] & ((1 << _COUNT) - 1)
                columns[narrow.size + j] += narrow[j] >> _COUNT
                narrow[j] = 0


@inline
def _shift_of(octaves, unit):
    """Return by how much a byte of a class is lowered: a quarter of class times unit, rounded."""
    return np.uint8(np.uint16(np.uint16(np.uint16(octaves) * unit) + np.uint16(2)) >> np.uint16(2))


@kernel("out uint8[], in uint8[], in uint8[], int64, int64, int64, out uint8[]")
def _lower_bytes(symbols, rows, columns, width, start, unit, classes):
    step = np.uint16(unit)
    # classes.size == TILE; the scales cover all elements.
    for first in range(0, symbols.size, TILE):
        part = symbols[first : first + TILE]
        own = classes[: part.size]
        fill_classes(rows, columns, width, start + first, own)
        for i in range(part.size):
            by = _shift_of(own[i], step)
            wraps = np.uint8(part[i] <= by)
            moved = np.uint8(np.uint8(part[i] - by) - wraps)
            part[i] = moved if part[i] > 0 else np.uint8(0)


@kernel("out uint8[], in uint8[], in uint8[], int64, int64, int64, out uint8[]")
def _raise_bytes(symbols, rows, columns, width, start, unit, classes):
    step = np.uint16(unit)
    # See `_lower_bytes`.
    for first in range(0, symbols.size, TILE):
        part = symbols[first : first + TILE]
        own = classes[: part.size]
        fill_classes(rows, columns, width, start + first, own)
        for i in range(part.size):
            by = _shift_of(own[i], step)
            moved = np.uint8(part[i] + by)
            moved = np.uint8(moved + np.uint8(moved < part[i]))
            part[i] = moved if part[i] > 0 else np.uint8(0)
