"""CRC-32C, the checksum of frames (frame v1 in ``docs/wire-format.md``).

The Castagnoli polynomial 0x1EDC6F41, reflected, all ones at the start and inverted at the end.
"""

from __future__ import annotations

import functools
import struct

import numpy as np

POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41 with its 32 bits in reverse order


@functools.cache
def _halves() -> tuple[list[int], list[int]]:
    """Return what 32 shifts make of a register, for each of its lower and upper 16 bits.

    The shifts are linear: a whole register becomes the exclusive or of both results.
    """
    low = np.arange(1 << 16, dtype=np.uint32)
    results = []
    for register in (low, low << 16):
        for _ in range(32):
            register = register >> 1 ^ POLYNOMIAL * (register & 1)
        results.append(register.tolist())
    return results[0], results[1]


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of ``data``, computed by words of 32 bits and then one bit at a time."""
    low, high = _halves()
    register, whole = 0xFFFFFFFF, len(data) & ~3
    for word in struct.unpack_from(f"<{whole // 4}I", data):
        register ^= word
        register = low[register & 0xFFFF] ^ high[register >> 16]
    for byte in data[whole:]:
        register ^= byte
        for _ in range(8):
            lowest = register & 1
            register >>= 1
            if lowest:
                register ^= POLYNOMIAL
    return register ^ 0xFFFFFFFF
