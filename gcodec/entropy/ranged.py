"""Strings of bytes after their range: the least and the largest byte, and a table of their own.

    least byte u8 · largest byte u8 · table of 0 and of the bytes from the least to the largest one
    · Huffman words or rANS of all bytes

The least byte is at least 1, and a string of zeros alone states 1 and 1. Short strings of few
different bytes so have short tables.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from gcodec.entropy import tabled
from gcodec.entropy.coder import BitSpan, RansString, WordString, Written, blank
from gcodec.entropy.tabled import Kind, Table
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.bits.bit_string import BitString, SymbolsOf
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.prefix.table_code import TableCode, put_lengths
from gcodec.payload import Candidate
from gcodec.runtime.memory import Drainable, contents
from gcodec.wire.seek import MIN_ELEMENTS

RANGE_NBITS = 16
KINDS: dict[str, Kind] = {"huffman": "huffman", "rans": "rans"}
"""Kinds of strings, by their names in specs."""

CodedBytes = tuple[str, Written]
"""The code of a payload, "none" or one of `KINDS`, and its bits."""


class Plan(NamedTuple):
    """The range and the table of a string.

    Attributes
    ----------
    low, high : int
        The least byte from 1 on, and the largest.
    table : Table
    nbits : int
        Bits of range, table and string; an estimate for rANS.
    """

    low: int
    high: int
    table: Table
    nbits: int

    @classmethod
    def of(cls, kind: Kind, counts: np.ndarray) -> Plan:
        """Plan the string of bytes with these (256,) counts."""
        low, high = bytes_range(counts)
        table = Table.own(kind, counts, alphabet(low, high))
        return cls(low, high, table, RANGE_NBITS + table.nbits(counts))

    def put_range(self, front: BitString) -> None:
        """Append the range to the whole bytes that precede it."""
        front.put(bytes((self.low, self.high)))

    def put_table(self, front: BitString) -> TableCode:
        """Append the table of Huffman words; return the code."""
        assert self.table.alphabet is not None
        put_lengths(self.table.numbers, self.table.alphabet, front)
        return TableCode.of(self.table.numbers)

    def write(
        self, symbols: SymbolsOf | np.ndarray | Drainable, count: int, front: BitString, n: int
    ) -> Written:
        """Write range, table and string of `count` bytes after `front`, which has whole bytes.

        The string has a seek table if n, the number of elements of the tensor, is worth one.
        """
        self.put_range(front)
        return tabled.write(self.table, symbols, CodedMask.all(count), front, n)


def candidates(
    code: str, plain: Written, front: np.ndarray, symbols: np.ndarray | Drainable, n: int
) -> list[Candidate[CodedBytes]]:
    """Return the payloads among which an encoder selects, which end with a string of bytes.

    Parameters
    ----------
    code : str
        One of `KINDS`; or "auto" for all of them, and for the bytes as they are.
    plain : Written
        The payload with the bytes as they are.
    front : uint8 array
        Bytes before the string.
    symbols : uint8 array or Drainable
        The bytes; a `Drainable` is released.
    n : int
        Number of elements of the tensor.
    """
    array = contents(symbols)
    counts = byte_counts(array)

    def candidate(kind: Kind) -> Candidate[CodedBytes]:
        plan = Plan.of(kind, counts)
        nbits = 8 * front.size + plan.nbits
        is_exact = kind == "huffman" and n < MIN_ELEMENTS
        empty = (lambda: (kind, blank(nbits))) if is_exact else None

        def write(gate: object) -> CodedBytes:
            return kind, plan.write(symbols, array.size, BitString.of(front), n)

        return Candidate(nbits, write, blank=empty)

    if code != "auto":
        return [candidate(KINDS[code])]
    as_is = Candidate(plain.nbits, lambda gate: ("none", plain))
    return [as_is, *map(candidate, KINDS.values())]


@functools.lru_cache(maxsize=1024)
def alphabet(low: int, high: int) -> np.ndarray:
    """Return the bytes that a table contains, read-only: 0, and those from `low` to `high`."""
    symbols = np.arange(low - 1, high + 1).astype(np.uint8)
    symbols[0] = 0
    symbols.flags.writeable = False
    return symbols


def bytes_range(counts: np.ndarray) -> tuple[int, int]:
    """Return the least byte from 1 on that occurs, and the largest; 1 and 1 if there is none."""
    (used,) = counts[1:].nonzero()
    return (int(used[0]) + 1, int(used[-1]) + 1) if used.size else (1, 1)


def longest_nbits(kind: Kind, count: int) -> int:
    """Return an upper bound of the bits of a string of `count` bytes with its range and table."""
    return RANGE_NBITS + tabled.longest_nbits(kind, count, 256)


def open_range(span: BitSpan) -> tuple[int, int]:
    """Read the least and the largest byte at the start of a span, a whole byte.

    Raises
    ------
    FormatError
    """
    if span.nbits < RANGE_NBITS:
        raise Truncated(f"{RANGE_NBITS} bits wanted, {span.nbits} left for a range of bytes")
    at = span.first // 8
    low, high = span.data[at : at + 2].tolist()
    if not 1 <= low <= high:
        raise Corrupt(f"a table of the bytes {low} to {high}", at)
    return low, high


def open_string(kind: Kind, span: BitSpan, count: int) -> WordString | RansString:
    """Open the string of `count` > 0 bytes, which begins with their range.

    Raises
    ------
    FormatError
    """
    numbers = alphabet(*open_range(span))
    span = span.after(span.first + RANGE_NBITS)
    opened = tabled.open(kind, span, numbers, CodedMask.all(count))
    assert isinstance(opened, (WordString, RansString))
    return opened
