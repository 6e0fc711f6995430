"""Tables of classes: how often each magnitude occurs where such are expected.

A table has a model of rANS for each of the 64 classes; frequencies add up to 4096, and both signs
have the same. Each class has frequencies for the magnitudes from 0 to its largest, and one for
escapes, which all others are, as is magnitude 127 always.

Static tables are integers, kept in ``class_tables.txt``, which ``tools/class_tables.py`` makes of
real gradients and of generalised normal ones. Their numbers are part of the wire format: they are
never given anew; new ones are added behind.

A table that is sent tells its classes from a first to a last one; others have the model of the
nearest of these:

    first in 6 bits · last in 6 bits
    for each class: largest magnitude in 7 bits · frequencies of escapes, and of each magnitude
    from 1 on with one sign: bit length in 4 bits, and the number without its highest bit
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gcodec.entropy import rans
from gcodec.entropy.bit_reader import BitReader
from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.context.class_map import CLASSES
from gcodec.kernels.context.class_tables import (
    counts_nbits,
    nbits_by,
    own_frequencies,
    sent_nbits,
)
from gcodec.kernels.quantize.scalar_quantize import ESCAPE, MOST
from gcodec.kernels.rans import rans_table
from gcodec.kernels.rans.rans_table import ReadTables, WriteTables

LOG2_TOTAL = 12
TOTAL = 1 << LOG2_TOTAL
SENT = 255  # in place of a number
_ALPHABET = 256
EXCEPTION_NBITS = 20  # bits, about, that tell one
_CLASS, _TOP, _LENGTH = 6, 7, 4  # bits
_MOST_NBITS = 2 * _CLASS + CLASSES * (_TOP + (1 + MOST) * (_LENGTH + LOG2_TOTAL))


class Magnitudes(NamedTuple):
    """What a table may have.

    Attributes
    ----------
    most : int
        The largest magnitude that has symbols of its own.
    least_escape : int
        The least frequency of the escape.
    """

    most: int
    least_escape: int


ALL = Magnitudes(MOST, 1)


class Models:
    """Base of tables: a model of rANS for each class, or for each class and quantizer.

    Attributes
    ----------
    number : int
        The number of a static table; `SENT` for a table that the payload contains.
    frequencies : (models, 256) int64 array
        By model and symbol; must not be changed.
    """

    number: int
    frequencies: np.ndarray

    @functools.cached_property
    def write_tables(self) -> WriteTables:
        """The lookup tables of the writer."""
        return rans_table.write_tables(self.frequencies, LOG2_TOTAL)

    @functools.cached_property
    def read_tables(self) -> ReadTables:
        """The lookup tables of the reader."""
        return rans_table.read_tables(self.frequencies, LOG2_TOTAL)


@dataclass(frozen=True, eq=False)
class ClassTable(Models):
    """A table of 64 classes; see `Models`.

    Attributes
    ----------
    first, last : int
        The range of classes that the payload contains.
    """

    number: int
    frequencies: np.ndarray
    first: int = 0
    last: int = CLASSES - 1

    @classmethod
    def own(cls, counts: np.ndarray, kind: Magnitudes = ALL) -> ClassTable:
        """Make the table of (64, 256) counts of symbols, at least one, to be sent."""
        most, least = kind
        found, first, last = own_frequencies(counts, most, least, LOG2_TOTAL)
        return cls(SENT, found, first, last)

    @functools.cached_property
    def tops(self) -> np.ndarray:
        """The largest magnitude of each class, as (64,) uint8."""
        counts: np.ndarray = (self.frequencies[:, :ESCAPE:2] > 0).sum(axis=1).astype(np.uint8)
        return counts - np.uint8(1)

    def nbits(self, counts: np.ndarray) -> int:
        """Return about how many bits (64, 256) counts of symbols take, below 2^40 together."""
        logs = rans.log2_table()
        return nbits_by(counts, self.frequencies, LOG2_TOTAL, logs, EXCEPTION_NBITS)

    def sent_nbits(self) -> int:
        """Return the bits of the table where it is sent."""
        rows = self.frequencies[self.first : self.last + 1]
        return 2 * _CLASS + sent_nbits(rows, _TOP, _LENGTH)

    def put(self, string: BitString) -> None:
        """Put a table that is sent at the end of a string."""
        if self.number == SENT:
            bits = self._bits()
            string.extend(np.packbits(bits), bits.size)

    @classmethod
    def read(
        cls, number: int, data: np.ndarray, at: int, end: int, kind: Magnitudes = ALL
    ) -> tuple[ClassTable, int]:
        """Return a static table; or read one from bit `at` on. Return the next bit too.

        Raises
        ------
        FormatError
        """
        if number != SENT:
            return static(number), at
        reader = BitReader(data, at, end, _MOST_NBITS, "a table of classes")
        first, last = reader.take(_CLASS), reader.take(_CLASS)
        if last < first:
            raise Corrupt(f"a table of classes {first} to {last}")
        rows = []
        for _ in range(first, last + 1):
            top = reader.take(_TOP)
            row = [reader.take_sized() for _ in range(1 + top)]
            known = top <= kind.most and row[0] >= kind.least_escape
            if not known or not 0 < TOTAL - row[0] - 2 * sum(row[1:]) < TOTAL or min(row) < 1:
                raise Corrupt(f"frequencies of a class do not add up to {TOTAL}")
            rows.append(row)
        nearest = np.clip(np.arange(CLASSES), first, last) - first
        return cls(SENT, spread(rows)[nearest], first, last), reader.at

    def _bits(self) -> np.ndarray:
        rows, tops = self.frequencies[self.first : self.last + 1], self.tops[self.first :, None]
        numbers = rows[:, [ESCAPE, *range(2, ESCAPE, 2)]]
        lengths = np.frexp(numbers)[1]  # of bits
        tails = np.maximum(lengths - 1, 0)
        words = np.column_stack([tops[: len(rows)], (lengths << tails) | numbers & ~(-1 << tails)])
        sizes = np.full(words.shape, _TOP)
        sizes[:, 1:] = _LENGTH + tails
        sent = np.arange(words.shape[1]) <= 1 + words[:, :1]  # up to the largest magnitude
        head = np.array([self.first, self.last])
        return _in_bits(np.append(head, words[sent]), np.append([_CLASS] * 2, sizes[sent]))


@functools.cache
def statics() -> list[ClassTable]:
    """Return all static tables, by number."""
    return kept("class_tables.txt")


def kept(name: str) -> list[ClassTable]:
    """Return the tables that a file beside this one has, numbered from 0 on."""
    lines = Path(__file__).with_name(name).read_text("ascii").splitlines()
    rows = [[int(word) for word in line.split()] for line in lines if not line.startswith("#")]
    found = []
    for number in range(len(rows) // CLASSES):
        frequencies = spread(rows[number * CLASSES : (number + 1) * CLASSES])
        frequencies.flags.writeable = False
        found.append(ClassTable(number, frequencies))
    return found


def statics_nbits(counts: np.ndarray) -> np.ndarray:
    """Return about how many bits (64, 256) counts of symbols take with each static table."""
    return nbits(counts, statics_costs())


def static(number: int) -> ClassTable:
    """Return the static table of this number, or raise `Corrupt`."""
    if number >= len(statics()):
        raise Corrupt(f"table {number} of classes is unknown")
    return statics()[number]


def spread(halves: list[list[int]]) -> np.ndarray:
    """Return the frequencies of all symbols.

    Parameters
    ----------
    halves : list of list of int
        Of each class the frequency of an escape, then of the magnitudes from 1 on with one sign;
        magnitude 0 has what is left of the total.

    Returns
    -------
    (classes, 256) int64 array
    """
    found = np.zeros((len(halves), _ALPHABET), np.int64)
    for row, (escape, *sizes) in zip(found, halves, strict=True):
        row[2 : 2 * len(sizes) + 2] = np.repeat(sizes, 2)
        row[ESCAPE] = escape
        row[0] = TOTAL - row.sum()
    return found


def _in_bits(words: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the bits of (k,) words of so many bits, as uint8 0 and 1, highest first."""
    ends = np.cumsum(sizes)
    down = np.repeat(ends, sizes) - 1 - np.arange(ends[-1])
    found: np.ndarray = (np.repeat(words, sizes) >> down & 1).astype(np.uint8)
    return found


def costs(frequencies: np.ndarray, escape: int = ESCAPE) -> np.ndarray:
    """Return the bits of symbols in units of 2^-28; those of what escapes, with the rest of it.

    Parameters
    ----------
    frequencies : (classes, symbols) int64 array
    escape : int
        Which of these symbols escapes are.
    """
    each: np.ndarray = (LOG2_TOTAL << rans.POINT) - rans.log2_table()[frequencies]
    above = each[:, escape : escape + 1] + (EXCEPTION_NBITS << rans.POINT)
    found = np.where(frequencies > 0, each, above)
    found[:, escape] = above[:, 0]
    return found


@functools.cache
def statics_costs() -> np.ndarray:
    """Return the costs of all static tables, side by side."""
    return side_by_side([costs(table.frequencies) for table in statics()])


def side_by_side(every: list[np.ndarray]) -> np.ndarray:
    """Return several (classes, 256) `costs` as (classes · 256, tables)."""
    return np.stack(every, axis=-1).reshape(-1, len(every))


def nbits(counts: np.ndarray, every: np.ndarray) -> np.ndarray:
    """Return about how many bits (classes, 256) counts take, by several `costs` side by side."""
    return counts_nbits(counts.reshape(-1), every, rans.POINT)
