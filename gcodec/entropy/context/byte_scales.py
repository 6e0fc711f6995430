"""Scales of bytes such as exponents: means by row and by column, which are logarithms already.

Exponents differ from row to row and from column to column as the magnitudes do, of which they are
the logarithms. Let u be what they grow by in an octave, S and N the sum and the number of all
bytes that are not 0, and S(i) and N(i) those of a row. For a row i, and likewise for a column j,

    row(i) = 40 + 4/u·(S(i)/N(i) − S/N)      column(j) = 64 + 4/u·(S(j)/N(j) − S/N)

rounded to the nearest integer, or to a multiple of 2, 4 or 8, and limited to 1 … 127; 0 marks a
row or column of zeros. The class of an element is row(i) + column(j) − 64, limited to 0 … 63, as
in `scale_model`. It selects a model of rANS in `byte_coder`; or a byte is lowered by u/4 of its
class, and coded without a model for each class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gcodec.entropy.context.scale_model import ONE, RowLayout, Scales, row_layouts
from gcodec.entropy.rans import log2_table
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.computed_symbols import ComputedSymbols, Symbols
from gcodec.kernels.context.byte_scales import FittedScales, fitted_scales
from gcodec.kernels.context.byte_sums import LineSums, Sums, plane_sums, rounded_scales
from gcodec.kernels.context.class_map import CENTER
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.runtime.device import device_of
from gcodec.wire.primitives import Reader, leb128

_PER_OCTAVE = 4
_STEP = 1 << 17  # elements that stay in a cache
_COARSE = 0.03  # share of the bits from which scales are coarse
_LOWERED_SHARE = 100  # bytes are lowered if that saves a hundredth of a sample

PartsOf = Callable[[int, int], np.ndarray]
"""Returns a range of the bytes of a tensor, which later calls on the same thread may overwrite."""


class Lowering(NamedTuple):
    """Scales whose octaves are subtracted from the bytes of a tensor, and the effect.

    Attributes
    ----------
    scales : Scales
    nbits : int
        Approximate bits of the scales.
    counts : (256,) int64 array
        Histogram of the lowered bytes, or of those of a sample; it may be estimated.
    rows : Sums or None
        Sums of the rows of the sample, if the scales are those of a sample.
    """

    scales: Scales
    nbits: int
    counts: np.ndarray
    rows: Sums | None = None


@dataclass(frozen=True, eq=False)
class Sample:
    """Bytes of some rows of a tensor, by which an encoder selects scales.

    Attributes
    ----------
    symbols : (k,) uint8 array
    times : float
        Elements of the tensor for each element of the sample.
    unit : int
        What a byte grows by in an octave.
    """

    symbols: np.ndarray
    times: float
    unit: int

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """The (256,) histogram of the bytes."""
        return byte_counts(self.symbols)

    def sums(self, layout: RowLayout) -> LineSums:
        """Return the sums of rows and columns."""
        sums = LineSums(self.symbols.size, layout.width, layout.group > 0)
        return sums.run(lambda start, stop: self.symbols[start:stop], _STEP)

    def lists_nbits(self, rows: int, columns: int = 0) -> float:
        """Return the approximate bits of the scales of the whole tensor, by those of a sample."""
        return self.times * rows + columns

    def lowering(self, shape: tuple[int, ...], plain: float) -> Lowering | None:
        """Select the scales by which bytes are lowered, those of the sample; None without gain.

        The first layout that saves enough is selected: the most likely one comes first.

        Parameters
        ----------
        shape : tuple of int
            Shape of the tensor.
        plain : float
            Bits of the whole tensor's bytes if none is lowered.
        """
        for layout in layouts_of(shape, self.symbols.size):
            if layout.width >= self.times * self.symbols.size:
                continue
            coarse = RowLayout(layout.width, layout.group, _PER_OCTAVE)  # takes fewer bits
            if self.unit == 1 and not layout.group:  # parts of octaves would lower no byte
                layout = coarse
            lowered = self._lowered(layout)
            nbits, own = self.times * lowered.nbits, self.lists_nbits(*lowered.lists_nbits)
            if own > _COARSE * plain and layout != coarse:
                layout = coarse
                lowered = self._lowered(layout)
                own = self.lists_nbits(*lowered.lists_nbits)
            if nbits + own < plain - plain / _LOWERED_SHARE:
                scales = Scales(layout, lowered.rows, lowered.columns)
                return Lowering(scales, int(own), lowered.counts, lowered.sums)
        return None

    def _lowered(self, layout: RowLayout) -> FittedScales:
        return fitted_scales(self.symbols, *layout, ONE, self.unit, log2_table())


def layouts_of(shape: tuple[int, ...], sampled: int) -> Iterator[RowLayout]:
    """Return the candidate layouts of a tensor whose sample has `sampled` elements."""
    return (layout for layout in _fine_layouts(shape) if layout.width <= sampled)


@functools.lru_cache(maxsize=256)
def _fine_layouts(shape: tuple[int, ...]) -> tuple[RowLayout, ...]:
    return tuple(dict.fromkeys(layout._replace(quantum=1) for layout in row_layouts(shape)))


def scales_of_parts(parts: PartsOf, n: int, layout: RowLayout, unit: int) -> Scales:
    """Compute the scales of all n bytes of a tensor; see `Sample` for `unit`."""
    sums = LineSums(n, layout.width, layout.group > 0).run(parts, _STEP)
    return scales_of_sums(layout, sums.rows, sums.columns, unit)


def scales_of_symbols(symbols: Symbols, layout: RowLayout, unit: int) -> Scales:
    """Compute the scales of the (n,) bytes of a tensor; see `Sample` for `unit`."""
    if not isinstance(symbols, ComputedSymbols) and device_of(symbols) is not None:
        rows, columns, *_ = plane_sums(symbols, 0, layout.width, has_columns=layout.group > 0)
        return scales_of_sums(layout, rows, columns, unit)
    return scales_of_parts(lambda start, stop: symbols[start:stop], symbols.size, layout, unit)


def scales_of_sums(layout: RowLayout, rows: Sums, columns: Sums, unit: int) -> Scales:
    """Compute scales from the sums of rows and of columns, which may be those of samples."""
    group, by_column = layout.group, np.empty(0, np.uint8)
    if group == 1:
        by_column = rounded_scales(columns, layout.quantum, CENTER, unit)
    elif group:
        places = np.arange(0, layout.width, group)
        sums, counts = (np.add.reduceat(part, places) for part in columns)
        by_group = rounded_scales((sums, counts), layout.quantum, CENTER, unit)
        by_column = np.repeat(by_group, group)[: layout.width]
    return Scales(layout, rounded_scales(rows, layout.quantum, ONE, unit), by_column)


def put(scales: Scales, string: BitString, least_saving: int = 0) -> None:
    """Append the layout and the lists of scales to a string of whole bytes.

    See `scale_lists.write` for `least_saving`.
    """
    string.put(leb128(scales.layout.width) + leb128(scales.layout.group))
    scales.put(string, least_saving)


def read(data: np.ndarray, first: int, end: int, n: int) -> tuple[Scales, int]:
    """Read scales of n > 0 elements from bit `first` on, a whole byte; also return the next bit.

    Raises
    ------
    FormatError
    """
    reader = Reader(data[: end // 8].data, first // 8)
    layout = RowLayout(reader.leb128(), reader.leb128())
    return Scales.read(layout, n, data, 8 * reader.at, end)
