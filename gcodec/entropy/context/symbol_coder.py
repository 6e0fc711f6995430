"""Symbols of codecs that keep a byte for each element, as context strings.

A symbol is twice a magnitude, plus 1 where it is negative. Exceptions are put back where they are
read, so that all of them are symbols again. Where there are none to code, there is no string.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from gcodec.entropy.context import coder, table_choice
from gcodec.entropy.context.coder import ContextString, Take
from gcodec.entropy.context.scale_model import Scales, matrices, some_rows
from gcodec.entropy.context.table_choice import Plan, best_matrix
from gcodec.errors import Corrupt
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.numeric.scatter import replace
from gcodec.kernels.prefix.table_choice_cuda import Gate
from gcodec.payload import Candidate
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import Drainable, contents, drop
from gcodec.wire.seek import SeekTable, refuse_table

Written = tuple[np.ndarray, int, SeekTable | None]
_T = TypeVar("_T")

SHORTEST = 96  # bits before the scales, and of two states
_LONGEST, _FIXED = 64, 1 << 16  # bits for each symbol, and of lists and tables


def longest_nbits(n: int) -> int:
    """Return more bits than the string of n symbols can have."""
    return _LONGEST * n + _FIXED if n else 0


@dispatched("gcodec.entropy.context.device")
def write(
    symbols: np.ndarray | Drainable,
    shape: tuple[int, ...],
    front: BitString,
    coded: CodedMask | None = None,
) -> Written:
    """Write the string of a tensor.

    Parameters
    ----------
    symbols : (n,) uint8 array
        Released if it is a `Drainable`.
    shape : tuple of int
        Of the tensor.
    front : BitString
        What comes before it, in whole bytes.
    coded : CodedMask, optional
        Where it tells that no element has a word, there is no string.

    Returns
    -------
    data : uint8 array
    nbits : int
        Of front and string.
    seek : SeekTable or None
        None where the string is too short for one.
    """
    array = contents(symbols)
    planned = plan(array, shape) if array.size else None
    if planned is None or (coded is not None and not coded.words):
        nbits = front.nbits
        return front.trimmed(), nbits, None
    return coder.write(planned, symbols, None, front)


def write_shorter(
    symbols: np.ndarray | Drainable, shape: tuple[int, ...], front: BitString, nbits: int
) -> Written | None:
    """Write the string if it has fewer bits than `nbits`; else return None. See `write`.

    Where the string is returned, all of a `Drainable` is released; else what its limit allows.
    """
    array = contents(symbols)
    if not array.size or nbits <= SHORTEST:
        return None
    planned, before = plan(array, shape), front.nbits
    if planned.nbits >= nbits:
        return None

    def compare(total: int) -> None:
        if total >= before + nbits:
            raise _NotShorter
        drop(symbols)

    try:
        return coder.write(planned, symbols, None, front, compare)
    except _NotShorter:
        return None


class _NotShorter(Exception):
    """A string turned out not to be the shortest, before its parts were joined."""


@dispatched("gcodec.entropy.context.device")
def plan(symbols: np.ndarray, shape: tuple[int, ...]) -> Plan:
    """Plan the string of the symbols of a tensor, at least one."""
    every = matrices(shape)
    some = some_rows(symbols, every[0].width, table_choice.SAMPLE)
    matrix = best_matrix(some, every, symbols.size // some.size)
    return table_choice.plan(symbols, Scales.of(symbols, matrix))


@dispatched("gcodec.entropy.context.device", by="symbols")
def write_planned(
    planned: Plan, symbols: np.ndarray, front: BitString, count: int | Deferred
) -> Written:
    """Write the string of a plan; on a device, of `count` symbols: all, or none.

    See `write` for what it returns.
    """
    return coder.write(planned, symbols, None, front)


def estimated_candidate(
    symbols: np.ndarray, shape: tuple[int, ...], front: BitString, written: Callable[..., _T]
) -> Candidate[_T]:
    """Plan the string of a tensor on a device, as a candidate whose price is an estimate.

    `written` is called with what `write` returns. See `write` for the other parameters.
    """
    planned = plan(symbols, shape)

    def write_gated(gate: Gate | None) -> _T:
        count = symbols.size if gate is None else gate.count
        return written(*write_planned(planned, symbols, front, count))

    return Candidate(planned.nbits, write_gated, count=symbols.size)


class SymbolString(NamedTuple):
    """A string that is read.

    Attributes
    ----------
    string : ContextString or None
        None where there is nothing to code.
    data : uint8 array
    first, end : int
        Bits where it begins, and where what holds it ends.
    largest : int
        Of all symbols that there may be.
    seek : SeekTable or None
        The table of the payload. Blocks are then read side by side, and must be so.
    """

    string: ContextString | None
    data: np.ndarray
    first: int
    end: int
    largest: int
    seek: SeekTable | None

    @classmethod
    def of(
        cls,
        data: np.ndarray,
        first: int,
        end: int,
        n: int,
        largest: int,
        seek: SeekTable | None,
    ) -> SymbolString:
        """Read what comes before n symbols, from bit `first` on, a multiple of 8.

        Raises
        ------
        FormatError
        """
        string = ContextString.of(data, first, end, n, seek) if n else None
        if string is not None and int(string.exceptions.symbols.max(initial=0)) > largest:
            raise Corrupt(f"an exception is above {largest}")
        return cls(string, data, first, end, largest, seek)

    def read(self, take: Take, *, bits_follow: bool = False) -> int:
        """Read all symbols; return the bit behind them. See `ContextString.read`."""
        if self.string is None:
            if self.first < self.end and not bits_follow:
                raise Corrupt(f"the payload has {self.end - self.first} bits that code nothing")
            refuse_table(self.seek)
            return self.first
        exceptions = self.string.exceptions

        def taken(at: int, symbols: np.ndarray) -> None:
            some = exceptions.within(at, at + symbols.size)
            replace(symbols, exceptions.places[some] - at, exceptions.symbols[some])
            take(at, symbols)

        return self.string.read(taken, bits_follow=bits_follow, largest=self.largest)

    def blocks(self, log2_block: int) -> SeekTable:
        """Find where blocks begin, by reading all; where nothing is coded, one that is empty."""
        if self.string is None:
            return SeekTable.of(log2_block, np.zeros(2, np.int64))
        return self.string.blocks(log2_block)
