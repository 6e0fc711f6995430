"""Strings of levels in universal words, in the form and code that make it shortest.

A device finds parameters and the shorter form itself, and the host learns of it with the string.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix import dense_string, level_codes, sparse_string
from gcodec.kernels.quantize.levels import symbol_dtype
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import Drainable, contents


class Form(NamedTuple):
    """What tells a reader how a string is written.

    Attributes
    ----------
    name : "dense" or "sparse"
    code : "omega", "rice" or "packed"
    scalars : dict of str to int
        Of the Rice codes; see `level_codes.Plan`.
    nbits : int
        Of lead and string.
    sums : tuple of int64 arrays
        What a seek table is made of; see `dense_string.write` and `sparse_string.write`.
    """

    name: str
    code: str
    scalars: Mapping[str, Any]
    nbits: int
    sums: tuple[np.ndarray, ...]


class Written(NamedTuple):
    """A string in one of several forms.

    Attributes
    ----------
    data : uint8 array
    nbits : int
        Of lead and string.
    forms : list of Form
        Only one, but where a device has yet to tell which.
    which : int
        Of the forms.
    """

    data: np.ndarray
    nbits: int
    forms: list[Form]
    which: int


@dispatched("gcodec.kernels.prefix.level_forms_cuda")
def write(
    symbols: np.ndarray | Drainable,
    s: int,
    coded: CodedMask,
    form: str,
    code: str,
    every: int,
    lead: int,
) -> Written:
    """Write the shortest string.

    Parameters
    ----------
    symbols, s, live, form, code
        See `level_codes.plan`; a device takes no code "auto". The symbols are released if they
        are a `Drainable`.
    every, lead : int
        See `dense_string.write`.
    """
    plan = level_codes.plan(contents(symbols), s, coded, form, code)
    if plan.form == "dense":
        words, dtype = level_codes.word_code(plan.code, s, plan.scalars), symbol_dtype(s)
        data, nbits, *sums = dense_string.write(words, symbols, dtype, coded, every, lead)
    else:
        units = level_codes.unit_code(plan.code, s, plan.scalars)
        data, nbits, *sums = sparse_string.write(units, symbols, every, lead)
    found = Form(plan.form, plan.code, plan.scalars, nbits, tuple(sums))
    return Written(data, nbits, [found], 0)
