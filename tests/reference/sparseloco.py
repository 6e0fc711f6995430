"""sparseloco: tiles, bins, payload and parameters, one number at a time.

Source: ``docs/wire-format.md``, sparseloco. Positions are those of ``positions``, and strings of
bins those of a plane of ``lossless``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import leb128, lossless, positions, sums
from .lossless import HUFFMAN
from .universal import Bits, Corrupt, fixed, payload_bits, to_bytes, to_text

Floats = NDArray[np.float32]
CODES = ("none", "huffman")


class Setting(NamedTuple):
    """The parameters of a message."""

    k: int = 64
    chunk: int = 64
    bins: int = 4
    index: str = "rice"
    code: str = "none"


class Message(NamedTuple):
    """The choices of an encoder: positions in the order of the tiles, bins and numbers."""

    setting: Setting
    places: list[int]
    bins: list[int]
    numbers: list[float]


def side(n: int, chunk: int) -> int:
    """Return the side of tiles along n elements."""
    return max(d for d in range(1, max(min(n, chunk), 1) + 1) if n % d == 0)


def tiles(shape: Sequence[int], chunk: int) -> list[list[int]]:
    """Return the elements of each tile, in its order."""
    n = math.prod(shape)
    m = shape[0] if len(shape) > 1 else 1
    columns = n // m if m else 0
    height, width = side(m, chunk), side(columns, chunk)
    return [
        [(top + i) * columns + left + j for i in range(height) for j in range(width)]
        for top in range(0, m, height)
        for left in range(0, columns, width)
        if n
    ]


def count(setting: Setting, size: int) -> int:
    """Return the number of sent elements of a tile."""
    k = min(setting.k, size)
    return k if k == 1 else k - k % 2


def largest(x: Floats, shape: Sequence[int], setting: Setting) -> list[int]:
    """Return the positions of the sent elements in the order of the tiles."""
    places: list[int] = []
    for t, elements in enumerate(tiles(shape, setting.chunk)):
        size = len(elements)
        order = sorted(range(size), key=lambda i: (-abs(float(x[elements[i]])), i))
        places += [t * size + i for i in sorted(order[: count(setting, size)])]
    return places


def binned(sent: Floats, bins: int, sigmas: float) -> tuple[list[int], list[float]]:
    """Return the bins of values; and shift, scale and means."""
    shift = np.float32(sums.sum_values(sent) / len(sent))
    with np.errstate(all="ignore"):
        centered = sent - shift
        spread = math.sqrt(sums.sum_squares(centered) / max(len(sent) - 1, 1))
        scale = np.float32(sigmas * spread / bins)
        if not 0 < scale < math.inf:
            scale = np.float32(1)
        levels = np.rint(centered / scale + np.float32(bins // 2))
    chosen = [int(min(max(level, 0), bins - 1)) for level in levels]
    totals, members = [0.0] * bins, [0] * bins
    for b, value in zip(chosen, centered, strict=True):
        totals[b] += float(value)
        members[b] += 1
    means = [float(np.float32(t / max(m, 1))) for t, m in zip(totals, members, strict=True)]
    return chosen, [float(shift), float(scale), *means]


def encode(x: Floats, shape: Sequence[int], setting: Setting, sigmas: float = 6.0) -> Message:
    """Return the message of a tensor, given flat."""
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf")
    places = largest(x, shape, setting)
    order = [i for elements in tiles(shape, setting.chunk) for i in elements]
    if not places:
        return Message(setting, [], [], [])
    return Message(setting, places, *binned(x[[order[p] for p in places]], setting.bins, sigmas))


def width_of(bins: int) -> int:
    """Return the bits of a bin."""
    return len(format(bins - 1, "b"))


def grouped(bins: Sequence[int], most: int) -> list[int]:
    """Return the bytes that contain bins, the first in the highest bits."""
    width = next(w for w in (1, 2, 4, 8) if w >= width_of(most))
    text = "".join(fixed(b, width) for b in bins)
    return list(to_bytes(text))


def front(message: Message) -> str:
    """Return the bits before the positions."""
    setting = message.setting
    text = to_text(struct.pack(f">{len(message.numbers)}f", *message.numbers))
    if setting.code == "none":
        return text + "".join(fixed(b, width_of(setting.bins)) for b in message.bins)
    plane = lossless.tabled_plane(HUFFMAN, grouped(message.bins, setting.bins))
    return text + lossless.string(plane)


def write(message: Message, n: int, choice: Sequence[int] | None = None) -> tuple[bytes, int]:
    """Return the payload and its number of bits."""
    if not n:
        return b"", 0
    text = front(message)
    text += positions.write(message.setting.index, message.places, n, choice, len(text))
    return to_bytes(text), len(text)


def read(data: bytes, nbits: int, shape: Sequence[int], setting: Setting) -> Message:
    """Read a payload, or raise `Truncated` or `Corrupt`."""
    n, bits = math.prod(shape), payload_bits(data, nbits)
    if not n:
        if nbits:
            raise Corrupt("bits of no elements")
        return Message(setting, [], [], [])
    cut = tiles(shape, setting.chunk)
    each, size = count(setting, len(cut[0])), len(cut[0])
    k = each * len(cut)
    numbers = [struct.unpack(">f", to_bytes(bits.take(32)))[0] for _ in range(2 + setting.bins)]
    with np.errstate(all="ignore"):
        decoded = [np.float32(mean) + np.float32(numbers[0]) for mean in numbers[2:]]
    if not all(map(math.isfinite, [*decoded, numbers[1]])):
        raise Corrupt("a number that is not finite")
    width = width_of(setting.bins)
    if setting.code == "none":
        bins = [bits.number(width) for _ in range(k)]
    else:
        wide = next(w for w in (1, 2, 4, 8) if w >= width)
        own = lossless._read_string(bits, HUFFMAN, -(-k * wide // 8), 1)
        whole = Bits(to_text(bytes(own)))
        bins = [whole.number(wide) for _ in range(k)]
        if "1" in whole.text[whole.at :]:
            raise Corrupt("fill that is not zero")
    if any(b >= setting.bins for b in bins):
        raise Corrupt("a bin that does not exist")
    places = positions.read(setting.index, bits, k, n)
    if [p // size for p in places] != [i // each for i in range(k)]:
        raise Corrupt("a tile with another number of positions")
    return Message(setting, places, bins, numbers)


def values(message: Message, shape: Sequence[int]) -> Floats:
    """Return the flat tensor of a message."""
    out = np.zeros(math.prod(shape), np.float32)
    order = [i for elements in tiles(shape, message.setting.chunk) for i in elements]
    for place, b in zip(message.places, message.bins, strict=True):
        shift, mean = np.float32(message.numbers[0]), np.float32(message.numbers[2 + b])
        out[order[place]] = mean + shift
    return out


def decode(data: bytes, nbits: int, shape: Sequence[int], setting: Setting) -> Floats:
    """Return the flat tensor of a payload, or raise `Truncated` or `Corrupt`."""
    return values(read(data, nbits, shape, setting), shape)


def parameters(setting: Setting) -> bytes:
    """Return the parameters of a frame."""
    sizes = b"".join(map(leb128.encode, (setting.k, setting.chunk, setting.bins)))
    index, code = positions.CODES.index(setting.index), CODES.index(setting.code)
    return sizes + bytes([index, code])
