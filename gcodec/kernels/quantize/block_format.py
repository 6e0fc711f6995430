"""Formats whose elements are a few bits wide and share a scale in each block of 16 or 32.

In an MX format, the scale of 32 elements is a power of two, whose byte s stands for 2^(s − 127),
and 255 for NaN. In NVFP4, the scale of 16 elements is an ``e4m3`` number, times a float32 for the
tensor. Elements are floats with a sign, named by their bits of exponent and mantissa, or
multiples of 1/64 in two's complement.

Sources: OCP Microscaling Formats (MX) Specification 1.0, for the MX formats, and section 5.3 for
``mxint8``; pytorch/ao 0.18, ``torchao/prototype/mx_formats``, for all that the encoder chooses.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

RULES = ("floor", "rceil", "ceil", "even")
LEAST_TENSOR_SCALE = 2.0**-120
"""The reciprocal of a smaller scale of a tensor might overflow float32."""
MOST_TENSOR_SCALE = 1e35
"""448·6 times a larger scale of a tensor might overflow float32."""

MANTISSA = 23  # bits of the mantissa of a float32
_NAN = np.array(0x7FC00000, np.uint32).view(np.float32)


class BlockFormat(NamedTuple):
    """Elements and blocks of a format.

    Attributes
    ----------
    name : str
        One of `FORMATS`.
    block : int
        Number of elements that share a scale.
    width : int
        Bits of an element.
    exponent, mantissa : int
        Bits of the exponent and the mantissa of an element; for ``mxint8`` 0 and the bits after
        the binary point.
    bias : int
        Bias of the exponent.
    top : int
        The largest code of a magnitude that the encoder writes.
    nan_code : int
        The code of NaN in a block whose scale is NaN.
    """

    name: str
    block: int
    width: int
    exponent: int
    mantissa: int
    bias: int
    top: int
    nan_code: int

    @classmethod
    def of(cls, name: str) -> BlockFormat:
        """Return the format with a name."""
        return _BY_NAME[name]

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers."""
        return not self.exponent

    @property
    def is_two_level(self) -> bool:
        """Whether scales of blocks are multiplied by a scale of the tensor."""
        return self.block == 16

    @property
    def per_byte(self) -> int:
        """Number of elements in a byte."""
        return 8 // self.width if self.width <= 4 else 1

    @property
    def largest_exponent(self) -> int:
        """Exponent of the largest magnitude."""
        return 0 if self.is_integer else (self.top >> self.mantissa) - self.bias

    @property
    def largest(self) -> np.float32:
        """The largest magnitude that the encoder writes."""
        return self.values()[self.top]

    def blocks(self, n: int) -> int:
        """Return the number of blocks of n elements, the last of which may be shorter."""
        return -(-n // self.block)

    def data_nbytes(self, n: int) -> int:
        """Return the bytes of n elements."""
        return -(-n // self.per_byte)

    @property
    def nan_scale(self) -> int:
        """The byte of a scale that is NaN."""
        return 0x7F if self.is_two_level else 0xFF

    def values(self) -> np.ndarray:
        """Return the number of each code, as (2**width,) float32 that nobody may change."""
        return _values(self)

    def scales(self, tensor_scale: float) -> np.ndarray:
        """Return the factor that each byte of a scale stands for, as (256,) float32."""
        if not self.is_two_level:
            return _powers()
        with np.errstate(over="ignore"):
            products = _BY_NAME["mxfp8e4m3"].values() * np.float32(tensor_scale)
        products[np.isnan(products)] = _NAN
        return np.asarray(products)


@functools.cache
def _values(fmt: BlockFormat) -> np.ndarray:
    codes = np.arange(1 << fmt.width)
    if fmt.is_integer:
        integers = codes.astype(np.uint8).view(np.int8).astype(np.float32)
        return _frozen(integers / np.float32(1 << fmt.mantissa))
    magnitudes = codes & (1 << fmt.width - 1) - 1
    exponents, fractions = np.divmod(magnitudes, 1 << fmt.mantissa)
    is_normal = exponents > 0
    digits = fractions + np.where(is_normal, 1 << fmt.mantissa, 0)
    powers = np.maximum(exponents, 1) - fmt.bias - fmt.mantissa
    values = np.ldexp(digits.astype(np.float32), powers)
    values = np.where(codes >> fmt.width - 1, -values, values).astype(np.float32)
    if fmt.name == "mxfp8e4m3":
        values[magnitudes == 0x7F] = _NAN
    elif fmt.name == "mxfp8e5m2":
        values[magnitudes == 0x7C] *= np.float32(np.inf)
        values[magnitudes > 0x7C] = _NAN
    return _frozen(values)


@functools.cache
def _powers() -> np.ndarray:
    factors = np.ldexp(np.float32(1), np.minimum(np.arange(256), 254) - 127)
    factors[0xFF] = _NAN
    return _frozen(factors)


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


_BY_NAME = {
    fmt.name: fmt
    for fmt in (
        BlockFormat("mxfp8e4m3", 32, 8, 4, 3, 7, 0x7E, 0x7F),
        BlockFormat("mxfp8e5m2", 32, 8, 5, 2, 15, 0x7B, 0x7F),
        BlockFormat("mxfp6e2m3", 32, 6, 2, 3, 1, 0x1F, 0x0C),
        BlockFormat("mxfp6e3m2", 32, 6, 3, 2, 3, 0x1F, 0x0E),
        BlockFormat("mxfp4", 32, 4, 2, 1, 1, 0x07, 0x03),
        BlockFormat("mxint8", 32, 8, 0, 6, 0, 0x7F, 0x00),
        BlockFormat("nvfp4", 16, 4, 2, 1, 1, 0x07, 0x04),
    )
}
FORMATS = tuple(_BY_NAME)
BLOCK_SIZES = 16, 32  # of NVFP4 and of MX formats


class ScaleRule(NamedTuple):
    """How the byte of a power of two follows from the largest magnitude of a block.

    With d the bits of the float32 quotient of the magnitude and `divisor`, and e its exponent, the
    byte s is ``d + adds[e] >> 23``, but at least 0. Elements are multiplied by 2^(127 − s), or by
    `least` if s is 0.

    Attributes
    ----------
    divisor : float32
    adds : (256,) int32 array
    least : float32
    """

    divisor: np.float32
    adds: np.ndarray
    least: np.float32

    @property
    def is_uniform(self) -> bool:
        """Whether the divisor is 1 and `adds` has one value."""
        return self.divisor == 1 and bool((self.adds == self.adds[0]).all())

    @classmethod
    @functools.cache
    def of(cls, name: str, fmt: BlockFormat) -> ScaleRule:
        """Return the rule of a format that is called ``floor``, ``rceil``, ``ceil`` or ``even``.

        Parameters
        ----------
        name : str
        fmt : BlockFormat
        """
        round_up = (1 << MANTISSA) - 1
        if name == "rceil":
            return cls(fmt.largest, round_up - _rounded_down(), np.float32(1))
        half = 1 << MANTISSA - fmt.mantissa - 1
        add = {"floor": 0, "ceil": round_up, "even": half}[name]
        adds = np.full(256, add - (fmt.largest_exponent << MANTISSA), np.int32)
        # The encoder divides by 2^-126, though the byte 0 stands for 2^-127.
        return cls(np.float32(1), adds, np.float32(2.0**126))


@functools.cache
def _rounded_down() -> np.ndarray:
    """Return the largest d above a power of two whose logarithm rounds to that of the power.

    The original computes ``ceil(log2(d))`` in float32. For d = 2^k·(1 + m/2^23), the logarithm
    is rounded to k if log2(1 + m/2^23) is at most half the distance of k to the next float32. The
    result contains m for each biased exponent; for 0, it contains the bits, and k is −127.
    """
    powers = np.arange(256) - 127
    powers[0] = -127
    with np.errstate(under="ignore"):  # the next number after 0
        above = np.nextafter(powers.astype(np.float32), np.float32(np.inf)).astype(np.float64)
    halves = (above - powers) / 2
    halves[127] = 0  # the logarithm of a number next to 1 is next to 0
    bits = (halves * (math.log(2) * 2.0**MANTISSA)).astype(np.int32)
    bits[0] = (1 << MANTISSA - 1) + bits[0] // 2
    return bits
