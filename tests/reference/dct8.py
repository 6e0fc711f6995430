"""dct8: chunks, levels, its payload, the transform in its fixed order, its fields of a frame.

Source: ``docs/wire-format.md``, dct8. An encoder may use any transform; the transform here has 50
digits, and `encode` rejects a gradient for which another encoder might write other bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import cosines, leb128, positions
from .universal import Bits, Corrupt, Truncated, fixed, rice

Floats = NDArray[np.float32]

LAYOUTS = ("flat", "tiles")
VALUES = ("sign7", "affine8", "float32")
INDEXES = ("fixed", "rice")
TOP = 127
PLAIN = 7  # up to so many levels have magnitudes of 7 bits
RAW = 7  # the code e of numbers of fixed width
LARGEST_ROW = 4096


class Setting(NamedTuple):
    """The parameters of a message."""

    chunk: tuple[int, ...] = (64, 64)
    k: int = 32
    layout: str = "flat"
    values: str = "sign7"
    index: str = "fixed"


class Grid(NamedTuple):
    """Partition of a tensor into chunks."""

    chunk: tuple[int, int, int]
    count: int
    rows: int  # of the matrix of `tiles`, else 0
    columns: int
    n: int

    @property
    def size(self) -> int:
        """Return the number of elements of a chunk."""
        return math.prod(self.chunk)


class Chunk(NamedTuple):
    """The transmitted part of a chunk; a zero chunk has no positions.

    ``scales`` are the bits of M, or of s and o; ``levels`` are (sign, m) or (0, q). With float32
    there are no scales, and ``levels`` are 0 and the bits of a coefficient.
    """

    scales: tuple[int, ...]
    places: list[int]
    levels: list[tuple[int, int]]


def float_of(pattern: int) -> np.float32:
    """Return the binary32 with these bits."""
    return np.array([pattern], np.uint32).view(np.float32)[0]


def bits_of(x: np.float32) -> int:
    """Return the bits of a binary32."""
    return int(np.array([x], np.float32).view(np.uint32)[0])


def grid_of(setting: Setting, shape: Sequence[int]) -> Grid:
    """Return the partition of a tensor into chunks."""
    n = math.prod(shape)
    if setting.layout == "tiles":
        if len(setting.chunk) == 3:
            raise Corrupt("tiles of three sizes")
        if len(setting.chunk) == 2 and len(shape) >= 2 and n:
            rows, columns = shape[0], n // shape[0]
            b, c = min(setting.chunk[0], rows), min(setting.chunk[1], columns)
            return Grid((1, b, c), -(-rows // b) * -(-columns // c), rows, columns, n)
        c = min(math.prod(setting.chunk), LARGEST_ROW, max(n, 1))
        return Grid((1, 1, c), -(-n // c), 0, 0, n)
    a, b, c = (1,) * (3 - len(setting.chunk)) + setting.chunk
    return Grid((a, b, c), -(-n // (a * b * c)), 0, 0, n)


def elements(grid: Grid, layout: str, j: int) -> list[int | None]:
    """Return the indices of the tensor elements in chunk j; None represents a padding zero."""
    if grid.rows:
        _, b, c = grid.chunk
        down, across = divmod(j, -(-grid.columns // c))
        return [
            min(down * b + u, grid.rows - 1) * grid.columns + min(across * c + v, grid.columns - 1)
            for u in range(b)
            for v in range(c)
        ]
    actual = range(j * grid.size, (j + 1) * grid.size)
    if layout == "tiles":
        return [min(i, grid.n - 1) for i in actual]
    return [i if i < grid.n else None for i in actual]


def is_coded(setting: Setting, scales: Sequence[int]) -> bool:
    """Return whether a chunk has levels."""
    return setting.values == "float32" or any(scales)


# --- writer -------------------------------------------------------------------------------------


def scale_text(setting: Setting, scales: Sequence[int]) -> str:
    """Return the bits of the scales of a chunk."""
    if setting.values == "sign7":
        assert scales[0] % (1 << 15) == 0
        return fixed(scales[0] >> 15, 16)
    if setting.values == "float32":
        return ""
    return fixed(scales[0], 32) + fixed(scales[1], 32)


def words(magnitudes: Sequence[int], head: tuple[int, int] | None = None) -> str:
    """Return the bits of the magnitudes of a chunk; ``head`` replaces l and e by invalid ones."""
    if len(magnitudes) == 1:
        return ""
    if len(magnitudes) <= PLAIN:
        return "".join(fixed(m, 7) for m in magnitudes)
    least = min(magnitudes) if head is None else head[0]
    width = (TOP - least).bit_length()
    texts = ["".join(rice(m - least, code) for m in magnitudes) for code in range(RAW)]
    texts.append("".join(fixed(m - least, width) for m in magnitudes))
    code = min(range(RAW + 1), key=lambda code: len(texts[code])) if head is None else head[1]
    return fixed(least, 7) + fixed(code, 3) + texts[code]


def level_text(setting: Setting, chunk: Chunk) -> str:
    """Return the bits before the magnitudes."""
    if setting.values == "sign7":
        return "".join(str(sign) for sign, _ in chunk.levels)
    if setting.values == "float32":
        return "".join(fixed(pattern, 32) for _, pattern in chunk.levels)
    if len(chunk.levels) == 1:
        return ""
    if len(chunk.levels) == 2:
        return "".join(str(q // 255) for _, q in chunk.levels)
    return "".join(fixed(q, 8) for _, q in chunk.levels)


def place_text(
    setting: Setting, loud: Sequence[Chunk], size: int, choice: Sequence[int] | None = None
) -> str:
    """Return the bits of all positions; ``choice`` contains Rice parameters."""
    if not loud or len(loud[0].places) == size:
        return ""
    if setting.index == "rice":
        actual = [t * size + p for t, chunk in enumerate(loud) for p in chunk.places]
        return positions.write("rice", actual, size * len(loud), choice)
    width = (size - 1).bit_length()
    return "".join(fixed(p, width) for chunk in loud for p in chunk.places)


def text_of(
    setting: Setting,
    chunks: Sequence[Chunk],
    size: int,
    choice: Sequence[int] | None = None,
) -> str:
    """Return the bits of a payload."""
    loud = [chunk for chunk in chunks if is_coded(setting, chunk.scales)]
    text = "".join(scale_text(setting, chunk.scales) for chunk in chunks)
    text += "".join(level_text(setting, chunk) for chunk in loud)
    if setting.values == "sign7":
        text += "".join(words([m for _, m in chunk.levels]) for chunk in loud)
    return text + place_text(setting, loud, size, choice)


# --- reader -------------------------------------------------------------------------------------


def _scales(setting: Setting, bits: Bits) -> tuple[int, ...]:
    if setting.values == "float32":
        return ()
    if setting.values == "sign7":
        scale = bits.number(16) << 15
        if not np.isfinite(float_of(scale)):
            raise Corrupt("a scale that is not finite")
        return (scale,)
    s, o = bits.number(32), bits.number(32)
    if s >> 31 or o == 1 << 31:
        raise Corrupt("a negative scale, or -0")
    with np.errstate(all="ignore"):
        top = np.float32(np.float32(255) * float_of(s)) + float_of(o)
    if not np.isfinite([float_of(s), float_of(o), top]).all():
        raise Corrupt("a range that is not finite")
    return s, o


def _magnitudes(bits: Bits, count: int) -> list[int]:
    if count == 1:
        return [TOP]
    if count <= PLAIN:
        return [bits.number(7) for _ in range(count)]
    start = bits.at
    least, e = bits.number(7), bits.number(3)
    width = (TOP - least).bit_length()
    results = []
    for _ in range(count):
        if e == RAW:
            d = bits.number(width)
        else:
            zeros = bits.zeros()
            d = zeros * 2**e + bits.number(e)
        if least + d > TOP:
            raise Corrupt(f"the magnitude {least + d}")
        results.append(least + d)
    if words(results) != bits.text[start : bits.at]:
        raise Corrupt("another least magnitude, or another code")
    return results


def _places(setting: Setting, bits: Bits, loud: int, count: int, size: int) -> list[list[int]]:
    if count == size or not loud:
        if bits.at != len(bits.text):
            raise Corrupt("bits after the levels")
        return [list(range(size))] * loud
    if setting.index == "rice":
        actual = positions.read("rice", bits, count * loud, size * loud)
        parts = [[p - t * size for p in actual if p // size == t] for t in range(loud)]
    else:
        width = (size - 1).bit_length()
        parts = [[bits.number(width) for _ in range(count)] for _ in range(loud)]
        if bits.at != len(bits.text):
            raise Corrupt("bits after the places")
    for part in parts:
        if len(part) != count or part[-1] >= size or sorted(set(part)) != part:
            raise Corrupt("places that do not rise, or too many")
    return parts


def read(text: str, setting: Setting, grid: Grid) -> list[Chunk]:
    """Return the chunks of a payload, or raise `Truncated` or `Corrupt`."""
    bits, size = Bits(text), grid.size
    count = min(setting.k, size)
    least = 32 * count if setting.values == "float32" else 16
    if least * grid.count > len(text):
        raise Truncated("fewer bits than the scales have")
    scales = [_scales(setting, bits) for _ in range(grid.count)]
    loud = [one for one in scales if is_coded(setting, one)]
    levels: list[list[tuple[int, int]]] = []
    if setting.values == "sign7":
        signs = [[bits.number(1) for _ in range(count)] for _ in loud]
        for part in signs:
            magnitudes = _magnitudes(bits, count)
            levels.append(list(zip(part, magnitudes, strict=True)))
        if any(sign and not m for part in levels for sign, m in part):
            raise Corrupt("minus 0")
    elif setting.values == "float32":
        levels = [[(0, bits.number(32)) for _ in range(count)] for _ in loud]
        if not all(np.isfinite(float_of(pattern)) for part in levels for _, pattern in part):
            raise Corrupt("a coefficient that is not finite")
    elif count == 1:
        levels = [[(0, 0)] for _ in loud]
    elif count == 2:
        levels = [[(0, 255 * bits.number(1)) for _ in range(2)] for _ in loud]
    else:
        levels = [[(0, bits.number(8)) for _ in range(count)] for _ in loud]
    places = _places(setting, bits, len(loud), count, size)
    sent = iter(zip(places, levels, strict=True))
    return [
        Chunk(one, *next(sent)) if is_coded(setting, one) else Chunk(one, [], []) for one in scales
    ]


# --- decoding -----------------------------------------------------------------------------------


def coefficient(setting: Setting, scales: Sequence[int], level: tuple[int, int]) -> np.float32:
    """Return the coefficient for a level."""
    sign, m = level
    if setting.values == "float32":
        return float_of(m)
    if setting.values == "sign7":
        x = np.float32(m * float(float_of(scales[0])) / TOP)  # Python's floats are binary64
        return np.float32(-x if sign else x)
    s, o = float_of(scales[0]), float_of(scales[1])
    return np.float32(np.float32(np.float32(m) * s) + o)


def inverse(y: Floats) -> Floats:
    """Return the elements of a chunk of a × b × c coefficients."""
    a, b, c = y.shape
    r = np.zeros((a, b, c), np.float32)
    w = np.zeros((a, b, c), np.float32)
    x = np.zeros((a, b, c), np.float32)
    with np.errstate(all="ignore"):  # numpy rounds each product and each sum
        for v in np.flatnonzero(y.any((0, 1))):
            r += y[:, :, v, None] * cosines.row(int(v), c)
        for u in np.flatnonzero(r.any((0, 2))):
            w += r[:, u, None, :] * cosines.row(int(u), b)[:, None]
        for t in np.flatnonzero(w.any((1, 2))):
            x += w[t] * cosines.row(int(t), a)[:, None, None]
    return x


def decoded(setting: Setting, grid: Grid, chunks: Sequence[Chunk]) -> Floats:
    """Return the n elements of the tensor."""
    out = np.zeros(grid.n, np.float32)
    for j, chunk in enumerate(chunks):
        y = np.zeros(grid.size, np.float32)
        for p, level in zip(chunk.places, chunk.levels, strict=True):
            y[p] = coefficient(setting, chunk.scales, level)
        x = inverse(y.reshape(grid.chunk)).reshape(-1)
        seen = set()
        for i, value in zip(elements(grid, setting.layout, j), x, strict=True):
            if i is None or i in seen:
                continue  # behind the end: the element itself comes before its copies
            seen.add(i)
            out[i] = value
    if not np.isfinite(out).all():
        raise Corrupt("an element that is not finite")
    return out


def decode(text: str, setting: Setting, shape: Sequence[int]) -> Floats:
    """Return the flat elements of a payload."""
    grid = grid_of(setting, shape)
    return decoded(setting, grid, read(text, setting, grid))


# --- encoder ------------------------------------------------------------------------------------


class Uncertain(ValueError):
    """An encoder whose transform differs in the last bit might write other bytes."""


def transform(x: Sequence[Fraction], chunk: tuple[int, int, int]) -> list[Decimal]:
    """Return the coefficients of a chunk."""
    a, b, c = chunk
    y = [cosines.CONTEXT.divide(Decimal(v.numerator), Decimal(v.denominator)) for v in x]
    for n, stride in ((c, 1), (b, c), (a, b * c)):
        basis = [[cosines.exact(u, i, n) for i in range(n)] for u in range(n)]
        out = list(y)
        for start in range(len(y)):
            if start // stride % n == 0:
                line = [y[start + i * stride] for i in range(n)]
                for u in range(n):
                    total = Decimal(0)
                    for value, d in zip(line, basis[u], strict=True):
                        total = cosines.CONTEXT.fma(value, d, total)
                    out[start + u * stride] = total
        y = out
    tiny = Decimal("1e-45") * max((abs(v) for v in y), default=Decimal(0))
    return [Decimal(0) if abs(v) <= tiny else v for v in y]


def _certain_integer(x: float) -> int:
    if abs(x - math.floor(x) - 0.5) < 1e-3:
        raise Uncertain("a level between two")
    return round(x)


def _sign7(values: Sequence[Decimal]) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    largest = max(abs(v) for v in values)
    near = {
        round(Fraction(bits_of(cosines.of_decimal(largest * Decimal(1 + by))), 1 << 15)) << 15
        for by in (-1e-5, 1e-5)
    }
    if len(near) != 1:
        raise Uncertain("a scale between two")
    scale = near.pop()
    if len(values) == 1:
        return (scale,), [(int(values[0] < 0), TOP)]
    m_of = [float(abs(v)) * TOP / float(float_of(scale)) for v in values]
    actual = [min(TOP, _certain_integer(m)) for m in m_of]
    return (scale,), [(int(v < 0 and m > 0), m) for v, m in zip(values, actual, strict=True)]


def _exact(values: Sequence[Decimal]) -> list[np.float32]:
    v = [cosines.of_decimal(value) for value in values]
    error = max(abs(value - Decimal(float(one))) for value, one in zip(values, v, strict=True))
    if error > Decimal("1e-45") * max(abs(value) for value in values):
        raise Uncertain("coefficients that no transform has exactly")
    return v


def _affine8(values: Sequence[Decimal]) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    v = _exact(values)
    o = min(v)
    s = np.float32(np.float32(max(v) - o) / np.float32(255))
    q = [min(255, _certain_integer(float(np.float32(one - o) / s))) if s else 0 for one in v]
    if len(v) <= 2:
        q = [255 * (number > 0) for number in q]
    return (bits_of(s), bits_of(np.float32(o + np.float32(0)))), [(0, number) for number in q]


def _float32(values: Sequence[Decimal]) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    return (), [(0, bits_of(one)) for one in _exact(values)]


def encode(
    x: Floats, shape: Sequence[int], setting: Setting, choice: Sequence[int] | None = None
) -> str:
    """Return the bits of the payload of a gradient, or raise `Uncertain`."""
    grid, chunks = grid_of(setting, shape), []
    k = min(setting.k, grid.size)
    for j in range(grid.count):
        part = [
            Fraction(0) if i is None else Fraction(float(x[i]))
            for i in elements(grid, setting.layout, j)
        ]
        y = transform(part, grid.chunk)
        order = sorted(range(grid.size), key=lambda i: (-abs(y[i]), i))
        if not any(y) and setting.values != "float32":
            chunks.append(Chunk((0,) if setting.values == "sign7" else (0, 0), [], []))
            continue
        if k < grid.size and abs(y[order[k - 1]]) - abs(y[order[k]]) < abs(y[order[0]]) / 1000:
            raise Uncertain("a selection that is nearly a tie")
        places = sorted(order[:k])
        make = {"sign7": _sign7, "affine8": _affine8, "float32": _float32}[setting.values]
        scales, levels = make([y[p] for p in places])
        chunks.append(Chunk(scales, places, levels))
    return text_of(setting, chunks, grid.size, choice=choice)


def parameters(setting: Setting) -> bytes:
    """Return the parameters of a frame; the last parameter has no default."""
    out = bytes([len(setting.chunk)])
    out += b"".join(leb128.encode(size) for size in setting.chunk)
    out += leb128.encode(setting.k)
    return out + bytes(
        [
            LAYOUTS.index(setting.layout),
            VALUES.index(setting.values),
            INDEXES.index(setting.index),
        ]
    )
