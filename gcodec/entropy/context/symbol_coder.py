"""Symbols of codecs that keep a byte for each element, as context strings.

A symbol is twice a magnitude, plus 1 where it is negative. Exceptions are put back where they are
read, so that all of them are symbols again. Where there are none to code, there is no string.
"""

from __future__ import annotations

import numpy as np

from gcodec.entropy.coder import BitSpan, CodedString, EmptyString, Written
from gcodec.entropy.context import coder, table_choice
from gcodec.entropy.context.scale_model import Scales, matrices, some_rows
from gcodec.entropy.context.table_choice import Plan, best_matrix
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import Drainable, contents, drop

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
    Written
    """
    array = contents(symbols)
    plan = _plan(array, shape) if array.size else None
    if plan is None or (coded is not None and not coded.words):
        nbits = front.nbits
        return Written(front.trimmed(), nbits)
    return coder.write(plan, symbols, None, front)


def write_shorter(
    symbols: np.ndarray | Drainable, shape: tuple[int, ...], front: BitString, nbits: int
) -> Written | None:
    """Write the string if it has fewer bits than `nbits`; else return None. See `write`.

    Where the string is returned, all of a `Drainable` is released; else what its limit allows.
    """
    array = contents(symbols)
    if not array.size or nbits <= SHORTEST:
        return None
    plan, before = _plan(array, shape), front.nbits
    if plan.nbits >= nbits:
        return None

    def compare(total: int) -> None:
        if total >= before + nbits:
            raise _NotShorter
        drop(symbols)

    try:
        return coder.write(plan, symbols, None, front, compare)
    except _NotShorter:
        return None


class _NotShorter(Exception):
    """A string turned out not to be the shortest, before its parts were joined."""


def _plan(symbols: np.ndarray, shape: tuple[int, ...]) -> Plan:
    every = matrices(shape)
    some = some_rows(symbols, every[0].width, table_choice.SAMPLE)
    matrix = best_matrix(some, every, symbols.size // some.size).matrix
    return table_choice.plan(symbols, Scales.of(symbols, matrix))


def open(span: BitSpan, n: int, largest: int) -> CodedString:
    """Open the string of n symbols up to `largest`.

    Raises
    ------
    FormatError
    """
    return coder.open(span, n, largest=largest) if n else EmptyString(span)
