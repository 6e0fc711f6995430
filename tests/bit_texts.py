"""Strings of 0 and 1 as arrays of bytes, and back."""

from __future__ import annotations

import numpy as np
from reference import universal


def text_of(data: bytes | np.ndarray, nbits: int) -> str:
    """Return bits, and check that zeros fill their last byte and no byte follows."""
    return universal.payload_bits(bytes(data), nbits).text


def bytes_of(text: str, following: bytes = b"") -> np.ndarray:
    """Return the bytes of bits, and others after them."""
    return np.frombuffer(universal.to_bytes(text) + following, np.uint8)
