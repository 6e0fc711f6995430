"""Ternary codes: in fixed width, five in a byte, behind a table or with classes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gcodec.errors import Corrupt
from gcodec.fields import tabled
from gcodec.fields.contexts import context_string, each
from gcodec.fields.packed import lookup, packed
from gcodec.fields.walk import Piece, Told, Walk
from gcodec.kernels import ternary
from gcodec.kernels.live import Live
from gcodec.kernels.ternary_symbols import FIVES


def codes_in(walk: Walk, packing: str, n: int, scale: float, count: int) -> Iterator[Piece]:
    """Tell the codes of n elements.

    Parameters
    ----------
    walk : Walk
    packing : str
        How they are packed.
    n : int
    scale : float
        What code +1 stands for.
    count : int
        Bytes that five codes each take.
    """
    scale = float(np.float32(scale))
    values = 0.0, scale, -scale  # of the digits of base3, and of the codes of chapter

    def five(at: int, codes: np.ndarray) -> Iterator[Told]:
        for number, byte in enumerate(codes.tolist(), at):
            digits = [byte // 3**k % 3 for k in range(ternary.TRITS)]
            here = n - ternary.TRITS * number
            if byte >= FIVES.size or any(digits[here:]):
                raise Corrupt(f"a byte of {byte} is none of five codes of {n}")
            decoded = tuple(values[digit] for digit in digits[:here])
            text = " ".join("0+-"[digit] for digit in digits[:here])
            yield Told(byte, text, element=ternary.TRITS * number, decoded=decoded)

    if packing in ("chapter", "terngrad"):
        strided = packing == "terngrad"
        layout, texts = (ternary.STRIDED, "-0+ ") if strided else (ternary.CHAPTER, "0+- ")
        yield from packed(walk, layout, n, "level", "code", lookup(texts, scale))
    elif packing == "base3":
        yield from walk.fields("level", "five codes", 8, count, five)
    elif packing == "context":
        level = lookup("0 +-", scale)
        yield from context_string(walk, "level", "code", n, each(level))
    else:
        live, meaning = Live.all(count), "five codes of base3".format
        table = yield from tabled.table(walk, "rans", FIVES, live, meaning)
        yield from tabled.string(walk, table, "level", "five codes", count, five)
    walk.finish()
