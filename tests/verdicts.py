"""What reading one word of a universal code must answer, whatever the bits."""

from __future__ import annotations

from collections.abc import Callable

from reference import universal

Reader = Callable[[universal.Bits], int]
Kind = type[universal.Truncated] | type[universal.Corrupt]

# Bits that complete the beginning of a word, if any do: the first one behind a run of zeros, and
# the least of numbers.
_TAILS = ("0" * 300, "1" + "0" * 300)


def verdict(read: Reader, text: str, at: int = 0) -> tuple[int, int] | Kind:
    """Read a word: its value and the bit behind it, or what is wrong.

    It is truncated where some bits more would make it a word, else corrupt. A reader that takes
    one field after another calls more of them truncated.
    """
    actual = _tried(read, text, at)
    if actual is universal.Truncated:
        hopes = [_tried(read, text + tail, at) for tail in _TAILS]
        if not any(isinstance(hope, tuple) for hope in hopes):
            return universal.Corrupt
    return actual


def _tried(read: Reader, text: str, at: int) -> tuple[int, int] | Kind:
    bits = universal.Bits(text, at)
    try:
        return read(bits), bits.at
    except universal.Truncated:
        return universal.Truncated
    except universal.Corrupt:
        return universal.Corrupt
