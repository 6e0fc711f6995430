"""Sums of bytes by row and by column, and bytes that are shifted by the classes of elements.

Bytes are exponents, perhaps with the upper bits of a mantissa, so they are about logarithms of
magnitudes; `unit` is what a byte grows by in an octave. Classes are in quarter octaves, see
`class_map`. The byte 0 marks zeros, which have no logarithm: no sum contains them, and they are
never shifted. A byte b from 1 on is lowered to 1 + (b − 1 − k) mod 255, where k is a quarter of
the class times the unit, rounded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.byte_planes import (
    FLOAT_SHIFTS,
    FORMS,
    group_arguments,
    joining,
    joining_coded,
    orders,
    taking_first,
)
from gcodec.kernels.context.class_map import CENTER, CLASSES, TILE, ScaleArrays, fill_classes
from gcodec.kernels.context.scale_lists import MOST, SCRATCH, list_nbits
from gcodec.kernels.numeric.byte_counts import (
    add_tables,
    added,
    count_part,
    count_tables,
    ideal_nbits,
)
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, inline, kernel, subroutine
from gcodec.runtime.lanes import STREAMED, fence

_PER_OCTAVE = 4
_LAST, _BYTE = np.uint8(CLASSES - 1), 255
_COUNTED = 1 << 18  # bytes of a task that counts them
_COUNT = 20  # bits of a sum of bytes, above which a narrow counter counts the bytes
_PART = 64  # bytes of a loop whose fixed length needs no other loop for its rest
_FLUSH = 1 << 10  # rows whose sums and counts fit into a narrow counter, with its sign
NO_SCALES: ScaleArrays = (np.empty(0, np.uint8), np.empty(0, np.uint8), 1)

Sums = tuple[np.ndarray, np.ndarray]
"""Sums of bytes, and numbers of the bytes that are not 0, of each row or column."""


class PlaneForm(NamedTuple):
    """What the bytes of the first plane of bit patterns are.

    Attributes
    ----------
    shift : int
        Lowest bit of the plane; one of `byte_planes.FORMS`.
    unit : int
        What a byte grows by in an octave, from 1 to 8.
    escape : int
        Replaces a byte of 0 unless all bits of its element are 0.
    scales : (rows, columns, width) or None
        The scales that lower the plane; see `class_map`. None if no byte is lowered.
    """

    shift: int
    unit: int = 1
    escape: int = 0
    scales: ScaleArrays | None = None

    @property
    def arguments(self) -> tuple[np.uint8, np.ndarray, np.ndarray, int, int]:
        """Arguments of kernels: escape, scales of rows and columns, width, and unit."""
        return np.uint8(self.escape), *(self.scales or NO_SCALES), self.unit


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

        self._columns = pool.run_added(task, self._n, unit)
        return self


class PlaneSums(NamedTuple):
    """Sums of the first plane of a tensor.

    Attributes
    ----------
    rows, columns : Sums
        Without columns, theirs have no elements.
    least, greatest : uint8 arrays
        Of each row, the least byte from 1 on, or 0 if there is none; and the greatest. They have
        no elements if columns are summed.
    """

    rows: Sums
    columns: Sums
    least: np.ndarray
    greatest: np.ndarray


@dispatched("gcodec.kernels.context.byte_scales_cuda")
def plane_sums(
    bits: np.ndarray, width: int, period: int | None = None, *, has_columns: bool = False
) -> PlaneSums:
    """Sum the first plane of (n,) bit patterns of floats by row and by column.

    The sums are on the host. Columns of an array there are summed on this thread.

    Parameters
    ----------
    bits : (n,) unsigned array
        On a device, also the (n,) bytes of a first plane.
    width, has_columns
        See `LineSums`.
    period : int, optional
        Elements from one row to the next, if they are not adjacent; the last row is a whole one
        then.
    """
    period = width if period is None else period
    count, height = -(-bits.size // period), width if has_columns else 0
    rows: Sums = np.empty(count, np.int64), np.empty(count, np.int64)
    columns, narrow = np.zeros(2 * height, np.int64), np.zeros(height, np.int32)
    room = np.empty(max(TILE // width, 1) * width if has_columns else 0, np.uint8)
    least, greatest = np.empty((2, 0 if has_columns else count), np.uint8)
    loop = _summed(bits.itemsize)

    def task(start: int, stop: int) -> None:
        part = slice(start // period, -(-stop // period))
        own = *(array[part] for array in rows), columns, least[part], greatest[part]
        loop(bits[start:stop], width, period, room, narrow, *own)

    if has_columns:
        task(0, bits.size)
    else:
        pool.run(task, bits.size, period)
    return PlaneSums(rows, (columns[:height], columns[height:]), least, greatest)


def lowered_range(plane: PlaneSums, scales: np.ndarray, unit: int) -> tuple[int, int] | None:
    """Return the least byte from 1 on, and the greatest, of rows that scales have lowered.

    Parameters
    ----------
    plane : PlaneSums
        Sums without columns.
    scales : uint8 array
        Scales of the rows.
    unit : int
        What a byte grows by in an octave.

    Returns
    -------
    (int, int) or None
        None if all bytes are 0, or if one that is lowered wraps around.
    """
    by = (np.minimum(scales, _LAST).astype(np.int16) * unit + 2) >> 2
    least = (plane.least - by).min(initial=_BYTE, where=plane.greatest > 0)
    greatest = (plane.greatest - by).max()
    return (int(least), int(greatest)) if 1 <= least <= greatest else None


class FittedScales(NamedTuple):
    """Scales of bytes, and the effect of lowering the bytes by them.

    Attributes
    ----------
    rows, columns : uint8 arrays
        See `class_map`.
    sums : Sums
        Sums of the rows.
    counts : (256,) int64 array
        Histogram of the lowered bytes.
    nbits : int
        Bits of the lowered bytes, coded by an ideal coder.
    lists_nbits : (int, int)
        Approximate bits of the lists of rows, and of columns.
    """

    rows: np.ndarray
    columns: np.ndarray
    sums: Sums
    counts: np.ndarray
    nbits: int
    lists_nbits: tuple[int, int]


def fitted_scales(
    symbols: np.ndarray,
    width: int,
    group: int,
    quantum: int,
    one: int,
    unit: int,
    logs: np.ndarray,
) -> FittedScales:
    """Compute the scales of (n,) bytes, n > 0, and lower the bytes by them, on this thread.

    Parameters
    ----------
    symbols : (n,) uint8 array
    width, group : int
        Elements of a row; neighboring columns that share a scale, or 0 without scales of columns.
    quantum, one, unit
        See `rounded_scales`; `one` is for rows.
    logs : (2**15 + 1,) int64 array
        log2 of each index in units of 2^-28.
    """
    count = -(-symbols.size // width)
    height, groups = (width, -(-width // group)) if group else (0, 0)
    scales = np.empty(count + height + groups, np.uint8)
    work = np.empty(2 * scales.size + SCRATCH, np.int64)
    narrow, room = np.zeros(height, np.int32), np.empty(TILE, np.uint8)
    counts, sizes = np.zeros(256, np.int64), np.empty(3, np.int64)
    rounding = _rounding(quantum, unit)
    arrays = narrow, work, count_tables(), scales, room, counts, sizes
    _fit_scales(symbols, width, group, *rounding, one, unit, logs, *arrays)
    nbits, of_rows, of_columns = sizes.tolist()
    rows, columns = scales[:count], scales[count : count + height]
    sums = work[:count], work[count : 2 * count]
    return FittedScales(rows, columns, sums, counts, nbits, (of_rows, of_columns))


@dispatched("gcodec.kernels.context.byte_scales_cuda")
def take_runs(
    bits: np.ndarray, form: PlaneForm, start: int, run: int, period: int, out: np.ndarray
) -> None:
    """Write the first plane of runs of elements, perhaps lowered, on the calling thread.

    Parameters
    ----------
    bits : (n,) unsigned array
        Bit patterns of all elements.
    form : PlaneForm
    start : int
        The first element of the first run.
    run, period : int
        Elements of a run, a multiple of 2^12; and from one run to the next. The last run may be
        shorter.
    out : (k,) uint8 array
    """
    room = np.empty(TILE if form.scales else 0, np.uint8)
    loop = _taking(bits.itemsize, form.shift)
    loop(bits, *form.arguments, start, run, period, room, out)


@dispatched("gcodec.kernels.context.byte_scales_cuda")
def count_runs(bits: np.ndarray, form: PlaneForm, count: int, run: int, period: int) -> np.ndarray:
    """Count the `count` > 0 bytes that `take_runs` would write from the first element on.

    The result is a (256,) int64 array on the host.
    """
    loop = _counted(bits.itemsize, form.shift)

    def task(start: int, stop: int) -> np.ndarray:
        room, counts = np.empty(2 * TILE, np.uint8), np.zeros(256, np.int64)
        runs = start // run * period + start % run, stop - start, run, period
        loop(bits, *form.arguments, *runs, room, count_tables(), counts)
        return counts

    return added(pool.run(task, count, _COUNTED))


@dispatched("gcodec.kernels.context.byte_scales_cuda", by="out")
def join_planes(
    first: np.ndarray,
    others: np.ndarray,
    stride: int,
    out: np.ndarray,
    form: PlaneForm,
    start: int = 0,
    *,
    coded: np.ndarray | None = None,
    streaming: bool = False,
) -> None:
    """Write the bit patterns of elements with these planes, on the calling thread.

    Parameters
    ----------
    first : (n,) uint8 array
        The first plane, perhaps lowered.
    others, stride
        The other planes; see `byte_planes.take_others`.
    out : (n,) unsigned array
    form : PlaneForm
    start : int
        The first element.
    coded : (ceil(n / 4096),) uint16 array, optional
        The numbers of coded elements, if the other planes leave out elements of 0. Otherwise, no
        byte is an escape.
    streaming : bool
        Whether stores bypass the cache where `out` is aligned.

    Raises
    ------
    Corrupt
        If a group does not have as many coded elements as its number says.
    """
    escape, *scales, unit = form.arguments
    streaming = streaming and out.ctypes.data % STREAMED == 0
    counts, planes = group_arguments(out.itemsize, coded)
    room, valid = np.empty(TILE, np.uint8), np.empty(1, np.int64)
    groups = counts, escape, orders()[1], planes
    _joined(out.itemsize, form.shift)(
        *(first, others, stride, *scales, unit, start, room, *groups, streaming, out, valid)
    )
    if valid[0] < counts.size:
        raise wrong_group(start // TILE + int(valid[0]))


def wrong_group(group: int) -> Corrupt:
    """Return the error of a group with another number of zeros."""
    return Corrupt(f"group {group} does not have as many zeros as the head says")


def rounded_scales(
    lines: Sums, quantum: int, one: int, unit: int, average: Sums | None = None
) -> np.ndarray:
    """Return the scales of lines by their sums and counts.

    Parameters
    ----------
    lines : Sums
    quantum : int
        The smallest scale; all scales are multiples of it.
    one : int
        Scale of a line whose mean is the average.
    unit : int
        What a byte grows by in an octave.
    average : Sums, optional
        The average is that of all bytes of these lines; by default, of `lines`.

    Returns
    -------
    (k,) uint8 array
        0 for lines without counts.
    """
    out = np.empty(lines[0].size, np.uint8)
    _round_scales(*lines, *(average or lines), *_rounding(quantum, unit), one, out)
    return out


def _rounding(quantum: int, unit: int) -> tuple[float, int, int]:
    """Return how many quanta a scale grows if a mean grows by 1; the quantum; the maximum."""
    return _PER_OCTAVE / (unit * quantum), quantum, MOST & -quantum


@kernel(
    "in int64[], in int64[], in int64[], in int64[], float64, int64, int64, int64, out uint8[]"
)
def _round_scales(sums, counts, all_sums, all_counts, factor, quantum, most, one, out):
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


@functools.cache
def _moving(move: Any) -> Any:
    """Make the subroutine that lowers or raises up to TILE bytes from element `start` on."""

    @inline
    def move_rows(source, rows, width, start, unit, out):
        row, at = start // width, 0
        last = (row + 1) * width - start
        while at < source.size:
            end = min(last, source.size)
            by = _shift_of(min(rows[row], _LAST), unit)
            while at + _PART <= end:
                part, target = source[at : at + _PART], out[at : at + _PART]
                for i in range(_PART):
                    target[i] = move(part[i], by)
                at += _PART
            for i in range(at, end):
                out[i] = move(source[i], by)
            row, at, last = row + 1, end, last + width

    @subroutine
    def move_part(source, rows, columns, width, start, unit, out):
        # out.size == source.size; the scales cover all elements.
        if columns.size == 0:
            move_rows(source, rows, width, start, np.uint16(unit), out)
            return
        fill_classes(rows, columns, width, start, out)
        if unit == 1:
            for i in range(out.size):
                out[i] = move(source[i], _whole_octaves(out[i]))
            return
        step = np.uint16(unit)
        for i in range(out.size):
            out[i] = move(source[i], _shift_of(out[i], step))

    return move_part


_lower_part, _raise_part = _moving(_lowered), _moving(_raised)


@kernel(
    "in uint8[], int64, int64, float64, int64, int64, int64, int64, in int64[], out int32[], "
    "out int64[], out int64[], out uint8[], out uint8[], out int64[], out int64[]"
)
def _fit_scales(
    symbols,
    width,
    group,
    factor,
    quantum,
    most,
    one,
    unit,
    logs,
    narrow,
    work,
    tables,
    scales,
    room,
    counts,
    sizes,
):
    # With k rows and g groups: narrow.size is `width`, or 0 if `group` is 0; scales.size == k +
    # narrow.size + g, and work.size twice that and SCRATCH. room.size == TILE, counts.size == 256,
    # sizes.size == 3; see `count_part` for `tables`. `narrow` and `counts` are 0 before.
    height = narrow.size
    count = (symbols.size + width - 1) // width
    groups = scales.size - height - count
    sums, numbers = work[:count], work[count : 2 * count]
    columns = work[2 * count : 2 * (count + height)]
    grouped, scratch = work[2 * (count + height) : 2 * scales.size], work[2 * scales.size :]
    rows, by_column = scales[:count], scales[count : count + height]
    by_group = scales[count + height :]
    columns[:] = 0
    grouped[:] = 0
    _add_byte_rows(symbols, width, narrow, sums, numbers, columns)
    _round_scales(sums, numbers, sums, numbers, factor, quantum, most, one, rows)
    for j in range(height):
        grouped[j // group] += columns[j]
        grouped[groups + j // group] += columns[height + j]
    own, own_numbers = grouped[:groups], grouped[groups:]
    _round_scales(own, own_numbers, own, own_numbers, factor, quantum, most, CENTER, by_group)
    for j in range(height):
        by_column[j] = by_group[j // group]
    tables[:] = 0
    for first in range(0, symbols.size, TILE):
        source = symbols[first : first + TILE]
        part = room[: source.size]
        _lower_part(source, rows, by_column, width, first, unit, part)
        count_part(part, tables)
    add_tables(tables, counts)
    sizes[0] = ideal_nbits(counts, counts.size, logs)
    sizes[1] = list_nbits(rows, logs, scratch)
    sizes[2] = list_nbits(by_group, logs, scratch) if groups > 0 else 0


@factory(lambda: ((itemsize,) for itemsize in FLOAT_SHIFTS))
def _summed(itemsize: int) -> Kernel:
    word, shift = np.dtype(f"uint{8 * itemsize}").type, FLOAT_SHIFTS[itemsize]
    take_first = taking_first(itemsize, shift)

    @inline
    def byte_of(bits, i):
        return np.uint16(word(bits[i] >> word(shift)) & word(255))

    @subroutine
    def sum_rows(bits, width, period, sums, counts, least, greatest):
        """Sum rows without columns: a loop of a fixed length needs no other one for its rest."""
        for row in range(sums.size):
            first = row * period
            line = bits[first : min(first + width, bits.size)]
            total, count, whole = np.int64(0), np.int64(0), line.size // _PART * _PART
            low, high = np.uint16(0xFFFF), np.uint16(0)  # the least byte but 0, minus 1
            for at in range(0, whole, _PART):
                part, part_sum, part_count = line[at : at + _PART], np.uint16(0), np.uint16(0)
                for i in range(_PART):
                    byte = byte_of(part, i)
                    part_sum = np.uint16(part_sum + byte)
                    part_count = np.uint16(part_count + np.uint16(byte != 0))
                    low, high = min(low, np.uint16(byte - np.uint16(1))), max(high, byte)
                total += np.int64(part_sum)
                count += np.int64(part_count)
            for i in range(whole, line.size):
                byte = byte_of(line, i)
                total += np.int64(byte)
                count += np.int64(byte != 0)
                low, high = min(low, np.uint16(byte - np.uint16(1))), max(high, byte)
            sums[row], counts[row] = total, count
            least[row], greatest[row] = np.uint8(low + np.uint16(1)), np.uint8(high)

    @kernel(
        f"in uint{8 * itemsize}[], int64, int64, out uint8[], out int32[], out int64[], "
        "out int64[], out int64[], out uint8[], out uint8[]",
        variant=str(itemsize),
    )
    def sum_plane(bits, width, period, room, narrow, sums, counts, columns, least, greatest):
        # sums.size == ceil(bits.size / period). If the period is not the width, the last row has
        # `width` bits. Without columns, narrow.size and room.size are 0, and least.size and
        # greatest.size are sums.size; else room.size is a multiple of `width`. See
        # `_add_byte_rows` for the other arrays.
        if narrow.size == 0:
            sum_rows(bits, width, period, sums, counts, least, greatest)
            return
        most = room.size // width
        for row in range(0, sums.size, most):
            count = min(most, sums.size - row)
            part = room[: count * width]
            if period == width:
                part = part[: bits.size - row * width]
                take_first(bits[row * width : row * width + part.size], np.uint8(0), part)
            else:
                for k in range(count):
                    first = (row + k) * period
                    own = part[k * width : (k + 1) * width]
                    take_first(bits[first : first + width], np.uint8(0), own)
            own_sums, own_counts = sums[row : row + count], counts[row : row + count]
            _add_byte_rows(part, width, narrow, own_sums, own_counts, columns)

    return sum_plane


@functools.cache
def taking_part(itemsize: int, shift: int) -> Any:
    """Make the subroutine that writes up to TILE bytes of the first plane, perhaps lowered."""
    take_first = taking_first(itemsize, shift)

    @subroutine
    def take_part(bits, escape, rows, columns, width, unit, start, part, room):
        # part.size bits from `start` on; room.size == TILE. rows.size is 0 if no byte is lowered;
        # else see `_moving` for the scales.
        source = bits[start : start + part.size]
        if rows.size == 0:
            take_first(source, escape, part)
            return
        plain = room[: part.size]
        take_first(source, escape, plain)
        _lower_part(plain, rows, columns, width, start, unit, part)

    return take_part


@factory(lambda: FORMS)
def _taking(itemsize: int, shift: int) -> Kernel:
    take = taking_part(itemsize, shift)

    @kernel(
        f"in uint{8 * itemsize}[], uint8, in uint8[], in uint8[], int64, int64, int64, int64, "
        "int64, out uint8[], out uint8[]",
        variant=f"{itemsize} {shift}",
    )
    def take_runs(bits, escape, rows, columns, width, unit, start, run, period, room, out):
        # The runs lie in `bits`; see `taking_part` for the other arrays.
        for first in range(0, out.size, TILE):
            at = start + first // run * period + first % run
            part = out[first : first + TILE]
            take(bits, escape, rows, columns, width, unit, at, part, room)

    return take_runs


@factory(lambda: FORMS)
def _counted(itemsize: int, shift: int) -> Kernel:
    take = taking_part(itemsize, shift)

    @kernel(
        f"in uint{8 * itemsize}[], uint8, in uint8[], in uint8[], int64, int64, int64, int64, "
        "int64, int64, out uint8[], out int64[], out int64[]",
        variant=f"{itemsize} {shift}",
    )
    def count_runs(
        bits, escape, rows, columns, width, unit, start, count, run, period, room, tables, counts
    ):
        # room.size == 2 * TILE; counts.size == 256; see `_taking` and `count_part` for the others.
        tables[:] = 0
        for first in range(0, count, TILE):
            at = start + first // run * period + first % run
            part = room[: min(TILE, count - first)]
            take(bits, escape, rows, columns, width, unit, at, part, room[TILE:])
            count_part(part, tables)
        add_tables(tables, counts)

    return count_runs


@factory(lambda: FORMS)
def _joined(itemsize: int, shift: int) -> Kernel:
    join, join_coded = joining(itemsize, shift), joining_coded(itemsize, shift)

    @kernel(
        "in uint8[], in uint8[], int64, in uint8[], in uint8[], int64, int64, int64, out uint8[], "
        f"in uint16[], uint8, in uint64[], out uint8[], boolean, out uint{8 * itemsize}[], "
        "out int64[]",
        variant=f"{itemsize} {shift}",
    )
    def join_planes(
        first,
        others,
        stride,
        rows,
        columns,
        width,
        unit,
        start,
        room,
        counts,
        escape,
        orders,
        planes,
        streaming,
        out,
        valid,
    ):
        # first.size == out.size; room.size is TILE, the size of a group. rows.size is 0 if no byte
        # is lowered, and counts.size is 0 if no element is left out, or the number of groups. The
        # other planes have as many elements as `first`, or as the sum of the counts: others.size
        # >= (itemsize - 2) * stride + their size. See `join_coded` for the other arrays; valid[0]
        # becomes the number of groups up to the first one whose count is wrong.
        place, is_whole = 0, rows.size == 0 and counts.size == 0
        valid[0] = 0
        if is_whole:
            join(first, others, stride, out, streaming)
        for at in range(0, 0 if is_whole else out.size, TILE):
            part, target = first[at : at + TILE], out[at : at + TILE]
            raised = room[: part.size]
            if rows.size > 0:
                _raise_part(part, rows, columns, width, start + at, unit, raised)
            else:
                for i in range(part.size):
                    raised[i] = part[i]
            if counts.size == 0:
                join(raised, others[at:], stride, target, streaming)
                continue
            count, rest = np.int64(counts[at // TILE]), others[place:]
            if not join_coded(
                raised, escape, count, rest, stride, orders, planes, target, streaming
            ):
                break
            place += count
            valid[0] += 1
        if streaming:
            fence()

    return join_planes
