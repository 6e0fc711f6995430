"""The orthonormal DCT-II in binary32, independent of any mathematical library.

Entry (u, i) of the basis of n points is √(2/n)·cos(π·(2i + 1)·u / 2n), or √(1/n) for u = 0. Up to
256 points, it is rounded once to binary32. For more points, whose tables would be large, it is
computed from rounded numbers by cos(α + β) = cos α·cos β − sin α·sin β, with i = 64q + r, α =
π·64q·u/n and β = π·(2r + 1)·u / 2n, which causes three more roundings.

Cosines and roots are computed with integers of enough bits to make the rounding certain.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from gcodec.kernels.transform.dct_inverse import SHORT, TABLED
from gcodec.runtime.memory import aligned_empty

MOST_POINTS = 4096

_NBITS = 192  # bits of a fraction
_ONE = 1 << _NBITS
_PI = 0x3243F6A8885A308D313198A2E03707344A4093822299F31D0082EFA98EC4E6C89 >> 256 - _NBITS


@functools.lru_cache(maxsize=32)
def basis(n: int) -> np.ndarray:
    """Return the (n, n) float32 basis, with a row for each frequency."""
    rows: np.ndarray
    if n > TABLED:
        near, far = np.split(_factors(n), [2 * SHORT], axis=1)
        (cos_near, sin_near), (cos_far, sin_far) = (
            np.split(part, 2, axis=1) for part in (near, far)
        )
        rows = cos_far[:, :, None] * cos_near[:, None] - sin_far[:, :, None] * sin_near[:, None]
        rows = rows.reshape(n, -1)[:, :n]
    else:
        scaled, _ = waves(n)
        u, i = np.arange(n)[:, None], np.arange(n)
        rows = scaled[(2 * i + 1) * u % (4 * n)]
        rows[0] = _first(n)
    rows.flags.writeable = False
    return rows


@functools.lru_cache(maxsize=8)
def _factors(n: int) -> np.ndarray:
    """Return the factors of the entries of a basis of more than `TABLED` points.

    Returns
    -------
    (n, 2·64 + 2·ceil(n / 64)) float32 array
        For each u: cos β and sin β for r below 64; √(2/n)·cos α and √(2/n)·sin α for each q. For u
        = 0, the factors yield √(1/n) for all entries.
    """
    scaled, plain = waves(n)
    u = np.arange(n)[:, None]
    near, far = (2 * np.arange(SHORT) + 1) * u, 2 * SHORT * np.arange(-(-n // SHORT)) * u
    parts = [
        wave[(at - shift) % (4 * n)]
        for wave, at in ((plain, near), (scaled, far))
        for shift in (0, n)
    ]
    parts[2][0] = _first(n)
    factors = aligned_empty(sum(part.size for part in parts), np.float32).reshape(n, -1)
    return np.concatenate(parts, axis=1, out=factors)


@functools.lru_cache(maxsize=32)
def waves(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return √(2/n)·cos(π·m/2n) and cos(π·m/2n) for m from 0 to 4n − 1, as float32.

    The sine for m is the cosine for m − n.
    """
    root, cosines = math.isqrt(2 * _ONE * _ONE // n), _cosines(n)
    scaled, plain = ([_rounded(cosine * factor) for cosine in cosines] for factor in (root, _ONE))
    return _period(scaled), _period(plain)


def _first(n: int) -> np.float32:
    """Return √(1/n)."""
    return np.float32(_rounded(math.isqrt(_ONE * _ONE // n) * _ONE))


def _period(quarter: list[float]) -> np.ndarray:
    """Return a period of a cosine, given its first quarter, up to and including 0."""
    falling = np.array(quarter, np.float32)
    half = np.concatenate([falling, -falling[-2::-1]])
    return np.concatenate([half, half[-2:0:-1]])


def table(n: int) -> np.ndarray:
    """Return the basis, or its factors for more than `TABLED` points, as a flat array."""
    return (basis if n <= TABLED else _factors)(n).reshape(-1)


def _cosines(n: int) -> list[int]:
    """Return cos(π·m/2n) for m = 0 … n in units of 2^-192, accurate to about 170 bits."""
    step = _PI // (2 * n)
    cosine, sine = _series(step, 0), _series(step, 1)
    cosines, x, y = [_ONE], _ONE, 0
    for _ in range(n - 1):
        x, y = (x * cosine - y * sine) >> _NBITS, (x * sine + y * cosine) >> _NBITS
        cosines.append(x)
    return [*cosines, 0]


def _series(angle: int, first: int) -> int:
    """Return the cosine (first = 0) or sine (first = 1) of an angle from its power series."""
    square = angle * angle >> _NBITS
    term = angle if first else _ONE
    total, k = 0, first
    while term:
        total += term
        k += 2
        term = -(term * square >> _NBITS) // (k * (k - 1))
        if term == -1:  # the floor of a negative term
            break
    return total


def _rounded(value: int) -> float:
    """Round a multiple of 2^-384 to binary32; it must be neither a tie nor subnormal."""
    shift = value.bit_length() - 24
    if shift <= 0:
        return math.ldexp(value, -2 * _NBITS)
    return math.ldexp((value + (1 << shift - 1)) >> shift, shift - 2 * _NBITS)
