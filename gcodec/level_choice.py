"""The shortest string of levels, as a device chooses it; see `gcodec.cuda.string_choice`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec import level_strings
from gcodec.contexts import device as contexts
from gcodec.contexts import symbol_strings
from gcodec.cuda.grid import device_with
from gcodec.cuda.level_forms import Measured
from gcodec.cuda.live import words_in
from gcodec.cuda.string_choice import Kept
from gcodec.entropy import tabled
from gcodec.entropy.device import chosen_and_size
from gcodec.entropy.tabled import Table
from gcodec.kernels import level_codes
from gcodec.kernels.bit_string import BitString
from gcodec.kernels.live import Live, gathered
from gcodec.level_plans import MOST_OF_BYTES, TABLED, Plan, alphabet, counts_of
from gcodec.level_strings import CLASSED, Written
from gcodec.payload import Candidates
from gcodec.seek import LOG2_BLOCK

_NUMBERS = {"huffman": np.uint8, "rans": np.int64}


def choose(
    symbols: Any, s: int, live: Live, form: str, shape: tuple[int, ...], lead: int
) -> Candidates:
    """Write the shortest string; see `gcodec.level_strings.choose`."""
    pairs = level_codes.pairs(form, "auto")
    if not live.n:
        return level_strings.write_universal(symbols, s, live, *pairs[0], lead)
    device, of_bytes = device_with(symbols), form != "sparse" and s <= MOST_OF_BYTES
    measured = Measured.of(symbols, s, live, pairs, 1 << LOG2_BLOCK, lead)
    plans, ends = [], list(measured.ends)
    sizes = device.zeros(len(pairs) + len(TABLED) * of_bytes, np.int64)
    counts = device.empty(sizes.size + 1, np.int64)  # of which there are some of that by class
    for k, end in enumerate(ends):
        sizes[k : k + 1] = counts[k : k + 1] = end
    if of_bytes:
        found = counts_of(symbols, live)
        for k, kind in enumerate(TABLED, len(pairs)):
            own = Table.own(kind, found, alphabet(s))
            _, sizes[k : k + 1] = chosen_and_size(found, own, kind, alphabet(s), (_none, kind))
            plans.append(Plan("dense", kind, {}, own))
            counts[k : k + 1] = words_in(device, live)
        counts[-1:] = device.to_device(np.array([live.n]))
    planned = contexts.plan(symbols, shape) if of_bytes else None
    more = [-8 * lead] * len(pairs) + [0] * len(plans)
    estimate = None if planned is None else planned.nbits
    kept = Kept.of(sizes, more, counts, estimate, symbol_strings.SHORTEST)
    strings = level_strings.of_forms(measured.put(kept.counts), live.n)
    for k, plan in enumerate(plans, len(pairs)):
        strings.append(_tabled(plan, symbols, live, lead, kept, k))
    if planned is not None:
        made = contexts.write_planned(planned, symbols, BitString(lead), kept.count_of(sizes.size))
        strings.append(Written(CLASSED, *made))

    return Candidates(strings, kept.which, kept.told, 8 * lead)


def _tabled(plan: Plan, symbols: Any, live: Live, lead: int, kept: Kept, k: int) -> Written:
    """Write the string of a table, if it is kept."""
    n, some = live.n, kept.live(k, live)
    if plan.code == "rans":
        symbols, _ = gathered(symbols, live)
        some = Live(kept.count_of(k), 1, None)  # type: ignore[arg-type]
    return Written(plan, *tabled.write(plan.table, symbols, some, BitString(lead), n))


def _none(kind: str) -> np.ndarray:
    """Return the numbers of no static table."""
    return np.empty((0, 256), _NUMBERS[kind])
