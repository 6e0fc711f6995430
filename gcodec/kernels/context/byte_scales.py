"""First planes of bit patterns, whose bytes are lowered by the classes of their elements.

Bytes are exponents, perhaps with the upper bits of a mantissa; `unit` is what a byte grows by in
an octave. Classes are in quarter octaves, see `class_map`. A byte b from 1 on is lowered to
1 + (b − 1 − k) mod 255, where k is a quarter of the class times the unit, rounded. The byte 0
marks zeros, and is never lowered.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.byte_planes import (
    ALL_FORMS,
    group_arguments,
    joining,
    joining_coded,
    orders,
    taking_first,
)
from gcodec.kernels.context.byte_sums import (
    PlaneSums,
    Sums,
    add_byte_rows,
    round_scales,
    rounding,
)
from gcodec.kernels.context.class_map import CENTER, CLASSES, TILE, ScaleArrays, fill_classes
from gcodec.kernels.context.scale_lists import SCRATCH, list_nbits
from gcodec.kernels.numeric.byte_counts import (
    add_tables,
    count_part,
    count_tables,
    ideal_nbits,
)
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, Subroutine, factory, inline, kernel, subroutine
from gcodec.runtime.lanes import fence, is_aligned

_LAST, _BYTE = np.uint8(CLASSES - 1), 255
_COUNTED = 1 << 18  # bytes of a task that counts them
_PART = 64  # bytes of a loop whose fixed length needs no other loop for its rest
NO_SCALES: ScaleArrays = (np.empty(0, np.uint8), np.empty(0, np.uint8), 1)
FORM = "(uint8, in uint8[], in uint8[], int64, int64)"
"""Types of `PlaneForm.arguments`, one parameter of kernels."""


class PlaneForm(NamedTuple):
    """What the bytes of the first plane of bit patterns are.

    Attributes
    ----------
    shift : int
        Lowest bit of the plane; one of `byte_planes.ALL_FORMS`.
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
    def arguments(self) -> tuple[int, np.ndarray, np.ndarray, int, int]:
        """Elements of `FORM`: escape, scales of rows and columns, width, and unit."""
        return self.escape, *(self.scales or NO_SCALES), self.unit


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
    limits = np.empty(2, np.int64)
    _lower_limits(plane.least, plane.greatest, scales, unit, limits)
    least, greatest = limits.tolist()
    return (least, greatest) if 1 <= least <= greatest else None


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
    arrays = narrow, work, count_tables(), room, scales, counts, sizes
    _fit_scales(symbols, width, group, *rounding(quantum, unit), one, unit, logs, *arrays)
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

    return pool.run_added(task, count, _COUNTED)


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
    counts, planes = group_arguments(out.itemsize, coded)
    room, groups = np.empty(TILE, np.uint8), (counts, orders()[1], planes)
    valid = joiner(out.itemsize, form.shift)(
        *(first, others, stride, *form.arguments, start, room, *groups, streaming, out)
    )
    if valid < counts.size:
        raise wrong_group(start // TILE + valid)


def wrong_group(group: int) -> Corrupt:
    """Return the error of a group with another number of zeros."""
    return Corrupt(f"group {group} does not have as many zeros as the head says")


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


@kernel("in uint8[], in uint8[], in uint8[], int64, out int64[]", vectorized=False)
def _lower_limits(least, greatest, scales, unit, limits):
    # The first three arrays have equal sizes, and limits.size == 2.
    limits[0], limits[1] = _BYTE, -_BYTE
    for row in range(scales.size):
        if greatest[row] > 0:
            by = np.int64(_shift_of(min(scales[row], _LAST), np.uint16(unit)))
            limits[0] = min(limits[0], np.int64(least[row]) - by)
            limits[1] = max(limits[1], np.int64(greatest[row]) - by)


@functools.cache
def _moving(move: Any) -> Subroutine:
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
        fill_classes((rows, columns, width), start, out)
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
    "in uint8[], int64, int64, (float64, int64, int64), int64, int64, in int64[], "
    "(out int32[], out int64[], out int64[], out uint8[]), out uint8[], out int64[], out int64[]"
)
def _fit_scales(symbols, width, group, rounding, one, unit, logs, arrays, scales, counts, sizes):
    # With k rows and g groups: narrow.size is `width`, or 0 if `group` is 0; scales.size == k +
    # narrow.size + g, and work.size twice that and SCRATCH. room.size == TILE, counts.size == 256,
    # sizes.size == 3; see `count_part` for `tables`. `narrow` and `counts` are 0 before.
    narrow, work, tables, room = arrays
    height = narrow.size
    count = (symbols.size + width - 1) // width
    groups = scales.size - height - count
    sums = work[:count], work[count : 2 * count]
    columns = work[2 * count : 2 * (count + height)]
    grouped, scratch = work[2 * (count + height) : 2 * scales.size], work[2 * scales.size :]
    rows, by_column = scales[:count], scales[count : count + height]
    by_group = scales[count + height :]
    columns[:] = 0
    grouped[:] = 0
    add_byte_rows(symbols, width, narrow, *sums, columns)
    round_scales(sums, sums, rounding, one, rows)
    for j in range(height):
        grouped[j // group] += columns[j]
        grouped[groups + j // group] += columns[height + j]
    own = grouped[:groups], grouped[groups:]
    round_scales(own, own, rounding, CENTER, by_group)
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


@functools.cache
def taking_part(itemsize: int, shift: int) -> Subroutine:
    """Make the subroutine that writes up to TILE bytes of the first plane, perhaps lowered."""
    take_first = taking_first(itemsize, shift)

    @subroutine
    def take_part(bits, form, start, part, room):
        # part.size bits from `start` on; room.size == TILE. rows.size is 0 if no byte is lowered;
        # else see `_moving` for the scales.
        escape, rows, columns, width, unit = form
        source = bits[start : start + part.size]
        if rows.size == 0:
            take_first(source, escape, part)
            return
        plain = room[: part.size]
        take_first(source, escape, plain)
        _lower_part(plain, rows, columns, width, start, unit, part)

    return take_part


@factory(lambda: ALL_FORMS)
def _taking(itemsize: int, shift: int) -> Kernel:
    take = taking_part(itemsize, shift)

    @kernel(
        f"in uint{8 * itemsize}[], {FORM}, int64, int64, int64, out uint8[], out uint8[]",
        variant=f"{itemsize} {shift}",
    )
    def take_runs(bits, form, start, run, period, room, out):
        # The runs lie in `bits`; see `taking_part` for the other arrays.
        for first in range(0, out.size, TILE):
            at = start + first // run * period + first % run
            part = out[first : first + TILE]
            take(bits, form, at, part, room)

    return take_runs


@factory(lambda: ALL_FORMS)
def _counted(itemsize: int, shift: int) -> Kernel:
    take = taking_part(itemsize, shift)

    @kernel(
        f"in uint{8 * itemsize}[], {FORM}, int64, int64, int64, int64, out uint8[], out int64[], "
        "out int64[]",
        variant=f"{itemsize} {shift}",
    )
    def count_runs(bits, form, start, count, run, period, room, tables, counts):
        # room.size == 2 * TILE; counts.size == 256; see `_taking` and `count_part` for the others.
        tables[:] = 0
        for first in range(0, count, TILE):
            at = start + first // run * period + first % run
            part = room[: min(TILE, count - first)]
            take(bits, form, at, part, room[TILE:])
            count_part(part, tables)
        add_tables(tables, counts)

    return count_runs


@factory(lambda: ALL_FORMS)
def joiner(itemsize: int, shift: int) -> Kernel:
    """Return the kernel of `join_planes`."""
    join, join_coded = joining(itemsize, shift), joining_coded(itemsize, shift)

    @kernel(
        f"in uint8[], in uint8[], int64, {FORM}, int64, out uint8[], in uint16[], in uint64[], "
        f"out uint8[], boolean, out uint{8 * itemsize}[]",
        variant=f"{itemsize} {shift}",
    )
    def join_planes(
        first, others, stride, form, start, room, counts, orders, planes, streaming, out
    ):
        # first.size == out.size; room.size is TILE, the size of a group. rows.size is 0 if no byte
        # is lowered, and counts.size is 0 if no element is left out, or the number of groups. The
        # other planes have as many elements as `first`, or as the sum of the counts: others.size
        # >= (itemsize - 2) * stride + their size. See `join_coded` for the other arrays. Returns
        # the number of groups up to the first one whose count is wrong.
        escape, rows, columns, width, unit = form
        streaming = streaming and is_aligned(out)
        valid, place, is_whole = np.int64(0), 0, rows.size == 0 and counts.size == 0
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
            valid += 1
        if streaming:
            fence()
        return valid

    return join_planes
