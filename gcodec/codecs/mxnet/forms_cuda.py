"""The shortest form of two-bit codes, selected on a CUDA device.

See `gcodec.kernels.context.string_choice_cuda`.

Whether a string by class may be shorter than the codes the device tells by an estimate. What is
sent the host codes itself, when it has that and the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.codecs.mxnet.forms import classed, sparse, symbols_of
from gcodec.entropy.context import device as contexts
from gcodec.entropy.context import symbol_coder
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.sent_codes_cuda import listed
from gcodec.kernels.context.string_choice_cuda import Kept
from gcodec.payload import Payload, Undecided
from gcodec.runtime.cuda_grid import device_with
from gcodec.runtime.deferred import Deferred, wanted


def shortest(
    codes: Any, dense: Payload, n: int, shape: tuple[int, ...], index: str
) -> Payload | Undecided:
    """Return the message of the shortest form; see `gcodec.codecs.mxnet.forms.shortest`."""
    if not n:
        return dense
    device, symbols, whole = device_with(codes), symbols_of(codes, n), dense.nbits
    planned = contexts.plan(symbols, shape)
    counts = device.to_device(np.array([whole, n], np.int64))
    how = planned.nbits, symbol_coder.SHORTEST
    kept = Kept.of(device.zeros(1, np.int64), [whole], counts, *how)
    made = contexts.write_planned(planned, symbols, BitString(), kept.count_of(1))
    estimate, sent = Deferred(device, planned.nbits), listed(codes)
    wanted(estimate)

    def otherwise(chosen: Payload) -> Payload | int | None:
        plain = Payload(chosen.codec.replaced(form="dense"), chosen.scalars, codes, whole)
        other = sparse(plain, sent(), n, index)
        least = min(other.nbits, whole)
        by_class = chosen.nbits if chosen.codec.form == "context" else whole
        if least > symbol_coder.SHORTEST and max(int(estimate), by_class) < least:
            return None
        return other if other.nbits < whole else 0

    return Undecided([dense, classed(dense, made)], kept.which, otherwise)
