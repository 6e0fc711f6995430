"""Strings of symbols with a class each: scales, exceptions, then rANS with a model for each class.

    table u8 · states u8 · width LEB128 · group LEB128 · exceptions LEB128        whole bytes
    scales of rows · scales of columns, if group is not 0 · table · exceptions · zeros to a byte
    rANS of all symbols

`table` is the number of a static table, or 255 for one that is sent. 2, 8 or 32 states take
turns. Symbols are twice a magnitude, plus 1 where it is negative; one above the largest of its
class is an exception, and coded as an escape.

With a trellis the quantiser that is next chooses the model too, and symbols are coded as lanes
take turns; a static table is then one of `trellis_tables`, and an exception is a symbol that its
model does not have, coded as the escape of the same parity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.entropy import tabled
from gcodec.entropy.context import models
from gcodec.entropy.context.class_tables import ClassTable
from gcodec.entropy.context.models import ByClass, ByTrellis, Table
from gcodec.entropy.context.outliers import Outliers
from gcodec.entropy.context.scale_model import RowLayout, Scales
from gcodec.entropy.context.table_choice import Plan, lanes_of
from gcodec.entropy.context.trellis_tables import TrellisTable
from gcodec.errors import Corrupt, FormatError
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context import lane_order
from gcodec.kernels.context.escapes import are_right
from gcodec.kernels.prefix.dense_string import SymbolsOf
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_runs import LOG2_BLOCK, Runs
from gcodec.kernels.rans.rans_string import ClassesOf
from gcodec.kernels.rans.rans_table import ReadTables
from gcodec.kernels.rans.rans_vector import CLASSED_LANES as STATES
from gcodec.kernels.rans.rans_vector import LANES
from gcodec.runtime.deferred import require
from gcodec.runtime.device import device_of, host
from gcodec.runtime.memory import Drainable, contents, empty_beside, release
from gcodec.wire.primitives import Reader, leb128
from gcodec.wire.seek import LOG2_STATES, SeekTable

_FRONT, _LONGER = 1 << 16, 16  # bytes that are looked at first for what comes before the symbols

Take = Callable[[int, np.ndarray], None]


def write(
    plan: Plan,
    symbols: np.ndarray | Drainable,
    beyond: np.ndarray | None,
    front: BitString,
    before_join: Callable[[int], None] | None = None,
) -> tuple[np.ndarray, int, SeekTable | None]:
    """Write a string.

    Parameters
    ----------
    plan : Plan
    symbols : (n,) uint8 array
        n > 0. Released if it is a `Drainable`, unless there is a trellis.
    beyond : (k,) int64 array or None
        What the symbols that are escapes stand for, in order; None for these very symbols.
    front : BitString
        What comes before it, in whole bytes.
    before_join : callable, optional
        See `rans_string.write`.

    Returns
    -------
    data : uint8 array
    nbits : int
    seek : SeekTable or None
        None where the string is too short for one.
    """
    array = contents(symbols)
    scales, n, with_trellis = plan.scales, array.size, plan.turns is not None
    coded: ByClass | ByTrellis = plan.turns or ByClass(array, scales)
    lanes = coded.lanes or lanes_of(plan.nbits)
    none = np.empty(0, np.int64)
    unknown, (places, found) = none, Outliers(none, none)
    if not plan.complete:
        unknown, (places, found) = coded.unknown(plan.table)
    if beyond is not None and beyond.size:
        found[found >= models.least_escape(with_trellis)] = beyond
    put_head(front, plan.table, lanes, scales, Outliers(places, found))

    def symbols_of(start: int, stop: int, room: np.ndarray) -> np.ndarray:
        some = unknown
        if unknown.size and stop - start < n:
            first, last = np.searchsorted(unknown, (start, stop))
            some = unknown[first:last] - start
        coded.join(start, stop, some, room)
        if not with_trellis:  # else it is not these that were read
            release(symbols, start, stop)
        return room

    given: SymbolsOf | np.ndarray = symbols_of
    if device_of(array) is not None:  # which has room for all
        given = symbols_of(0, n, empty_beside(n, np.uint16, array))
    tables, lead = plan.table.write_tables(), front.trimmed()
    log2_run = LOG2_STATES if lanes == LANES else LOG2_BLOCK
    data, nbits, runs = rans_string.write(tables, given, n, lead, log2_run, lanes, before_join)
    return data, nbits, tabled.index_of(runs, n, nbits) if lanes == LANES else None


def put_head(
    string: BitString, table: Table, lanes: int, scales: Scales, exceptions: Outliers
) -> None:
    """Put what comes before the symbols at the end of a string, which has whole bytes."""
    numbers = scales.matrix.width, scales.matrix.group, exceptions.places.size
    head = bytes([table.number, lanes]) + b"".join(map(leb128, numbers))
    string.extend(np.frombuffer(head, np.uint8), 8 * len(head))
    scales.put(string)
    table.put(string)
    exceptions.put(string)


class ContextString(NamedTuple):
    """A string that is read, all but its symbols known.

    Attributes
    ----------
    table : ClassTable or TrellisTable
    lanes : int
        States that take turns.
    scales : Scales
    exceptions : Exceptions
    data : uint8 array
    first, end : int
        Bits where rANS begins, and where the string ends.
    n : int
        Symbols.
    seek : SeekTable or None
        The table of the payload. Blocks are then read side by side, and must be so.
    """

    table: Table
    lanes: int
    scales: Scales
    exceptions: Outliers
    data: np.ndarray
    first: int
    end: int
    n: int
    seek: SeekTable | None

    @classmethod
    def of(
        cls,
        data: np.ndarray,
        first: int,
        end: int,
        n: int,
        seek: SeekTable | None,
        with_trellis: bool = False,
    ) -> ContextString:
        """Read what comes before the symbols, n > 0, from bit `first` on, a multiple of 8.

        Raises
        ------
        FormatError
        """
        if device_of(data) is not None:
            return cls._of_front(data, first, end, n, seek, with_trellis, first // 8 + _FRONT)
        reader = Reader(data[: end // 8].data, first // 8)
        number, lanes = reader.uint(1), reader.uint(1)
        matrix, count = RowLayout(reader.leb128(), reader.leb128()), reader.leb128()
        if lanes not in STATES:
            raise Corrupt(f"symbols of {lanes} states that take turns")
        scales, at = Scales.read(matrix, n, data, 8 * reader.at, end)
        kind: Any = TrellisTable if with_trellis else ClassTable
        table, at = kind.read(number, data, at, end)
        exceptions, at = Outliers.read(count, n, data, at, end)
        after = at + -at % 8
        between = data[at // 8] if at < min(after, end) else 0
        if int(between) & 0xFF >> at % 8:
            raise Corrupt("bits between scales and symbols are not zero", at // 8)
        rans_string.refuse_short(n, end - after, lanes)
        return cls(table, lanes, scales, exceptions, data, after, end, n, seek)

    @classmethod
    def _of_front(
        cls,
        data: np.ndarray,
        first: int,
        end: int,
        n: int,
        seek: SeekTable | None,
        with_trellis: bool,
        nbytes: int,
    ) -> ContextString:
        """Read what comes before the symbols on the host, as many bytes, or more where they fail.

        The data is on a device, from where there is no need to fetch all.
        """
        how = n, seek, with_trellis
        if nbytes >= end // 8:
            return cls.of(host(data), first, end, *how)._replace(data=data)
        try:
            found = cls.of(host(data[:nbytes]), first, 8 * nbytes, *how)
        except FormatError:
            return cls._of_front(data, first, end, *how, nbytes * _LONGER)
        rans_string.refuse_short(n, end - found.first, found.lanes)
        return found._replace(data=data, end=end)

    def read(
        self,
        take: Take,
        *,
        bits_follow: bool = False,
        largest: int = ESCAPE,
    ) -> int:
        """Read all symbols; return the bit behind them.

        Parameters
        ----------
        take : callable
            Gets the first of a range and its symbols, exceptions being escapes, which later ones
            overwrite; called on the threads of the pool, for all ranges in any order.
        bits_follow : bool
            Whether the string may end before `end`.
        largest : int
            Of all symbols that there may be, but for escapes.

        Raises
        ------
        FormatError
        """
        how = self._checked(take, largest), self._runs(bits_follow), bits_follow
        return rans_string.read(*self._where(), *how, *self._models())

    def read_range(self, start: int, stop: int, take: Take) -> None:
        """Read symbols start to stop - 1, and some before and behind; see `read`.

        With a seek table, few others; else all before.

        Raises
        ------
        FormatError
        """
        how = self._checked(take), self._runs(), *self._models()
        rans_string.read_range(*self._where(), start, stop, *how)

    def _checked(self, take: Take, largest: int = ESCAPE) -> Take:
        """Return a `take` that checks that exceptions, and no others, are escapes; and sizes."""
        places, beside = self.exceptions
        coded_as = models.escapes(beside, self.with_trellis)
        least = models.least_escape(self.with_trellis)

        def taken(at: int, symbols: np.ndarray) -> None:
            if self.with_trellis:
                turns, symbols = symbols, empty_beside(symbols.size, np.uint8, symbols)
                lane_order.from_turns(turns, self.lanes, symbols)
            here = self.exceptions.within(at, at + symbols.size)
            alike, small = are_right(symbols, places[here] - at, coded_as[here], least, largest)
            require(alike, lambda: Corrupt("an escape is no exception, or an exception no escape"))
            require(small, lambda: Corrupt(f"a symbol is above {largest}"))
            take(at, symbols)

        return taken

    def blocks(self, log2_block: int) -> SeekTable:
        """Find where blocks begin, by reading all; of fewer states than tables tell, none do."""
        runs = rans_string.index(*self._where(), log2_block, *self._models())
        if self.lanes < STATES[-1]:
            return SeekTable.of(log2_block, np.zeros(2, np.int64))
        return SeekTable.of(log2_block, runs.offsets, None, runs.states)

    @property
    def with_trellis(self) -> bool:
        """Whether a quantiser is a part of each model."""
        return isinstance(self.table, TrellisTable)

    def _where(self) -> tuple[ReadTables, np.ndarray, int, int, int]:
        return self.table.read_tables(), self.data, self.first, self.end, self.n

    def _models(self) -> tuple[ClassesOf, int, bool]:
        return self.classes, self.lanes, self.with_trellis

    def classes(self, start: int, stop: int, room: np.ndarray) -> np.ndarray:
        """Return the classes of a range in the order of coding; with a trellis, of whole runs."""
        if self.with_trellis:
            return models.classes_in_turns(self.scales, self.lanes, start, stop, room)
        return self.scales.classes(start, stop, room)

    def _runs(self, bits_follow: bool = False) -> Runs | None:
        """Return where runs begin, if there is a seek table, which must cover the string."""
        seek = self.seek
        if seek is None or seek.states is None:
            return None
        if not bits_follow:
            seek.must_cover(self.end - self.first)
        return Runs(seek.log2_block, seek.offsets, seek.states)
