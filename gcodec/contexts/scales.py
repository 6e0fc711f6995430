"""The scale model: how large levels are in each row, and in each column.

Elements lie in rows of `width`. With R(i) the sum of the magnitudes of row i and n(i) its
elements, C(j) and h(j) those of column j, T and n those of all,

    row(i) = 40 + log(R(i) / n(i))      column(j) = 64 + log((C(j) / h(j)) / (T / n))

in quarter octaves, log being 4·log2 rounded to the nearest integer; both are at least 1, at most
127, and 0 where the sum is 0. So row + column − 64 − 40 says, in quarter octaves, what magnitude
to expect: a mean of each row and one of each column give the most likely factors of levels that
are Poisson of their product, and are nearly as good for others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gcodec.contexts import scale_lists
from gcodec.errors import Corrupt
from gcodec.kernels import class_map
from gcodec.kernels.bit_string import BitString
from gcodec.kernels.class_map import CENTRE

ONE = 40  # the class where a magnitude of 1 is expected
LEAST_ROWS = 8  # of a matrix with scales of columns
LEAST_WIDTH = 8  # of rows, if there are several
_PER_OCTAVE = 4
_BLOCK = 128  # elements of a row, where nothing better is known

# 2^(1/8), 2^(3/8), 2^(5/8), 2^(7/8): where the nearest quarter octave changes.
_TURNS = np.array([1.0905077326652577, 1.2968395546510096, 1.5422108254079407, 1.8340080864093424])


class Scales(NamedTuple):
    """Scales of rows and of columns.

    Attributes
    ----------
    width : int
        Elements of a row; the last may have fewer.
    rows : (ceil(n / width),) uint8 array
    columns : (width,) uint8 array, or of no elements
        None where columns are all alike.
    """

    width: int
    rows: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, symbols: np.ndarray, width: int, has_columns: bool) -> Scales:
        """Find the scales of (n,) uint8 symbols, n > 0; see `class_map`."""
        rows, columns = class_map.magnitude_sums(symbols, width)
        n, total = symbols.size, int(rows.sum())
        sizes = np.full(rows.size, width)
        sizes[-1] = n - (rows.size - 1) * width
        found = _log(rows, sizes, ONE)
        if not has_columns:
            return cls(width, found, np.empty(0, np.uint8))
        heights = np.full(width, rows.size)
        heights[sizes[-1] :] -= 1
        return cls(width, found, _log(columns * (n / max(total, 1)), heights, CENTRE))

    def classes(self, start: int, stop: int, room: np.ndarray) -> np.ndarray:
        """Return the classes of a range of elements, in a uint8 array of as many."""
        class_map.map_classes(self.rows, self.columns, self.width, start, room)
        return room

    def put(self, string: BitString) -> None:
        """Put the scales at the end of a string."""
        scale_lists.write(self.rows, string)
        if self.columns.size:
            scale_lists.write(self.columns, string)

    @classmethod
    def read(
        cls, width: int, has_columns: bool, n: int, data: np.ndarray, at: int, end: int
    ) -> tuple[Scales, int]:
        """Read the scales of n > 0 elements from bit `at` on; return the next bit too.

        Raises
        ------
        FormatError
        """
        check_width(width, has_columns, n)
        rows, at = scale_lists.read(data, at, end, -(-n // width))
        columns = np.empty(0, np.uint8)
        if has_columns:
            columns, at = scale_lists.read(data, at, end, width)
        return cls(width, rows, columns), at


def check_width(width: int, has_columns: bool, n: int) -> None:
    """Raise `Corrupt` unless n elements may lie in such rows."""
    if not 1 <= width <= n or (width < min(LEAST_WIDTH, n)):
        raise Corrupt(f"rows of {width} among {n} elements")
    if has_columns and n < LEAST_ROWS * width:
        raise Corrupt(f"scales of {width} columns for {n} elements")


def shapes(shape: tuple[int, ...]) -> list[tuple[int, bool]]:
    """Return the widths of rows that a tensor of this shape, not empty, may be cut into.

    Returns
    -------
    list of (int, bool)
        Each with whether columns have scales. The last is that of one row.
    """
    n = math.prod(shape)
    found: list[tuple[int, bool]] = []
    width = 1
    for size in reversed(shape[1:]):
        width *= size
        if width >= LEAST_WIDTH and LEAST_ROWS * width <= n and (width, True) not in found:
            found.append((width, True))
    # The widest matrix is the likeliest: (first dimension, rest).
    found = found[::-1][:3]
    if n >= 2 * _BLOCK:
        found.append((_BLOCK, False))
    return [*found, (n, False)]


def _log(values: np.ndarray, counts: np.ndarray, one: int) -> np.ndarray:
    """Return `one` plus the quarter octaves of values / counts, as scales."""
    mantissa, exponent = np.frexp(values / counts)  # mantissa from 1/2 to below 1
    quarter = np.searchsorted(_TURNS, 2 * mantissa, "right")
    found = one + _PER_OCTAVE * (exponent.astype(np.int64) - 1) + quarter
    found = np.clip(found, 1, scale_lists.MOST)
    return np.where(values > 0, found, 0).astype(np.uint8)
