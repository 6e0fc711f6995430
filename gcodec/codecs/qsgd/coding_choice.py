"""How levels and their signs are written: in which form and code they are shortest.

Universal codes (`kernels.level_codes`) give each symbol a word, whatever occurs. `huffman` and
`rans` go by how often each occurs, `context` by how often it does where row and column have such
scales. These are dense, have tables, and exist where a symbol is a byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gcodec.entropy import tabled
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.tabled import Table
from gcodec.kernels.bits.coded_mask import CodedMask, leave_silent
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.kernels.prefix import level_codes
from gcodec.runtime.device import device_of

TABLED: tuple[tabled.Kind, ...] = ("huffman", "rans")
OF_BYTES = (*TABLED, "context")
CODES = ("omega", "rice", "packed", *OF_BYTES)
MOST_OF_BYTES = 127  # the largest s of which symbols are bytes


class Plan(NamedTuple):
    """How the levels of a tensor are written.

    Attributes
    ----------
    form : "dense" or "sparse"
    code : str
    scalars : dict of str to int
        Of the Rice codes; see `level_codes.Plan`.
    table : Table or None
        Of "huffman" and "rans".
    nbits : int
        Of the string; of rANS an estimate. 0 of "context", and where there was nothing to choose.
    """

    form: str
    code: str
    scalars: Mapping[str, int]
    table: Table | None = None
    nbits: int = 0


def alphabet(s: int) -> np.ndarray:
    """Return all symbols of levels up to s, rising: there is no −0."""
    return np.delete(np.arange(2 * s + 2), 1).astype(np.uint8)


def longest_nbits(n: int, form: str, code: str, s: int) -> int:
    """Return the most bits of the string of n elements, and of its table."""
    if code in TABLED:
        return tabled.longest_nbits(code, n, 2 * s + 1)
    if code == "context":
        return symbol_coder.longest_nbits(n)
    return n * level_codes.longest_nbits(form, code, s)


def plan(symbols: np.ndarray, s: int, coded: CodedMask, form: str, code: str) -> Plan:
    """Return the plan of the shortest string, but for "context"; the first of equals.

    What is written in universal codes without a choice is in `write_universal`, and what a device
    chooses in `device`.

    Parameters
    ----------
    symbols : (n,) unsigned array
    s : int
        The largest level.
    coded : CodedMask
        Which elements have a word in a dense form; all others are 0.
    form, code : str
        Those to take; "auto" for any. No universal code; "auto" on the host alone.
    """
    if code in TABLED:
        counts = counts_of(symbols, coded)
        some = device_of(counts) is not None or counts.any()
        table = Table.own(code, counts, alphabet(s)) if some else None
        return Plan("dense", code, {}, table)
    if code == "context":
        return Plan("dense", code, {})
    found = level_codes.plan(symbols, s, coded, form, code)
    plans = [Plan(found.form, found.code, found.scalars, None, found.nbits)]
    counts = np.empty(0, np.int64)
    if form != "sparse" and s <= MOST_OF_BYTES:
        counts = counts_of(symbols, coded)
    for kind in TABLED if counts.any() else ():
        table = Table.own(kind, counts, alphabet(s))
        plans.append(Plan("dense", kind, {}, table, table.nbits(counts)))
    return min(plans, key=lambda plan: plan.nbits)


def counts_of(symbols: np.ndarray, coded: CodedMask) -> np.ndarray:
    """Count the symbols of elements that have a word, where they are."""
    counts = byte_counts(symbols)
    leave_silent(counts, coded)
    return counts
