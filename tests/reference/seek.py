"""Seek tables of all three kinds, as serialized in a frame.

Source: ``docs/wire-format.md``, seek tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from . import leb128

STRIDE = 4096  # blocks from one pair of sums to the next


class Table(NamedTuple):
    """Bits of each block, advances for blocks of values, and states for rANS.

    ``states`` contains those of the blocks that do not begin with a rANS block.
    """

    log2_block: int
    lengths: list[int]
    advances: list[int] | None
    states: list[list[int]] | None = None


def section(table: Table) -> bytes:
    """Return the bytes of a seek table in a frame."""
    numbers = [*table.lengths, *(table.advances or [])]
    width = next(w for w in (1, 2, 4, 8) if all(v < 1 << 8 * w for v in numbers))
    out = bytes([table.log2_block, width]) + leb128.encode(len(table.lengths))
    offset = position = 0
    for i, length in enumerate(table.lengths):
        if i and i % STRIDE == 0:
            out += offset.to_bytes(8, "little")
            if table.advances is not None:
                out += position.to_bytes(8, "little")
        out += length.to_bytes(width, "little")
        offset += length
        if table.advances is not None:
            out += table.advances[i].to_bytes(width, "little")
            position += table.advances[i]
    for states in table.states or []:
        out += b"".join(state.to_bytes(4, "little") for state in states)
    return out


def lengths_of(words: Sequence[str], log2_block: int) -> list[int]:
    """Return the bits of each block of 2^log2_block words."""
    size = 1 << log2_block
    starts = range(0, len(words), size)
    return [sum(len(word) for word in words[at : at + size]) for at in starts]
