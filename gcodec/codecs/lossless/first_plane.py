"""The first plane of a tensor: its bytes, their counts, and samples; and clusters of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gcodec.arrays.bit_patterns import bits_of
from gcodec.arrays.source import inspect
from gcodec.codecs.lossless.planes import TILE, PlaneLayout, Zeros
from gcodec.entropy.context.byte_scales import Sample
from gcodec.entropy.context.scale_model import Scales, row_layouts, sampled_rows
from gcodec.entropy.ranged import bytes_range
from gcodec.entropy.rans import entropy_nbits, log2_table
from gcodec.kernels.context.byte_scales import PlaneForm, count_runs, take_runs
from gcodec.kernels.numeric import byte_clusters
from gcodec.kernels.numeric.byte_counts import estimated_counts
from gcodec.runtime import pool
from gcodec.runtime.device import device_of, host
from gcodec.runtime.memory import empty_beside

LEAST_ESTIMATED = 1 << 17  # bytes whose counts may be estimated by those of a sample
SAMPLE = 1 << 16  # elements from which the scales of rows and columns are estimated

_LEAST_COUNTED = 1 << 16  # bytes of a sample of runs
_LEAST_SAMPLED = 1 << 11  # bytes of a sample from which counts are estimated
_RUN = 1 << 12  # neighboring bytes of a sample
_MOST_RUNS = 16  # runs of all bytes for each run of a sample
_ALL = 1 << 62  # more elements than any tensor has
_BELOW, _ABOVE = 4, 1  # how far a byte may be below and above those of a sample of all bytes
_CLUSTERED = 1 << 11  # elements sampled from a tensor to find its cluster
# Estimated bits for which a further frame is worth its time. Scales of rows save some of them too.
_LEAST_SAVING, _LEAST_SAVING_FAST = 160_000, 480_000
_SPARSE = 4  # a sample of rows skips at least three of four rows, or one of two in mode=fast


class FirstPlane(NamedTuple):
    """The first plane of a tensor.

    Attributes
    ----------
    bits : (n,) unsigned array
        Bit patterns.
    layout : PlaneLayout
    zeros : Zeros or None
    scales : Scales or None
        Scales whose octaves are subtracted from the plane.
    """

    bits: np.ndarray
    layout: PlaneLayout
    zeros: Zeros | None = None
    scales: Scales | None = None

    @property
    def form(self) -> PlaneForm:
        """What the bytes of the plane are."""
        return self.layout.form(self.scales, self.zeros)

    @property
    def zero_count(self) -> int | None:
        """Number of zeros that are left out; None if none are."""
        return None if self.zeros is None else self.bits.size - self.zeros.coded

    def take(self, start: int, stop: int, room: np.ndarray) -> np.ndarray:
        """Write a range of the plane to an array; return it."""
        take_runs(self.bits, self.form, start, _ALL, 0, room)
        return room

    def counts(self, is_exact: bool) -> np.ndarray:
        """Return the (256,) counts of the bytes.

        Unless they are to be exact, those of many bytes are estimated by a half to a sixteenth of
        them; see `_estimated`.
        """
        n = self.bits.size
        if is_exact or n < LEAST_ESTIMATED:
            return count_runs(self.bits, self.form, n, _ALL, 0)
        runs = min(n // _LEAST_COUNTED, _MOST_RUNS)
        count = n // (_RUN * runs) * _RUN
        sampled = count_runs(self.bits, self.form, count, _RUN, _RUN * runs)
        counts = estimated(sampled, n, self.layout.unit, self.zero_count)
        return self.counts(True) if counts is None else counts

    def symbols(self) -> np.ndarray:
        """Return all bytes of the plane, in the memory of the bit patterns."""
        if device_of(self.bits) is not None:
            symbols: np.ndarray = empty_beside(self.bits.size, np.uint8, self.bits)
            return self.take(0, self.bits.size, symbols)
        symbols = np.empty(self.bits.size, np.uint8)

        def task(start: int, stop: int) -> None:
            self.take(start, stop, symbols[start:stop])

        pool.run(task, symbols.size, TILE)
        return symbols

    def sample(self, shape: tuple[int, ...], is_exact: bool) -> Sample:
        """Return some rows of the plane, on the host; all rows of a small tensor."""
        width, sparse = row_layouts(shape)[0].width, _SPARSE if is_exact else _SPARSE // 2
        bits = sampled_rows(self.bits, width, SAMPLE, sparse)
        rows = self if bits is self.bits else self._replace(bits=bits)
        return Sample(host(rows.symbols()), self.bits.size / bits.size, self.layout.unit)


def estimated(
    counts: np.ndarray,
    n: int,
    unit: int,
    zeros: int | None = None,
    occurring: tuple[int, int] | None = None,
) -> np.ndarray | None:
    """Return the counts of n bytes by those of a sample.

    If the number of bytes of 0 is known to be `zeros`, only others are estimated: None is returned
    if the sample contains too few of them. `occurring` are the least byte from 1 on and the
    largest, if they are known. Otherwise twice as many elements reach about one octave, `unit`
    bytes, below those of the sample, and less above them, unless all of its bytes are equal.
    """
    if zeros is not None:
        counts, n = counts.copy(), n - zeros
        counts[0] = 0
    sampled = int(np.add.reduce(counts))
    if sampled < _LEAST_SAMPLED:
        return None
    if occurring is None and np.count_nonzero(counts) > 1:
        (low, high), octaves = bytes_range(counts), (n // sampled).bit_length()
        below, above = _BELOW + octaves * unit, _ABOVE + octaves + unit - 1
        occurring = max(low - below, 1), min(high + above, 255)
    scaled = estimated_counts(counts, n, sampled, occurring)
    if zeros is not None:
        scaled[0] = zeros
    return scaled


def clusters(arrays: Sequence[np.ndarray], dtype: str, mode: str) -> list[int]:
    """Assign nonempty tensors of one dtype to clusters with similar first planes.

    The result has the number of the cluster of each tensor. A further cluster must save more than
    the frame costs that its tensors share, which is mostly time: in ``mode=fast``, it must save
    more bits than in others.
    """
    sizes = np.array([array.size for array in arrays])
    least = _LEAST_SAVING_FAST if mode == "fast" else _LEAST_SAVING
    if entropy_nbits(sizes) < least:  # tables of their own save no more than telling tensors apart
        return [0] * len(arrays)
    # An odd step meets elements of all columns of most matrices.
    parts = [array.reshape(-1)[:: array.size // _CLUSTERED | 1] for array in arrays]
    joined = inspect(np.concatenate(parts), "tensors").read(all_dtypes=True, segments=True)
    layout = PlaneLayout.of(dtype)
    plane = FirstPlane(layout.arranged(bits_of(joined.values, dtype)), layout)
    ends = np.cumsum([part.size for part in parts])
    labels = byte_clusters.clusters(plane.symbols(), ends, sizes, least, log2_table())
    numbers: list[int] = labels.tolist()
    return numbers
