"""Where the parts of a seek table lie in a header: entries, sums between them, states behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gcodec.kernels import rans_runs
from gcodec.kernels.rans_vector import LANES

LOG2_RANS = rans_runs.LOG2_BLOCK  # that of the symbols of a block of rANS
WIDTHS = (1, 2, 4, 8)
STRIDE = 4096  # entries from one pair of sums to the next
SUM_NBYTES = 8


class Stride(NamedTuple):
    """Entries that follow one another.

    Attributes
    ----------
    first, size : int
        Blocks.
    sums, at : int
        Bytes where the sums before them begin, if there are any, and where they do.
    """

    first: int
    size: int
    sums: int
    at: int


class Part(NamedTuple):
    """A number of a section.

    Attributes
    ----------
    name : str
    block : int
    at, nbytes : int
        Where it begins, in bytes from the section's first, and how many it has.
    value : int
    """

    name: str
    block: int
    at: int
    nbytes: int
    value: int


def strides(count: int, width: int, columns: int) -> Iterator[Stride]:
    """Cut the entries of so many blocks, `columns` numbers of `width` bytes each."""
    at = 0
    for first in range(0, count, STRIDE):
        sums, size = at, min(STRIDE, count - first)
        at += SUM_NBYTES * columns if first else 0
        yield Stride(first, size, sums, at)
        at += size * columns * width


def width_of(columns: list[np.ndarray]) -> int:
    """Return the least width that holds all numbers."""
    most = max(int(column.max(initial=0)) for column in columns)
    return next(width for width in WIDTHS if most < 1 << 8 * width)


def entries_nbytes(count: int, width: int, columns: int) -> int:
    """Return the bytes of entries, sums included."""
    return columns * (width * count + SUM_NBYTES * (max(count - 1, 0) // STRIDE))


def within(count: int, log2_block: int) -> np.ndarray:
    """Tell which blocks begin within one of rANS."""
    found = np.ones(count, np.bool_)
    found[:: 1 << LOG2_RANS - log2_block] = False
    return found


def states_nbytes(count: int, log2_block: int) -> int:
    """Return the bytes of the states of these blocks."""
    heads = -(-count >> LOG2_RANS - log2_block)
    return 4 * LANES * (count - heads)
