"""The context coder for codecs whose symbols are bytes.

A symbol is twice a magnitude, plus 1 if the number is negative. Reading replaces escapes by their
outliers. A tensor without symbols has no string.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gcodec.entropy.coder import BitSpan, CodedString, EmptyString, Written
from gcodec.entropy.context import coder, table_choice
from gcodec.entropy.context.scale_model import Scales, row_layouts, sampled_rows
from gcodec.entropy.context.table_choice import Plan, best_layout
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.bits.computed_symbols import Symbols
from gcodec.payload import Candidate
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import Drainable, contents, drop

if TYPE_CHECKING:
    from gcodec.kernels.prefix.table_choice_cuda import Gate

_T = TypeVar("_T")

SHORTEST = 96  # bits of the fields before the scales, and of two rANS states
_LONGEST, _FIXED = 64, 1 << 16  # upper bounds in bits: of a symbol, and of lists and tables


def longest_nbits(n: int) -> int:
    """Return an upper bound of the bits of a string of n symbols."""
    return _LONGEST * n + _FIXED if n else 0


@dispatched("gcodec.entropy.context.device")
def write(
    symbols: Symbols | Drainable,
    shape: tuple[int, ...],
    front: BitString,
    coded: CodedMask | None = None,
) -> Written:
    """Write the string of a tensor.

    Parameters
    ----------
    symbols : (n,) uint8 array, Drainable or ComputedSymbols
        Released if it is a `Drainable`.
    shape : tuple of int
        Shape of the tensor.
    front : BitString
        Whole bytes that precede the string.
    coded : CodedMask, optional
        The elements that have a codeword. If there are none, there is no string.
    """
    array = contents(symbols)
    planned = plan(array, shape) if array.size else None
    if planned is None or (coded is not None and not coded.words):
        nbits = front.nbits
        return Written(front.trimmed(), nbits)
    return coder.write(planned, symbols, None, front)


def write_shorter(
    symbols: Symbols | Drainable,
    shape: tuple[int, ...],
    front: BitString,
    nbits: int,
    planned: Plan | None = None,
) -> Written | int:
    """Write the string if it has fewer bits than `nbits`; otherwise return its size in bits.

    `write` describes the other parameters. `planned` is the result of `plan` if it is known. If
    its estimate is not below `nbits`, the size is this estimate; otherwise it is exact.
    If the function returns the string, it has released all of a `Drainable`; otherwise, the part
    that the limit of the `Drainable` allows.
    """
    array = contents(symbols)
    if not array.size or nbits <= SHORTEST:
        return SHORTEST
    planned, before = planned or plan(array, shape), front.nbits
    if planned.nbits >= nbits:
        return planned.nbits

    def compare(total: int) -> None:
        if total >= before + nbits:
            raise _NotShorter(total - before)
        drop(symbols)

    try:
        return coder.write(planned, symbols, None, front, compare)
    except _NotShorter as error:
        return error.nbits


class _NotShorter(Exception):
    """Raised before the parts of a string are joined, if the string is not the shortest."""

    def __init__(self, nbits: int) -> None:
        super().__init__()
        self.nbits = nbits


@dispatched("gcodec.entropy.context.device")
def plan(symbols: Symbols, shape: tuple[int, ...]) -> Plan:
    """Plan the string of the symbols of a tensor, at least one."""
    layouts = row_layouts(shape)
    sample = sampled_rows(symbols, layouts[0].width, table_choice.SAMPLE)
    layout = best_layout(sample, layouts, symbols.size // sample.size)
    return table_choice.plan(symbols, Scales.of(symbols, layout))


@dispatched("gcodec.entropy.context.device", by="symbols")
def write_planned(
    planned: Plan, symbols: np.ndarray, front: BitString, count: int | Deferred
) -> Written:
    """Write the string of a plan; on a device, of `count` symbols: all, or none."""
    return coder.write(planned, symbols, None, front)


def estimated_candidate(
    symbols: np.ndarray, shape: tuple[int, ...], front: BitString, written: Callable[[Written], _T]
) -> Candidate[_T]:
    """Plan the string of a tensor on a device, as a candidate with an estimated price.

    `written` turns the string into the content of the candidate. See `write` for the other
    parameters.
    """
    planned = plan(symbols, shape)

    def write_gated(gate: Gate | None) -> _T:
        count = symbols.size if gate is None else gate.count
        return written(write_planned(planned, symbols, front, count))

    return Candidate(planned.nbits, write_gated, count=symbols.size)


def open(span: BitSpan, n: int, largest: int) -> CodedString:
    """Open the string of n symbols up to `largest`.

    Raises
    ------
    FormatError
    """
    return coder.open(span, n, largest=largest) if n else EmptyString(span)
