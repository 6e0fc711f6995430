"""The byte planes of a tensor, and the elements that are left out of all planes but the first.

The first plane of a float contains its exponent; see `gcodec.kernels.bits.byte_planes`. The planes
of integers are their bytes, the most significant one first.

A tensor may leave out its zeros: elements whose bits are all 0. Only the first plane then contains
them, as bytes of 0. The byte of other elements whose byte of the first plane is 0, such as −0, is
replaced by an escape byte that no other element has.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gcodec.entropy.context.scale_model import Scales
from gcodec.errors import Corrupt
from gcodec.kernels.bits import byte_planes
from gcodec.kernels.bits.byte_planes import GROUP
from gcodec.kernels.context.byte_scales import (
    count_runs,
    join_planes,
    raise_again,
    take_runs,
)
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.wire.primitives import FLOATS, ITEMSIZE

TILE = 1 << 15  # elements whose planes stay in a cache
LARGE_TILE = 1 << 17  # the same for a few bytes of each, so that calls cost less
ALL = 1 << 62  # more elements than any tensor has


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
        starts = np.zeros(self.counts.size + 1, np.int64)
        np.cumsum(self.counts, out=starts[1:])
        return starts

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
    first, last = zeros.starts[[groups.start, groups.stop]].tolist()
    return Zeros(zeros.escape, zeros.counts[groups]), slice(first, last)


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

    def take_others(
        self, bits: np.ndarray, out: np.ndarray, stride: int, zeros: Zeros | None = None
    ) -> None:
        """Write the other planes to uint8 `out`, the k-th at (k − 1)·stride, on this thread.

        They leave out the zeros of floats, if `zeros` says so.
        """
        if self.is_float:
            byte_planes.take_others(bits, out, stride, None if zeros is None else zeros.counts)
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
        zeros: Zeros | None = None,
        *,
        streaming: bool = False,
    ) -> None:
        """Write the (n,) bit patterns of planes, on this thread; see `take_others`.

        `scales` are those whose octaves were subtracted from the first plane, and `start` is the
        first element. With `streaming`, no cache holds the bits of floats.

        Raises
        ------
        Corrupt
            If a group does not have as many zeros as its count indicates.
        """
        arrays = None if scales is None else scales.arrays
        if self.is_float:
            coded, escape = (None, 0) if zeros is None else (zeros.counts, zeros.escape)
            planes = first, others, stride, out, arrays, self.unit, start
            wrong = join_planes(*planes, coded=coded, escape=escape, streaming=streaming)
            if wrong is not None:
                raise _wrong_count(start // GROUP + wrong)
            return
        if arrays is not None:
            first = raise_again(first, arrays, self.unit, start)
        if zeros is not None:
            is_coded = first != 0
            counts = np.add.reduceat(is_coded, np.arange(0, first.size, GROUP), dtype=np.uint16)
            if (counts != zeros.counts).any():
                raise _wrong_count(start // GROUP + int(np.argmax(counts != zeros.counts)))
            spread = np.zeros((self.itemsize - 1, first.size), np.uint8)
            for k, plane in enumerate(spread):
                plane[is_coded] = others[k * stride : k * stride + zeros.coded]
            first = np.where(first == zeros.escape, np.uint8(0), first)
            others, stride = spread.reshape(-1), first.size
        each = self._bytes(out)
        each[:, -1] = first
        for k in range(1, self.itemsize):
            each[:, -1 - k] = others[(k - 1) * stride : (k - 1) * stride + out.size]

    def _bytes(self, bits: np.ndarray) -> np.ndarray:
        return bits.view(np.uint8).reshape(bits.size, self.itemsize)


def _wrong_count(group: int) -> Corrupt:
    return Corrupt(f"group {group} does not have as many zeros as the head says")
