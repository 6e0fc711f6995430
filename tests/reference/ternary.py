"""TernGrad: the scale, the codes −1, 0, +1, and their packings.

Source: ``docs/wire-format.md``, terngrad.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import contexts, fields, philox, sums, tabled
from .seek import Table
from .universal import Bits, Corrupt, to_bytes, to_text

Floats = NDArray[np.float32]

DIGIT = {0: 0, 1: 1, -1: 2}  # of chapter, base3 and rans
BYTES = 243  # that five digits make


def scale_of(x: Floats, clip: float) -> np.float32:
    """Return s = min(max|x|, clip·σ), or max|x| if the bound clips nothing."""
    x = np.asarray(x, np.float32)
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf")
    largest = np.abs(x).max(initial=np.float32(0))
    clip = float(np.float32(clip))
    if clip == 0 or largest == 0:
        return largest
    n = len(x)
    mean = float(sums.sum_values(x)) / n
    square = float(sums.sum_squares(x)) / n
    variance = max(0.0, square - mean * mean)
    if variance < 2.0**-40 * square:
        return largest
    with np.errstate(over="ignore", under="ignore"):
        bound = np.float32(clip * math.sqrt(variance))
    return largest if bound == 0 else min(largest, bound)


def codes(x: Floats, scale: np.float32, seed: int) -> list[int]:
    """Return −1, 0 or 1 for each element."""
    words, size = np.array(philox.words(seed, len(x)), np.int64), np.abs(x)
    below = size < scale
    with np.errstate(under="ignore"):
        r = np.divide(size, scale, out=np.ones_like(size), where=below)
    sent = ~below | ((words >> 1) < (r.astype(float) * 2.0**31).astype(np.int64))
    results: list[int] = np.where(sent, np.sign(x), 0).astype(int).tolist()
    return results


def pack(actual: Sequence[int], setting: str) -> bytes:
    """Return the payload of codes −1, 0, 1; for ``rans``, with the table that gcodec makes."""
    if setting == "rans":
        sent = list(pack(actual, "base3"))
        return to_bytes(tabled.write("rans", sent, tabled.model_of("rans", sent, BYTES)))
    if setting == "chapter":
        return fields.pack([DIGIT[code] for code in actual], 2, order="lsb")
    if setting == "terngrad":
        return fields.pack([code + 1 for code in actual], 2, "lsb", strided=True, pad="count")
    assert setting == "base3"
    out = bytearray()
    for start in range(0, len(actual), 5):
        byte = 0
        for k, code in enumerate(actual[start : start + 5]):
            byte += DIGIT[code] * 3**k
        out.append(byte)
    return bytes(out)


def unpack(data: bytes, n: int, setting: str, nbits: int | None = None) -> list[int]:
    """Return the n codes of a payload, or raise ValueError.

    ``nbits`` is required for ``rans`` and ``context``.
    """
    if setting == "context":
        bits = Bits(to_text(data)[:nbits])
        symbols = contexts.read_symbols(bits, n, 3)
        if bits.at != len(bits.text):
            raise Corrupt("bits after the last symbol")
        return [contexts.level_of(symbol) for symbol in symbols]
    if setting == "chapter":
        digits = fields.unpack(data, n, 2, order="lsb")
        actual = [{0: 0, 1: 1, 2: -1}.get(digit) for digit in digits]
    elif setting == "terngrad":
        digits = fields.unpack(data, n, 2, "lsb", strided=True, pad="count")
        actual = [{0: -1, 1: 0, 2: 1}.get(digit) for digit in digits]
    elif setting == "rans":
        bits = Bits(to_text(data)[:nbits])
        sent, _ = tabled.read("rans", bits, (n + 4) // 5, BYTES)
        if bits.at != len(bits.text):
            raise Corrupt("bits after the last symbol")
        return unpack(bytes(sent), n, "base3")
    else:
        assert setting == "base3"
        actual = []
        for i in range(n):
            if i // 5 < len(data):
                actual.append((0, 1, -1)[data[i // 5] // 3 ** (i % 5) % 3])
    known = [code for code in actual if code is not None]
    if len(known) != n or pack(known, setting) != data:
        raise ValueError("not the payload of as many codes")
    return known


def encode(x: Floats, clip: float, seed: int, setting: str) -> tuple[bytes, np.float32]:
    """Return payload and scale."""
    scale = scale_of(x, clip)
    return pack(codes(x, scale, seed), setting), scale


def decode(data: bytes, n: int, scale: float, setting: str) -> Floats:
    """Return the n values of a payload."""
    s = np.float32(scale)
    values = {1: s, -1: -s, 0: np.float32(0)}
    return np.array([values[code] for code in unpack(data, n, setting)], np.float32)


def seek_table(actual: Sequence[int], log2_block: int) -> Table:
    """Return the seek table of the pack ``rans``."""
    sent = list(pack(actual, "base3"))
    return tabled.seek_table("rans", sent, tabled.model_of("rans", sent, BYTES), log2_block)
