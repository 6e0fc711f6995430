"""CRC-32C, the checksum of frames (frame v1 in ``docs/wire-format.md``).

The Castagnoli polynomial 0x1EDC6F41, reflected, all ones at the start and inverted at the end.
"""

from __future__ import annotations

POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41 with its 32 bits in reverse order


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of ``data``, computed one bit at a time."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            lowest = register & 1
            register >>= 1
            if lowest:
                register ^= POLYNOMIAL
    return register ^ 0xFFFFFFFF
