"""The byte planes of a tensor, and the elements that are left out of all planes but the first.

The first plane of a float contains its exponent; see `gcodec.kernels.bits.byte_planes`. Of
bfloat16 and float32 below 2, it may also contain the first bit of the mantissa. The only plane of
floats of 8 bits contains exponent, mantissa and sign, in this order. The planes of integers are
their bytes, the most significant one first.

A tensor may leave out its zeros: elements whose bits are all 0. Only the first plane then contains
them, as bytes of 0. The byte of other elements whose byte of the first plane is 0, such as −0, is
replaced by an escape byte that no other element has.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gcodec.arrays.bit_patterns import bits_dtype
from gcodec.entropy.context.scale_model import Scales
from gcodec.kernels.bits import byte_planes
from gcodec.kernels.bits.byte_planes import FLOAT_SHIFTS, GROUP, MANTISSA_SHIFTS
from gcodec.kernels.bits.code_parts import changed
from gcodec.kernels.context.byte_scales import PlaneForm, join_planes
from gcodec.kernels.numeric.scan import starts_of
from gcodec.kernels.quantize.block_format import BlockFormat
from gcodec.wire.primitives import FLOATS, ITEMSIZE

TILE = 1 << 15  # elements whose planes stay in a cache
LARGE_TILE = 1 << 17  # the same for a few bytes of each, so that calls cost less
_plain_form = functools.cache(PlaneForm)
_FLOAT8_FORMATS = {
    "float8_e4m3fn": BlockFormat.of("mxfp8e4m3"),
    "float8_e5m2": BlockFormat.of("mxfp8e5m2"),
}


@dataclass(frozen=True, eq=False)
class Zeros:
    """How the zeros of a tensor are left out.

    Attributes
    ----------
    escape : int
        Byte of the first plane that stands for a 0 of other elements; 0 if there is none.
    counts : (ceil(n / 4096),) uint16 array
        Number of elements that are not zeros, of each group of 4096 elements.
    """

    escape: int
    counts: np.ndarray

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """Numbers of elements that are not left out before each group, and of all."""
        return starts_of(self.counts)

    @property
    def coded(self) -> int:
        """Number of elements that are not left out."""
        return int(self.starts[-1])


def part_of(zeros: Zeros | None, start: int, stop: int) -> tuple[Zeros | None, slice]:
    """Return how a range of whole groups leaves out zeros, and which coded elements it contains.

    All elements are coded if no zeros are left out.
    """
    if zeros is None:
        return None, slice(start, stop)
    groups = slice(start // GROUP, -(-stop // GROUP))
    coded = slice(int(zeros.starts[groups.start]), int(zeros.starts[groups.stop]))
    return Zeros(zeros.escape, zeros.counts[groups]), coded


class PlaneLayout(NamedTuple):
    """The planes of a dtype.

    Attributes
    ----------
    itemsize : int
        Bytes of an element, which is the number of planes.
    shift : int
        Lowest bit of the first plane.
    unit : int
        What the byte of the first plane grows by in an octave.
    float8 : BlockFormat or None
        Format of floats of 8 bits; None for other dtypes.
    """

    itemsize: int
    shift: int
    unit: int = 1
    float8: BlockFormat | None = None

    @classmethod
    @functools.cache
    def of(cls, dtype: str) -> PlaneLayout:
        """Return the layout of a dtype of frames."""
        itemsize, float8 = ITEMSIZE[dtype], _FLOAT8_FORMATS.get(dtype)
        if float8 is not None:
            return cls(itemsize, 0, 2 << float8.mantissa, float8)
        shift = FLOAT_SHIFTS[itemsize] if dtype in FLOATS else 8 * itemsize - 8
        return cls(itemsize, shift, 8 if dtype == "float16" else 1)

    @property
    def is_float(self) -> bool:
        """Whether the first plane contains exponents."""
        return self.float8 is not None or self.shift < 8 * self.itemsize - 8

    @property
    def may_have_mantissa_bit(self) -> bool:
        """Whether the first plane may contain a bit of the mantissa, but does not."""
        below = (self.itemsize, self.shift - 1) in MANTISSA_SHIFTS.items()
        return below and self.unit == 1

    @property
    def has_mantissa_bit(self) -> bool:
        """Whether the first plane contains a bit of the mantissa."""
        return (self.itemsize, self.shift) in MANTISSA_SHIFTS.items()

    def with_mantissa_bit(self) -> PlaneLayout:
        """Return the layout whose first plane contains a bit of the mantissa."""
        return self._replace(shift=MANTISSA_SHIFTS[self.itemsize], unit=2)

    def arranged(self, bits: np.ndarray) -> np.ndarray:
        """Return (n,) bit patterns with their bits in the order of the planes."""
        return bits if self.float8 is None else changed(bits.copy(), self.float8, "signs last")

    def restore(self, bits: np.ndarray) -> None:
        """Move the bits of (n,) patterns from the order of the planes to their own."""
        if self.float8 is not None:
            changed(bits, self.float8, "signs first")

    @property
    def bits_dtype(self) -> np.dtype[np.generic]:
        """Dtype of bit patterns."""
        return bits_dtype(self.itemsize)

    def form(self, scales: Scales | None = None, zeros: Zeros | None = None) -> PlaneForm:
        """Return what the bytes of the first plane are."""
        if scales is None and zeros is None:
            return _plain_form(self.shift, self.unit)
        escape, arrays = zeros.escape if zeros else 0, scales.arrays if scales else None
        return PlaneForm(self.shift, self.unit, escape, arrays)

    def take_others(
        self, bits: np.ndarray, out: np.ndarray, stride: int, zeros: Zeros | None = None
    ) -> None:
        """Write the other planes to uint8 `out`, the k-th at (k − 1)·stride, on this thread.

        They leave out the zeros of floats, if `zeros` says so.
        """
        byte_planes.take_others(bits, self.shift, out, stride, zeros.counts if zeros else None)

    def join(
        self,
        first: np.ndarray,
        others: np.ndarray,
        stride: int,
        out: np.ndarray,
        scales: Scales | None = None,
        start: int = 0,
        zeros: Zeros | None = None,
        *,
        streaming: bool = False,
    ) -> None:
        """Write the (n,) bit patterns of planes, on this thread; see `take_others`.

        `scales` are those whose octaves were subtracted from the first plane, and `start` is the
        first element. With `streaming`, no cache holds the bits.

        Raises
        ------
        Corrupt
            If a group does not have as many zeros as its count indicates.
        """
        form, coded = self.form(scales, zeros), zeros.counts if zeros else None
        planes = first, others, stride, out, form, start
        join_planes(*planes, coded=coded, streaming=streaming)
