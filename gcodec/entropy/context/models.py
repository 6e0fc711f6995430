"""Symbols in coding order, with the model that codes each of them.

Without a trellis, the coding order is the order of the tensor, and the class of a symbol is its
model. With a trellis, the coding order interleaves the rANS lanes as in
`gcodec.kernels.context.lane_order`, and the quantizer of a symbol is a part of the model too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from gcodec.entropy.context import class_tables, trellis_tables
from gcodec.entropy.context.class_tables import ClassTable
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import Scales
from gcodec.entropy.context.trellis_tables import TrellisTable
from gcodec.kernels.bits.computed_symbols import Symbols
from gcodec.kernels.context import class_map, lane_order
from gcodec.kernels.context.class_tables import symbols_nbits
from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.quantize import trellis
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.runtime import pool
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import empty_beside

Table = ClassTable | TrellisTable

_KEPT = 1 << 24  # symbols of a trellis that stay in coding order, for the next pass over them
_CODED = 1 << 21  # symbols of a trellis that are in coding order at a time if there are more
_MISSED = 64  # a sample may miss classes of one of 64 bits
_NEAR = 2  # classes within half an octave, whose symbols stand for each other
_FEW = 1 << 15  # symbols below which a table of their own hardly pays, so they are not counted


class Statistics(NamedTuple):
    """Statistics of all symbols, or of a sample.

    Attributes
    ----------
    statics_nbits : list of int
        Approximate bits of the examined symbols with each static table.
    reach : (models,) uint8 array
        See `class_map.reach`.
    examined : int
        Number of examined symbols.
    counts : (models, 256) int64 array or None
        Counts of the examined symbols, or None if they were only priced.
    """

    statics_nbits: list[int]
    reach: np.ndarray
    examined: int
    counts: np.ndarray | None

    @classmethod
    def of(cls, counts: np.ndarray, examined: int, statics_nbits: np.ndarray) -> Statistics:
        """Return the statistics of symbols that were counted."""
        return cls(statics_nbits.tolist(), class_map.reach(counts), examined, counts)


@dataclass(frozen=True, eq=False)
class ClassSymbols:
    """Symbols with the models of their classes.

    Attributes
    ----------
    symbols : (n,) uint8 array or ComputedSymbols
    scales : Scales
    """

    symbols: Symbols
    scales: Scales

    table_type: ClassVar[type[Table]] = ClassTable
    lanes: ClassVar[int] = 0  # the size of the string decides

    def counts(self, sample: int) -> np.ndarray:
        """Count about `sample` symbols by model, all for 0, as (64, 256) int64."""
        step = sampling_stride(self.symbols.size, sample)
        return class_map.class_counts(self.symbols, [self.scales.arrays], step)[0]

    def examine(self, sample: int) -> Statistics:
        """Return the statistics of about `sample` symbols, of all for 0.

        If the sample misses classes that take many bits, all symbols are examined.
        """
        n, statics_costs = self.symbols.size, class_tables.statics_costs()
        step = sampling_stride(n, sample)
        examined = class_map.sampled_count(n, step)
        if n < _FEW and isinstance(self.symbols, np.ndarray):
            arrays = self.scales.arrays
            nbits, reach = symbols_nbits(self.symbols, arrays, step, statics_costs)
            return Statistics(nbits, reach, examined, None)
        counts = self.counts(sample)
        if examined < n and misses_classes(counts, self.scales, n):
            counts, examined = self.counts(0), n
        return Statistics.of(counts, examined, class_tables.nbits(counts, statics_costs))

    def escaped(self, table: Table) -> tuple[np.ndarray, Outliers]:
        """Find the symbols that the table does not contain.

        Returns
        -------
        positions : (k,) int64 array
            Positions in coding order, increasing.
        outliers : Outliers
            The same symbols in the order of the tensor.
        """
        assert isinstance(table, ClassTable)
        outliers = Outliers(
            *class_map.escaped_symbols(self.symbols, *self.scales.arrays, table.tops)
        )
        return outliers.positions, outliers

    def contains_all(self, table: Table, statistics: Statistics) -> bool:
        """Return whether the table contains all symbols that were examined."""
        assert isinstance(table, ClassTable)
        return not np.count_nonzero(statistics.reach > table.tops + np.uint8(1))

    def merge_models(self, start: int, stop: int, escaped: np.ndarray, out: np.ndarray) -> None:
        """Write uint16 words with the model in the high byte and the symbol in the low byte.

        Parameters
        ----------
        start, stop : int
            Range in coding order.
        escaped : (k,) int64 array
            Positions in this range of the symbols that are replaced by escapes.
        out : (stop - start,) uint16 array
        """
        part = self.symbols[start:stop]
        class_map.join_symbols(part, *self.scales.arrays, start, escaped, out)


@dataclass(frozen=True, eq=False)
class TrellisSymbols:
    """Symbols with the models of their classes and quantizers; see `ClassSymbols`.

    Of many symbols on the host, only a few runs are in coding order at a time.

    Attributes
    ----------
    symbols : (n,) uint8 array
        In the order of the tensor.
    scales : Scales
    lanes : int
        Number of interleaved rANS states.
    """

    symbols: np.ndarray
    scales: Scales
    lanes: int

    table_type: ClassVar[type[Table]] = TrellisTable

    def coded(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the symbols of a range of whole runs in coding order, and their models."""
        if not self._keeps_all:
            return self._in_turns(start, stop)
        symbols, models = self._all
        return symbols[start:stop], models[start:stop]

    @property
    def _keeps_all(self) -> bool:
        return device_of(self.symbols) is not None or self.symbols.size <= _KEPT

    @functools.cached_property
    def _all(self) -> tuple[np.ndarray, np.ndarray]:
        """All symbols in coding order, and their models."""
        return self._in_turns(0, self.symbols.size)

    def _parts(self) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
        """Yield the begin of each part, and what `coded` returns for it."""
        n = self.symbols.size
        size = n if self._keeps_all else _CODED * pool.thread_count()
        for at in range(0, n, size):
            yield at, self.coded(at, min(at + size, n))

    def _in_turns(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        coded, models = (empty_beside(stop - start, np.uint8, self.symbols) for _ in range(2))
        length = RUN if device_of(self.symbols) is None else stop - start

        def task(first: int, last: int) -> None:
            room = empty_beside(min(length, last - first), np.uint8, self.symbols)
            for at in range(first, last, length):
                own, begin = slice(at, min(at + length, last)), start + at
                end = begin + own.stop - at
                lane_order.to_turns(self.symbols[begin:end], self.lanes, coded[own])
                models[own] = classes_in_coding_order(
                    self.scales, self.lanes, begin, end, room[: end - begin]
                )
                trellis.add_quantizers(coded[own], self.lanes, models[own])

        pool.run(task, stop - start, RUN, self.symbols)
        return coded, models

    def counts(self, sample: int) -> np.ndarray:
        """Count symbols by model, as (128, 256) int64; see `ClassSymbols.counts`."""
        n, step = self.symbols.size, sampling_stride(self.symbols.size, sample)
        if device_of(self.symbols) is not None:
            return trellis.model_counts(*self.coded(0, n), sample)
        if step > 1:
            parts = [self._in_turns(at, min(at + RUN, n)) for at in range(0, n, step * RUN)]
            symbols, models = map(np.concatenate, zip(*parts, strict=True))
            return trellis.model_counts(symbols, models, 0)
        counts = np.zeros((trellis.MODELS, 256), np.int64)
        for _, part in self._parts():
            counts += trellis.model_counts(*part, 0)
        return counts

    def examine(self, sample: int) -> Statistics:
        """Return the statistics of symbols; see `ClassSymbols.examine`."""
        counts, n = self.counts(sample), self.symbols.size
        if int(counts.sum()) < n and misses_classes(counts, self.scales, n):
            counts = self.counts(0)
        return Statistics.of(counts, int(counts.sum()), trellis_tables.statics_nbits(counts))

    def escaped(self, table: Table) -> tuple[np.ndarray, Outliers]:
        """Find the symbols that the table does not contain; see `ClassSymbols.escaped`."""
        assert isinstance(table, TrellisTable)
        parts = []
        for at, part in self._parts():
            places, escaped = trellis.escaped_symbols(*part, table.has_symbol)
            parts.append((places + at, escaped))
        coded_at, symbols = map(np.concatenate, zip(*parts, strict=True))
        positions = lane_order.positions_of(coded_at, self.symbols.size, self.lanes)
        order = np.argsort(positions)
        return coded_at, Outliers(positions[order], symbols[order])

    def contains_all(self, table: Table, statistics: Statistics) -> bool:
        """Return whether the table contains all symbols that were examined."""
        assert isinstance(table, TrellisTable) and statistics.counts is not None
        return not statistics.counts.reshape(-1)[table.has_symbol == 0].any()

    def merge_models(self, start: int, stop: int, escaped: np.ndarray, out: np.ndarray) -> None:
        """Write models and symbols as uint16 words; see `ClassSymbols.merge_models`."""
        trellis.join_models(*self.coded(start, stop), escaped, out)


def sampling_stride(n: int, sample: int) -> int:
    """Return the stride that samples about `sample` of n symbols, and 1 for a sample of 0."""
    return max(1, n // sample) if sample else 1


def misses_classes(counts: np.ndarray, scales: Scales, n: int) -> bool:
    """Return whether a sample misses classes of many bits, such as those of a few large rows.

    A class is missed if the sample has less than half of its share of symbols of near classes.

    Parameters
    ----------
    counts : (models, 256) int64 array
        Counts of the sampled symbols. A model is a class, perhaps with a quantizer above it.
    scales : Scales
    n : int
        Number of all symbols.
    """
    sampled = counts.sum(axis=1).reshape(-1, class_map.CLASSES).sum(axis=0)
    sizes, near = scales.class_sizes(n), np.ones(2 * _NEAR + 1, np.int64)
    nbits = class_tables.class_nbits() * sizes
    around = np.convolve(sizes, near, "same")
    is_missed = 2 * n * np.convolve(sampled, near, "same") < around * sampled.sum()
    return bool(_MISSED * nbits[is_missed].sum() > nbits.sum())


def classes_in_coding_order(
    scales: Scales, lanes: int, start: int, stop: int, room: np.ndarray
) -> np.ndarray:
    """Return the classes of a range of whole runs, of which only the last run may be shorter.

    `room` is a (stop - start,) uint8 array that is overwritten. The result is a new array.
    """
    classes = empty_beside(stop - start, np.uint8, room)
    lane_order.to_turns(scales.classes(start, stop, room), lanes, classes)
    return classes


def escapes(symbols: np.ndarray, with_trellis: bool) -> np.ndarray:
    """Return, as uint8, the escapes that replace symbols that their models do not contain."""
    if with_trellis:
        return trellis.escapes(symbols)
    return np.full(symbols.size, ESCAPE, np.uint8)


def least_escape(with_trellis: bool) -> int:
    """Return the smallest symbol that is an escape."""
    return trellis.ODD if with_trellis else ESCAPE
