"""Formats of minifloats: a sign, a few bits of exponent, a few bits of mantissa.

A format is named by its bits: ``e2m1`` has two bits of exponent and one of mantissa. With e = j >>
M and m = j mod 2^M, code j stands for the magnitude (1 + m/2^M)·2^e, or 2·m/2^M if e is 0, so that
0 has a code. A style may exclude codes at the end, which other systems use for infinity and NaN:
``full`` excludes none, ``ieee`` those of the largest exponent, ``fn`` the last one.

>>> from gcodec.kernels.quantize.float_format import MiniFloat
>>> MiniFloat("e2m1", "ieee").magnitudes()
array([0., 1., 2., 3., 4., 6.], dtype=float32)

Sources: OCP 8-bit Floating Point Specification 1.0 (``e4m3`` with ``fn``, ``e5m2`` with ``ieee``;
all magnitudes are 2^7 and 2^15 times as large here); Chen et al., "Convert, compress, correct",
arXiv 2203.09044 (``e2m1`` with ``ieee``).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from gcodec.kernels.quantize.block_format import MANTISSA, BlockFormat

FORMATS = ("e2m1", "e1m1", "e1m2", "e3m0", "e2m2", "e3m2", "e4m3", "e5m2")
STYLES = ("full", "ieee", "fn")


class MiniFloat(NamedTuple):
    """A format, and the codes that it excludes.

    Attributes
    ----------
    format : str
        One of `FORMATS`.
    style : str
        One of `STYLES`.
    """

    format: str
    style: str = "full"

    @property
    def exponent(self) -> int:
        """Bits of the exponent."""
        return int(self.format[1])

    @property
    def mantissa(self) -> int:
        """Bits of the mantissa."""
        return int(self.format[3])

    @property
    def width(self) -> int:
        """Bits of a value, sign included."""
        return 1 + int(self.format[1]) + int(self.format[3])

    @property
    def top(self) -> int:
        """Last valid code of a magnitude."""
        excluded = {"full": 0, "ieee": 1 << self.mantissa, "fn": 1}[self.style]
        return (1 << self.width - 1) - 1 - excluded

    @property
    def elements(self) -> BlockFormat:
        """The same codes and magnitudes as elements of blocks, with a bias of 0."""
        shape = self.width, self.exponent, self.mantissa
        return BlockFormat(self.format, 0, *shape, bias=0, top=self.top, nan_code=0)

    def magnitudes(self) -> np.ndarray:
        """Return the magnitudes of all codes, increasing, as read-only (top + 1,) float32."""
        return _magnitudes(self)


@functools.cache
def _magnitudes(fmt: MiniFloat) -> np.ndarray:
    return fmt.elements.values()[: fmt.top + 1]


def nearest_codes(sizes: np.ndarray, mantissa: int, least: int) -> np.ndarray:
    """Return the codes of the magnitudes nearest to numbers, without a kernel; ties are to even.

    Adding 2^(e + 23 − M) to a number with the exponent e rounds it to M bits after the first. What
    the codes of smaller exponents take is added before, so that a tie goes to the even code.

    Parameters
    ----------
    sizes : (n,) float32 array
        Not negative, and at most the magnitude of the last code.
    mantissa : int
        Bits of the mantissa, M.
    least : int
        Exponent of the smallest number with a leading one.

    Returns
    -------
    (n,) int32 array
    """
    cut, floor = np.int32(MANTISSA - mantissa), np.int32(127 + least << MANTISSA)
    powers = np.maximum(sizes.view(np.int32) & np.int32(0xFF << MANTISSA), floor)
    far = powers + (cut << MANTISSA)
    moved = sizes + (far + (powers - floor >> cut)).view(np.float32)
    return moved.view(np.int32) - far
