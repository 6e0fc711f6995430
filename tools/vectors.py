"""Lines of the recordings in ``tests/golden/upstream``, for the programs that write them."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTH = 92  # hexadecimal digits in a line


def hexadecimal(label: str, array: Any) -> None:
    """Print a label and an array as bytes or big-endian words, in lines."""
    words = np.ascontiguousarray(array).reshape(-1)
    digits = words.astype(words.dtype.newbyteorder(">")).tobytes().hex()
    lines = (digits[i : i + WIDTH] for i in range(0, len(digits), WIDTH))
    print(f"{label} " + "\n  ".join(lines))
