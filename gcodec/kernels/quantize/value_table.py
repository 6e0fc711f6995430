"""Tables of the numbers that codes of 4 or 8 bits stand for, and the search for the nearest one.

The table of ``nf4`` is that of QLoRA, which has the quantiles of a normal distribution. ``fp4``
has ±{0, 1/16, 2, 3, 4, 6, 8, 12}/12, in an order of its own. ``dynamic8`` has 0, 1 and, for each
power of ten from 10^-6 to 1, twice as many numbers as for the preceding one. ``int4`` and ``int8``
are integers in two's complement, ``offset8`` has the integers from −128 on, and ``fp8`` is
OCP's E4M3.

Integers and floats are rounded. Of other tables, 16 numbers are searched by four comparisons, and
256 by cells of magnitudes that share sign, exponent and six bits of the mantissa. A cell contains
at most one boundary of two numbers, so one comparison decides.

Sources: bitsandbytes 0.50.2, ``functional.py`` (MIT), for the first three tables; OCP 8-bit
Floating Point Specification 1.0.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from gcodec.kernels.quantize.block_format import BlockFormat
from gcodec.runtime.memory import aligned_copy, aligned_zeros

CELL = 17  # bits of a float32 that a cell drops
_ANY = 0x7FFFFFFF  # magnitude that no float32 exceeds

_NF4 = (
    *("-0x1p+0", "-0x1.647362p-1", "-0x1.0cd66p-1", "-0x1.94654p-2", "-0x1.23449ap-2"),
    *("-0x1.7a6a7ep-3", "-0x1.74f0e2p-4", "0x0p+0", "0x1.45f5fep-4", "0x1.4995c6p-3"),
    *("0x1.f809bap-3", "0x1.5a0674p-2", "0x1.c3497p-2", "0x1.200f56p-1", "0x1.722766p-1"),
    "0x1p+0",
)
_FP4 = (0, 1 / 16, 8, 12, 4, 6, 2, 3)  # times 1/12


class Cells(NamedTuple):
    """What finds the code of a number.

    Attributes
    ----------
    entries : (2 * per_sign,) uint64 array
        For each cell of positive numbers, then of negative ones: the largest magnitude, as bits,
        that gets the first code; that code in bits 32 to 39, and the second code above.
    first : int
        Cell of the first entry. Smaller magnitudes belong to it, too.
    """

    entries: np.ndarray
    first: int

    @property
    def per_sign(self) -> int:
        """Number of cells of one sign."""
        return self.entries.size // 2

    def packed(self) -> np.ndarray:
        """Return entries of 32 bits, where a magnitude shares its upper bits with its cell.

        An entry has the lowest 17 bits of the largest magnitude that gets the first code, then
        the first code in 8 bits, and what the second code has more, in two's complement.
        """
        tops = (self.entries & np.uint64(_ANY)).astype(np.int64)
        first, second = ((self.entries >> np.uint64(at) & np.uint64(0xFF)) for at in (32, 40))
        differences = second.astype(np.int64) - first.astype(np.int64)
        rests = np.minimum(tops, tops & (1 << CELL) - 1)
        words = rests | first.astype(np.int64) << CELL | differences << CELL + 8
        return (words & 0xFFFFFFFF).astype(np.uint32)


class ValueTable(NamedTuple):
    """The numbers of codes.

    Attributes
    ----------
    values : (2^b,) float32 array
        The number of each code. Nobody may change it.
    cells : Cells
    zero : int
        The code of 0.
    method : str
        How kernels find codes: "tree", "cells", or the name of a table of integers or floats.
    entries : uint32 array
        For "tree", see `_tree`; for "cells", see `Cells.packed`. Empty for other methods.
    """

    values: np.ndarray
    cells: Cells
    zero: int
    method: str
    entries: np.ndarray

    @classmethod
    @functools.cache
    def of(cls, name: str) -> ValueTable:
        """Return the table with a name."""
        if name in ("nf4", "fp4", "dynamic8"):
            values = {"nf4": _nf4, "fp4": _fp4, "dynamic8": _dynamic8}[name]()
            order = np.argsort(values, kind="stable")
            ordered = values[order]
            bounds = _keys((ordered[:-1] + ordered[1:]) / np.float32(2))
        else:
            if name == "fp8":
                values = BlockFormat.of("mxfp8e4m3").values().copy()
            else:
                codes = np.arange(16 if name == "int4" else 256)
                half = codes.size // 2
                is_signed = name != "offset8"
                numbers = (
                    np.where(codes < half, codes, codes - 2 * half) if is_signed else codes - half
                )
                values = numbers.astype(np.float32)
            order = np.flatnonzero(~np.isnan(values))
            order = order[np.argsort(_keys(values[order]))]
            ordered = values[order]
            # Ties go to the even code.
            bounds = _keys((ordered[:-1] + ordered[1:]) / np.float32(2)) - (order[:-1] & 1)
            if name == "fp8":
                bounds[order[1:] == 0] = -1  # −0 has a code of its own
        values.flags.writeable = False
        cells = _cells(order, bounds)
        zero = int(order[np.searchsorted(bounds, 0)])
        if name in ("nf4", "fp4"):
            return cls(values, cells, zero, "tree", _tree(order, bounds))
        if name == "dynamic8":
            return cls(values, cells, zero, "cells", cells.packed())
        return cls(values, cells, zero, name, np.empty(0, np.uint32))

    def placed(self) -> np.ndarray:
        """Return the numbers of places in a tree as (64,) float32, or those of all codes.

        The result starts at a cache line.
        """
        if self.method != "tree":
            return aligned_copy(self.values)
        numbers = aligned_zeros(64, np.float32)  # as many as the registers of any processor hold
        numbers[:16] = self.values[self.entries[32:].view(np.uint8)[:16]]
        return numbers

    @property
    def per_byte(self) -> int:
        """Number of codes in a byte."""
        return 2 if self.values.size == 16 else 1


def _nf4() -> np.ndarray:
    return np.array([float.fromhex(text) for text in _NF4], np.float32)


def _fp4() -> np.ndarray:
    positive = np.array(_FP4, np.float32) / np.float32(12)
    return np.concatenate((positive, 0 - positive))  # both zeros are +0


def _dynamic8() -> np.ndarray:
    """Return the middles of 1, 2, … 64 equal parts of 0.1 to 1, times 10^-6, 10^-5, … 1."""
    values: list[np.ndarray] = [np.array([0, 1], np.float32)]
    first = np.float32(0.1)
    for k in range(7):
        n = 1 << k
        step = np.float64((np.float32(1) - first) / np.float32(n))
        place = np.arange(n + 1)
        # From both ends, as the original computes them: rounded once.
        bounds = np.where(place < (n + 1) // 2, first + step * place, 1 - step * (n - place))
        bounds = bounds.astype(np.float32)
        middles = (bounds[:-1] + bounds[1:]) / np.float32(2) * np.float32(10.0 ** (k - 6))
        values += [middles, -middles]
    return np.sort(np.concatenate(values))


def _keys(numbers: np.ndarray) -> np.ndarray:
    """Return int64 numbers that have the order of float32 numbers, −0 before +0."""
    bits = numbers.astype(np.float32).view(np.uint32).astype(np.int64)
    magnitudes = bits & _ANY
    return np.where(bits >> 31, -1 - magnitudes, magnitudes)


def _tree(order: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Return what finds one of 16 codes by four comparisons, as (40,) uint32.

    A number is above a bound if it belongs to a later code. After k comparisons, 2^k bounds are
    left to choose from. Bounds for the first comparison to the last one begin at 24, 16, 8 and 0,
    and are repeated up to 8. The codes follow as bytes, twice.
    """
    magnitudes = np.where(bounds < 0, -1 - bounds | 1 << 31, bounds)
    entries = aligned_zeros(40, np.uint32)
    for first, step in ((24, 8), (16, 4), (8, 2), (0, 1)):
        chosen = magnitudes[step - 1 :: 2 * step]
        entries[first : first + 8] = np.resize(chosen, 8)
    entries[32:] = np.tile(order.astype(np.uint8), 2).view(np.uint32)
    return entries


def _cells(order: np.ndarray, bounds: np.ndarray) -> Cells:
    """Return the cells of codes in ascending order of numbers.

    `bounds` has the largest key that each code but the last stands for.
    """
    magnitudes = np.where(bounds < 0, -1 - bounds, bounds)
    first = int(magnitudes[magnitudes > 0].min() >> CELL) - 1
    count = int(magnitudes.max() >> CELL) + 2 - first
    starts = np.arange(first, first + count, dtype=np.int64) << CELL
    ends = starts + (1 << CELL) - 1
    starts[0], ends[-1] = 0, _ANY
    entries = []
    for negative in (False, True):
        low, high = (np.searchsorted(bounds, -1 - m if negative else m) for m in (starts, ends))
        assert (abs(high - low) <= 1).all()
        between = bounds[np.minimum(np.minimum(low, high), bounds.size - 1)]
        tops = np.where(low == high, _ANY, -2 - between if negative else between)
        codes = order[low] | order[high] << 8
        entries.append(tops.astype(np.uint64) | codes.astype(np.uint64) << np.uint64(32))
    return Cells(np.concatenate(entries), first)
