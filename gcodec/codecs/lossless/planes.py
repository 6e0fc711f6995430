"""The byte planes of a tensor, and the elements that are left out of all planes but the first.

The first plane of a float contains its exponent; see `gcodec.kernels.bits.byte_planes`. The planes
of integers are their bytes, the most significant one first.

A tensor may leave out its zeros: elements whose bits are all 0. Only the first plane then contains
them, as bytes of 0. The byte of other elements whose byte of the first plane is 0, such as −0, is
replaced by an escape byte that no other element has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.entropy.context.scale_model import Scales
from gcodec.kernels.bits import byte_planes
from gcodec.kernels.context.byte_scales import count_runs, join_planes, take_runs
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.wire.primitives import FLOATS, ITEMSIZE

LOG2_GROUP = 12
GROUP = 1 << LOG2_GROUP  # elements whose number of elements that are not left out is stored
TILE = 1 << 15  # elements whose planes stay in a cache
LARGE_TILE = 1 << 17  # the same for a few bytes of each, so that calls cost less
ALL = 1 << 62  # more elements than any tensor has


class Zeros(NamedTuple):
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

    @property
    def coded(self) -> int:
        """Number of elements that are not left out."""
        return int(self.counts.sum(dtype=np.int64))

    def starts(self) -> np.ndarray:
        """Return the number of elements that are not left out before each group, and of all."""
        starts = np.zeros(self.counts.size + 1, np.int64)
        np.cumsum(self.counts, out=starts[1:])
        return starts


def coded_counts(is_coded: np.ndarray) -> np.ndarray:
    """Count the ones of each group of 4096 elements of a mask, as uint16."""
    whole = is_coded.size // GROUP * GROUP
    counts = np.empty(-(-is_coded.size // GROUP), np.uint16)
    is_coded[:whole].reshape(-1, GROUP).sum(1, out=counts[: whole // GROUP], dtype=np.uint16)
    if whole < is_coded.size:
        counts[-1] = np.count_nonzero(is_coded[whole:])
    return counts


class PlaneLayout(NamedTuple):
    """The planes of a dtype.

    Attributes
    ----------
    itemsize : int
        Bytes of an element, which is the number of planes.
    is_float : bool
    unit : int
        What the byte of the first plane of a float grows by in an octave.
    """

    itemsize: int
    is_float: bool
    unit: int = 1

    @classmethod
    def of(cls, dtype: str) -> PlaneLayout:
        """Return the layout of a dtype of frames."""
        return cls(ITEMSIZE[dtype], dtype in FLOATS, 8 if dtype == "float16" else 1)

    @property
    def bits_dtype(self) -> np.dtype[np.generic]:
        """Dtype of bit patterns."""
        return np.dtype(f"<u{self.itemsize}")

    def take_first(self, bits: np.ndarray, escape: int, out: np.ndarray) -> None:
        """Write the first plane of (n,) bit patterns to (n,) uint8 `out`, on this thread.

        `escape` is that of `Zeros`, and 0 for integers.
        """
        if self.is_float:
            byte_planes.take_first(bits, escape, out)
        else:
            out[:] = self._bytes(bits)[:, -1]

    def take_runs(
        self,
        bits: np.ndarray,
        escape: int,
        scales: Scales | None,
        start: int,
        out: np.ndarray,
        run: int = ALL,
        period: int = 0,
    ) -> None:
        """Write the first plane of runs of all bit patterns, on this thread.

        Parameters
        ----------
        bits, escape
            See `take_first`.
        scales : Scales or None
            Scales whose octaves are subtracted from the plane of a float.
        start : int
            The first element of the first run.
        out : (k,) uint8 array
        run, period : int
            Elements of a run, which is a multiple of 2^12, and from one run to the next. By
            default, there is one run.
        """
        if self.is_float:
            arrays = None if scales is None else scales.arrays
            take_runs(bits, escape, arrays, self.unit, start, run, period, out)
            return
        step = min(run, TILE)
        for at in range(0, out.size, step):
            place = start + at // run * period + at % run
            part = out[at : at + step]
            self.take_first(bits[place : place + part.size], escape, part)

    def count_runs(
        self,
        bits: np.ndarray,
        escape: int,
        scales: Scales | None,
        start: int,
        count: int,
        run: int,
        period: int,
    ) -> np.ndarray:
        """Return the (256,) counts of the `count` bytes that `take_runs` would write."""
        if self.is_float:
            arrays = None if scales is None else scales.arrays
            return count_runs(bits, escape, arrays, self.unit, start, count, run, period)
        counts = np.zeros(256, np.int64)
        room = np.empty(min(count, TILE), np.uint8)
        for first in range(0, count, TILE):
            part = room[: count - first]
            at = start + first // run * period + first % run
            self.take_runs(bits, escape, scales, at, part, run, period)
            counts += byte_counts(part)
        return counts

    def take_others(self, bits: np.ndarray, out: np.ndarray, stride: int) -> None:
        """Write the other planes to uint8 `out`, the k-th at (k − 1)·stride, on this thread."""
        if self.is_float:
            byte_planes.take_others(bits, out, stride)
            return
        for at in range(0, bits.size, TILE):
            each = self._bytes(bits[at : at + TILE])
            for k in range(1, self.itemsize):
                begin = (k - 1) * stride + at
                out[begin : begin + len(each)] = each[:, -1 - k]

    def join(
        self,
        first: np.ndarray,
        others: np.ndarray,
        stride: int,
        out: np.ndarray,
        scales: Scales | None = None,
        start: int = 0,
        *,
        streaming: bool = False,
    ) -> None:
        """Write the (n,) bit patterns of planes, on this thread; see `take_others`.

        `scales` are those whose octaves were subtracted from the first plane of a float, and
        `start` is the first element. With `streaming`, no cache holds the bits of floats.
        """
        if self.is_float:
            arrays = None if scales is None else scales.arrays
            join_planes(first, others, stride, out, arrays, self.unit, start, streaming=streaming)
            return
        each = self._bytes(out)
        each[:, -1] = first
        for k in range(1, self.itemsize):
            each[:, -1 - k] = others[(k - 1) * stride : (k - 1) * stride + out.size]

    def _bytes(self, bits: np.ndarray) -> np.ndarray:
        return bits.view(np.uint8).reshape(bits.size, self.itemsize)
