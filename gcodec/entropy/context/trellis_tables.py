"""Tables for a trellis: a table of classes for each of its two quantisers.

Where quantiser q is next, the k-th level of it is coded by the model that table q has for the
class, as magnitude k; at most 62 has symbols of its own. Both escapes share the frequency of the
escape, at least 2: the odd one has the half, rounded down. See `kernels.trellis`.

Static tables are kept in ``trellis_tables.txt``, both of each number behind each other; so come
both of one that is sent.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from gcodec.entropy.context import class_tables
from gcodec.entropy.context.class_tables import LOG2_TOTAL, SENT, ClassTable, Magnitudes
from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.quantize import trellis
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.kernels.quantize.trellis import EVEN, MODELS, MOST, ODD, QUANTISERS
from gcodec.kernels.rans import rans_table
from gcodec.kernels.rans.rans_table import ReadTables, WriteTables

LEVELS = Magnitudes(MOST, least_escape=2)
_SIGNED = np.arange(2 * MOST + 2)  # twice a k, plus the sign
# The symbols of the levels of each quantiser.
_SYMBOLS = [2 * np.maximum(2 * (_SIGNED >> 1) - q, 0) + _SIGNED % 2 for q in range(QUANTISERS)]
_TOLD = np.array([*range(0, 2 * MOST + 2, 2), ESCAPE])  # one of each magnitude


class TrellisTable(NamedTuple):
    """A table.

    Attributes
    ----------
    number : int
        Of a static one; `SENT` for one that is sent.
    tables : (ClassTable, ClassTable)
        Of each quantiser, by class and twice a k, plus the sign.
    """

    number: int
    tables: tuple[ClassTable, ClassTable]

    @classmethod
    def own(cls, counts: np.ndarray) -> TrellisTable:
        """Make the table of (128, 256) counts of symbols, at least one, to be sent."""
        first, second = (ClassTable.own(some, LEVELS) for some in trellis.level_counts(counts))
        return cls(SENT, (first, second))

    @property
    def frequencies(self) -> np.ndarray:
        """Frequencies by model and symbol, as (128, 256) int64."""
        found = np.zeros((QUANTISERS, CLASSES, 256), np.int64)
        for rows, table, symbols in zip(found, self.tables, _SYMBOLS, strict=True):
            rows[:, symbols] = table.frequencies[:, : _SIGNED.size]
            rows[:, ODD] = table.frequencies[:, ESCAPE] >> 1
            rows[:, EVEN] = table.frequencies[:, ESCAPE] - rows[:, ODD]
        return found.reshape(MODELS, 256)

    @property
    def known(self) -> np.ndarray:
        """1 where a model has a symbol that is no escape, else 0, as (128 * 256,) uint8."""
        found = (self.frequencies > 0).astype(np.uint8)
        found[:, ODD:] = 0
        return found.reshape(-1)

    def costs(self) -> np.ndarray:
        """Return the bits of the level k of each quantiser and class, in units of 2^-28.

        Returns
        -------
        (2, 64, MOST + 2) int64 array
            The last is that of what escapes, with what it takes beside.
        """
        return _level_costs(self) if self.number == SENT else _static_costs(self.number)

    def magnitude_costs(self) -> np.ndarray:
        """Return the bits of magnitudes by class, whichever quantiser is next; see `costs`.

        Returns
        -------
        (64, 128) int64 array
            Of 0, which both have, the mean.
        """
        each, h = self.costs(), np.arange(2 * MOST + 4)
        k = np.minimum((h + 1) >> 1, MOST + 1)
        found: np.ndarray = each[h & 1, :, k].T
        found[:, 0] = each[:, :, 0].sum(axis=0) >> 1
        return found

    def nbits(self, counts: np.ndarray) -> int:
        """Return about how many bits (128, 256) counts of symbols take; see `ClassTable`."""
        some = trellis.level_counts(counts)
        return sum(one.nbits(each) for one, each in zip(self.tables, some, strict=True))

    def sent_nbits(self) -> int:
        """Return the bits of the table where it is sent."""
        return sum(table.sent_nbits() for table in self.tables)

    def put(self, string: BitString) -> None:
        """Put a table that is sent at the end of a string."""
        for table in self.tables:
            table.put(string)

    @classmethod
    def read(cls, number: int, data: np.ndarray, at: int, end: int) -> tuple[TrellisTable, int]:
        """Return a static table; or read one from bit `at` on. Return the next bit too.

        Raises
        ------
        FormatError
        """
        if number != SENT:
            return static(number), at
        first, at = ClassTable.read(number, data, at, end, LEVELS)
        second, at = ClassTable.read(number, data, at, end, LEVELS)
        return cls(SENT, (first, second)), at

    def write_tables(self) -> WriteTables:
        """Return what a writer looks up."""
        if self.number != SENT:
            return _write_tables(self.number)
        return rans_table.write_tables(self.frequencies, LOG2_TOTAL)

    def read_tables(self) -> ReadTables:
        """Return what a reader looks up."""
        if self.number != SENT:
            return _read_tables(self.number)
        return rans_table.read_tables(self.frequencies, LOG2_TOTAL)


def _level_costs(table: TrellisTable) -> np.ndarray:
    told = [each.frequencies[:, _TOLD] for each in table.tables]
    return np.stack([class_tables.costs(some, MOST + 1) for some in told])


@functools.cache
def _static_costs(number: int) -> np.ndarray:
    return _level_costs(statics()[number])


@functools.cache
def statics() -> list[TrellisTable]:
    """Return all static tables, by number."""
    every = class_tables.kept("trellis_tables.txt")
    pairs = zip(every[::2], every[1::2], strict=True)
    return [TrellisTable(number, pair) for number, pair in enumerate(pairs)]


def statics_nbits(counts: np.ndarray) -> np.ndarray:
    """Return about how many bits (128, 256) counts of symbols take with each static table."""
    some = trellis.level_counts(counts)
    each = [class_tables.nbits(one, every) for one, every in zip(some, _costs(), strict=True)]
    found: np.ndarray = each[0] + each[1]
    return found


def static_for(counts: np.ndarray) -> TrellisTable:
    """Return the static table that is probably best, for (64, 256) counts of plain levels."""
    found = sum(class_tables.nbits(counts, every) for every in _costs())
    return statics()[int(np.argmin(found))]


def static(number: int) -> TrellisTable:
    """Return the static table of this number, or raise `Corrupt`."""
    if number >= len(statics()):
        raise Corrupt(f"table {number} of a trellis is unknown")
    return statics()[number]


@functools.cache
def _costs() -> list[np.ndarray]:
    """Return the bits of all static tables, for each quantiser."""
    return [
        class_tables.side_by_side(
            [class_tables.costs(one.tables[q].frequencies) for one in statics()]
        )
        for q in range(QUANTISERS)
    ]


@functools.cache
def _write_tables(number: int) -> WriteTables:
    return rans_table.write_tables(statics()[number].frequencies, LOG2_TOTAL)


@functools.cache
def _read_tables(number: int) -> ReadTables:
    return rans_table.read_tables(statics()[number].frequencies, LOG2_TOTAL)
