"""Tables for a trellis: a table of classes for each of its two quantisers.

Where quantiser q is next, the k-th level of it is coded by the model that table q has for the
class, as magnitude k; at most 62 has symbols of its own. Both escapes share the frequency of the
escape, at least 2: the odd one has the half, rounded down. See `kernels.trellis`.

Static tables are kept in ``trellis_tables.txt``, both of each number behind each other; so come
both of one that is sent.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from gcodec.entropy.context import class_tables
from gcodec.entropy.context.class_tables import SENT, ClassTable, Magnitudes, Models
from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.quantize import trellis
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.kernels.quantize.trellis import EVEN, MODELS, MOST, ODD, QUANTIZERS

LEVELS = Magnitudes(MOST, least_escape=2)
_SIGNED = np.arange(2 * MOST + 2)  # twice a k, plus the sign
# The symbols of the levels of each quantiser.
_SYMBOLS = [2 * np.maximum(2 * (_SIGNED >> 1) - q, 0) + _SIGNED % 2 for q in range(QUANTIZERS)]
_TOLD = np.array([*range(0, 2 * MOST + 2, 2), ESCAPE])  # one of each magnitude


@dataclass(frozen=True, eq=False)
class TrellisTable(Models):
    """A table of 128 models; see `Models`.

    Attributes
    ----------
    tables : (ClassTable, ClassTable)
        The table of each quantizer, by class and twice a k, plus the sign.
    """

    number: int
    tables: tuple[ClassTable, ClassTable]
    frequencies: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Lay out the frequencies of both quantizers by symbol."""
        frequencies = np.zeros((QUANTIZERS, CLASSES, 256), np.int64)
        for rows, table, symbols in zip(frequencies, self.tables, _SYMBOLS, strict=True):
            rows[:, symbols] = table.frequencies[:, : _SIGNED.size]
            rows[:, ODD] = table.frequencies[:, ESCAPE] >> 1
            rows[:, EVEN] = table.frequencies[:, ESCAPE] - rows[:, ODD]
        object.__setattr__(self, "frequencies", frequencies.reshape(MODELS, 256))

    @classmethod
    def own(cls, counts: np.ndarray) -> TrellisTable:
        """Make the table of (128, 256) counts of symbols, at least one, to be sent."""
        first, second = (ClassTable.own(some, LEVELS) for some in trellis.level_counts(counts))
        return cls(SENT, (first, second))

    @functools.cached_property
    def known(self) -> np.ndarray:
        """1 where a model has a symbol that is no escape, else 0, as (128 * 256,) uint8."""
        known = (self.frequencies > 0).astype(np.uint8)
        known[:, ODD:] = 0
        return known.reshape(-1)

    @functools.cached_property
    def costs(self) -> np.ndarray:
        """The bits of the level k of each quantizer and class, in units of 2^-28.

        As a (2, 64, MOST + 2) int64 array; the last column is the cost of an escape and of the
        outlier that it stands for.
        """
        rows = (table.frequencies[:, _TOLD] for table in self.tables)
        return np.stack([class_tables.costs(frequencies, MOST + 1) for frequencies in rows])

    def magnitude_costs(self) -> np.ndarray:
        """Return the bits of magnitudes by class, whichever quantiser is next; see `costs`.

        Returns
        -------
        (64, 128) int64 array
            Of 0, which both have, the mean.
        """
        each, h = self.costs, np.arange(2 * MOST + 4)
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
        for q in range(QUANTIZERS)
    ]
