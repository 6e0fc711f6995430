"""The forms of a message of two-bit codes besides that of MXNet, and the shortest of all.

Each is made of the message in MXNet's own form, whose data are the codes: it has the same codec
and scalars but for what tells the form.
"""

from __future__ import annotations

import numpy as np

from gcodec.entropy import positions as position_coding
from gcodec.entropy.coder import Written
from gcodec.entropy.context import symbol_coder
from gcodec.kernels.bits import sent_codes
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.pack import unpack_fields
from gcodec.kernels.quantize.threshold import TWO_BIT
from gcodec.payload import Payload, Undecided
from gcodec.runtime.device import dispatched
from gcodec.runtime.memory import Drainable, drainable


def sparse(dense: Payload, sent: tuple[np.ndarray, np.ndarray], n: int, index: str) -> Payload:
    """Return the message of signs and positions, given what `sent_codes.sent` finds."""
    positions, signs = sent
    index, written = position_coding.write(positions, n, index, (signs, positions.size))
    codec = dense.codec.replaced(form="sparse", index=index)
    return Payload(codec, {**dense.scalars, "count": positions.size}, *written)


def classed(dense: Payload, made: Written) -> Payload:
    """Return the message of a string by class."""
    return Payload(dense.codec.replaced(form="context"), dense.scalars, *made)


def symbols_of(codes: np.ndarray, n: int) -> np.ndarray | Drainable:
    """Return the symbols of such a string, to be written once."""
    made: np.ndarray | Drainable = drainable(sent_codes.turned(unpack_fields(codes, n, TWO_BIT)))
    return made


@dispatched("gcodec.codecs.mxnet.forms_cuda")
def shortest(
    codes: np.ndarray, dense: Payload, n: int, shape: tuple[int, ...], index: str
) -> Payload | Undecided:
    """Return the message of the shortest form, the first of equals, but for sparse ones."""
    made = sparse(dense, sent_codes.sent(codes), n, index)
    if made.nbits >= dense.nbits:
        made = dense
    given = symbols_of(codes, n), shape, BitString()
    string = symbol_coder.write_shorter(*given, made.nbits)
    return made if string is None else classed(dense, string)
