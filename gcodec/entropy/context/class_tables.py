"""Class tables: the frequencies of the symbols of each class.

A table contains one rANS model for each of the 64 classes. The frequencies of a model add up to
4096, and both signs of a magnitude have the same frequency. A class has frequencies for the
magnitudes from 0 to its largest one, and one for the escape symbol. The escape stands for every
larger magnitude, and always for magnitudes from 127 on.

Static tables are integers in ``class_tables.txt``. ``tools/class_tables.py`` computes them from
real gradients and from samples of generalized normal distributions. Their numbers are part of the
wire format: a table never changes, and new tables are appended.

A table that a payload contains stores a range of classes. The other classes use the model of the
nearest class of this range:

    first class in 6 bits · last class in 6 bits
    for each class: largest magnitude in 7 bits · the frequency of the escape, then for each
    magnitude from 1 on that of one sign: its bit length in 4 bits, and its bits but the highest
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gcodec.entropy import rans
from gcodec.entropy.bit_reader import BitReader
from gcodec.entropy.context.scale_model import Scales
from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.context.class_tables import (
    LOG2_TOTAL,
    OUTLIER_NBITS,
    counts_nbits,
    largest_magnitudes,
    nbits_by,
    own_frequencies,
    put_models,
    read_models,
    sent_nbits,
)
from gcodec.kernels.quantize.scalar_quantize import ESCAPE, MOST
from gcodec.kernels.rans import rans_table
from gcodec.kernels.rans.rans_table import ReadTables, WriteTables

TOTAL = 1 << LOG2_TOTAL
SENT = 255  # the number of a table that the payload contains
_ALPHABET = 256
_CLASS = 6  # bits of the number of a class
_TABLE = "a class table"  # in error messages


class TableLimits(NamedTuple):
    """Limits of the frequencies of a table.

    Attributes
    ----------
    most : int
        Largest magnitude that may have symbols of its own.
    least_escape : int
        Smallest frequency of the escape symbol.
    """

    most: int
    least_escape: int


ALL = TableLimits(MOST, 1)


class Models:
    """Base of tables: one rANS model for each class, or for each class and quantizer.

    Attributes
    ----------
    number : int
        Number of a static table; `SENT` for a table that the payload contains.
    frequencies : (models, 256) int64 array
        Frequencies by model and symbol; read-only.
    """

    number: int
    frequencies: np.ndarray

    def write_tables(self, scales: Scales) -> WriteTables:
        """Return the lookup tables of the writer, at least for elements with these scales."""
        if self.number != SENT:  # the tables serve many strings
            return self._all_write_tables
        models = self._models_of(scales)
        return rans_table.write_tables(self.frequencies, LOG2_TOTAL, models)

    def read_tables(self, scales: Scales) -> ReadTables:
        """Return the lookup tables of the reader, at least for elements with these scales."""
        if self.number != SENT:
            return self._all_read_tables
        return rans_table.read_tables(self.frequencies, LOG2_TOTAL, self._models_of(scales))

    def _models_of(self, scales: Scales) -> list[slice]:
        """Return the models that elements may have, one range for each quantizer."""
        classes, firsts = scales.possible_classes, range(0, len(self.frequencies), CLASSES)
        return [slice(first + classes.start, first + classes.stop) for first in firsts]

    @functools.cached_property
    def _all_write_tables(self) -> WriteTables:
        return rans_table.write_tables(self.frequencies, LOG2_TOTAL)

    @functools.cached_property
    def _all_read_tables(self) -> ReadTables:
        return rans_table.read_tables(self.frequencies, LOG2_TOTAL)


@dataclass(frozen=True, eq=False)
class ClassTable(Models):
    """A table of 64 classes; see `Models`.

    Attributes
    ----------
    first, last : int
        Range of the classes that the payload contains.
    """

    number: int
    frequencies: np.ndarray
    first: int = 0
    last: int = CLASSES - 1

    @classmethod
    def static(cls, number: int) -> ClassTable:
        """Return the static table of this number, or raise `Corrupt`."""
        if number >= len(statics()):
            raise Corrupt(f"class table {number} is unknown")
        return statics()[number]

    @classmethod
    def own(cls, counts: np.ndarray, limits: TableLimits = ALL) -> ClassTable:
        """Fit a table for a payload to (64, 256) counts of symbols, not all 0."""
        return cls(SENT, *own_frequencies(counts, *limits))

    @functools.cached_property
    def tops(self) -> np.ndarray:
        """Largest magnitude of each class, as (64,) uint8."""
        return largest_magnitudes(self.frequencies)

    def nbits(self, counts: np.ndarray) -> int:
        """Return the approximate bits of symbols with (64, 256) counts, below 2^40 in all."""
        return nbits_by(counts, self.frequencies, rans.log2_table())

    def sent_nbits(self) -> int:
        """Return the number of bits that the table takes in a payload."""
        return 2 * _CLASS + sent_nbits(self._sent)

    @property
    def _sent(self) -> np.ndarray:
        """Frequencies of the classes that a payload contains."""
        return self.frequencies[self.first : self.last + 1]

    def put(self, string: BitString) -> None:
        """Append the table to a string, unless it is static."""
        if self.number != SENT:
            return
        ends = self.first << _CLASS | self.last
        string.extend(np.frombuffer((ends << 4).to_bytes(2, "big"), np.uint8), 2 * _CLASS)
        put_models(self._sent, string)

    @classmethod
    def read(
        cls, number: int, data: np.ndarray, at: int, end: int, limits: TableLimits = ALL
    ) -> tuple[ClassTable, int]:
        """Return a table, and the position of the next bit.

        Parameters
        ----------
        number : int
            Number of a static table, or `SENT` to read the table from `data`.
        data : uint8 array
        at, end : int
            Positions of the first bit to read, and of the end of the bits.
        limits : TableLimits
            Limits that the table must observe.

        Raises
        ------
        FormatError
        """
        if number != SENT:
            return cls.static(number), at
        reader = BitReader(data, at, end, 2 * _CLASS, _TABLE)
        first, last = reader.take(_CLASS), reader.take(_CLASS)
        if last < first:
            raise Corrupt(f"a class table contains the classes {first} to {last}")
        rows, at = read_models(data, reader.at, end, last - first + 1, *limits)
        nearest = np.clip(np.arange(CLASSES), first, last) - first
        return cls(SENT, rows[nearest], first, last), at


@functools.cache
def statics() -> list[ClassTable]:
    """Return all static tables, by number."""
    return load_tables("class_tables.txt")


def load_tables(name: str) -> list[ClassTable]:
    """Return the tables of a file in this folder, numbered from 0 on."""
    lines = Path(__file__).with_name(name).read_text("ascii").splitlines()
    rows = [[int(word) for word in line.split()] for line in lines if not line.startswith("#")]
    frequencies = frequencies_of(rows)
    frequencies.flags.writeable = False
    tables = frequencies.reshape(-1, CLASSES, _ALPHABET)
    return [ClassTable(number, table) for number, table in enumerate(tables)]


def frequencies_of(halves: list[list[int]]) -> np.ndarray:
    """Return the frequencies of all symbols.

    Parameters
    ----------
    halves : list of list of int
        For each class, the frequency of the escape, then for each magnitude from 1 on the
        frequency of one sign. Magnitude 0 gets the remainder of the total.

    Returns
    -------
    (classes, 256) int64 array
    """
    frequencies = np.zeros((len(halves), _ALPHABET), np.int64)
    for row, (escape, *signed) in zip(frequencies, halves, strict=True):
        row[2 : 2 * len(signed) + 2] = np.repeat(signed, 2)
        row[ESCAPE] = escape
        row[0] = TOTAL - row.sum()
    return frequencies


def costs(frequencies: np.ndarray, escape: int = ESCAPE) -> np.ndarray:
    """Return the bits of symbols in units of 2^-28.

    A symbol without a frequency costs an escape and an entry in the list of outliers. So does the
    escape itself.

    Parameters
    ----------
    frequencies : (classes, symbols) int64 array
    escape : int
        Column of the escape symbol.
    """
    own: np.ndarray = (LOG2_TOTAL << rans.POINT) - rans.log2_table()[frequencies]
    escaped = own[:, escape : escape + 1] + (OUTLIER_NBITS << rans.POINT)
    symbol_costs = np.where(frequencies > 0, own, escaped)
    symbol_costs[:, escape] = escaped[:, 0]
    return symbol_costs


@functools.cache
def statics_costs() -> np.ndarray:
    """Return the joined costs of all static tables."""
    return joined_costs([costs(table.frequencies) for table in statics()])


@functools.cache
def class_nbits() -> np.ndarray:
    """Return about how many bits a symbol of each class takes, in 256ths, as (64,) int64."""
    frequencies = statics()[1].frequencies.astype(np.int64)
    return (frequencies * costs(frequencies)).sum(axis=1) >> LOG2_TOTAL + rans.POINT - 8


def joined_costs(parts: list[np.ndarray]) -> np.ndarray:
    """Return the (classes, 256) costs of several tables as (classes · 256, tables)."""
    return np.stack(parts, axis=-1).reshape(-1, len(parts))


def nbits(counts: np.ndarray, joined: np.ndarray) -> np.ndarray:
    """Return the approximate bits of symbols with each table.

    Parameters
    ----------
    counts : (classes, 256) int64 array
    joined : (classes · 256, tables) int64 array
        See `joined_costs`.

    Returns
    -------
    (tables,) int64 array
    """
    return counts_nbits(counts.reshape(-1), joined)
