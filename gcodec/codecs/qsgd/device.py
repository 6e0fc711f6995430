"""Strings of levels in universal codes, measured on a device."""

from __future__ import annotations

import functools

from gcodec.codecs.qsgd.coding_choice import Plan
from gcodec.codecs.qsgd.payload import Written, seek_table
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.prefix import level_codes
from gcodec.kernels.prefix.level_forms_cuda import MeasuredForms
from gcodec.kernels.prefix.table_choice_cuda import Gate
from gcodec.payload import Candidate
from gcodec.runtime import Array
from gcodec.wire.seek import LOG2_BLOCK


def universal_candidates(
    symbols: Array, s: int, coded: CodedMask, form: str, code: str, lead: int
) -> list[Candidate[Written]]:
    """Return the candidates; see `gcodec.codecs.qsgd.payload.universal_candidates`."""
    pairs = level_codes.pairs(form, code)[: None if coded.n else 1]
    forms = MeasuredForms(symbols, s, coded, pairs, 1 << LOG2_BLOCK, lead)

    def write(index: int, gate: Gate | None) -> Written:
        scalars, data, nbits, string_nbits, sums = forms.write(index, gate)
        form, code = pairs[index]
        seek = None if code == "packed" else seek_table(coded.n, string_nbits, *sums)
        return Written(Plan(form, code, scalars), data, nbits, seek)

    return [
        Candidate(end, functools.partial(write, index), -8 * lead, end)
        for index, end in enumerate(forms.ends)
    ]
