"""The shortest string of levels, as a device chooses it.

See `gcodec.kernels.context.string_choice_cuda`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.codecs.qsgd import payload
from gcodec.codecs.qsgd.coding_choice import MOST_OF_BYTES, TABLED, Plan, alphabet, counts_of
from gcodec.codecs.qsgd.payload import CLASSED, PlannedString
from gcodec.entropy import tabled
from gcodec.entropy.context import device as contexts
from gcodec.entropy.context import symbol_coder
from gcodec.entropy.device import chosen_and_size
from gcodec.entropy.tabled import Table
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.coded_mask import CodedMask, gathered
from gcodec.kernels.bits.coded_mask_cuda import words_in
from gcodec.kernels.context.string_choice_cuda import Kept
from gcodec.kernels.prefix import level_codes
from gcodec.kernels.prefix.level_forms_cuda import Measured
from gcodec.payload import Candidates
from gcodec.runtime.cuda_grid import device_with
from gcodec.wire.seek import LOG2_BLOCK

_NUMBERS = {"huffman": np.uint8, "rans": np.int64}


def choose(
    symbols: Any, s: int, coded: CodedMask, form: str, shape: tuple[int, ...], lead: int
) -> Candidates:
    """Write the shortest string; see `gcodec.codecs.qsgd.payload.choose`."""
    pairs = level_codes.pairs(form, "auto")
    if not coded.n:
        return payload.write_universal(symbols, s, coded, *pairs[0], lead)
    device, of_bytes = device_with(symbols), form != "sparse" and s <= MOST_OF_BYTES
    measured = Measured.of(symbols, s, coded, pairs, 1 << LOG2_BLOCK, lead)
    plans, ends = [], list(measured.ends)
    sizes = device.zeros(len(pairs) + len(TABLED) * of_bytes, np.int64)
    counts = device.empty(sizes.size + 1, np.int64)  # of which there are some of that by class
    for k, end in enumerate(ends):
        sizes[k : k + 1] = counts[k : k + 1] = end
    if of_bytes:
        found = counts_of(symbols, coded)
        for k, kind in enumerate(TABLED, len(pairs)):
            own = Table.own(kind, found, alphabet(s))
            _, sizes[k : k + 1] = chosen_and_size(found, own, kind, alphabet(s), (_none, kind))
            plans.append(Plan("dense", kind, {}, own))
            counts[k : k + 1] = words_in(device, coded)
        counts[-1:] = device.to_device(np.array([coded.n]))
    planned = contexts.plan(symbols, shape) if of_bytes else None
    more = [-8 * lead] * len(pairs) + [0] * len(plans)
    estimate = None if planned is None else planned.nbits
    kept = Kept.of(sizes, more, counts, estimate, symbol_coder.SHORTEST)
    strings = payload.of_forms(measured.put(kept.counts), coded.n)
    for k, plan in enumerate(plans, len(pairs)):
        strings.append(_tabled(plan, symbols, coded, lead, kept, k))
    if planned is not None:
        made = contexts.write_planned(planned, symbols, BitString(lead), kept.count_of(sizes.size))
        strings.append((CLASSED, made))

    return Candidates(strings, kept.which, kept.told, 8 * lead)


def _tabled(
    plan: Plan, symbols: Any, coded: CodedMask, lead: int, kept: Kept, k: int
) -> PlannedString:
    """Write the string of a table, if it is kept."""
    n, some = coded.n, kept.coded(k, coded)
    if plan.code == "rans":
        symbols, _ = gathered(symbols, coded)
        some = CodedMask(kept.count_of(k), 1, None)  # type: ignore[arg-type]
    return plan, tabled.write(plan.table, symbols, some, BitString(lead), n)


def _none(kind: str) -> np.ndarray:
    """Return the numbers of no static table."""
    return np.empty((0, 256), _NUMBERS[kind])
