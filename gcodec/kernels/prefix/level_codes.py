"""Codes of levels and their signs, QSGD's own among them, and the choice of the shortest.

A symbol is twice the level, plus 1 if the value is negative. The dense form has a word for each
element; the sparse form has a run–level pair for each nonzero level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix.codewords import OMEGA, RICE
from gcodec.kernels.prefix.level_fields import width_of
from gcodec.kernels.prefix.prefix_table import PrefixCode
from gcodec.kernels.prefix.run_level import RunLevelCode
from gcodec.kernels.prefix.tally import Tally, best_rice, tally

MOST_RICE = 47
_FARTHEST = 2**63 - 1  # largest gap


class Plan(NamedTuple):
    """Form and code of the levels of a tensor.

    Attributes
    ----------
    form : "dense" or "sparse"
    code : "omega", "rice" or "packed"
    scalars : dict of str to int
        Rice parameters: ``rice`` for the levels, ``rice_gap`` for the gaps.
    nbits : int
        Bits of the string; 0 if there was nothing to choose.
    """

    form: str
    code: str
    scalars: dict[str, int]
    nbits: int


def word_code(code: str, s: int, scalars: Mapping[str, int]) -> PrefixCode:
    """Return the code of the symbols in a dense form of codewords, for levels up to s."""
    top = 2 * s + 1
    if code == "omega":
        return PrefixCode(OMEGA, 0, 1, "signed", 1, top)
    return PrefixCode(RICE, scalars["rice"], 0, "zigzag", 0, top)


def run_level_code(code: str, s: int, scalars: Mapping[str, int]) -> RunLevelCode:
    """Return the code of the run–level pairs in a sparse form, for levels up to s."""
    top = 2 * s + 1
    if code == "omega":
        gap = PrefixCode(OMEGA, 0, 1, top=_FARTHEST)
        return RunLevelCode(gap, PrefixCode(OMEGA, 0, 1, "signed", 0, top))
    gap = PrefixCode(RICE, scalars["rice_gap"], 0, "plain", -1, _FARTHEST)
    return RunLevelCode(gap, PrefixCode(RICE, scalars["rice"], 0, "signed", -1, top))


def pairs(form: str, code: str) -> list[tuple[str, str]]:
    """Return all combinations of a form and a code, either of which may be "auto"."""
    forms = ("dense", "sparse") if form == "auto" else (form,)
    codes = ("omega", "rice", "packed") if code == "auto" else (code,)
    return [(f, c) for c in codes for f in forms if (f, c) != ("sparse", "packed")]


def plan(symbols: np.ndarray, s: int, coded: CodedMask, form: str, code: str) -> Plan:
    """Return the plan of the shortest string by exact length; of equals, the first.

    Parameters
    ----------
    symbols : (n,) unsigned array
    s : int
        Largest level.
    coded : CodedMask
        Elements that have a word in the dense form; all others are 0.
    form, code : str
        Form and code to use; "auto" for any. The code "packed" has a dense form only.
    """
    candidates = pairs(form, code)
    if len(candidates) == 1 and code != "rice":
        return Plan(*candidates[0], {}, 0)
    counts, uncoded = tally(symbols), symbols.size - coded.words
    plans = [_plan(form, code, s, symbols, counts, uncoded) for form, code in candidates]
    return min(plans, key=lambda plan: plan.nbits)


def _plan(form: str, code: str, s: int, symbols: np.ndarray, counts: Tally, uncoded: int) -> Plan:
    if code == "packed":
        return Plan(form, code, {}, (symbols.size - uncoded) * width_of(s))
    if code == "omega":
        if form == "dense":
            nbits = int(counts.above @ (_OMEGA + 1)) - 2 * uncoded
        else:
            nbits = int(counts.levels @ (_OMEGA + 1) + counts.gaps @ _OMEGA)
        return Plan(form, code, {}, nbits)
    if form == "dense":
        k, nbits = best_rice(symbols, "zigzag", counts, uncoded)
        return Plan(form, code, {"rice": k}, nbits)
    k, nbits = best_rice(symbols, "levels", counts)
    k_gap, gaps_nbits = best_rice(symbols, "gaps", counts)
    return Plan(form, code, {"rice": k, "rice_gap": k_gap}, counts.nonzero + nbits + gaps_nbits)


def longest_nbits(form: str, code: str, s: int) -> int:
    """Return an upper bound for the bits per element of a string, for levels up to s."""
    width = width_of(s)
    if form == "sparse":  # the worst case has no zeros
        longest = {"omega": 2 + _omega_nbits(s), "rice": 2 + width}
    else:
        longest = {"omega": 1 + _omega_nbits(s + 1), "rice": 1 + width, "packed": width}
    return min(longest.values()) if code == "auto" else longest[code]


def _omega_nbits(value: int) -> int:
    """Return the number of bits of an omega word."""
    nbits = 1
    while value > 1:
        nbits += value.bit_length()
        value = value.bit_length() - 1
    return nbits


_OMEGA = np.array([_omega_nbits(1 << k) for k in range(64)])  # by bit length less 1
