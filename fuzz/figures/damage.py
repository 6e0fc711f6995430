"""F1: decoders detect damage to a frame."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import gcodec
from fuzz.figures.figure import Figure
from fuzz.goldens import Golden, goldens, of_codecs

SHORT = 28  # bytes of frames in which all pairs of bits are flipped


def damage(short: bool) -> Figure:
    """Truncate golden frames at each byte; flip each bit, and in short frames each pair."""
    chosen = of_codecs(2) if short else list(goldens())
    pairs = [golden for golden in chosen if len(golden.data) <= SHORT]
    count, failures = 0, []
    for golden in chosen:
        for what, data in itertools.chain(_truncated(golden), _flipped(golden, 1)):
            count += 1
            if _accepted(data, golden.key):
                failures.append(f"{golden.name} {what}")
    if short:
        pairs = sorted(pairs, key=lambda golden: len(golden.data))[:1]
    two = 0
    for golden in pairs:
        for what, data in _flipped(golden, 2):
            two += 1
            if _accepted(data, golden.key):
                failures.append(f"{golden.name} {what}")
    detail = (
        f"{count} truncations and single flips of {len(chosen)} golden frames, "
        f"{two} pairs of flips of {len(pairs)} frames of up to {SHORT} bytes"
    )
    return Figure("F1", "every damaged frame is refused", count + two, "frames", failures, detail)


def _truncated(golden: Golden) -> Iterator[tuple[str, bytes]]:
    for length in range(len(golden.data)):
        yield f"cut to {length} bytes", golden.data[:length]


def _flipped(golden: Golden, bits: int) -> Iterator[tuple[str, bytes]]:
    for places in itertools.combinations(range(8 * len(golden.data)), bits):
        data = bytearray(golden.data)
        for place in places:
            data[place >> 3] ^= 1 << (place & 7)
        yield f"bits {places}", bytes(data)


def _accepted(data: bytes, key: bytes | None) -> bool:
    try:
        gcodec.decode(data, key=key)
    except gcodec.FormatError:
        return False
    return True
