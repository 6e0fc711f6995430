"""Static codebooks of minifloats: frequencies of the codes that encoder and decoder both know.

A codebook contains the frequencies that result from quantizing a generalized normal distribution
at some scale. Its number and its integer counts are part of the wire format. They are stored in
``codebooks.txt``, which ``tools/gennorm_tables.py`` writes. Numbers are never reassigned; new
codebooks are appended.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.quantize.float_format import MiniFloat

TOTAL = 1 << 14
"""Sum of the counts of each codebook."""


def number_of(fmt: MiniFloat) -> int:
    """Return the number of codebooks of a format, which are numbered from 0."""
    return len(_books(fmt))


@functools.cache
def counts(fmt: MiniFloat, number: int) -> np.ndarray:
    """Return a codebook.

    Returns
    -------
    (2**width,) int64 array
        Count of each code, equal for both signs. Valid codes have a count of at least 1, others
        0, and the sum is `TOTAL`. The array is read-only.

    Raises
    ------
    Corrupt
        If no codebook has this number.
    """
    if not 0 <= number < number_of(fmt):
        raise Corrupt(f"codebook {number} of {fmt.format} {fmt.style} is unknown")
    # Half the count of code 0, and the counts of the other magnitudes with one sign.
    half = np.array(_books(fmt)[number].split()[2:], np.int64)
    book = np.zeros(1 << fmt.width, np.int64)
    book[: half.size] = half
    book[1 << fmt.width - 1 :][: half.size] = half
    book[0], book[1 << fmt.width - 1] = 2 * half[0], 0
    book.flags.writeable = False
    return book


@functools.cache
def _books(fmt: MiniFloat) -> list[str]:
    """Return the lines of a format: β, octaves above the scale of the tables, and counts."""
    lines = Path(__file__).with_name("codebooks.txt").read_text("ascii").splitlines()
    start = f"{fmt.format} {fmt.style} "
    return [line[len(start) :] for line in lines if line.startswith(start)]
