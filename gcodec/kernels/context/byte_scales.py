"""Sums of bytes by row and by column, and bytes that are shifted by the classes of elements.

Bytes are exponents, perhaps with the upper bits of a mantissa, so they are about logarithms of
magnitudes; `unit` is what a byte grows by in an octave. Classes are in quarter octaves, see
`class_map`. The byte 0 marks zeros, which have no logarithm: no sum contains them, and they
are never shifted.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import numpy as np

from gcodec.kernels.bits.byte_planes import (
    SHIFTS,
    STREAMED,
    joining,
    taking_first,
    taking_others,
)
from gcodec.kernels.context.class_map import TILE, ScaleArrays, fill_classes
from gcodec.kernels.numeric.words import leading_zeros
from gcodec.runtime import pool
from gcodec.runtime.jit import Kernel, factory, inline, kernel, subroutine
from gcodec.runtime.lanes import fence

_COUNT = 20  # bits of a sum of bytes, above which a narrow counter counts the bytes
_FLUSH = 1 << 11  # rows whose sums and counts fit into a narrow counter
_NONE = np.empty(0, np.uint8)

Sums = tuple[np.ndarray, np.ndarray]
"""Sums of bytes, and numbers of the bytes that are not 0, of each row or column."""


class LineSums:
    """Sums by row and by column, which grow with each range of rows.

    Parameters
    ----------
    n, width : int
        Elements in all, and of a row; the last row may be shorter.
    has_columns : bool
        Whether columns are summed too.

    Attributes
    ----------
    rows, columns : Sums
    """

    def __init__(self, n: int, width: int, has_columns: bool) -> None:
        self._n, self._width = n, width
        self._height = width if has_columns else 0
        count = -(-n // width)
        self.rows: Sums = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._columns = np.zeros(2 * self._height, np.int64)

    @property
    def columns(self) -> Sums:
        """Sums by column, of no elements without columns."""
        return self._columns[: self._height], self._columns[self._height :]

    def run(self, parts: Callable[[int, int], np.ndarray], step: int) -> LineSums:
        """Add all symbols on the threads of the pool; ``parts(start, stop)`` returns a range."""
        width, (sums, counts) = self._width, self.rows
        unit = max(step // width, 1) * width

        def task(start: int, stop: int) -> np.ndarray:
            columns = np.zeros(2 * self._height, np.int64)
            narrow = np.zeros(self._height, np.int32)
            for at in range(start, stop, unit):
                symbols = parts(at, min(at + unit, stop))
                first, last = at // width, -(-(at + symbols.size) // width)
                own = sums[first:last], counts[first:last]
                _add_byte_rows(symbols, width, narrow, *own, columns)
            return columns

        self._columns = functools.reduce(operator.iadd, pool.run(task, self._n, unit))
        return self


def lower(symbols: np.ndarray, scales: ScaleArrays, unit: int, start: int) -> None:
    """Lower (n,) bytes by the octaves of their classes, in place and on the calling thread.

    A byte b from 1 on becomes 1 + (b − 1 − k) mod 255, where k is a quarter of the class times the
    unit, rounded.

    Parameters
    ----------
    symbols : (n,) uint8 array
    scales : (rows, columns, width)
        See `class_map`.
    unit : int
        From 1 to 8.
    start : int
        The first element.
    """
    _lower_bytes(symbols, *scales, start, unit, np.empty(TILE, np.uint8))


def take_runs(
    bits: np.ndarray,
    escape: int,
    scales: ScaleArrays | None,
    unit: int,
    start: int,
    run: int,
    period: int,
    out: np.ndarray,
    others: np.ndarray | None = None,
) -> None:
    """Write the first plane of runs of floats, perhaps lowered, on the calling thread.

    Parameters
    ----------
    bits : (n,) unsigned array
        Bit patterns of all floats.
    escape : int
        See `byte_planes.take_first`.
    scales : (rows, columns, width), optional
        See `lower`. By default, no byte is lowered.
    unit : int
    start : int
        The first element of the first run.
    run, period : int
        Elements of a run, a multiple of 2^12; and from one run to the next. The last run may be
        shorter.
    out : (k,) uint8 array
    others : (planes * n,) uint8 array, optional
        Receives the other planes of the same floats, each n bytes after the preceding one.
    """
    rows, columns, width = scales or (_NONE, _NONE, 1)
    classes = np.empty(TILE if scales else 0, np.uint8)
    rest = _NONE if others is None else others
    loop, first = _taking(bits.itemsize), np.uint8(escape)
    loop(bits, first, rows, columns, width, unit, start, run, period, classes, out, rest)


def raise_again(symbols: np.ndarray, scales: ScaleArrays, unit: int, start: int) -> None:
    """Undo `lower`."""
    _raise_bytes(symbols, *scales, start, unit, np.empty(TILE, np.uint8))


def join_planes(
    first: np.ndarray,
    others: np.ndarray,
    stride: int,
    out: np.ndarray,
    scales: ScaleArrays | None = None,
    unit: int = 1,
    start: int = 0,
    *,
    streaming: bool = False,
) -> None:
    """Write the bit patterns of floats with these planes, on the calling thread.

    Parameters
    ----------
    first : (n,) uint8 array
        The first plane, perhaps lowered.
    others, stride
        The other planes; see `byte_planes.take_others`.
    out : (n,) unsigned array
    scales : (rows, columns, width), optional
        Scales that `lower` subtracted from the first plane; None if it was not lowered.
    unit : int
    start : int
        The first element.
    streaming : bool
        Whether stores bypass the cache where `out` is aligned.
    """
    rows, columns, width = scales or (_NONE, _NONE, 1)
    streaming = streaming and out.ctypes.data % STREAMED == 0
    room = np.empty(TILE if scales else 0, np.uint8)
    loop = _joined(out.itemsize)
    loop(first, others, stride, rows, columns, width, unit, start, room, streaming, out)


def rounded_scales(
    lines: Sums,
    factor: float,
    one: int,
    quantum: int,
    most: int,
    average: Sums | None = None,
) -> np.ndarray:
    """Return the scales of lines by their sums and counts.

    Parameters
    ----------
    lines : Sums
    factor : float
        How many quanta a scale grows if the mean of its line grows by 1.
    one : int
        Scale of a line whose mean is the average.
    quantum, most : int
        The smallest scale, and the largest one. All scales are multiples of the smallest.
    average : Sums, optional
        The average is that of all bytes of these lines; by default, of `lines`.

    Returns
    -------
    (k,) uint8 array
        0 for lines without counts.
    """
    out = np.empty(lines[0].size, np.uint8)
    _round_scales(*lines, *(average or lines), factor, one, quantum, most, out)
    return out


def log_sums(counts: np.ndarray, logs: np.ndarray) -> tuple[int, int]:
    """Return the sums of c·log2(c) of the totals of models, and of all counts.

    Parameters
    ----------
    counts : (256,) or (models, 256) int64 array
    logs : (2**15 + 1,) int64 array
        log2 of each index, as an integer. The sums have its unit.
    """
    out = np.empty(4, np.int64)
    _sum_logs(counts.reshape(-1), counts.shape[-1], logs, out)
    high, low, own_high, own_low = out.tolist()
    return (high << 16) + low, (own_high << 16) + own_low


@kernel(
    "in int64[], in int64[], in int64[], in int64[], float64, int64, int64, int64, out uint8[]"
)
def _round_scales(sums, counts, all_sums, all_counts, factor, one, quantum, most, out):
    # sums.size == counts.size == out.size, and all_sums.size == all_counts.size. The total is
    # below 2^53, so its quotient is rounded only once.
    total, number = np.int64(0), np.int64(0)
    for i in range(all_sums.size):
        total += all_sums[i]
        number += all_counts[i]
    mean = np.float64(total) / np.float64(max(number, 1))
    for i in range(out.size):
        quanta = (np.float64(sums[i]) / np.float64(max(counts[i], 1)) - mean) * factor
        scale = one + quantum * np.floor(quanta + 0.5)
        scale = min(max(scale, np.float64(quantum)), np.float64(most))
        out[i] = np.uint8(np.int64(scale)) if counts[i] != 0 else np.uint8(0)


@inline
def _log_of(number, logs):
    """Return log2 of a number above 0 by its upper 15 bits."""
    shift = max(np.int64(49) - np.int64(leading_zeros(np.uint64(number))), 0)
    return logs[number >> shift] + shift * (logs[2] - logs[1])


@kernel("in int64[], int64, in int64[], out int64[]", vectorized=False)
def _sum_logs(counts, width, logs, out):
    # counts.size is a multiple of `width`; logs.size == 2**15 + 1. The upper and lower 16 bits of
    # the numbers are multiplied apart, as the products of whole numbers would exceed 64 bits.
    high, low, own_high, own_low = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for start in range(0, counts.size, width):
        total = np.int64(0)
        for i in range(start, start + width):
            count = counts[i]
            if count > 0:
                log = _log_of(count, logs)
                own_high += (count >> 16) * log
                own_low += (count & 0xFFFF) * log
                total += count
        if total > 0:
            log = _log_of(total, logs)
            high += (total >> 16) * log
            low += (total & 0xFFFF) * log
    out[0], out[1], out[2], out[3] = high, low, own_high, own_low


@kernel("in uint8[], int64, out int32[], out int64[], out int64[], out int64[]")
def _add_byte_rows(symbols, width, narrow, sums, counts, columns):
    # sums.size == counts.size == ceil(symbols.size / width); narrow.size is `width` or 0, and
    # columns.size twice that. `narrow` is 0 before and after the call.
    for row in range(sums.size):
        line = symbols[row * width : min((row + 1) * width, symbols.size)]
        total, count = np.int64(0), np.int64(0)
        for first in range(0, line.size, 256):  # the sum of as many bytes has 16 bits
            part, part_sum, part_count = line[first : first + 256], np.uint16(0), np.uint16(0)
            for j in range(part.size):
                part_sum = np.uint16(part_sum + np.uint16(part[j]))
                part_count = np.uint16(part_count + np.uint16(part[j] != 0))
            total += np.int64(part_sum)
            count += np.int64(part_count)
        sums[row], counts[row] = total, count
        if narrow.size > 0:  # line.size <= width
            for j in range(line.size):
                value = np.int32(line[j]) | np.int32(np.int32(line[j] != 0) << np.int32(_COUNT))
                narrow[j] = np.int32(narrow[j] + value)
        if row % _FLUSH == _FLUSH - 1 or row == sums.size - 1:
            for j in range(narrow.size):
                columns[j] += narrow[j] & ((1 << _COUNT) - 1)
                columns[narrow.size + j] += narrow[j] >> _COUNT
                narrow[j] = 0


@inline
def _shift_of(octaves, unit):
    """Return by how much a byte of a class is lowered: a quarter of class times unit, rounded."""
    return np.uint8(np.uint16(np.uint16(np.uint16(octaves) * unit) + np.uint16(2)) >> np.uint16(2))


@inline
def _whole_octaves(octaves):
    """Return `_shift_of` for a unit of 1, in bytes."""
    return np.uint8(np.uint8(octaves + np.uint8(2)) >> np.uint8(2))


@inline
def _lowered(byte, by):
    wraps = np.uint8(byte <= by)
    moved = np.uint8(np.uint8(byte - by) - wraps)
    return moved if byte > 0 else np.uint8(0)


@inline
def _raised(byte, by):
    moved = np.uint8(byte + by)
    moved = np.uint8(moved + np.uint8(moved < byte))
    return moved if byte > 0 else np.uint8(0)


@subroutine
def _lower_part(part, rows, columns, width, start, unit, classes):
    """Lower up to TILE bytes from element `start` on; see `lower`."""
    # classes.size == TILE; the scales cover all elements.
    own = classes[: part.size]
    fill_classes(rows, columns, width, start, own)
    if unit == 1:
        for i in range(part.size):
            part[i] = _lowered(part[i], _whole_octaves(own[i]))
        return
    step = np.uint16(unit)
    for i in range(part.size):
        part[i] = _lowered(part[i], _shift_of(own[i], step))


@kernel("out uint8[], in uint8[], in uint8[], int64, int64, int64, out uint8[]")
def _lower_bytes(symbols, rows, columns, width, start, unit, classes):
    # See `_lower_part`.
    for first in range(0, symbols.size, TILE):
        part = symbols[first : first + TILE]
        _lower_part(part, rows, columns, width, start + first, unit, classes)


@factory(lambda: ((itemsize,) for itemsize in SHIFTS))
def _taking(itemsize: int) -> Kernel:
    take_first, take_others = taking_first(itemsize), taking_others(itemsize)

    @kernel(
        f"in uint{8 * itemsize}[], uint8, in uint8[], in uint8[], int64, int64, int64, int64, "
        "int64, out uint8[], out uint8[], out uint8[]",
        variant=str(itemsize),
    )
    def take_runs(
        bits, escape, rows, columns, width, unit, start, run, period, classes, out, others
    ):
        # The runs lie in `bits`. rows.size is 0 if no byte is lowered; else see `_lower_part`.
        # others.size is (itemsize - 1) * bits.size, or 0 if they are not wanted.
        for first in range(0, out.size, TILE):
            part = out[first : first + TILE]
            at = start + first // run * period + first % run
            take_first(bits[at : at + part.size], escape, part)
            if others.size > 0:
                take_others(bits[at : at + part.size], bits.size, others[at:])
            if rows.size > 0:
                _lower_part(part, rows, columns, width, at, unit, classes)

    return take_runs


@subroutine
def _raise_part(part, rows, columns, width, start, unit, raised):
    """Write up to TILE lowered bytes from element `start` on to `raised`; see `lower`."""
    # raised.size == part.size; the scales cover all elements.
    fill_classes(rows, columns, width, start, raised)
    if unit == 1:
        for i in range(part.size):
            raised[i] = _raised(part[i], _whole_octaves(raised[i]))
        return
    step = np.uint16(unit)
    for i in range(part.size):
        raised[i] = _raised(part[i], _shift_of(raised[i], step))


@kernel("out uint8[], in uint8[], in uint8[], int64, int64, int64, out uint8[]")
def _raise_bytes(symbols, rows, columns, width, start, unit, room):
    # room.size == TILE; see `_raise_part`.
    for first in range(0, symbols.size, TILE):
        part = symbols[first : first + TILE]
        raised = room[: part.size]
        _raise_part(part, rows, columns, width, start + first, unit, raised)
        for i in range(part.size):
            part[i] = raised[i]


@factory(lambda: ((itemsize,) for itemsize in SHIFTS))
def _joined(itemsize: int) -> Kernel:
    join = joining(itemsize)

    @kernel(
        "in uint8[], in uint8[], int64, in uint8[], in uint8[], int64, int64, int64, out uint8[], "
        f"boolean, out uint{8 * itemsize}[]",
        variant=str(itemsize),
    )
    def join_planes(
        first, others, stride, rows, columns, width, unit, start, room, streaming, out
    ):
        # first.size == out.size; others.size >= (itemsize - 2) * stride + out.size. rows.size is 0
        # if no byte is lowered; else room.size is TILE.
        if rows.size == 0:
            join(first, others, stride, out, streaming)
            if streaming:
                fence()
            return
        for at in range(0, out.size, TILE):
            part = first[at : at + TILE]
            raised = room[: part.size]
            _raise_part(part, rows, columns, width, start + at, unit, raised)
            join(raised, others[at:], stride, out[at : at + part.size], streaming)
        if streaming:
            fence()

    return join_planes
