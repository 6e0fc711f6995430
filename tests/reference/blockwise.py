"""Blocks of codes of a table, one element at a time.

Source: ``docs/wire-format.md``, blockwise.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import halves, lossless, microscale, sums, tabled
from .lossless import HUFFMAN, RANS, Plane
from .seek import Table
from .universal import Corrupt, Truncated, payload_bits, to_bytes, to_text

Floats = NDArray[np.float32]
F = np.float32
KINDS = (
    *("nf4", "fp4", "dynamic8", "int8", "int4", "fp8", "uniform8", "quantile8"),
    "meanstd16",
)
CODES = ("none", "huffman", "rans")
METHODS = {"huffman": HUFFMAN, "rans": RANS}
ABSMAX, TABLES = KINDS[:3], KINDS[6:8]
WIDE = "meanstd16"
"""The kind whose codes are float16 numbers."""
NARROW = ("nf4", "fp4", "int4")
ZEROS = {"nf4": 7, "fp4": 0, "int4": 0}
"""The code of 0 of each kind of 4 bits."""

_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)
_FP4 = (0, Fraction(1, 16), 8, 12, 4, 6, 2, 3)


@functools.cache
def values_of(kind: str) -> list[Any]:
    """Return the number of each code of a kind with a fixed table, as float32."""
    if kind == "nf4":
        return [F(value) for value in _NF4]
    if kind == "fp4":
        halves = [F(float(value)) / F(12) for value in _FP4]
        return halves + [F(0) - value for value in halves]
    if kind == "dynamic8":
        positive = [F(1)]
        for k in range(7):
            n = 1 << k
            step = float((F(1) - F(0.1)) / F(n))
            ends = [
                F(float(F(0.1)) + step * j if 2 * j < n else 1 - step * (n - j))
                for j in range(n + 1)
            ]
            middles = [(a + b) / F(2) for a, b in itertools.pairwise(ends)]
            positive += [middle * F(10.0 ** (k - 6)) for middle in middles]
        return sorted([F(0), *positive, *(-value for value in positive[1:])])
    if kind == "fp8":
        return [F(microscale.value_of("mxfp8e4m3", code)) for code in range(256)]
    size = 16 if kind == "int4" else 256
    return [F(code if code < size // 2 else code - size) for code in range(size)]


def _nearest(kind: str, r: float) -> int:
    """Return the code of a number relative to the scale."""
    if kind in ("int4", "int8"):
        half = 8 if kind == "int4" else 128
        return min(max(round(r), -half), half - 1) % (2 * half)
    if kind == "fp8":
        (code,) = microscale._codes("mxfp8e4m3", [abs(r)], None)
        return code | (128 if math.copysign(1, r) < 0 else 0)
    order, middles = _ranks(kind)
    return order[bisect.bisect_left(middles, r)]


@functools.cache
def _ranks(kind: str) -> tuple[list[int], list[float]]:
    """Return the codes in the order of their numbers, and the middles of adjacent numbers."""
    values = values_of(kind)
    order = sorted(range(len(values)), key=lambda code: float(values[code]))
    pairs = itertools.pairwise(order)
    return order, [float((values[low] + values[high]) / F(2)) for low, high in pairs]


class Message(NamedTuple):
    """Bytes before the codes, the codes, and the coded string of their bytes."""

    kind: str
    code: str
    front: bytes
    codes: list[int]
    plane: Plane | None


def _floats(numbers: Sequence[Any]) -> bytes:
    return b"".join(struct.pack("<f", float(number)) for number in numbers)


def _absmax(kind: str, x: Floats, block: int) -> tuple[list[Any], list[int]]:
    scales, codes = [], []
    for start in range(0, len(x), block):
        part = x[start : start + block]
        top, least = max(abs(value) for value in part), F(1e-38)
        if len(part) < block:
            top = max(top, least)
            r = [value / top for value in part]
        else:
            factor = F(1) / max(top, least)
            r = [value * factor for value in part]
        scales.append(top)
        codes += [_nearest(kind, float(value)) for value in r]
    return scales, codes


def quantize(
    kind: str, x: Floats, block: int = 64, nested: bool = False
) -> tuple[bytes, list[int]]:
    """Return the bytes before the codes, and the codes."""
    x = np.asarray(x, F).reshape(-1)
    if not len(x):
        return b"", []
    if kind == "uniform8":
        return _uniform(x)
    if kind == "quantile8":
        return _quantile(x)
    if kind == WIDE:
        return _scores(x, block)
    if kind in ABSMAX:
        scales, codes = _absmax(kind, x, block)
        if not nested:
            return _floats(scales), codes
        offset = F(sums.sum_values(np.array(scales, F)) / len(scales))
        own = 256 if kind in NARROW else block
        rest = np.array([scale - offset for scale in scales], F)
        outer, inner = _absmax("dynamic8", rest, own)
        return _floats([offset, *outer]) + bytes(inner), codes
    scales, codes = [], []
    largest = {"int4": 8, "int8": 128, "fp8": 448}[kind]
    with np.errstate(all="ignore"):
        for start in range(0, len(x), block):
            part = x[start : start + block]
            top = max(abs(value) for value in part)
            factor = F(largest) / top
            if top == 0 or (kind == "fp8" and math.isinf(factor)):
                factor = F(1)
            factor = min(factor, np.finfo(F).max)
            scales.append(factor if kind == "fp8" else F(1) / factor)
            codes += [_nearest(kind, float(value * factor)) for value in part]
    return _floats(scales), codes


def _uniform(x: Floats) -> tuple[bytes, list[int]]:
    n, total = len(x), sums.sum_values(x)
    mean = F(total / n)
    squares = max(0.0, float(sums.sum_squares(x) - total * total / n))
    scale = F(6) * (F(math.sqrt(squares / max(n - 1, 1))) / F(256))
    codes = [255] * n
    if scale:
        with np.errstate(all="ignore"):
            factor = min(F(1) / scale, np.finfo(F).max)
            codes = [round(min(max(float((v - mean) * factor), -128), 127)) + 128 for v in x]
    return _means(x, codes), codes


def _scores(x: Floats, block: int) -> tuple[bytes, list[int]]:
    means, deviations, codes = [], [], []
    for start in range(0, len(x), block):
        part = x[start : start + block]
        total = 0.0
        for value in part:
            total += float(value)
        mean = F(total / len(part))
        centered = np.array([value - mean for value in part], F)
        with np.errstate(over="ignore"):
            length = min(F(math.sqrt(sums.sum_squares(centered))), np.finfo(F).max)
        deviation = max(length / F(math.sqrt(len(part))), F(2.0**-23))
        means.append(mean)
        deviations.append(deviation)
        scores = [min(max(value / deviation, F(-65504)), F(65504)) for value in centered]
        codes += halves.narrow(np.array(scores, F), "float16").tolist()
    return _floats([*means, *deviations]), codes


def _quantile(x: Floats) -> tuple[bytes, list[int]]:
    size = 100_000
    if len(x) > size:
        chunks, rest = divmod(len(x), size)
        size += (rest - 1) // chunks + 1
    rows = [_quantiles(x[start : start + size]) for start in range(0, len(x), size)]
    borders = _quantiles(np.array(rows, F).reshape(-1))[1:-1]
    codes = [bisect.bisect_left(borders, value) for value in x]  # the borders below it
    return _means(x, codes), codes


def _quantiles(x: Floats) -> list[Any]:
    ordered = sorted(x)
    last = len(ordered) - 1
    out = []
    for k in range(257):
        place = F(last) * (F(k) / F(256))
        below = min(math.floor(place), last)
        low, high, t = ordered[below], ordered[min(below + 1, last)], place - F(math.floor(place))
        width = high - low
        out.append(low + width * t if t < F(0.5) else high - width * (F(1) - t))
    return out


def _means(x: Floats, codes: Sequence[int]) -> bytes:
    totals, counts = [0.0] * 256, [0] * 256
    for start in range(0, len(x), 1 << 16):
        parts = [0.0] * 256
        for value, code in zip(x[start : start + (1 << 16)], codes[start:], strict=False):
            parts[code] += float(value)
            counts[code] += 1
        totals = [total + part for total, part in zip(totals, parts, strict=True)]
    return _floats([F(t / max(count, 1)) for t, count in zip(totals, counts, strict=True)])


def data_of(kind: str, codes: Sequence[int]) -> list[int]:
    """Return the bytes of codes."""
    if kind == WIDE:
        return [byte for code in codes for byte in (code & 255, code >> 8)]
    if kind not in NARROW:
        return list(codes)
    filled = [*codes, *[ZEROS[kind]] * (len(codes) % 2)]
    pairs = zip(filled[::2], filled[1::2], strict=True)
    return [first << 4 | second for first, second in pairs]


def message(kind: str, code: str, front: bytes, codes: list[int]) -> Message:
    """Return the message that gcodec writes."""
    plane = None
    if code != "none" and codes:
        plane = lossless.tabled_plane(METHODS[code], data_of(kind, codes))
    return Message(kind, code, front, codes, plane)


def write(m: Message) -> tuple[bytes, int]:
    """Return the payload and its number of bits."""
    if m.plane is None:
        data = m.front + bytes(data_of(m.kind, m.codes))
        return data, 8 * len(data)
    text = to_text(m.front) + lossless.string(m.plane)
    return to_bytes(text), len(text)


def seek_table(m: Message, log2_block: int) -> Table:
    """Return the seek table of the string of the codes."""
    assert m.plane is not None
    _, low, high, coded, model = m.plane.model
    places = lossless.places_of(coded, low, high)
    return tabled.seek_table(m.code, places, model, log2_block)


def front_nbytes(kind: str, n: int, block: int, nested: bool) -> int:
    """Return the bytes before the codes of n elements."""
    if not n:
        return 0
    if kind in TABLES:
        return 1024
    blocks = (n + block - 1) // block
    if kind == WIDE:
        return 8 * blocks
    own = 256 if kind in NARROW else block
    return 4 + 4 * ((blocks + own - 1) // own) + blocks if nested else 4 * blocks


def decode(
    kind: str, code: str, data: bytes, nbits: int, n: int, block: int, nested: bool
) -> Floats:
    """Return the values of a payload, or raise ValueError."""
    size, many = front_nbytes(kind, n, block, nested), n
    if kind in NARROW:
        many = (n + 1) // 2
    elif kind == WIDE:
        many = 2 * n
    bits = payload_bits(data, nbits)
    if code == "none" or not n:
        if nbits != 8 * (size + many):
            raise (Truncated if nbits < 8 * (size + many) else Corrupt)("another length")
        front, elements = data[:size], list(data[size:])
    else:
        front = to_bytes(bits.take(8 * size))
        elements = lossless._read_string(bits, METHODS[code], many, 1)
        if bits.at < nbits:
            raise Corrupt("bits after the last element")
    codes = elements
    if kind in NARROW:
        codes = [one for byte in elements for one in (byte >> 4, byte & 15)]
        if codes[n:] not in ([], [ZEROS[kind]]):
            raise Corrupt("another code of no element")
    if kind == WIDE:
        codes = [low | high << 8 for low, high in zip(codes[::2], codes[1::2], strict=True)]
        if any(code & 0x7C00 == 0x7C00 for code in codes):
            raise Corrupt("a number that is not finite")
    return _values(kind, front, codes[:n], block, nested)


def _values(kind: str, front: bytes, codes: list[int], block: int, nested: bool) -> Floats:
    n, count = len(codes), len(front) // 4
    if not n:
        return np.empty(0, F)
    blocks = (n + block - 1) // block
    inner: list[int] = []
    if nested:
        inner, count = list(front[-blocks:]), (len(front) - blocks) // 4
    numbers = [F(value) for value in struct.unpack(f"<{count}f", front[: 4 * count])]
    positive = numbers if kind == "fp8" else numbers[blocks:] if kind == WIDE else []
    if not np.isfinite(numbers).all() or min(positive, default=1) <= 0:
        raise Corrupt("a number that is not valid")
    with np.errstate(all="ignore"):
        if kind == WIDE:
            means, deviations = numbers[:blocks], numbers[blocks:]
            scores = halves.widen(np.array(codes, np.uint16), "float16")
            products = [score * deviations[i // block] for i, score in enumerate(scores)]
            return np.array([one + means[i // block] for i, one in enumerate(products)], F)
        if kind in TABLES:
            return np.array([numbers[code] for code in codes], F)
        scales = numbers
        if nested:
            dynamic, own = values_of("dynamic8"), 256 if kind in NARROW else block
            offset, outer = numbers[0], numbers[1:]
            scales = [dynamic[c] * outer[i // own] + offset for i, c in enumerate(inner)]
            if not np.isfinite(scales).all():
                raise Corrupt("a scale that is not finite")
        values = values_of(kind)
        pairs = [(values[code], scales[i // block]) for i, code in enumerate(codes)]
        return np.array([v / s if kind == "fp8" else v * s for v, s in pairs], F)
