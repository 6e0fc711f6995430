"""BytePS's four compressors of float32 tensors, one element and one bit at a time.

Written from ``docs/interop.md``. Words are 32 bits, little-endian; the first bit of a word is its
most significant. All roundings are those of IEEE arithmetic in the order of the source.
"""

from __future__ import annotations

import math
import struct
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
MASK = 2**64 - 1


class Generator:
    """xorshift128+ with shifts 23, 17, 26, both words of whose state begin as the seed."""

    def __init__(self, seed: int) -> None:
        self.state = [seed, seed]

    def draw(self) -> int:
        t, s = self.state
        t ^= t << 23 & MASK
        t ^= t >> 17
        t ^= s ^ s >> 26
        self.state = [s, t]
        return (t + s) & MASK

    def happens(self, probability: float) -> bool:
        return float(self.draw()) < probability * 2.0**64


def words(bits: str) -> bytes:
    """Pad a string of 0 and 1 with zeros to whole words; return the words."""
    bits += "0" * (-len(bits) % 32)
    return b"".join(
        struct.pack("<I", int(bits[at : at + 32], 2)) for at in range(0, len(bits), 32)
    )


def bits_of(data: bytes) -> str:
    return "".join(f"{word:032b}" for (word,) in struct.iter_unpack("<I", data))


def onebit(x: Floats, scaling: bool) -> bytes:
    total = 0.0
    for value in x:
        total += float(abs(value))
    scale = np.float32(total / len(x) if scaling else 1)
    return words("".join("1" if value < 0 else "0" for value in x)) + scale.tobytes()


def decode_onebit(data: bytes, n: int) -> Floats:
    (scale,) = struct.unpack("<f", data[-4:])
    return np.array([-scale if bit == "1" else scale for bit in bits_of(data[:-4])[:n]], "f4")


def pairs(positions: list[int], x: Floats) -> bytes:
    return b"".join(struct.pack("<I", i) + x[i].tobytes() for i in positions)


def randomk(x: Floats, k: int, generator: Generator) -> bytes:
    return pairs([generator.draw() % len(x) for _ in range(k)], x)


def rise(heap: list[tuple[float, int]], hole: int, entry: tuple[float, int]) -> None:
    while hole > 0 and heap[(hole - 1) // 2][0] > entry[0]:
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = entry


def pop(heap: list[tuple[float, int]]) -> None:
    """Pop like libstdc++: the hole sinks to a leaf, then the last entry rises from it."""
    size, last = len(heap) - 1, heap[-1]
    if size == 0:
        return
    heap[-1] = heap[0]
    hole = child = 0
    while child < (size - 1) // 2:
        child = 2 * child + 2
        if heap[child][0] > heap[child - 1][0]:
            child -= 1
        heap[hole] = heap[child]
        hole = child
    if size % 2 == 0 and child == (size - 2) // 2:
        heap[hole] = heap[2 * child + 1]
        hole = 2 * child + 1
    rise(heap, hole, last)


def topk(x: Floats, k: int) -> bytes:
    heap: list[tuple[float, int]] = []
    for i, value in enumerate(x):
        entry = float(abs(value)), i
        if i < k:
            heap.append(entry)
            rise(heap, i, entry)
        elif entry[0] > heap[0][0]:
            pop(heap)
            rise(heap, k - 1, entry)
    return pairs([i for _, i in heap], x)


def decode_pairs(data: bytes, n: int) -> Floats:
    out = np.zeros(n, np.float32)
    for i, value in struct.iter_unpack("<If", data):
        out[i] = value
    return out


def delta(x: int) -> str:
    length = x.bit_length()
    return "0" * (length.bit_length() - 1) + f"{length:b}" + f"{x:b}"[1:]


def read_delta(bits: str, at: int) -> tuple[int, int]:
    zeros = bits.index("1", at) - at
    at += zeros
    length = int(bits[at : at + zeros + 1], 2)
    at += zeros + 1
    return int("1" + bits[at : at + length - 1], 2), at + length - 1


def norm_of(x: Floats, norm: str) -> float:
    if norm == "max":
        return float(max(map(abs, x), default=0))
    total = 0.0
    with np.errstate(under="ignore"):
        for value in x:
            total += float(value * value)
    return math.sqrt(total)


def dithered(x: Floats, k: int, natural: bool, norm: float, generator: Generator) -> list[int]:
    """Return the level of each element."""
    top = 1 << k - 1 if natural else k
    levels = []
    for value in x:
        if norm == 0:  # 0/0 and x/0: no comparison holds, and x86 converts to 0
            generator.draw()
            levels.append(0)
            continue
        normalized = float(abs(value)) / norm * top
        if natural:
            low = max((2**e for e in range(40) if 2**e < math.ceil(normalized)), default=0)
            step = low or 1
            levels.append(low + step * generator.happens((normalized - low) / step))
        else:
            single = np.float32(normalized)
            floor = np.floor(single)
            levels.append(int(floor + np.float32(generator.happens(float(single - floor)))))
    return levels


def dithering(
    x: Floats, k: int, generator: Generator, partition: str = "linear", normalize: str = "max"
) -> bytes:
    norm = norm_of(x, normalize)
    levels = dithered(x, k, partition == "natural", norm, generator)
    sent = [i for i, level in enumerate(levels) if level]
    string = "".join(
        delta(i - before) + ("1" if np.signbit(x[i]) else "0") + delta(levels[i])
        for before, i in pairwise([-1, *sent])
    )
    return words(string) + struct.pack("<I", len(string)) + np.float32(norm).tobytes()


def decode_dithering(data: bytes, n: int, k: int, natural: bool = False) -> Floats:
    nbits, scale = struct.unpack("<If", data[-8:])
    bits, top = bits_of(data[:-8])[:nbits], np.float32(1 << k - 1 if natural else k)
    out, at, i = np.zeros(n, np.float32), 0, -1
    while at < nbits:
        gap, at = read_delta(bits, at)
        i += gap
        sign = bits[at] == "1"
        level, at = read_delta(bits, at + 1)
        value = np.float32(level) * np.float32(scale) / top
        out[i] = -value if sign else value
    return out
