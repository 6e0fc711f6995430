"""The encoder of messages: it selects a method for each plane, and writes the planes."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from gcodec.codecs.lossless.first_plane import LEAST_ESTIMATED, SAMPLE, FirstPlane, estimated
from gcodec.codecs.lossless.message import (
    CLASSES,
    CONSTANT,
    HUFFMAN,
    KINDS,
    LOWERED_HUFFMAN,
    LOWERED_RANS,
    PACKED,
    RANS,
    STORED,
    STORED_PLANE,
    Head,
    Plane,
)
from gcodec.codecs.lossless.other_planes import OtherPlanes
from gcodec.codecs.lossless.planes import PlaneLayout, Zeros
from gcodec.entropy import ranged, tabled
from gcodec.entropy.coder import Written, seek_of_blocks, seek_of_runs
from gcodec.entropy.context import byte_coder, byte_scales
from gcodec.entropy.context.byte_scales import (
    Lowering,
    Sample,
    scales_of_parts,
    scales_of_sums,
    scales_of_symbols,
)
from gcodec.entropy.context.scale_model import ONE, RowLayout, Scales
from gcodec.entropy.ranged import bytes_range
from gcodec.entropy.rans import entropy_nbits
from gcodec.errors import ParameterError
from gcodec.kernels.bits import bit_string, byte_planes
from gcodec.kernels.bits.bit_string import BitString, SymbolsOf
from gcodec.kernels.bits.byte_planes import GROUP
from gcodec.kernels.bits.coded_mask import CodedMask
from gcodec.kernels.context import plane_words
from gcodec.kernels.context.byte_scales import lowered_range
from gcodec.kernels.context.byte_sums import plane_sums, rounded_scales
from gcodec.kernels.rans import rans_string
from gcodec.kernels.rans.rans_table import write_tables
from gcodec.runtime import Array
from gcodec.runtime.deferred import LeadingBytes, resolved
from gcodec.runtime.device import beside, device_of
from gcodec.runtime.memory import empty_beside
from gcodec.runtime.reuse import scratch
from gcodec.wire.seek import LOG2_STATES

_SCALES_NBITS = 32  # approximate bits of a layout
_LIST_SHARE = 200  # share of the first plane that rANS must save in a list of scales in mode=fast
_LEAST_LOWERED = 1 << 11  # elements of a tensor for which scales may pay
_SPARE = 32  # bits of a string for each byte that it may exceed its estimated size by
_LEAST_ROOM = 1 << 12  # bytes of a string beyond its estimated size
_LOG2_ACCURATE = 12  # computed entropies err by at most a bit for 2^12 symbols
_LEAST_WITH_MANTISSAS = 1 << 14  # elements from which on larger tables, with mantissas, pay
_LARGEST_EXPONENT = 127  # whose highest bit is 0
_ROW = 64  # sampled elements of a row, and least number of sampled rows


class _Coded(NamedTuple):
    """The elements of a tensor of floats that are not zeros.

    Attributes
    ----------
    groups : (ceil(n / 4096),) uint16 array
        Numbers of those of each group that are not zeros.
    hidden : int
        Number of those whose byte of the first plane is 0 nevertheless.
    zeros : int
        Number of zeros.
    """

    groups: np.ndarray
    hidden: int
    zeros: int

    @classmethod
    def of(cls, plane: FirstPlane) -> _Coded:
        """Count the elements."""
        groups, hidden = byte_planes.coded_counts(plane.bits, plane.layout.shift)
        zeros = plane.bits.size - int(np.add.reduce(groups, dtype=np.int64))
        return cls(groups, hidden, zeros)


class _Method(NamedTuple):
    """A method for the first plane, and its size.

    Attributes
    ----------
    method : int
        Index into `METHODS`.
    nbits : int
        Bits of the first plane; an estimate for rANS.
    string : ranged.Plan or None
        Plan of a string of bytes; None without one, and for classes.
    scales : Scales or None
        Scales whose octaves are subtracted from the plane.
    plan : byte_coder.Plan or None
        Plan of a string with classes.
    """

    method: int
    nbits: int
    string: ranged.Plan | None = None
    scales: Scales | None = None
    plan: byte_coder.Plan | None = None

    @classmethod
    def tabled(cls, method: int, counts: np.ndarray) -> _Method:
        string = ranged.Plan.of(KINDS[method], counts)
        return cls(method, string.nbits, string)

    @classmethod
    def lowered(cls, method: int, lowering: Lowering) -> _Method:
        string = ranged.Plan.of(KINDS[method], lowering.counts)
        nbits = string.nbits + _SCALES_NBITS + lowering.nbits
        return cls(method, nbits, string, lowering.scales)


def write(
    bits: np.ndarray, layout: PlaneLayout, shape: tuple[int, ...], mode: str
) -> tuple[str, Written]:
    """Write the message of (n,) bit patterns, n > 0.

    Parameters
    ----------
    bits : (n,) unsigned array
    layout : PlaneLayout
    shape : tuple of int
    mode : {"auto", "fast", "small"}

    Returns
    -------
    mode : {"fast", "small", "stored"}
        The mode of the message: "stored" if nothing is saved, and for short tensors possibly
        "fast" in place of "small".
    Written
    """
    writer = _Writer(layout.arranged(bits), layout, shape, is_exact=mode != "fast")
    modes: tuple[str, ...] = ("fast",) if mode == "fast" else ("small", "fast")
    if mode != "fast" and writer.may_code_mantissas():
        modes = ("small",)  # Huffman words without the mantissas would not be shorter
        writer = _Writer(bits, layout.with_mantissa_bit(), shape, is_exact=True)
    name, best, nbits = "stored", None, 8 * bits.nbytes
    for each in modes:
        written = writer.write(each, nbits)
        if written is not None and written.nbits < nbits:
            name, best, nbits = each, written, written.nbits
    return name, best or Written(bits.view(np.uint8), nbits)


def _zeros_of(coded: _Coded, counts: np.ndarray, planes: int) -> Zeros | None:
    """Return how zeros are left out, or None if that does not pay; adapt the counts."""
    count, escape = coded.zeros, 0
    if 8 * count * planes <= 16 * coded.groups.size or not coded.groups.any():
        return None
    if coded.hidden:
        free = np.flatnonzero(counts == 0)
        if not free.size:
            return None
        low, _ = bytes_range(counts)
        above = free[free >= low]
        escape = int(above[0] if above.size else free[-1])
        counts[escape] = coded.hidden
    counts[0] = count
    return Zeros(escape, coded.groups)


def _is_constant(counts: np.ndarray) -> bool:
    """Return whether only one byte occurs."""
    (occurring,) = counts.nonzero()
    return occurring.size == 1


class _Writer:
    """Writes the message of a tensor in any mode."""

    def __init__(
        self, bits: np.ndarray, layout: PlaneLayout, shape: tuple[int, ...], is_exact: bool
    ) -> None:
        self._bits, self._layout, self._shape = bits, layout, shape
        self._is_exact = is_exact
        self._is_on_device = device_of(bits) is not None
        self._plane = FirstPlane(bits, layout)
        self._count_plane()
        zeros = self._plane.zeros
        self._others = OtherPlanes(bits, layout, zeros, shape, is_exact=is_exact)
        self._head = Head(layout, zeros, (STORED_PLANE, *self._others.planes))
        self._stored_head, self._others_nbytes = self._head.to_bytes(), self._others.nbytes
        self._lead = len(self._stored_head) + self._others_nbytes  # unless the plane is constant
        self._is_constant = _is_constant(self._counts)

    @functools.cached_property
    def _plain_nbits(self) -> int:
        """Bits of the first plane for an ideal coder, if there is a sample."""
        return 0 if self._sample is None else entropy_nbits(self._counts)

    @functools.cached_property
    def _lowering(self) -> Lowering | None:
        """The lowered first plane; None if there is no sample, or no gain."""
        return None if self._sample is None else self._find_lowering(self._sample)

    def _count_plane(self) -> None:
        """Count the bytes of the first plane, select its zeros, and take a sample of its rows.

        Unless they are to be exact, the counts of many bytes are estimated by the sample. Planes
        whose bytes are not lowered have none.
        """
        plane, layout, n = self._plane, self._layout, self._bits.size
        may_omit_zeros = layout.is_float and layout.itemsize > 1
        may_estimate = not self._is_exact and n >= LEAST_ESTIMATED
        counts = sample = coded = zeros = None
        if layout.is_float and n >= _LEAST_LOWERED:
            sample = plane.sample(self._shape, self._is_exact)
            if may_estimate:
                coded = _Coded.of(plane) if may_omit_zeros and sample.counts[0] else None
                zero_count = coded.zeros if coded else None
                counts = estimated(sample.counts, n, layout.unit, zero_count)
                if coded and coded.hidden:  # only exact counts tell which byte may be an escape
                    counts = None
            elif sample.symbols.size == n:
                counts = sample.counts
        elif may_estimate:
            counts = plane.counts(self._is_exact)
        self._is_estimated = may_estimate and counts is not None and not _is_constant(counts)
        if counts is None or (may_estimate and not self._is_estimated):
            counts = plane.counts(True)
        if may_omit_zeros and (coded is not None or (not self._is_estimated and counts[0])):
            zeros = _zeros_of(coded or _Coded.of(plane), counts, layout.itemsize - 1)
        if zeros is not None:
            self._plane = plane._replace(zeros=zeros)
            if sample is not None and zeros.escape:
                sample = self._plane.sample(self._shape, self._is_exact)
        self._counts, self._sample = counts, sample

    def may_code_mantissas(self) -> bool:
        """Return whether a bit of the mantissa can be coded with the exponent, and that may pay.

        Large mantissas are rarer than small ones, and halves of octaves fit the scales of rows
        better than whole ones. Neither pays where mantissas have a code of their own.
        """
        others = self._others
        if not self._layout.may_have_mantissa_bit or others.coded < _LEAST_WITH_MANTISSAS:
            return False
        if self._is_constant or others.planes[0].method not in (STORED, PACKED):
            return False
        exponents = self._counts[1:].nonzero()[0] + 1
        escape = self._plane.zeros.escape if self._plane.zeros is not None else 0
        return bool((exponents[exponents != escape] <= _LARGEST_EXPONENT).all())

    def write(self, mode: str, limit: int) -> Written | None:
        """Write the message if it has fewer bits than `limit`, as far as is known; else None."""
        if self._is_constant:
            return self._plain(CONSTANT)
        method = self._fast() if mode == "fast" else self._small()
        if 8 * self._lead + method.nbits >= limit:
            return None
        if method.method == STORED:
            return self._plain(STORED)
        methods = self._others.methods
        if mode == "fast" and not self._is_on_device and methods <= {STORED, PACKED}:
            return self._split_words(method, PACKED in methods)
        written = self._words(method) if mode == "fast" else self._states(method)
        self._put_lead(written.data, self._head_bytes(method.method))
        return written

    def _fast(self) -> _Method:
        n, best, most = self._bits.size, None, math.inf
        if self._lowering is not None:
            best = _Method.lowered(LOWERED_HUFFMAN, self._lowering)
            most = best.nbits
        if self._plain_nbits - (n >> _LOG2_ACCURATE) <= most:  # words of the plane may be shorter
            words = _Method.tabled(HUFFMAN, self._counts)
            best = words if words.nbits <= most else best
        return _Method(STORED, 8 * n) if best is None or 8 * n <= best.nbits else best

    def _small(self) -> _Method:
        n = self._bits.size
        methods = [_Method(STORED, 8 * n), _Method.tabled(RANS, self._counts)]
        if self._lowering is not None:
            methods.append(_Method.lowered(LOWERED_RANS, self._lowering))
        if self._sample is not None:
            # The writer needs no array of the plane.
            plan = byte_coder.plan(self._plane.symbols(), self._shape, self._sample)
            methods.append(_Method(CLASSES, plan.nbits, plan=plan))
        return min(methods, key=lambda method: method.nbits)

    def _find_lowering(self, sample: Sample) -> Lowering | None:
        """Return the lowered first plane; None if subtracting scales does not pay."""
        n, unit, plain = self._bits.size, self._layout.unit, float(self._plain_nbits)
        is_whole, is_estimated = sample.symbols.size == n, self._is_estimated
        if not is_whole and (not is_estimated or self._plane.zeros is not None):
            plain = sample.times * entropy_nbits(sample.counts)
        lowering = sample.lowering(self._shape, plain)
        if lowering is None or is_whole:
            return lowering
        scales, layout = lowering.scales, lowering.scales.layout
        if n > 4 * SAMPLE and n % layout.width == 0 and layout.width >= 4 * _ROW:
            return self._lowered_by(self._sampled_scales(layout))
        if not is_estimated or sample.symbols.size < 2 * _ROW * layout.width:
            return self._lowered_by(self._scales_of(layout))
        # This many rows determine the scales of columns. If they are lowered by these scales, they
        # are a sample of the lowered plane.
        sums = plane_sums(self._bits, self._layout.shift, layout.width)
        own = rounded_scales(sums.rows, layout.quantum, ONE, unit, lowering.rows)
        occurring = None if layout.group else lowered_range(sums, own, unit)
        all_counts = estimated(lowering.counts, n, unit, self._plane.zero_count, occurring)
        assert all_counts is not None, "those of the plane have been estimated by this sample too"
        return Lowering(scales._replace(rows=own), lowering.nbits, all_counts)

    def _sampled_scales(self, layout: RowLayout) -> Scales:
        """Return the scales of a matrix by a sample of each row and of each column.

        Scales in octaves need no more.
        """
        bits, shift, width = self._bits, self._layout.shift, layout.width
        rows, columns, *_ = plane_sums(bits[(width - _ROW) // 2 :], shift, _ROW, width)
        if layout.group:
            count = bits.size // width
            stride = count // min(max(2 * SAMPLE // width, 2 * _ROW), count)
            columns = plane_sums(bits, shift, width, stride * width, has_columns=True).columns
        return scales_of_sums(layout, rows, columns, self._layout.unit)

    def _lowered_by(self, scales: Scales) -> Lowering:
        """Return the first plane that is lowered by scales."""
        counts = self._plane._replace(scales=scales).counts(self._is_exact)
        return Lowering(scales, scales.nbits(), counts)

    def _scales_of(self, layout: RowLayout) -> Scales:
        """Return the scales of the whole plane."""
        if self._is_on_device:
            return scales_of_symbols(self._plane.symbols(), layout, self._layout.unit)

        def parts(start: int, stop: int) -> np.ndarray:
            return self._plane.take(start, stop, np.empty(stop - start, np.uint8))

        return scales_of_parts(parts, self._bits.size, layout, self._layout.unit)

    def _head_bytes(self, method: int) -> bytes:
        """Return the bytes of the head, given the method of the first plane."""
        if method == CONSTANT:
            first = Plane(CONSTANT, int(self._counts.argmax()))
            return self._head._replace(planes=(first, *self._others.planes)).to_bytes()
        at = self._head.method_at
        return self._stored_head[:at] + bytes((method,)) + self._stored_head[at + 1 :]

    def _plain(self, method: int) -> Written:
        """Return the message with a stored or constant first plane."""
        head, symbols = self._head_bytes(method), np.empty(0, np.uint8)
        lead = len(head) + self._others_nbytes
        if method == STORED:
            symbols = self._plane.symbols()
        data = empty_beside(lead + symbols.size, np.uint8, self._bits)
        data[lead:] = beside(symbols, data)
        self._put_lead(data, head)
        return Written(data, 8 * data.size)

    def _put_lead(self, data: np.ndarray, head: bytes) -> None:
        """Write the head and all planes but the first to the start of the message."""
        data[: len(head)] = beside(np.frombuffer(head, np.uint8), data)
        self._others.write(data[len(head) :])

    def _put_front(self, method: _Method, string: BitString) -> BitString:
        """Append the bits of a first plane before its table to whole bytes; return the string."""
        if method.scales is not None:
            least_saving = 0 if self._is_exact else method.nbits // _LIST_SHARE
            byte_scales.put(method.scales, string, least_saving)
            string.align()
        if method.string is not None:
            method.string.put_range(string)
        return string

    def _words(self, method: _Method) -> Written:
        """Write Huffman words after room for all that precedes the first plane."""
        n, lead, front = self._bits.size, self._lead, self._put_front(method, BitString())
        symbols, coded = self._source_of(self._plane_of(method)), CodedMask.all(n)
        assert method.string is not None
        try:
            return resolved(tabled.write(method.string.table, symbols, coded, front, n, lead))
        except ParameterError:  # a byte that no sample contains has no word
            return self._words(self._exact(method))

    def _plane_of(self, method: _Method) -> FirstPlane:
        """Return the first plane as a method codes it."""
        scales, plane = method.scales, self._plane
        return plane if scales is None else plane._replace(scales=scales)

    def _source_of(self, plane: FirstPlane) -> SymbolsOf | np.ndarray:
        """Return the bytes of a plane for a writer: all at once on a device, else by ranges."""
        return plane.symbols() if self._is_on_device else plane.take

    def _exact(self, method: _Method) -> _Method:
        """Return a method with the exact counts of all bytes."""
        counts, scales = self._plane_of(method).counts(True), method.scales
        if scales is None:
            return _Method.tabled(method.method, counts)
        return _Method.lowered(method.method, Lowering(scales, scales.nbits(), counts))

    def _split_words(self, method: _Method, is_packed: bool) -> Written:
        """Write the message with Huffman words in one pass over the elements.

        The other planes are stored, or some of them packed.
        """
        lead, head, bits = self._lead, self._head_bytes(method.method), self._bits
        spare = method.nbits // _SPARE + _LEAST_ROOM
        memory = scratch(lead + method.nbits // 8 + spare)
        memory.data[: len(head)] = head
        string = self._put_front(method, BitString(lead, memory=memory))
        assert method.string is not None
        code, others = method.string.put_table(string), memory[len(head) : lead]
        zeros = self._plane.zeros
        form, coded = self._layout.form(method.scales, zeros), zeros.counts if zeros else None
        ends = np.empty(1 + -(-bits.size // GROUP), np.int64)  # bits before each group, and of all
        ends[0] = string.nbits
        if is_packed:
            others = scratch((self._layout.itemsize - 1) * self._others.coded)

        def task(start: int, stop: int) -> BitString:
            tiles = slice(start // GROUP, -(-stop // GROUP))
            nbytes = (method.nbits // 8 + spare) * (stop - start) // bits.size
            own = BitString(nbytes=nbytes) if start else string
            ends[1:][tiles] = plane_words.append(code, bits, form, others, coded, tiles, own)
            return own

        try:
            data, nbits, starts = bit_string.written(task, bits.size, GROUP)
        except ParameterError:  # see `_words`
            return self._split_words(self._exact(method), is_packed)
        if data.base is not memory.base:  # the string has outgrown the memory
            data[:lead] = memory[:lead]
        if is_packed:
            planes = others.reshape(self._layout.itemsize - 1, -1)
            self._others.write_bytes(planes, data[len(head) :])
        before = 0
        for start, offset in starts.items():
            if start:  # the ends of each part count from its own first bit
                ends[1 + start // GROUP :] += offset - before
            before = offset
        return Written(data, nbits, seek_of_blocks(bits.size, nbits, ends - ends[0]))

    def _states(self, method: _Method) -> Written:
        """Write rANS after room for all that precedes the first plane."""
        lead, n = self._lead, self._bits.size

        def before(head: np.ndarray) -> Array:
            nbytes = lead + head.size
            if not self._is_on_device:
                room = np.empty(nbytes, np.uint8)
                room[lead:] = head
                return room
            room = empty_beside(-(-nbytes // 4) * 4, np.uint8, self._bits)
            room[lead:nbytes] = beside(head, room)
            return LeadingBytes(room, beside(np.array([8 * nbytes], np.int64), room), 1, 0)

        symbols = self._source_of(self._plane_of(method))
        if method.plan is not None:
            return resolved(byte_coder.write(method.plan, symbols, n, BitString(), before))
        assert method.string is not None
        table = method.string.table
        head, _ = tabled.front(self._put_front(method, BitString()), *table)
        tables = write_tables(table.numbers, table.log2_total)
        data, nbits, runs = rans_string.write(tables, symbols, n, before(head), LOG2_STATES)
        return resolved(Written(data, nbits, seek_of_runs(n, nbits, runs)))
