"""Unsigned LEB128, the integers of frame headers (frame v1 in ``docs/wire-format.md``).

Seven bits per byte, lowest first; the top bit of a byte indicates that another byte follows. Only
the shortest form of a number is legal, and no number takes more than ten bytes.
"""

from __future__ import annotations

MAX_BYTES = 10


def encode(n: int) -> bytes:
    """Return the shortest form of ``n``; `ValueError` if it is negative or needs 11 bytes."""
    if n < 0:
        raise ValueError(f"LEB128 is unsigned, got {n}")
    out = bytearray()
    while n >= 128:
        out.append(0x80 | (n & 0x7F))
        n >>= 7
    out.append(n)
    if len(out) > MAX_BYTES:
        raise ValueError(f"LEB128 number of {len(out)} bytes")
    return bytes(out)


def decode(data: bytes, at: int) -> tuple[int, int]:
    """Read the number that starts at ``data[at]``.

    Returns
    -------
    value, end
        The number and the index of the byte after it.

    Raises
    ------
    ValueError
        If the data end within the number, if it is longer than ten bytes, or if it is not in
        shortest form (a last byte of zero that is not the only byte).
    """
    value = 0
    for position in range(MAX_BYTES):
        if at + position >= len(data):
            raise ValueError("LEB128 number is truncated")
        byte = data[at + position]
        value += (byte & 0x7F) << (7 * position)
        if byte < 128:
            if byte == 0 and position > 0:
                raise ValueError("LEB128 number is not in shortest form")
            return value, at + position + 1
    raise ValueError("LEB128 number of more than ten bytes")
