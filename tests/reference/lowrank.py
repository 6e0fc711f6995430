"""lowrank: messages of factors, written and read number by number.

Source: ``docs/wire-format.md``, lowrank. Messages of ecsq inside are those of ``ecsq``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import contexts, ecsq, leb128, trellis, universal
from .universal import Bits, Corrupt, Truncated

Floats = NDArray[np.float32]

LARGEST_SPLIT, LARGEST_EXPONENT = 31, 2047
QUARTERS = tuple(  # 2^0, 2^(-1/4), 2^(-2/4), 2^(-3/4)
    struct.unpack(">f", bytes.fromhex(word))[0]
    for word in ("3f800000", "3f5744fd", "3f3504f3", "3f1837f0")
)


class Factor(NamedTuple):
    """The centroids and the string of a factor."""

    centroids: tuple[int, int, int]
    data: bytes


class Message(NamedTuple):
    """An encoded message with factors; its residual is a message of ecsq and its string."""

    split: int
    exponents: list[int]
    right: Factor
    left: Factor
    residual: tuple[ecsq.Message, bytes] | None = None

    @property
    def data(self) -> bytes:
        """Return the payload."""
        falls = [a - b for a, b in zip(self.exponents, self.exponents[1:], strict=False)]
        numbers = [self.split, 1 + (self.residual is not None), self.exponents[0] + 1]
        words = "".join(universal.gamma(n) for n in (*numbers, *(fall + 1 for fall in falls)))
        out = universal.to_bytes(words)
        out += bytes(self.right.centroids) + bytes(self.left.centroids)
        out += leb128.encode(len(self.right.data))
        if self.residual is None:
            return out + self.right.data + self.left.data
        scalars = ecsq.scalars(self.residual[0])
        out += leb128.encode(len(self.left.data)) + leb128.encode(len(scalars)) + scalars
        return out + self.right.data + self.left.data + self.residual[1]


class _Reader:
    """A position in the bytes of a payload that cannot pass the end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise Truncated(f"{count} bytes wanted at byte {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        bits = Bits(universal.to_text(self.data), 8 * self.at)
        value = contexts.read_leb128(bits)
        self.at = bits.at // 8
        return value


def matrix_of(shape: Sequence[int], split: int, rank: int) -> tuple[int, int]:
    """Return the numbers of rows and columns, or raise `Corrupt`."""
    if split >= len(shape):
        raise Corrupt(f"rows of {split} of {len(shape)} dimensions")
    m, k = math.prod(shape[:split]), math.prod(shape[split:])
    if rank * (m + k) >= m * k:
        raise Corrupt("factors of no fewer numbers than the matrix")
    return m, k


def scale(step: np.float32, exponent: int) -> np.float32:
    """Return the factor of a row of the right factor."""
    product = float(step) * QUARTERS[exponent % 4]  # exact in binary64
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(math.ldexp(product, -(exponent // 4)))


def read_words(bits: Bits, rank: int) -> tuple[int, bool, list[int]]:
    """Return the split, whether there is a residual, and the exponents."""
    split, flag = universal.read_gamma(bits), universal.read_gamma(bits)
    words = [universal.read_gamma(bits) for _ in range(rank)]
    exponents = [words[0] - 1]
    for word in words[1:]:
        exponents.append(exponents[-1] - (word - 1))
    if split > LARGEST_SPLIT or flag > 2 or max(words) > LARGEST_EXPONENT + 1:
        raise Corrupt("a number that is too large")
    if exponents[-1] < 0:
        raise Corrupt("an exponent below 0")
    bits.fill()
    return split, flag == 2, exponents


def read_scalars(data: bytes) -> tuple[np.float32, list[int], str]:
    """Return the step, the centroids and the transform of a residual."""
    step = np.float32(struct.unpack("<f", data[:4])[0])
    if not 0 < step < np.inf:
        raise Corrupt(f"the step {step}")
    centroids, at = [], 4
    for _ in range(3):
        centroid, at = leb128.decode(data, at)
        if centroid > 255:
            raise Corrupt(f"the centroid {centroid}")
        centroids.append(centroid)
    if at == len(data):
        return step, centroids, ecsq.TRANSFORMS[0]
    if data[at:] not in (b"\0", b"\1"):
        raise Corrupt("an unknown transform")
    return step, centroids, ecsq.TRANSFORMS[data[at]]


def decode(
    data: bytes,
    nbits: int,
    shape: Sequence[int],
    rank: int,
    step: np.float32,
    with_trellis: bool = False,
) -> Floats:
    """Return the values of a payload with factors, or raise ValueError."""
    if nbits % 8 or len(data) != nbits // 8:
        raise Corrupt("no whole number of bytes")
    bits = Bits(universal.to_text(data))
    split, has_residual, exponents = read_words(bits, rank)
    m, k = matrix_of(shape, split, rank)
    reader = _Reader(data)
    reader.at = bits.at // 8
    centroids = [list(reader.take(3)) for _ in range(2)]
    counts, scalars = [reader.number()], None
    if has_residual:
        counts.append(reader.number())
        scalars = read_scalars(reader.take(reader.number()))
    strings = [reader.take(count) for count in counts]
    strings.append(data[reader.at :])

    def factor(string: bytes, n: int, own: list[int]) -> Floats:
        values = ecsq.read(string, 8 * len(string), n, ecsq.ONE, own, with_trellis)[1]
        return values.reshape(rank, n // rank)

    right = factor(strings[0], rank * k, centroids[0])
    left = factor(strings[1], rank * m, centroids[1])
    out = np.zeros((m, k), np.float32)
    with np.errstate(all="ignore"):
        for j in range(rank):
            row = right[j] * scale(step, exponents[j])
            product = left[j].reshape(m, 1) * row
            out = product if j == 0 else out + product
    if not np.isfinite(out).all():
        raise Corrupt("a value that is infinite")
    flat = out.reshape(-1)
    if scalars is not None:
        size, own, transform = scalars
        sizes = ecsq.taps(shape) if transform == "dct" else None
        if transform == "dct" and sizes is None:
            raise Corrupt("the transform of a tensor without taps")
        last = strings[2]
        residual = ecsq.read(last, 8 * len(last), m * k, size, own, with_trellis, sizes)[1]
        with np.errstate(all="ignore"):
            flat = flat + residual
        if not np.isfinite(flat).all():
            raise Corrupt("a value that is infinite")
    return flat


def string_data(string: contexts.String, with_trellis: bool) -> bytes:
    """Return the bytes of a context string."""
    return universal.to_bytes((trellis if with_trellis else contexts).write(string))


def parameters(rank: int, with_trellis: bool) -> bytes:
    """Return the parameters of a frame, without defaults at the end."""
    return leb128.encode(rank) + (b"\1" if with_trellis else b"")


def scalars(step: np.float32) -> bytes:
    """Return the scalars of a frame with factors."""
    return struct.pack("<f", step)
