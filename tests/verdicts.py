"""The required result of reading one word of a universal code from arbitrary bits."""

from __future__ import annotations

from collections.abc import Callable

from reference import universal

Reader = Callable[[universal.Bits], int]
Kind = type[universal.Truncated] | type[universal.Corrupt]

# Suffixes that may complete a truncated word: one that starts with the first 1 after a run of
# zeros, and the smallest numbers.
_TAILS = ("0" * 300, "1" + "0" * 300)


def verdict(read: Reader, text: str, at: int = 0) -> tuple[int, int] | Kind:
    """Read a word; return its value and the following bit position, or the error.

    The word is truncated if more bits could complete it, otherwise corrupt. A reader that reads
    individual fields may call more words truncated.
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
