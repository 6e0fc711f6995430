"""Symbols in the order in which they are coded, and the model of each: by class, or by trellis.

By class, symbols are coded in order, and each has the model of its class. With a trellis, lanes
take turns as in `kernels.lane_order`, and the model depends on the quantiser that is next too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gcodec.entropy import rans
from gcodec.entropy.context import class_tables, trellis_tables
from gcodec.entropy.context.class_tables import ClassTable
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import Scales
from gcodec.entropy.context.trellis_tables import TrellisTable
from gcodec.kernels.context import class_map, lane_order
from gcodec.kernels.context.class_tables import symbols_nbits
from gcodec.kernels.context.lane_order import RUN
from gcodec.kernels.quantize import trellis
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.runtime import pool
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import empty_beside

Table = ClassTable | TrellisTable

_FEW = 1 << 15  # symbols for which a table of their own hardly pays, so that none counts them


class Look(NamedTuple):
    """What symbols look like.

    Attributes
    ----------
    sizes : list of int
        About how many bits those take that were looked at, with each static table.
    reach : (models,) uint8 array
        See `class_map.reach`.
    seen : int
        How many were looked at.
    counts : (models, 256) int64 array or None
        How often each of these symbols occurs, where that is known.
    """

    sizes: list[int]
    reach: np.ndarray
    seen: int
    counts: np.ndarray | None


@dataclass(frozen=True, eq=False)
class ByClass:
    """Symbols with the models of their classes.

    Attributes
    ----------
    symbols : (n,) uint8 array
    scales : Scales
    """

    symbols: np.ndarray
    scales: Scales

    lanes: ClassVar[int] = 0  # as many as pay

    def counts(self, sample: int) -> np.ndarray:
        """Count symbols by model, all or about so many, as (64, 256) int64."""
        step = share(self.symbols.size, sample)
        found: np.ndarray = class_map.class_counts(self.symbols, [self.scales.arrays], step)[0]
        return found

    def look(self, sample: int) -> Look:
        """Look at all symbols, or about so many."""
        if self.symbols.size < _FEW and device_of(self.symbols) is None:
            step = share(self.symbols.size, sample)
            costs = class_tables.statics_costs()
            told = self.symbols, self.scales.arrays, step, costs, rans.POINT
            nbits, reach = symbols_nbits(*told)
            return Look(nbits, reach, class_map.sampled_count(self.symbols.size, step), None)
        counts = self.counts(sample)
        nbits = class_tables.statics_nbits(counts).tolist()
        return Look(nbits, class_map.reach(counts), int(counts.sum()), counts)

    def static(self, number: int) -> ClassTable:
        """Return the static table of this number."""
        return class_tables.static(number)

    def own(self, counts: np.ndarray) -> ClassTable:
        """Make the table of counts, to be sent."""
        return ClassTable.own(counts)

    def unknown(self, table: Any) -> tuple[np.ndarray, Outliers]:
        """Return which symbols in the order of coding their models do not have, rising.

        And what they are in that of the tensor.
        """
        found = class_map.unknown_symbols(self.symbols, *self.scales.arrays, table.tops)
        return found[0], Outliers(*found)

    def knows_all(self, table: Any, look: Look) -> bool:
        """Whether models have all symbols that were looked at."""
        return not np.count_nonzero(look.reach > table.tops + np.uint8(1))

    def join(self, start: int, stop: int, unknown: np.ndarray, out: np.ndarray) -> None:
        """Write numbers of 16 bits, models above symbols, of a range in the order of coding.

        Those of the range that are unknown are escapes.
        """
        part = self.symbols[start:stop]
        class_map.join_symbols(part, *self.scales.arrays, start, unknown, out)


@dataclass(frozen=True, eq=False)
class ByTrellis:
    """Symbols with the models of their classes and quantisers; see `ByClass`.

    Attributes
    ----------
    symbols, models : (n,) uint8 array
        In the order of coding.
    scales : Scales
    lanes : int
    """

    symbols: np.ndarray
    models: np.ndarray
    scales: Scales
    lanes: int

    @classmethod
    def of(cls, symbols: np.ndarray, scales: Scales, lanes: int, every: int = 1) -> ByTrellis:
        """Find the models of (n,) uint8 symbols, on the host of one in `every` runs."""
        turns, models = (empty_beside(symbols.size, np.uint8, symbols) for _ in range(2))
        length = RUN if device_of(symbols) is None else symbols.size

        def task(start: int, stop: int) -> None:
            room = empty_beside(min(length, stop - start), np.uint8, symbols)
            for at in range(start, stop, length):
                if at // RUN % every == 0:
                    end = min(at + length, stop)
                    lane_order.to_turns(symbols[at:end], lanes, turns[at:end])
                    some = classes_in_turns(scales, lanes, at, end, room[: end - at])
                    models[at:end] = some
                    trellis.add_quantizers(turns[at:end], lanes, models[at:end])

        pool.run(task, symbols.size, RUN, symbols)
        return cls(turns, models, scales, lanes)

    def counts(self, sample: int) -> np.ndarray:
        """Count symbols by model, as (128, 256) int64; see `ByClass`."""
        return trellis.model_counts(self.symbols, self.models, sample)

    def look(self, sample: int) -> Look:
        """Look at symbols; see `ByClass`."""
        counts = self.counts(sample)
        sizes = self.statics_nbits(counts)
        return Look(sizes, class_map.reach(counts), int(counts.sum()), counts)

    def statics_nbits(self, counts: np.ndarray) -> list[int]:
        """Return about how many bits counts take with each static table."""
        found: list[int] = trellis_tables.statics_nbits(counts).tolist()
        return found

    def static(self, number: int) -> TrellisTable:
        """Return the static table of this number."""
        return trellis_tables.static(number)

    def own(self, counts: np.ndarray) -> TrellisTable:
        """Make the table of counts, to be sent."""
        return TrellisTable.own(counts)

    def unknown(self, table: Any) -> tuple[np.ndarray, Outliers]:
        """Return which symbols their models do not have; see `ByClass`."""
        found, values = trellis.unknown_places(self.symbols, self.models, table.known)
        places = lane_order.positions_of(found, self.symbols.size, self.lanes)
        order = np.argsort(places)
        return found, Outliers(places[order], values[order])

    def knows_all(self, table: Any, look: Look) -> bool:
        """Whether models have all symbols that were looked at; see `ByClass`."""
        assert look.counts is not None
        return not look.counts.reshape(-1)[table.known == 0].any()

    def join(self, start: int, stop: int, unknown: np.ndarray, out: np.ndarray) -> None:
        """Write models above symbols; see `ByClass`."""
        trellis.join_models(self.symbols[start:stop], self.models[start:stop], unknown, out)


def share(n: int, sample: int) -> int:
    """Return which share of n symbols are about `sample`; for 0 all."""
    return max(1, n // sample) if sample else 1


def classes_in_turns(
    scales: Scales, lanes: int, start: int, stop: int, room: np.ndarray
) -> np.ndarray:
    """Return the classes of a range of whole runs, or to the end, in the order of coding.

    There is room for as many, where these shall lie too.
    """
    turns = empty_beside(stop - start, np.uint8, room)
    lane_order.to_turns(scales.classes(start, stop, room), lanes, turns)
    return turns


def escapes(symbols: np.ndarray, with_trellis: bool) -> np.ndarray:
    """Return what symbols are coded as where their models do not have them, as uint8."""
    if with_trellis:
        return trellis.escapes(symbols)
    return np.full(symbols.size, ESCAPE, np.uint8)


def least_escape(with_trellis: bool) -> int:
    """Return the least symbol that is an escape."""
    return trellis.ODD if with_trellis else ESCAPE
