"""The shortest form of two-bit codes that a device has; see `gcodec.cuda.string_choice`.

Whether a string by class may be shorter than the codes the device tells by an estimate. What is
sent the host codes itself, when it has that and the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.contexts import device as contexts
from gcodec.contexts import symbol_strings
from gcodec.cuda.grid import device_with
from gcodec.cuda.sent_codes import listed
from gcodec.cuda.string_choice import Kept
from gcodec.kernels.bit_string import BitString
from gcodec.payload import Payload, Undecided
from gcodec.scalars import Later, wanted
from gcodec.two_bit_forms import classed, sparse, symbols_of


def shortest(
    codes: Any, dense: Payload, n: int, shape: tuple[int, ...], index: str
) -> Payload | Undecided:
    """Return the message of the shortest form; see `gcodec.two_bit_forms.shortest`."""
    if not n:
        return dense
    device, symbols, whole = device_with(codes), symbols_of(codes, n), dense.nbits
    planned = contexts.plan(symbols, shape)
    counts = device.to_device(np.array([whole, n], np.int64))
    how = planned.nbits, symbol_strings.SHORTEST
    kept = Kept.of(device.zeros(1, np.int64), [whole], counts, *how)
    made = contexts.write_planned(planned, symbols, BitString(), kept.count_of(1))
    estimate, sent = Later(device, planned.nbits), listed(codes)
    wanted(estimate)

    def otherwise(chosen: Payload) -> Payload | int | None:
        plain = Payload(chosen.codec.replaced(form="dense"), chosen.scalars, codes, whole)
        other = sparse(plain, sent(), n, index)
        least = min(other.nbits, whole)
        by_class = chosen.nbits if chosen.codec.form == "context" else whole
        if least > symbol_strings.SHORTEST and max(int(estimate), by_class) < least:
            return None
        return other if other.nbits < whole else 0

    return Undecided([dense, classed(dense, made)], kept.which, otherwise)
