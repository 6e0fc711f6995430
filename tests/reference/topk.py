"""topk: the selected elements, its payload, its fields of a frame.

Source: ``docs/wire-format.md``, topk. Values and positions are those of ``sparse_values`` and
``positions``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import leb128, positions, sparse_values
from .seek import Table
from .universal import payload_bits, to_bytes

Floats = NDArray[np.float32]

LARGEST_K = 1 << 62
DEFAULT_RATIO = 0.01


class Setting(NamedTuple):
    """The parameters of a message; ``k`` is None if the ratio determines it."""

    value: str = "float32"
    index: str = "rice"
    k: int | None = None
    ratio: float = DEFAULT_RATIO


class Message(NamedTuple):
    """The result of an encoder."""

    setting: Setting
    places: list[int]
    choice: list[int]  # of the positions
    data: bytes
    nbits: int


def count(n: int, k: int | None, ratio: float) -> int:
    """Return the number of sent elements of n."""
    return min(n, max(1, round(ratio * n)) if k is None else k)


def largest(x: Floats, k: int) -> list[int]:
    """Return the positions of the k largest magnitudes; of equal ones, the lowest positions."""
    order = sorted(range(len(x)), key=lambda i: (-abs(float(x[i])), i))
    return sorted(order[:k])


def at_least(x: Floats, threshold: float) -> list[int]:
    """Return the positions of all magnitudes from a threshold on."""
    return [i for i in range(len(x)) if abs(x[i]) >= np.float32(threshold)]


def write(
    x: Floats, places: Sequence[int], setting: Setting, choice: Sequence[int] | None = None
) -> Message:
    """Return the message of the elements at these positions."""
    values = sparse_values.write([x[i] for i in places], setting.value)
    chosen = choice
    if chosen is None:
        chosen = positions.choice_of(setting.index, places, len(x))
    text = values + positions.write(setting.index, places, len(x), chosen, len(values))
    return Message(setting, list(places), list(chosen), to_bytes(text), len(text))


def encode(x: Floats, setting: Setting, threshold: float = 0) -> Message:
    """Return the message of a gradient; a threshold overrides the setting's k."""
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf")
    if threshold:
        places = at_least(x, threshold)
        setting = setting._replace(k=len(places), ratio=DEFAULT_RATIO)
    else:
        places = largest(x, count(len(x), setting.k, setting.ratio))
    return write(x, places, setting)


def read(data: bytes, nbits: int, n: int, setting: Setting) -> tuple[list[int], Floats]:
    """Return positions and values, or raise `Truncated` or `Corrupt`."""
    bits = payload_bits(data, nbits)
    k = count(n, setting.k, setting.ratio)
    values = sparse_values.read(bits, k, setting.value)
    return positions.read(setting.index, bits, k, n), values


def scattered(places: Sequence[int], values: Floats, n: int) -> Floats:
    """Return the tensor with +0 for elements that were not sent."""
    out = np.zeros(n, np.float32)
    for i, value in zip(places, values, strict=True):
        out[i] = value
    return out


def decode(data: bytes, nbits: int, n: int, setting: Setting) -> Floats:
    """Return the n values of a payload."""
    return scattered(*read(data, nbits, n, setting), n)


def parameters(setting: Setting) -> bytes:
    """Return the parameters of a frame, without defaults at the end."""
    value = sparse_values.VALUES.index(setting.value)
    out = bytes([value, positions.CODES.index(setting.index)])
    if setting.k is not None:
        assert setting.ratio == DEFAULT_RATIO and 0 <= setting.k <= LARGEST_K
        return out + leb128.encode(setting.k + 1)
    if setting.ratio == DEFAULT_RATIO:
        return out
    return out + b"\0" + struct.pack("<d", setting.ratio)


def seek_table(message: Message, n: int, log2_block: int) -> Table:
    """Return the seek table of a message with at least one sent element."""
    index, places = message.setting.index, message.places
    return positions.seek_table(index, places, n, message.choice, log2_block)
