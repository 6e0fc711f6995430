"""The code ``huffman``, as strings of 0 and 1.

Source: the page of ``gcodec.entropy.huffman``. The string contains the largest value in 8 bits,
the table of lengths of all values from 0 to it, then the codewords. It is empty without values.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import canonical
from .universal import Bits, Corrupt, fixed


def encode(values: Sequence[int]) -> str:
    """Return the bits of values."""
    if not values:
        return ""
    counts = [0] * (max(values) + 1)
    for value in values:
        counts[value] += 1
    lengths = canonical.lengths_of(counts)
    words = canonical.words(lengths)
    return (
        fixed(max(values), 8)
        + canonical.table(lengths)
        + "".join(words[value] for value in values)
    )


def decode(bits: Bits, count: int) -> list[int]:
    """Read values from the position of ``bits``."""
    if not count:
        return []
    lengths = canonical.read_table(bits, bits.number(8) + 1)
    if lengths[-1] == 0:
        raise Corrupt("a largest value that has no word")
    words = canonical.words(lengths)
    return [canonical.read_word(bits, words) for _ in range(count)]
