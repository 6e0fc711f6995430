"""The sparse form of mxnet-2bit (``docs/wire-format.md``): signs, then positions.

A sent element is a pair (index, whether it is negative); lists of pairs are in order of the index.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import positions
from .universal import Bits, Truncated

Sent = list[tuple[int, bool]]


def write(sent: Sent, n: int, index: str, choice: Sequence[int] | None = None) -> str:
    """Return the payload as a string of 0 and 1."""
    signs = "".join("1" if negative else "0" for _, negative in sent)
    places = [place for place, _ in sent]
    return signs + positions.write(index, places, n, choice, len(signs))


def read(text: str, count: int, n: int, index: str) -> Sent:
    """Return the sent elements, or raise `Truncated` or `Corrupt`; with both defects, either."""
    if count > len(text):
        raise Truncated("fewer bits than signs")
    bits = Bits(text)
    signs = bits.take(count)
    places = positions.read(index, bits, count, n)
    return [(place, sign == "1") for place, sign in zip(places, signs, strict=True)]
