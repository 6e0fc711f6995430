"""The frequency table of a rANS string.

The table begins with the log2 of the sum of the frequencies, in 4 bits. Each frequency follows as
its bit length, in 4 bits, and its bits without the highest one; a frequency of 0 is a length of 0.
Source: docs/wire-format.md, part B.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gcodec.entropy.bit_reader import SIZE_NBITS, BitReader, sized
from gcodec.entropy.bits import Bits
from gcodec.errors import Corrupt
from gcodec.kernels.rans.rans_table import LEAST_LOG2, MOST_LOG2

LENGTH_NBITS = SIZE_NBITS
"""Width of the bit length of a frequency, and of the log2 of the sum, in bits."""


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
    fields = map(sized, frequencies[alphabet].tolist())
    bits = Bits.from01(f"{log2_total:0{LENGTH_NBITS}b}" + "".join(fields))
    return bits.data, bits.nbits


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
    frequencies, log2_total = np.zeros(256, np.int64), 0
    for field in fields_of(data, at, end, alphabet):
        if field.symbol is None:
            log2_total = field.value
        else:
            frequencies[field.symbol] = field.value
        at = field.end
    if frequencies.sum() != 1 << log2_total:
        raise Corrupt(f"frequencies add up to {frequencies.sum()}, not to 2**{log2_total}")
    return frequencies, log2_total, at


def fields_of(data: np.ndarray, at: int, end: int, alphabet: np.ndarray) -> Iterator[Field]:
    """Yield the fields of a table as they are read; see `read_frequencies`."""
    most = LENGTH_NBITS + alphabet.size * (LENGTH_NBITS + MOST_LOG2)
    reader = BitReader(data, at, end, most, "a table of frequencies")
    log2_total = reader.take(LENGTH_NBITS)
    if not LEAST_LOG2 <= log2_total <= MOST_LOG2:
        raise Corrupt(f"frequencies that add up to 2**{log2_total}")
    yield Field(None, log2_total, at, reader.at)
    for symbol in alphabet.tolist():
        start = reader.at
        yield Field(symbol, reader.take_sized(), start, reader.at)
