"""The basis of dct8's transform, from series in decimal numbers.

Source: ``docs/wire-format.md``, dct8, decoding. This module needs no mathematical library: π is
Machin's formula, a cosine is its power series, and each result is rounded to binary32 as a
fraction of integers.
"""

from __future__ import annotations

import decimal
import functools
from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

DIGITS = 60
DIRECT = 256  # up to so many points each entry is rounded once
STEP = 64
CONTEXT = decimal.Context(prec=DIGITS)
ONE = Decimal(1)


def nearest(x: Fraction) -> np.float32:
    """Return the binary32 nearest to a fraction, ties to even."""
    if x == 0:
        return np.float32(0)
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    if abs(x) < Fraction(2) ** e:
        e -= 1
    unit = Fraction(2) ** max(e - 23, -149)
    return np.float32(float(round(x / unit) * unit))  # of 24 bits: exact


def of_decimal(x: Decimal) -> np.float32:
    """Return the nearest binary32; a value within the error of 60 digits counts as 0."""
    return nearest(Fraction(0) if abs(x) < Decimal("1e-50") else Fraction(x))


def _arctan(divisor: int) -> Decimal:
    """Return arctan(1 / divisor)."""
    power = total = CONTEXT.divide(ONE, Decimal(divisor))
    n = 1
    while abs(power) > Decimal(10) ** -(DIGITS + 3):
        power = CONTEXT.divide(-power, Decimal(divisor * divisor))
        n += 2
        total = CONTEXT.add(total, CONTEXT.divide(power, Decimal(n)))
    return total


@functools.cache
def pi() -> Decimal:
    """Return 16·arctan(1/5) − 4·arctan(1/239)."""
    a, b = _arctan(5), _arctan(239)
    return CONTEXT.subtract(CONTEXT.multiply(Decimal(16), a), CONTEXT.multiply(Decimal(4), b))


@functools.cache
def _quarter(n: int) -> tuple[Decimal, ...]:
    """Return cos(π·j / 2n) for j from 0 to n."""
    with decimal.localcontext(CONTEXT):
        out = []
        for j in range(n + 1):
            square = (pi() * j / (2 * n)) ** 2
            term = total = ONE
            i = 0
            while abs(term) > Decimal(10) ** -(DIGITS - 5):
                i += 2
                term = -term * square / (i * (i - 1))
                total += term
            out.append(total)
        return tuple(out)


def cosine(j: int, n: int) -> Decimal:
    """Return cos(π·j / 2n)."""
    j %= 4 * n
    j = min(j, 4 * n - j)
    return _quarter(n)[j] if j <= n else -_quarter(n)[2 * n - j]


@functools.cache
def exact(u: int, i: int, n: int) -> Decimal:
    """Return an entry of the orthonormal basis, to about 55 digits."""
    with decimal.localcontext(CONTEXT):
        if u == 0:
            return (ONE / n).sqrt()
        return (Decimal(2) / n).sqrt() * cosine((2 * i + 1) * u, n)


@functools.cache
def _rounded(n: int, scaled: bool) -> Floats:
    """Return cos(π·j / 2n), scaled by √(2/n) if asked, for j from 0 to 4n − 1 in binary32."""
    with decimal.localcontext(CONTEXT):
        factor = (Decimal(2) / n).sqrt() if scaled else ONE
        quarter = [of_decimal(factor * value) for value in _quarter(n)]
    half = quarter + [np.float32(-value) for value in quarter[-2::-1]]
    return np.array(half + half[-2:0:-1], np.float32)


@functools.cache
def row(u: int, n: int) -> Floats:
    """Return D_n(u, ·); numpy rounds each operation."""
    i = np.arange(n)
    if u == 0:
        return np.full(n, of_decimal(exact(0, 0, n)))
    scaled = _rounded(n, scaled=True)
    if n <= DIRECT:
        return scaled[(2 * i + 1) * u % (4 * n)]
    plain = _rounded(n, scaled=False)
    alpha, beta = 2 * STEP * (i // STEP) * u, (2 * (i % STEP) + 1) * u
    # A sine is the cosine of the difference to a right angle.
    a, b = scaled[alpha % (4 * n)], scaled[(alpha - n) % (4 * n)]
    c, s = plain[beta % (4 * n)], plain[(beta - n) % (4 * n)]
    return a * c - b * s
