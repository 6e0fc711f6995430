"""Strings of symbols with a class each: scales, exceptions, then rANS with a model for each class.

    table u8 · states u8 · width LEB128 · group LEB128 · exceptions LEB128        whole bytes
    scales of rows · scales of columns, if group is not 0 · table · exceptions · zeros to a byte
    rANS of all symbols

`table` is the number of a static table, or 255 for one that is sent. 2, 8 or 32 states take
turns. Symbols are twice a magnitude, plus 1 where it is negative; one above the largest of its
class is an exception, and coded as an escape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.contexts import class_tables
from gcodec.contexts.class_tables import ClassTable
from gcodec.contexts.exceptions import Exceptions
from gcodec.contexts.scales import Matrix, Scales
from gcodec.entropy import tabled
from gcodec.errors import Corrupt
from gcodec.kernels import class_map, rans_string
from gcodec.kernels.bit_string import BitString
from gcodec.kernels.rans_string import Runs
from gcodec.kernels.rans_vector import LANES
from gcodec.kernels.scalar_quantize import ESCAPE
from gcodec.seek import LOG2_STATES, SeekTable
from gcodec.wire import Reader, leb128

STATES = (2, 8, LANES)
_BITS_PER_STATE = 1 << 12  # of a string, from which on so many states cost little
_SAMPLE = 1 << 18  # symbols by which plans are compared
_WORTH = 2000  # bits for each class, from which on a table of their own may pay

Take = Callable[[int, np.ndarray], None]


class Plan(NamedTuple):
    """How symbols are written.

    Attributes
    ----------
    scales : Scales
    table : ClassTable
    nbits : int
        Of the whole string, estimated.
    """

    scales: Scales
    table: ClassTable
    nbits: int


def best(symbols: np.ndarray, candidates: list[Scales]) -> Scales:
    """Return the scales with which a string is probably shortest; the first of equals.

    Parameters
    ----------
    symbols : (n,) uint8 array
        n > 0.
    candidates : list of Scales
    """
    if len(candidates) == 1:
        return candidates[0]

    def nbits(scales: Scales) -> int:
        counts = _counts(symbols, scales, _SAMPLE)
        coded = int(class_tables.statics_nbits(counts).min())
        return coded * symbols.size // int(counts.sum()) + scales.nbits()

    return min(candidates, key=nbits)


def plan(symbols: np.ndarray, scales: Scales, sample: int = _SAMPLE) -> Plan:
    """Return the plan with the best table, a static one or one that is sent.

    Parameters
    ----------
    symbols : (n,) uint8 array
        n > 0.
    scales : Scales
    sample : int
        About how many symbols are looked at; 0 for all.
    """
    counts = _counts(symbols, scales, sample)
    seen, n = int(counts.sum()), symbols.size
    sizes = class_tables.statics_nbits(counts).tolist()
    table = class_tables.statics()[sizes.index(min(sizes))]
    nbits = min(sizes) * n // seen
    if nbits >= _WORTH * np.count_nonzero(counts.any(axis=1)):
        own = ClassTable.own(counts)
        if (found := own.nbits(counts) * n // seen + own.sent_nbits()) < nbits:
            table, nbits = own, found
    return Plan(scales, table, nbits + scales.nbits())


def _counts(symbols: np.ndarray, scales: Scales, sample: int) -> np.ndarray:
    """Count symbols by class, all or about so many."""
    step = max(1, symbols.size // sample) if sample else 1
    return class_map.class_counts(symbols, scales.rows, scales.columns, scales.matrix.width, step)


def write(
    plan: Plan, symbols: np.ndarray, beyond: np.ndarray, front: BitString
) -> tuple[np.ndarray, int, SeekTable | None]:
    """Write a string.

    Parameters
    ----------
    plan : Plan
    symbols : (n,) uint8 array
        n > 0.
    beyond : (k,) int64 array
        What the symbols `ESCAPE` stand for, in order.
    front : BitString
        What comes before it, in whole bytes.

    Returns
    -------
    data : uint8 array
    nbits : int
    seek : SeekTable or None
        None where the string is too short for one.
    """
    scales, n = plan.scales, symbols.size
    places = class_map.unknown_symbols(
        symbols, scales.rows, scales.columns, scales.matrix.width, plan.table.tops
    )
    found = symbols[places].astype(np.int64)
    found[found >= ESCAPE] = beyond
    lanes = max((k for k in STATES if k * _BITS_PER_STATE <= plan.nbits), default=STATES[0])
    numbers = (scales.matrix.width, scales.matrix.group, places.size)
    head = bytes([plan.table.number, lanes]) + b"".join(map(leb128, numbers))
    front.extend(np.frombuffer(head, np.uint8), 8 * len(head))
    scales.put(front)
    plan.table.put(front)
    Exceptions(places, found).put(front)

    def symbols_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
        classes = scales.classes(start, stop, np.empty(stop - start, np.uint8))
        here = symbols[start:stop]
        first, last = np.searchsorted(places, (start, stop))
        if first < last:
            here = here.copy()
            here[places[first:last] - start] = ESCAPE
        class_map.join_classes(here, classes, room)
        return room

    tables, lead = plan.table.write_tables(), front.trimmed()
    log2_run = LOG2_STATES if lanes == LANES else rans_string.LOG2_BLOCK
    data, nbits, runs = rans_string.write(tables, symbols_of, n, lead, log2_run, lanes)
    return data, nbits, tabled.index_of(runs, n, nbits) if lanes == LANES else None


class ContextString(NamedTuple):
    """A string that is read, all but its symbols known.

    Attributes
    ----------
    table : ClassTable
    lanes : int
        States that take turns.
    scales : Scales
    exceptions : Exceptions
    data : uint8 array
    first, end : int
        Bits where rANS begins, and where the string ends.
    n : int
        Symbols.
    """

    table: ClassTable
    lanes: int
    scales: Scales
    exceptions: Exceptions
    data: np.ndarray
    first: int
    end: int
    n: int

    @classmethod
    def of(cls, data: np.ndarray, first: int, end: int, n: int) -> ContextString:
        """Read what comes before the symbols, n > 0, from bit `first` on, a multiple of 8.

        Raises
        ------
        FormatError
        """
        reader = Reader(data[: end // 8].data, first // 8)
        number, lanes = reader.uint(1), reader.uint(1)
        matrix, count = Matrix(reader.leb128(), reader.leb128()), reader.leb128()
        if lanes not in STATES:
            raise Corrupt(f"symbols of {lanes} states that take turns")
        scales, at = Scales.read(matrix, n, data, 8 * reader.at, end)
        table, at = ClassTable.read(number, data, at, end)
        exceptions, at = Exceptions.read(count, n, data, at, end)
        after = at + -at % 8
        between = data[at // 8] if at < min(after, end) else 0
        if int(between) & 0xFF >> at % 8:
            raise Corrupt("bits between scales and symbols are not zero", at // 8)
        rans_string.refuse_short(n, end - after, lanes)
        return cls(table, lanes, scales, exceptions, data, after, end, n)

    def read(self, take: Take, seek: SeekTable | None, *, bits_follow: bool = False) -> int:
        """Read all symbols; return the bit behind them.

        Parameters
        ----------
        take : callable
            Gets the first of a range and its symbols, exceptions being `ESCAPE`, which later ones
            overwrite; called on the threads of the pool, for all ranges in any order.
        seek : SeekTable, optional
            Blocks are then read side by side, and must be so.
        bits_follow : bool
            Whether the string may end before `end`.

        Raises
        ------
        FormatError
        """
        places, runs = self.exceptions.places, None
        if seek is not None and seek.states is not None:
            if not bits_follow:
                seek.must_cover(self.end - self.first)
            runs = Runs(seek.log2_block, seek.offsets, seek.states)

        def taken(at: int, symbols: np.ndarray) -> None:
            here = self.exceptions.within(at, at + symbols.size)
            told = places[here] - at
            if np.count_nonzero(symbols >= ESCAPE) != told.size or (symbols[told] != ESCAPE).any():
                raise Corrupt("an escape is no exception, or an exception no escape")
            take(at, symbols)

        tables = self.table.read_tables()
        where = self.data, self.first, self.end, self.n
        return rans_string.read(
            tables, *where, taken, runs, bits_follow, self.scales.classes, self.lanes
        )

    def blocks(self, log2_block: int) -> SeekTable:
        """Find where blocks begin, by reading all; of fewer states than tables tell, none do."""
        tables = self.table.read_tables()
        where = self.data, self.first, self.end, self.n
        runs = rans_string.index(tables, *where, log2_block, self.scales.classes, self.lanes)
        if self.lanes < STATES[-1]:
            return SeekTable.of(log2_block, np.zeros(2, np.int64))
        return SeekTable.of(log2_block, runs.offsets, None, runs.states)
