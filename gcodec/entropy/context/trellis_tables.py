"""Trellis tables: a class table for each of the two quantizers of a trellis.

If quantizer q is next, the k-th level of the quantizer is coded by the model that table q contains
for the class, as magnitude k. A magnitude k of at most 62 has symbols of its own. The two escapes
share the frequency of the escape, which is at least 2: the odd escape has half of it, rounded
down. See `gcodec.kernels.quantize.trellis`.

Static tables are in ``trellis_tables.txt``, where the table of quantizer 1 follows that of
quantizer 0. A payload that contains a table stores the two in the same order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from gcodec.entropy.context import class_tables
from gcodec.entropy.context.class_tables import SENT, ClassTable, Models, TableLimits
from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.quantize import trellis
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.kernels.quantize.trellis import EVEN, MODELS, MOST, ODD, QUANTIZERS, SYMBOLS

LEVELS = TableLimits(MOST, least_escape=2)
_LEVELS = np.array([*range(0, 2 * MOST + 2, 2), ESCAPE])  # one sign of each k, and the escape


@dataclass(frozen=True, eq=False)
class TrellisTable(Models):
    """A table of 128 models; see `Models`.

    Attributes
    ----------
    tables : (ClassTable, ClassTable)
        The table of each quantizer, by class and 2k plus the sign.
    """

    number: int
    tables: tuple[ClassTable, ClassTable]
    frequencies: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Lay out the frequencies of both quantizers by symbol."""
        frequencies = np.zeros((QUANTIZERS, CLASSES, 256), np.int64)
        for rows, table, symbols in zip(frequencies, self.tables, SYMBOLS, strict=True):
            rows[:, symbols] = table.frequencies[:, : symbols.size]
            rows[:, ODD] = table.frequencies[:, ESCAPE] >> 1
            rows[:, EVEN] = table.frequencies[:, ESCAPE] - rows[:, ODD]
        object.__setattr__(self, "frequencies", frequencies.reshape(MODELS, 256))

    @classmethod
    def static(cls, number: int) -> TrellisTable:
        """Return the static table of this number, or raise `Corrupt`."""
        if number >= len(statics()):
            raise Corrupt(f"trellis table {number} is unknown")
        return statics()[number]

    @classmethod
    def own(cls, counts: np.ndarray) -> TrellisTable:
        """Fit a table for a payload to (128, 256) counts of symbols, not all 0."""
        first, second = (ClassTable.own(part, LEVELS) for part in trellis.level_counts(counts))
        return cls(SENT, (first, second))

    @functools.cached_property
    def has_symbol(self) -> np.ndarray:
        """1 for each model and symbol that the model codes without an escape, else 0.

        As a (128 * 256,) uint8 array.
        """
        has_symbol = (self.frequencies > 0).astype(np.uint8)
        has_symbol[:, ODD:] = 0
        return has_symbol.reshape(-1)

    @functools.cached_property
    def costs(self) -> np.ndarray:
        """Bits of level k by quantizer and class, in units of 2^-28.

        As a (2, 64, MOST + 2) int64 array. The last column contains the cost of an escape and of
        the outlier that the escape stands for.
        """
        rows = (table.frequencies[:, _LEVELS] for table in self.tables)
        return np.stack([class_tables.costs(frequencies, MOST + 1) for frequencies in rows])

    def magnitude_costs(self) -> np.ndarray:
        """Return the bits of magnitudes by class, without regard to the next quantizer.

        Returns
        -------
        (64, 128) int64 array
            See `costs`. Magnitude 0, which both quantizers have, gets the mean of both costs.
        """
        level_costs, h = self.costs, np.arange(2 * MOST + 4)
        k = np.minimum((h + 1) >> 1, MOST + 1)
        magnitude_costs: np.ndarray = level_costs[h & 1, :, k].T
        magnitude_costs[:, 0] = level_costs[:, :, 0].sum(axis=0) >> 1
        return magnitude_costs

    def nbits(self, counts: np.ndarray) -> int:
        """Return the approximate bits of symbols with (128, 256) counts; see `ClassTable`."""
        parts = trellis.level_counts(counts)
        return sum(table.nbits(part) for table, part in zip(self.tables, parts, strict=True))

    def sent_nbits(self) -> int:
        """Return the number of bits that the table takes in a payload."""
        return sum(table.sent_nbits() for table in self.tables)

    def put(self, string: BitString) -> None:
        """Append the table to a string, unless it is static."""
        for table in self.tables:
            table.put(string)

    @classmethod
    def read(cls, number: int, data: np.ndarray, at: int, end: int) -> tuple[TrellisTable, int]:
        """Return a table, and the position of the next bit; see `ClassTable.read`."""
        if number != SENT:
            return cls.static(number), at
        first, at = ClassTable.read(number, data, at, end, LEVELS)
        second, at = ClassTable.read(number, data, at, end, LEVELS)
        return cls(SENT, (first, second)), at


@functools.cache
def statics() -> list[TrellisTable]:
    """Return all static tables, by number."""
    tables = class_tables.load_tables("trellis_tables.txt")
    pairs = zip(tables[::2], tables[1::2], strict=True)
    return [TrellisTable(number, pair) for number, pair in enumerate(pairs)]


def statics_nbits(counts: np.ndarray) -> np.ndarray:
    """Return the approximate bits of (128, 256) counts of symbols with each static table."""
    parts = zip(trellis.level_counts(counts), _statics_costs(), strict=True)
    first, second = (class_tables.nbits(part, joined) for part, joined in parts)
    return first + second


def static_for(counts: np.ndarray) -> TrellisTable:
    """Return the static table that probably suits (64, 256) counts of plain levels best."""
    total = sum(class_tables.nbits(counts, joined) for joined in _statics_costs())
    return statics()[int(np.argmin(total))]


@functools.cache
def _statics_costs() -> list[np.ndarray]:
    """Return the joined costs of all static tables, for each quantizer."""
    return [
        class_tables.joined_costs(
            [class_tables.costs(table.tables[q].frequencies) for table in statics()]
        )
        for q in range(QUANTIZERS)
    ]
