"""ecsq: levels of a given step, their payload, their fields of a frame.

Source: ``docs/wire-format.md``, ecsq; the string is that of ``contexts``. Arithmetic is float32,
one operation at a time, except products that the specification computes in float64. A level is a
Python integer with the sign of its element.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import contexts, cosines, leb128, philox, trellis
from .universal import Corrupt, payload_bits, to_bytes

Floats = NDArray[np.float32]

ROUNDINGS = ("nearest", "stochastic")
TRANSFORMS = ("none", "dct")
LONGEST_AXIS, MOST_TAPS, MOST_AXES = 16, 1024, 3  # of filters that are transformed
LARGEST_PLAIN = 126
DEAD_FROM = 44  # the class below which levels are rated
NEUTRAL = 128  # the centroid in the middle of a cell
TINY, LIFT = 2.0**-60, np.float32(2.0**64)
ONE, HALF = np.float32(1), np.float32(0.5)


class Message(NamedTuple):
    """An encoded message; the string is None if it has no symbols."""

    rounding: str
    step: np.float32
    centroids: tuple[int, int, int]
    string: contexts.String | None
    transform: str = "none"

    @property
    def data(self) -> bytes:
        """Return the payload."""
        return b"" if self.string is None else to_bytes(contexts.write(self.string))


class Choice(NamedTuple):
    """Free choices of an encoder."""

    width: int
    group: int = 0
    coarse: bool = False
    table: int | contexts.Table = 0
    lanes: int = 32
    lists: tuple[int, int] = (contexts.RICE, contexts.RICE)
    scales: tuple[list[int], list[int]] | None = None  # None: those of plain levels


# --- taps ---------------------------------------------------------------------------------------


def taps(shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the filter axes of a tensor; None for a tensor without taps to transform."""
    sizes = tuple(shape[2:])
    if len(sizes) > MOST_AXES or any(not 1 <= size <= LONGEST_AXIS for size in sizes):
        return None
    return sizes if 2 <= math.prod(sizes) <= MOST_TAPS else None


def transformed(x: Floats, sizes: Sequence[int], forward: bool) -> Floats:
    """Return the coefficients of filters, or the inverse."""
    x = np.asarray(x, np.float32).reshape(-1, *sizes)
    for axis in reversed(range(1, x.ndim)):
        n = x.shape[axis]
        if n == 1:
            continue
        before, after = np.moveaxis(x, axis, 0), np.zeros_like(np.moveaxis(x, axis, 0))
        for j in range(n):
            for v in range(n):
                u, i = (j, v) if forward else (v, j)
                with np.errstate(all="ignore"):
                    after[j] = after[j] + before[v] * np.float32(cosines.row(u, n)[i])
        x = np.moveaxis(after, 0, axis)
    return np.ascontiguousarray(x).reshape(-1)


# --- levels -------------------------------------------------------------------------------------


def rescaled(x: Floats, step: np.float32) -> tuple[Floats, np.float32]:
    """Rescale values and step, so that the inverse of the step does not exceed float32."""
    if max(abs(v) for v in x) < TINY:
        return x * LIFT, step * LIFT
    return x, step


def scaled(x: Floats, step: np.float32) -> Floats:
    """Return magnitudes in units of the step."""
    with np.errstate(under="ignore"):
        return np.array([abs(v) * (ONE / step) for v in x], np.float32)


def plain_level(y: np.float32) -> int:
    """Return the level from which scales are computed."""
    if y < np.float32(0.6):
        return 0
    return min(math.floor(y + np.float32(0.4)), LARGEST_PLAIN)


def rated_level(y: np.float32, c: int) -> int:
    """Return the level with the least rate–distortion cost for an element of class c."""
    d = np.float32(max(0, DEAD_FROM - c))
    dead = min(HALF + d * d * np.float32(29) / np.float32(8192), np.float32(1.65))
    if y < dead:
        return 0
    shift = HALF - min(d * np.float32(0.08), np.float32(0.45))
    return max(1, math.floor(y + shift))


def centroid(ys: Sequence[np.float32], magnitudes: Sequence[int]) -> int:
    """Return the mean of the values of these magnitudes, in 256ths of a step."""
    if not magnitudes:
        return NEUTRAL
    rests = [math.trunc((float(y) - m) * 1024) for y, m in zip(ys, magnitudes, strict=True)]
    mean = Fraction(sum(rests), 4 * len(rests))
    return min(max(NEUTRAL + math.floor(mean + Fraction(1, 2)), 0), 255)


def centroids_of(
    ys: Sequence[np.float32] | Floats, magnitudes: Sequence[int]
) -> tuple[int, int, int]:
    """Return the centroids of magnitude 1, of magnitude 2, and of larger magnitudes."""
    pairs = [*zip(ys, magnitudes, strict=True)]
    groups = [[(y, m) for y, m in pairs if m and min(m, 3) == g] for g in (1, 2, 3)]
    one, two, more = (centroid([y for y, _ in g], [m for _, m in g]) for g in groups)
    return one, two, more


def stochastic_level(y: np.float32, word: int) -> int:
    """Return the magnitude of a stochastically rounded level."""
    low = math.floor(y)
    return low + ((word >> 1) < int((float(y) - low) * 2.0**31))


def symbols_of(x: Floats, magnitudes: Sequence[int]) -> list[int]:
    """Return the symbol of each level."""
    return [2 * m + (m > 0 and v < 0) for v, m in zip(x, magnitudes, strict=True)]


# --- messages -----------------------------------------------------------------------------------


def encode(
    x: Floats,
    step: np.float32,
    choice: Choice,
    rounding: str = "nearest",
    seed: int = 0,
    sizes: Sequence[int] | None = None,
) -> Message:
    """Return the message of a gradient for a step above 0, with filter transform if `sizes`."""
    x, step = np.asarray(x, np.float32), np.float32(step)
    n = len(x)
    neutral = (NEUTRAL, NEUTRAL, NEUTRAL)
    transform = TRANSFORMS[sizes is not None]
    if not n:
        return Message(rounding, step, neutral, None, transform)
    x, size = rescaled(x, step)
    if sizes is not None:
        x = transformed(x, sizes, forward=True)
    matrix, ys = (choice.width, choice.group, choice.coarse), scaled(x, size)
    if rounding == "nearest":
        plain = [plain_level(y) for y in ys]
        scales = choice.scales or contexts.scales_of(plain, *matrix)
        classes = contexts.classes_of(n, choice.width, choice.group, *scales)
        magnitudes = [rated_level(y, c) for y, c in zip(ys, classes, strict=True)]
        centroids = centroids_of(ys, magnitudes)
    else:
        words = philox.words(seed, n)
        magnitudes = [stochastic_level(y, w) for y, w in zip(ys, words, strict=True)]
        scales = contexts.scales_of(magnitudes, *matrix)
        centroids = neutral
    symbols, options = symbols_of(x, magnitudes), (choice.table, choice.lanes, choice.lists)
    string = contexts.write_string(symbols, choice.width, choice.group, scales, *options)
    return Message(rounding, step, centroids, string, transform)


def decode_symbols(
    symbols: Sequence[int], step: np.float32, centroids: Sequence[int], parts: int = 1
) -> Floats:
    """Return the values of symbols, in parts of a step."""
    out = np.zeros(len(symbols), np.float32)
    for i, symbol in enumerate(symbols):
        m = symbol // 2
        if m == 0:
            continue
        where = 256 * m + centroids[min(m, 3) - 1] - 128
        with np.errstate(over="ignore", under="ignore"):
            value = np.float32(float(where) * (float(step) / (256 * parts)))
        if not np.isfinite(value):
            raise Corrupt("a value that is infinite")
        out[i] = -value if symbol % 2 else value
    return out


def read(
    data: bytes,
    nbits: int,
    n: int,
    step: np.float32,
    centroids: Sequence[int],
    with_trellis: bool = False,
    sizes: Sequence[int] | None = None,
) -> tuple[contexts.String | None, Floats]:
    """Return the string of a payload and its values, or raise `Truncated` or `Corrupt`.

    `sizes` are the filter axes of transformed levels.
    """
    bits = payload_bits(data, nbits)
    string, values = None, np.zeros(n, np.float32)
    if n and step > 0:
        string = (trellis if with_trellis else contexts).read(bits, n)
        values = decode_symbols(string.symbols, step, centroids, 2 if with_trellis else 1)
        if sizes is not None:
            values = transformed(values, sizes, forward=False)
            if not np.isfinite(values).all():
                raise Corrupt("a value that is infinite")
    if bits.at != nbits:
        raise Corrupt("bits after the string")
    return string, values


# --- headers ------------------------------------------------------------------------------------


def parameters(rounding: str) -> bytes:
    """Return the parameters of a frame, without defaults at the end."""
    return b"" if rounding == ROUNDINGS[0] else bytes([ROUNDINGS.index(rounding)])


def scalars(message: Message) -> bytes:
    """Return the scalars of a frame."""
    out = struct.pack("<f", message.step)
    if message.rounding == "nearest":
        out += b"".join(leb128.encode(c) for c in message.centroids)
    if message.transform != TRANSFORMS[0]:
        out += bytes([TRANSFORMS.index(message.transform)])
    return out
