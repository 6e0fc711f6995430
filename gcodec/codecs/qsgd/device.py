"""Candidate strings of levels in universal codes, priced and written on a device."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gcodec.codecs.qsgd.payload import Plan, PlannedString
from gcodec.entropy.coder import Written, seek_of_blocks
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.numeric.scan_cuda import sums_before
from gcodec.kernels.prefix import level_codes
from gcodec.kernels.prefix.level_forms_cuda import measure_form
from gcodec.kernels.prefix.table_choice_cuda import Gate
from gcodec.payload import Candidate
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred
from gcodec.wire.seek import LOG2_BLOCK


def universal_candidates(
    symbols: Array, s: int, coded: CodedMask, form: str, code: str, lead: int
) -> list[Candidate[PlannedString]]:
    """Return the candidates; see `gcodec.codecs.qsgd.payload.universal_candidates`.

    They share one array, into which at most one of them is written.
    """
    device, pairs = device_with(symbols), level_codes.pairs(form, code)
    pairs = pairs if coded.n else pairs[:1]
    forms = [measure_form(symbols, s, coded, *pair, 1 << LOG2_BLOCK, lead) for pair in pairs]
    # The selected string is not longer than this, whatever its parameters are.
    longest = 8 * lead + symbols.size * min(level_codes.longest_nbits(*pair, s) for pair in pairs)
    out = device.zeros(-(-longest // 32), np.uint32)
    data, total_nbits = out.view(np.uint8), list[Any]()

    def write(index: int, gate: Gate | None) -> PlannedString:
        string, scalars = forms[index]
        if gate is not None:
            string.end[:1] = gate.count.words
        string.put(out)
        numbers: Any = string.deferred_marks()
        nbits, *sums = numbers
        plan = Plan(*pairs[index], scalars)
        seek = seek_of_blocks(coded.n, nbits, *sums) if sums else None
        if gate is None:
            return plan, Written(data, nbits, seek)
        if not total_nbits:
            sums_of_counts = device.empty(len(pairs) + 1, np.int64)
            sums_before(device, gate.counts[: len(pairs)], sums_of_counts)
            last = sums_of_counts[-1:]
            total_nbits.append(Deferred(device, last, None, (last, 1, 0)))
        return plan, Written(data, total_nbits[0], seek)

    ends = [Deferred(device, string.end) for string, _ in forms]
    return [
        Candidate(end, functools.partial(write, index), -8 * lead, end)
        for index, end in enumerate(ends)
    ]
