"""The table of frequencies of a rANS string: P, and for each symbol its bit length and its bits.

P is the log2 of their sum, in 4 bits. A frequency f is sent as how many bits it has, in 4 bits,
and then these without the first; 0 has none. Source: docs/wire-format.md, part B.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gcodec.entropy.bit_reader import BitReader
from gcodec.entropy.bits import Bits
from gcodec.errors import Corrupt
from gcodec.kernels.rans.rans_table import LEAST_LOG2, MOST_LOG2

LENGTH_NBITS = 4  # of the length of a frequency, and of P


class Field(NamedTuple):
    """A field of a table.

    Attributes
    ----------
    symbol : int or None
        None for the log2 of the sum.
    value : int
    start, end : int
        Bits where it begins and ends.
    """

    symbol: int | None
    value: int
    start: int
    end: int


def table_nbits(found: np.ndarray) -> int:
    """Return the bits that `write_frequencies` makes of the frequencies of an alphabet."""
    lengths = np.frexp(found[found > 0])[1]  # of bits
    return LENGTH_NBITS * (1 + found.size) + int((lengths - 1).sum())


def write_frequencies(
    found: np.ndarray, log2_total: int, alphabet: np.ndarray
) -> tuple[np.ndarray, int]:
    """Write a table of frequencies.

    Parameters
    ----------
    found : (256,) int64 array
        Below 2^15, the sum 2^log2_total; 0 outside of the alphabet.
    log2_total : int
        From 12 to 15.
    alphabet : (k,) array of integers
        The symbols in the table, rising.

    Returns
    -------
    data : (ceil(nbits / 8),) uint8 array
    nbits : int
    """
    numbers = found[alphabet].tolist()
    fields = [f"{f.bit_length():0{LENGTH_NBITS}b}" + (f"{f:b}"[1:] if f else "") for f in numbers]
    bits = Bits.from01(f"{log2_total:0{LENGTH_NBITS}b}" + "".join(fields))
    return bits.data, bits.nbits


def read_frequencies(
    data: np.ndarray, at: int, end: int, alphabet: np.ndarray
) -> tuple[np.ndarray, int, int]:
    """Read a table of frequencies.

    Parameters
    ----------
    data : uint8 array
    at, end : int
        Bits where the table begins and where what holds it ends.
    alphabet : (k,) array of integers
        The symbols in the table, rising, up to 255.

    Returns
    -------
    found : (256,) int64 array
        0 for symbols that are not in the table too.
    log2_total : int
    next : int
        The bit behind the table.

    Raises
    ------
    Truncated
        If the bits end within the table.
    Corrupt
        If the frequencies do not add up to 2^12, 2^13, 2^14 or 2^15, as it says.
    """
    found, log2_total = np.zeros(256, np.int64), 0
    for field in fields_of(data, at, end, alphabet):
        if field.symbol is None:
            log2_total = field.value
        else:
            found[field.symbol] = field.value
        at = field.end
    if found.sum() != 1 << log2_total:
        raise Corrupt(f"frequencies add up to {found.sum()}, not to 2**{log2_total}")
    return found, log2_total, at


def fields_of(data: np.ndarray, at: int, end: int, alphabet: np.ndarray) -> Iterator[Field]:
    """Read a table field by field; see `read_frequencies`."""
    most = LENGTH_NBITS + alphabet.size * (LENGTH_NBITS + MOST_LOG2)
    reader = BitReader(data, at, end, most, "a table of frequencies")
    log2_total = reader.take(LENGTH_NBITS)
    if not LEAST_LOG2 <= log2_total <= MOST_LOG2:
        raise Corrupt(f"frequencies that add up to 2**{log2_total}")
    yield Field(None, log2_total, at, reader.at)
    for symbol in alphabet.tolist():
        start = reader.at
        yield Field(symbol, reader.take_sized(), start, reader.at)
