"""The orthonormal DCT-II as binary32 numbers that no library of mathematics decides.

Entry (u, i) of the basis of N points is c(u)·cos(π·(2i + 1)·u / 2N), c(0) = √(1/N), else √(2/N),
rounded once to binary32. Cosines and roots are taken in integers of so many bits that the rounding
is certain. All entries of a basis are, up to their signs, √(1/N) and √(2/N)·cos(π·m/2N) for m up
to N.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from gcodec.kernels.dct_inverse import TABLED

MOST_POINTS = 4096

_NBITS = 192  # of a fraction
_ONE = 1 << _NBITS
_PI = 0x3243F6A8885A308D313198A2E03707344A4093822299F31D0082EFA98EC4E6C89 >> 256 - _NBITS


@functools.lru_cache(maxsize=32)
def basis(n: int) -> np.ndarray:
    """Return the (n, n) float32 basis: a row for each frequency."""
    period = waves(n)
    at = np.arange(1, 2 * n, 2)
    rows: np.ndarray = period[1:][np.arange(n)[:, None] * at % (4 * n)]
    rows[0] = period[0]
    rows.flags.writeable = False
    return rows


@functools.lru_cache(maxsize=32)
def waves(n: int) -> np.ndarray:
    """Return √(1/n), and √(2/n)·cos(π·m/2n) for m from 0 to 4n − 1, as (4n + 1,) float32.

    Entry (u, i) of the basis is that of m = (2i + 1)·u mod 4n, or for u = 0 the first.
    """
    root = math.isqrt(2 * _ONE * _ONE // n)
    quarter = [_rounded(root * cosine) for cosine in _cosines(n)]
    half = np.array(quarter, np.float32)
    half = np.concatenate([half, -half[n - 1 :: -1]])  # m up to 2n
    first = _rounded(math.isqrt(_ONE * _ONE // n) << _NBITS)
    period = np.concatenate([[np.float32(first)], half, half[2 * n - 1 : 0 : -1]])
    period.flags.writeable = False
    return period


def table(n: int) -> np.ndarray:
    """Return the basis as kernels take it: flat up to `TABLED` points, of more its waves."""
    return basis(n).reshape(-1) if n <= TABLED else waves(n)


def _cosines(n: int) -> list[int]:
    """Return cos(π·m/2n) for m = 0 … n in units of 2^-192, to about 170 bits."""
    step = _PI // (2 * n)
    cosine, sine = _series(step, 0), _series(step, 1)
    found, x, y = [_ONE], _ONE, 0
    for _ in range(n - 1):
        x, y = (x * cosine - y * sine) >> _NBITS, (x * sine + y * cosine) >> _NBITS
        found.append(x)
    return [*found, 0]


def _series(angle: int, first: int) -> int:
    """Return the cosine (first = 0) or sine (1) of an angle, by their power series."""
    square = angle * angle >> _NBITS
    term = angle if first else _ONE
    total, k = 0, first
    while term:
        total += term
        k += 2
        term = -(term * square >> _NBITS) // (k * (k - 1))
        if term == -1:  # what is left of a negative term, floored
            break
    return total


def _rounded(value: int) -> float:
    """Round a multiple of 2^-384 to binary32; it is no tie, and no subnormal."""
    shift = value.bit_length() - 24
    if shift <= 0:
        return math.ldexp(value, -2 * _NBITS)
    return math.ldexp((value + (1 << shift - 1)) >> shift, shift - 2 * _NBITS)
