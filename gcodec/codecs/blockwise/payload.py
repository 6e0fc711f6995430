"""Payloads of `blockwise`: scales as they are, and the bytes of codes as they are or coded.

With ``code=none``, the payload contains the scales, then the codes. With ``huffman`` and ``rans``,
the same scales precede a `ranged` string of the codes' bytes, so of pairs of 4-bit codes.
"""

from __future__ import annotations

import numpy as np

from gcodec.codecs.blockwise.layout import Layout
from gcodec.entropy import ranged
from gcodec.entropy.coder import BitSpan, CodedString, EmptyString, Written
from gcodec.errors import Corrupt, Truncated
from gcodec.kernels.quantize.standard_scores import first_nonfinite
from gcodec.payload import Payload, Selection, write_shortest
from gcodec.runtime.device import host
from gcodec.runtime.memory import Drainable

CODES = ("none", *ranged.KINDS)


def longest_nbits(layout: Layout, code: str) -> int:
    """Return an upper bound on the bits of a payload; "auto" has that of "none"."""
    if code in ("none", "auto") or not layout.n:
        return 8 * layout.nbytes
    return 8 * layout.front_nbytes + ranged.longest_nbits(ranged.KINDS[code], layout.codes_nbytes)


def write(
    data: np.ndarray,
    layout: Layout,
    code: str,
    held: Drainable | None = None,
    *,
    sized: bool = False,
) -> Selection[ranged.CodedBytes]:
    """Write a payload with a code, or "auto" for the shortest one.

    `data` is the payload with ``code=none``. If its codes are in a `Drainable`, they are released
    where another payload is written. For `sized` see `gcodec.payload.write_shortest`.
    """
    plain = Written(data, 8 * layout.nbytes)
    if code == "none" or not layout.n or layout.width > 8:
        return Selection([("none" if code == "auto" else code, plain)])
    front, codes = data[: layout.front_nbytes], held or data[layout.front_nbytes :]
    candidates = ranged.candidates(code, plain, front, codes, layout.n)
    return write_shortest(candidates, sized=sized)


def open_string(payload: Payload, layout: Layout, code: str) -> CodedString:
    """Check the scales, and open the string of the codes' bytes; no elements have no bits.

    Raises
    ------
    FormatError
    """
    span, size = BitSpan.of(payload), layout.front_nbytes
    if not layout.n:
        return EmptyString(span, has_blocks=code == "huffman")
    if span.nbits < 8 * size:
        raise Truncated(f"the payload has {payload.nbits} bits, but {size} bytes of scales")
    layout.scales(span.data[:size])  # refuses invalid numbers
    return ranged.open_string(ranged.KINDS[code], span.after(8 * size), layout.codes_nbytes)


def check_codes(codes: np.ndarray, layout: Layout, *, is_coded: bool = False) -> None:
    """Raise `Corrupt` for a code that no element has.

    The last half of a byte that belongs to no element has the code of 0, and float16 is finite.
    If the payload contains the codes in an entropy code, they have no offset in it.
    """
    is_odd = layout.width == 4 and layout.n % 2
    if is_odd and int(host(codes[-1:])[0]) & 15 != layout.table().zero:
        raise half_error(None if is_coded else layout.nbytes - 1)
    if layout.has_means and (at := first_nonfinite(codes)) is not None:
        raise Corrupt("a float16 is not finite", layout.front_nbytes + 2 * at)


def half_error(offset: int | None = None) -> Corrupt:
    """Return the error for a half of a byte that belongs to no element."""
    return Corrupt("the half of a byte after the last element is not the code of 0", offset)
