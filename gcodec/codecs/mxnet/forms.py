"""Forms of a payload of two-bit codes besides MXNet's own, and the selection of the shortest.

Functions build each form from the payload in MXNet's form (`dense`), whose data are the codes. All
forms have the same scalars, and the same codec except for the parameters that name the form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.entropy import positions as position_coding
from gcodec.entropy.coder import Written
from gcodec.entropy.context import symbol_coder
from gcodec.kernels.bits import sent_codes
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.pack import unpack_fields
from gcodec.kernels.quantize.threshold import TWO_BIT
from gcodec.payload import Payload, Selection
from gcodec.runtime import Array
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import drainable


def sparse_payload(
    dense: Payload, sent: tuple[np.ndarray, np.ndarray], n: int, index: str
) -> Payload:
    """Return the payload of the positions and signs that `sent_codes.sent` returns."""
    positions, signs = sent
    index, written = position_coding.write(positions, n, index, (signs, positions.size))
    codec = dense.codec.replaced(form="sparse", index=index)
    return Payload(codec, {**dense.scalars, "count": positions.size}, *written)


def context_payload(dense: Payload, string: Written) -> Payload:
    """Return the payload of a context string."""
    return Payload(dense.codec.replaced(form="context"), dense.scalars, *string)


def symbols_of(codes: Array, n: int) -> Any:
    """Return the symbols of a context string: a `Drainable`, or an array on a device."""
    return drainable(sent_codes.turned(unpack_fields(codes, n, TWO_BIT)))


def shortest(
    codes: Array, dense: Payload, n: int, shape: tuple[int, ...], index: str
) -> Payload | Selection[Payload]:
    """Return the payload of the shortest form; among equals, dense precedes sparse.

    A context string must be shorter than both. A device writes it in any case, since the host
    writes the sparse form, and can compare the three only when the device is done.
    """
    if device_of(codes) is None:
        exact = _shorter(dense, sparse_payload(dense, sent_codes.sent(codes), n, index))
        string = symbol_coder.write_shorter(symbols_of(codes, n), shape, BitString(), exact.nbits)
        return exact if string is None else context_payload(dense, string)
    if not n:
        return dense
    from gcodec.kernels.bits.sent_codes_cuda import listed

    symbols = symbols_of(codes, n)
    planned = symbol_coder.plan(symbols, shape)
    context = context_payload(dense, symbol_coder.write_planned(planned, symbols, BitString(), n))
    estimate: Any = planned.nbits
    sent = listed(codes)

    def select(payload: Callable[[int], Payload]) -> Payload:
        exact = _shorter(payload(0), sparse_payload(payload(0), sent(), n, index))
        if exact.nbits <= symbol_coder.SHORTEST or int(estimate) >= exact.nbits:
            return exact
        return min(exact, payload(1), key=lambda payload: payload.nbits)

    return Selection([dense, context], select, (estimate,))


def _shorter(dense: Payload, other: Payload) -> Payload:
    return other if other.nbits < dense.nbits else dense
