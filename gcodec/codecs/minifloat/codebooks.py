"""Static codebooks of minifloats: how often each code occurs, agreed on beforehand.

A codebook is what the quantiser makes of a generalised normal distribution at a scale. Its number
is part of the wire format, and so are its counts: they are integers, kept in ``codebooks.txt``,
which ``tools/gennorm_tables.py`` makes. Numbers are never given anew; new ones are added behind.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.quantize.float_format import MiniFloat

TOTAL = 1 << 14
"""Sum of the counts of a codebook."""


def number_of(fmt: MiniFloat) -> int:
    """Return how many codebooks a format has: their numbers are from 0 up to one below it."""
    return len(_books(fmt))


def counts(fmt: MiniFloat, number: int) -> np.ndarray:
    """Return a codebook.

    Returns
    -------
    (2**width,) int64 array
        By code; the same for both signs. Valid codes occur at least once, the others never, and
        all together `TOTAL` times. The array must not be changed.

    Raises
    ------
    Corrupt
        Where there is no codebook of this number.
    """
    if not 0 <= number < number_of(fmt):
        raise Corrupt(f"codebook {number} of {fmt.format} {fmt.style} is unknown")
    return _counts(fmt, number)


@functools.cache
def _counts(fmt: MiniFloat, number: int) -> np.ndarray:
    # Of code 0, halved, and of the other magnitudes with one sign.
    half = np.array(_books(fmt)[number].split()[2:], np.int64)
    made = np.zeros(1 << fmt.width, np.int64)
    made[: half.size] = half
    made[1 << fmt.width - 1 :][: half.size] = half
    made[0], made[1 << fmt.width - 1] = 2 * half[0], 0
    made.flags.writeable = False
    return made


@functools.cache
def _books(fmt: MiniFloat) -> list[str]:
    """Lines of a format: shape, octaves of the scale above that of the tables, and counts."""
    lines = Path(__file__).with_name("codebooks.txt").read_text("ascii").splitlines()
    start = f"{fmt.format} {fmt.style} "
    return [line[len(start) :] for line in lines if line.startswith(start)]
