"""The planes of a tensor but the first one: the method that each takes, and its bytes."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gcodec.codecs.lossless.message import (
    CONSTANT,
    DIFFERENCES,
    HUFFMAN,
    PACKED,
    STORED,
    STORED_PLANE,
    Plane,
)
from gcodec.codecs.lossless.planes import LARGE_TILE, PlaneLayout, Zeros, part_of
from gcodec.entropy import ranged
from gcodec.entropy.context.scale_model import row_layouts
from gcodec.entropy.rans import entropy_nbits
from gcodec.kernels.bits import byte_planes
from gcodec.kernels.bits.bit_string import BitString
from gcodec.kernels.bits.byte_planes import GROUP
from gcodec.kernels.bits.pack import FieldLayout, pack_to
from gcodec.kernels.bits.row_differences import subtract_above
from gcodec.kernels.numeric.byte_counts import byte_counts
from gcodec.runtime import pool
from gcodec.runtime.deferred import resolved
from gcodec.runtime.device import all_on_host, device_of, host
from gcodec.runtime.memory import empty_beside

_PIECE = GROUP  # elements of each of four samples that tell whether coding a plane pays
_SHARE = 50  # a plane is coded if that saves a fiftieth of it
_TABLE_NBITS = 512  # approximate bits of a table
_ALIGNMENT = 16  # bytes that a kernel of a device loads at once
_LEAST_PACKED = 64  # bytes of a plane that may be packed


class OtherPlanes:
    """The planes of a tensor but the first one, as a message contains them.

    Parameters
    ----------
    bits : (n,) unsigned array
        Bit patterns of the elements.
    layout : PlaneLayout
    zeros : Zeros or None
        The elements that these planes leave out; None if they leave out none.
    shape : tuple of int
    is_exact : bool
        Whether each plane takes the shortest method. Otherwise, it takes one that is read fast.

    Attributes
    ----------
    coded : int
        Number of elements in each plane.
    planes : list of Plane
    strings : list of (bytes or None)
        The bytes of each plane that is coded by Huffman words.
    """

    def __init__(
        self,
        bits: np.ndarray,
        layout: PlaneLayout,
        zeros: Zeros | None,
        shape: tuple[int, ...],
        *,
        is_exact: bool,
    ) -> None:
        self._bits, self._layout, self._zeros = bits, layout, zeros
        self._is_on_device = device_of(bits) is not None
        self.coded = bits.size if zeros is None else zeros.coded
        row = 0  # elements of a row from whose upper neighbors differences may be taken
        if is_exact and zeros is None:
            rows = row_layouts(shape)[0]
            row = rows.width if rows.group else 0
        sample = self._sampled(row)
        self.planes: list[Plane] = []
        self.strings: list[np.ndarray | None] = []
        for k in range(layout.itemsize - 1):
            plane, string = self._selected(k, sample, row, is_exact)
            self.planes.append(plane)
            self.strings.append(string)

    @functools.cached_property
    def _on_device(self) -> list[np.ndarray]:
        """The bytes of all planes of a tensor on a device."""
        return _planes(self._bits, self._layout, self._zeros)

    def _plane(self, k: int) -> np.ndarray:
        """Return the bytes of one plane."""
        if self._is_on_device:
            return self._on_device[k]
        plane = np.empty(self.coded, np.uint8)
        self._split({k: (plane, 8)})
        return plane

    def _split(self, targets: dict[int, tuple[np.ndarray, int]]) -> None:
        """Write some planes of a tensor on the host to arrays, given the bits of their fields.

        These are 8 if zeros are left out.
        """
        bits, layout, zeros = self._bits, self._layout, self._zeros

        def task(start: int, stop: int) -> None:
            for at in range(start, stop, LARGE_TILE):
                end = min(at + LARGE_TILE, stop)
                own, coded = part_of(zeros, at, end)
                planes = _planes(bits[at:end], layout, own)
                for k, (target, width) in targets.items():
                    if width == 8:
                        target[coded] = planes[k]
                    else:  # a tile begins with a byte
                        part = target[at * width // 8 : -(-end * width // 8)]
                        pack_to(planes[k], FieldLayout(width), part)

        pool.run(task, bits.size, LARGE_TILE)

    @functools.cached_property
    def _widths(self) -> list[int]:
        """How many bits the largest byte of each plane has."""
        if self._is_on_device:
            counts = all_on_host([byte_counts(plane) for plane in self._on_device])
            return [int(own.nonzero()[0].max(initial=0)).bit_length() for own in counts]
        every_bit = np.bitwise_or.reduce(self._bits, keepdims=True)
        return [int(plane[0]).bit_length() for plane in _planes(every_bit, self._layout, None)]

    def _sampled(self, row: int) -> _Sample:
        """Count samples of the planes, and of differences in rows unless `row` is 0."""
        bits, layout, n = self._bits, self._layout, self._bits.size
        pairs: list[np.ndarray] = []
        period = _PIECE * max(-(-n // (4 * _PIECE)), 1)
        size = n // period * _PIECE + min(n % period, _PIECE)
        if row:
            ends = [(at, min(at + _PIECE, n)) for at in range(row, n, period)]
            pairs += [bits[at - row : end - row] for at, end in ends]
            pairs += [bits[at:end] for at, end in ends]
        if self._is_on_device:
            pieces = [bits[at : at + _PIECE] for at in range(0, n, period)]
            fetched = all_on_host([*pieces, *pairs])
            sampled, pairs = np.concatenate(fetched[: len(pieces)]), fetched[len(pieces) :]
            counts = byte_planes.count_others(sampled, layout.shift, _PIECE)
        else:
            counts = byte_planes.count_others(bits, layout.shift, period)
        if self._zeros is not None:  # whose bytes are 0 in all planes
            coded = int(self._zeros.counts[:: period // _PIECE].sum())
            counts[:, 0] -= size - coded
            size = coded
        return _Sample(counts, size, _counts_of_differences(pairs, layout))

    def _selected(
        self, k: int, sample: _Sample, row: int, is_exact: bool
    ) -> tuple[Plane, np.ndarray | None]:
        """Return a plane, and its bytes if Huffman words code it.

        The sample indicates whether coding the plane may save enough bits.
        """
        choice = _Choice.of(sample.counts[k], sample.size, is_exact)
        if sample.promises_differences(choice, k):
            symbols = self._plane(k)
            differences = subtract_above(symbols, row)
            own, changes = all_on_host([byte_counts(each) for each in (symbols, differences)])
            choice = _Choice.of(own, symbols.size, is_exact)
            by_rows = choice.by_rows(changes, row)
            if by_rows is not None:
                choice, symbols = by_rows, differences
        elif choice.plane.method == STORED:
            return choice.plane, None
        elif choice.plane.method == PACKED and self._widths[k] < 8:
            return choice.plane._replace(width=self._widths[k]), None
        else:
            symbols = self._plane(k)
            if symbols.size > sample.size:
                choice = _Choice.of(host(byte_counts(symbols)), symbols.size, is_exact)
        if choice.plan is None:
            return choice.plane, None
        data, nbits, _ = resolved(choice.plan.write(symbols, symbols.size, BitString(), 0))
        return choice.plane._replace(nbytes=-(-nbits // 8)), data

    @property
    def nbytes(self) -> int:
        """Number of bytes of all planes in the message."""
        coded = self.coded
        return sum([plane.nbytes_of(coded) for plane in self.planes])

    @property
    def methods(self) -> set[int]:
        """The methods of the planes."""
        return {plane.method for plane in self.planes}

    def write(self, data: np.ndarray) -> None:
        """Write the planes to the start of an array, which is in the memory of the elements."""
        if self._is_on_device:
            self.write_bytes(self._on_device, data)
            return
        if self.methods == {STORED}:
            self._write_stored(data)
            return
        at, targets = 0, dict[int, tuple[np.ndarray, int]]()
        for k, (plane, string) in enumerate(zip(self.planes, self.strings, strict=True)):
            own = data[at : at + plane.nbytes_of(self.coded)]
            if plane.method == STORED:
                targets[k] = own, 8
            elif plane.method == PACKED and self._zeros is None:
                targets[k] = own, plane.width
            elif plane.method == PACKED:
                pack_to(self._plane(k), FieldLayout(plane.width), own)
            elif string is not None:
                own[:] = string
            at += own.size
        if targets:
            self._split(targets)

    def _write_stored(self, data: np.ndarray) -> None:
        """Write planes that are all stored."""
        bits, layout, zeros = self._bits, self._layout, self._zeros

        def task(start: int, stop: int) -> None:
            own, coded = part_of(zeros, start, stop)
            layout.take_others(bits[start:stop], data[coded.start :], self.coded, own)

        pool.run(task, bits.size, LARGE_TILE)

    def write_bytes(self, planes: Iterable[np.ndarray], data: np.ndarray) -> None:
        """Write the planes, given the bytes of each, to the start of an array."""
        at = 0
        for symbols, plane, string in zip(planes, self.planes, self.strings, strict=True):
            end = at + plane.nbytes_of(self.coded)
            if plane.method == STORED:
                data[at:end] = symbols
            elif plane.method == PACKED:
                pack_to(symbols, FieldLayout(plane.width), data[at:end])
            elif string is not None:
                data[at:end] = string[: end - at]
            at = end


class _Choice(NamedTuple):
    """A method for a plane.

    Attributes
    ----------
    plane : Plane
    nbits : int
        Bits of the plane in the message.
    plan : ranged.Plan or None
        Plan of the string of Huffman words; None without one.
    """

    plane: Plane
    nbits: int
    plan: ranged.Plan | None = None

    @classmethod
    def of(cls, counts: np.ndarray, count: int, is_exact: bool) -> _Choice:
        """Return the method for a plane of `count` bytes with these counts.

        Unless sizes are to be exact, Huffman words must also save a fiftieth of packed fields,
        which are read much faster.
        """
        entropy, best = entropy_nbits(counts), cls(STORED_PLANE, 8 * count)
        most = best.nbits - best.nbits // _SHARE
        if entropy <= 7 * count:  # otherwise more than 128 bytes occur
            (occurring,) = counts.nonzero()
            if occurring.size <= 1:
                return cls(Plane(CONSTANT, int(counts.argmax())), 0)
            width = int(occurring[-1]).bit_length()
            if width < 8 and count >= _LEAST_PACKED:
                best, most = cls(Plane(PACKED, width=width), width * count), width * count
                if not is_exact:
                    most -= most // _SHARE
        if entropy + _TABLE_NBITS <= most:
            plan = ranged.Plan.of("huffman", counts)
            if plan.nbits - ranged.RANGE_NBITS < most:
                return cls(Plane(HUFFMAN), plan.nbits, plan)
        return best

    def by_rows(self, counts: np.ndarray, row: int) -> _Choice | None:
        """Return differences with these counts in rows; None unless they save a fiftieth."""
        plan = ranged.Plan.of("huffman", counts)
        if plan.nbits >= self.nbits - self.nbits // _SHARE:
            return None
        return _Choice(Plane(DIFFERENCES, row=row), plan.nbits, plan)


class _Sample(NamedTuple):
    """Histograms of samples of all planes.

    Attributes
    ----------
    counts : (planes, 256) int64 array
        Those of the bytes of each plane.
    size : int
        Bytes of each sample.
    differences : list of (256,) int64 arrays
        Those of differences from bytes a row above; empty if these are no choice.
    """

    counts: np.ndarray
    size: int
    differences: list[np.ndarray]

    def promises_differences(self, choice: _Choice, k: int) -> bool:
        """Return whether differences may save a fiftieth of what was chosen for a plane."""
        if not self.differences:
            return False
        counts = self.differences[k]
        most = choice.nbits * (_SHARE - 1) * int(counts.sum())
        return entropy_nbits(counts) * self.size * _SHARE < most


def _counts_of_differences(pairs: list[np.ndarray], layout: PlaneLayout) -> list[np.ndarray]:
    """Return the histogram for each plane, given elements and then those a row below."""
    if not pairs:
        return []
    rows = np.concatenate(pairs)  # the lower rows follow those above them
    return [
        byte_counts(subtract_above(plane, rows.size // 2)[rows.size // 2 :])
        for plane in _planes(rows, layout, None)
    ]


def _planes(bits: np.ndarray, layout: PlaneLayout, zeros: Zeros | None) -> list[np.ndarray]:
    """Return the bytes of all planes of a tile, or on a device of a tensor."""
    size = bits.size if zeros is None else zeros.coded
    stride = -(-size // _ALIGNMENT) * _ALIGNMENT
    planes = empty_beside((layout.itemsize - 1) * stride, np.uint8, bits)
    layout.take_others(bits, planes, stride, zeros)
    return [planes[k * stride : k * stride + size] for k in range(layout.itemsize - 1)]
