"""The frequency table of a rANS string.

The table begins with the log2 of the sum of the frequencies, in 4 bits. Each frequency follows as
its bit length, in 4 bits, and its bits without the highest one; a frequency of 0 is a length of 0.
Source: docs/wire-format.md, part B.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gcodec.entropy.bit_reader import BitReader
from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.sized_integers import LENGTH_NBITS, write_sized
from gcodec.kernels.rans.rans_table import LEAST_LOG2, MOST_LOG2


class Field(NamedTuple):
    """A field of a frequency table.

    Attributes
    ----------
    symbol : int or None
        Symbol of the frequency; None for the log2 of the sum.
    value : int
        The frequency, or the log2 of the sum.
    start, end : int
        First bit of the field, and the bit after it.
    """

    symbol: int | None
    value: int
    start: int
    end: int


def table_nbits(frequencies: np.ndarray) -> int:
    """Return the bits of the table of the frequencies of an alphabet."""
    lengths = np.frexp(frequencies[frequencies > 0])[1]
    return LENGTH_NBITS * (1 + frequencies.size) + int((lengths - 1).sum())


def write_frequencies(
    frequencies: np.ndarray, log2_total: int, alphabet: np.ndarray
) -> tuple[np.ndarray, int]:
    """Write a frequency table.

    Parameters
    ----------
    frequencies : (256,) int64 array
        Frequencies below 2^15, 0 outside of the alphabet. Their sum is 2^log2_total.
    log2_total : int
        Log2 of the sum, from 12 to 15.
    alphabet : (k,) array of integers
        The symbols in the table, in increasing order.

    Returns
    -------
    data : (ceil(nbits / 8),) uint8 array
        The bytes of the table.
    nbits : int
        Number of valid bits.
    """
    string = BitString()
    string.extend(np.array([log2_total << 8 - LENGTH_NBITS], np.uint8), LENGTH_NBITS)
    write_sized(frequencies[alphabet], string)
    nbits = string.nbits
    string.align()
    return string.trimmed(), nbits


def read_frequencies(
    data: np.ndarray, at: int, end: int, alphabet: np.ndarray
) -> tuple[np.ndarray, int, int]:
    """Read a frequency table.

    Parameters
    ----------
    data : uint8 array
        The bytes.
    at, end : int
        First bit of the table, and the bit after the last valid one.
    alphabet : (k,) array of integers
        The symbols in the table, up to 255, in increasing order.

    Returns
    -------
    frequencies : (256,) int64 array
        Frequencies; 0 for symbols that are not in the table.
    log2_total : int
        Log2 of their sum, from 12 to 15.
    next : int
        The bit after the table.

    Raises
    ------
    Truncated
        If the bits end within the table.
    Corrupt
        If the sum of the frequencies is not the one that the table states.
    """
    reader, log2_total = _open(data, at, end, alphabet)
    frequencies = np.zeros(256, np.int64)
    frequencies[alphabet] = reader.take_sized(alphabet.size)
    if (total := int(frequencies.sum())) != 1 << log2_total:
        raise Corrupt(f"frequencies add up to {total}, not to 2**{log2_total}")
    return frequencies, log2_total, reader.at


def fields_of(data: np.ndarray, at: int, end: int, alphabet: np.ndarray) -> Iterator[Field]:
    """Yield the fields of a table as they are read; see `read_frequencies`."""
    reader, log2_total = _open(data, at, end, alphabet)
    yield Field(None, log2_total, at, reader.at)
    start = reader.at
    numbers, ends = reader.sized(alphabet.size)
    symbols = alphabet[: numbers.size].tolist()
    for symbol, number, after in zip(symbols, numbers.tolist(), ends.tolist(), strict=True):
        yield Field(symbol, number, start, after)
        start = after
    if numbers.size < alphabet.size:
        raise reader.truncated()


def _open(data: np.ndarray, at: int, end: int, alphabet: np.ndarray) -> tuple[BitReader, int]:
    """Read the log2 of the sum of a table; return it, and the reader of the frequencies."""
    most = LENGTH_NBITS + alphabet.size * (LENGTH_NBITS + MOST_LOG2)
    reader = BitReader(data, at, end, most, "a table of frequencies")
    log2_total = reader.take(LENGTH_NBITS)
    if not LEAST_LOG2 <= log2_total <= MOST_LOG2:
        raise Corrupt(f"frequencies that add up to 2**{log2_total}")
    return reader, log2_total
