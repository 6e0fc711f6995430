"""Codes of levels and their signs, and the plans among which the encoder selects.

Universal codes (`gcodec.kernels.prefix.level_codes`) assign a fixed codeword to each symbol. The
other codes adapt to the tensor: `huffman` and `rans` to the counts of symbols, `context` to the
scales of rows and columns. They are dense, have tables, and require symbols that fit in a byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gcodec.entropy import tabled
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.tabled import Table
from gcodec.kernels.bits.coded_mask import CodedMask, subtract_uncoded
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.prefix import level_codes
from gcodec.runtime import Array
from gcodec.runtime.deferred import Deferred
from gcodec.runtime.device import device_of

TABLED: tuple[tabled.Kind, ...] = ("huffman", "rans")
BYTE_CODES = (*TABLED, "context")  # codes of symbols that fit in a byte
CODES = ("omega", "rice", "packed", *BYTE_CODES)
LARGEST_BYTE_LEVEL = 127  # largest s for which symbols fit in a byte


class Plan(NamedTuple):
    """One way to write the levels of a tensor.

    Attributes
    ----------
    form : "dense" or "sparse"
    code : str
        One of `CODES`.
    scalars : dict of str to int
        Parameters of Rice codes; see `level_codes.Plan`.
    table : Table or None
        Table of "huffman" and "rans"; None if no symbol is coded.
    nbits : int or Deferred
        Bits of the string and its table; for rANS an estimate. 0 for "context", and if there is no
        other plan.
    """

    form: str
    code: str
    scalars: Mapping[str, Any]
    table: Table | None = None
    nbits: int | Deferred = 0


def alphabet(s: int) -> np.ndarray:
    """Return all symbols of levels up to s, in ascending order; −0 has no symbol."""
    return np.delete(np.arange(2 * s + 2), 1).astype(np.uint8)


def longest_nbits(n: int, form: str, code: str, s: int) -> int:
    """Return an upper bound on the bits of the string of n elements, and of its table."""
    if code in TABLED:
        return tabled.longest_nbits(code, n, 2 * s + 1)
    if code == "context":
        return symbol_coder.longest_nbits(n)
    return n * level_codes.longest_nbits(form, code, s)


def tabled_plans(symbols: Array, s: int, coded: CodedMask, code: str) -> list[Plan]:
    """Return the plans of dense strings with a table.

    Parameters
    ----------
    symbols : (n,) uint8 array
    s : int
        The largest level.
    coded : CodedMask
        The elements that have a codeword; all others are 0.
    code : str
        One of `TABLED`, or "auto" for both. With "auto" there is no plan if no symbol is coded.
    """
    counts = byte_counts(symbols)
    subtract_uncoded(counts, coded)
    is_empty = device_of(counts) is None and not counts.any()
    if is_empty:
        return [] if code == "auto" else [Plan("dense", code, {})]
    plans = []
    for kind in TABLED:
        if code in ("auto", kind):
            own = Table.own(kind, counts, alphabet(s))
            table, nbits = tabled.best_table(counts, own, kind, alphabet(s))
            plans.append(Plan("dense", kind, {}, table, nbits))
    return plans
