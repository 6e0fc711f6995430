"""Sums of bytes by row and by column, and the scales that follow from them.

Bytes are exponents, perhaps with the upper bits of a mantissa, so they are about logarithms of
magnitudes, and means of them are logarithms of scales. The byte 0 marks zeros, which have no
logarithm: no sum contains them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gcodec.kernels.bits.byte_planes import FLOAT_FORMS, taking_first
from gcodec.kernels.context.class_map import TILE
from gcodec.kernels.context.scale_lists import MOST
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Kernel, factory, inline, kernel, subroutine

_PER_OCTAVE = 4
_COUNT = 20  # bits of a sum of bytes, above which a narrow counter counts the bytes
_PART = 64  # bytes of a loop whose fixed length needs no other loop for its rest
_FLUSH = 1 << 10  # rows whose sums and counts fit into a narrow counter, with its sign

Sums = tuple[np.ndarray, np.ndarray]
"""Sums of bytes, and numbers of the bytes that are not 0, of each row or column."""
SUMS = "(in int64[], in int64[])"
"""Types of `Sums`, one parameter of kernels."""


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
                add_byte_rows(symbols, width, narrow, *own, columns)
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


@dispatched("gcodec.kernels.context.byte_sums_cuda")
def plane_sums(
    bits: np.ndarray,
    shift: int,
    width: int,
    period: int | None = None,
    *,
    has_columns: bool = False,
) -> PlaneSums:
    """Sum the first plane of (n,) bit patterns of floats by row and by column.

    The sums are on the host. Columns of an array there are summed on this thread.

    Parameters
    ----------
    bits : (n,) unsigned array
        On a device, also the (n,) bytes of a first plane, with a shift of 0.
    shift : int
        Lowest bit of the first plane.
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
    limited = 0 if has_columns else count
    least, greatest = np.empty(limited, np.uint8), np.empty(limited, np.uint8)
    loop = _summed(bits.itemsize, shift)

    def task(start: int, stop: int) -> None:
        part = slice(start // period, -(-stop // period))
        own = *(array[part] for array in rows), columns, least[part], greatest[part]
        loop(bits[start:stop], width, period, room, narrow, *own)

    if has_columns:
        task(0, bits.size)
    else:
        pool.run(task, bits.size, period)
    return PlaneSums(rows, (columns[:height], columns[height:]), least, greatest)


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
    round_scales(*lines, *(average or lines), *rounding(quantum, unit), one, out)
    return out


def rounding(quantum: int, unit: int) -> tuple[float, int, int]:
    """Return how many quanta a scale grows if a mean grows by 1; the quantum; the maximum."""
    return _PER_OCTAVE / (unit * quantum), quantum, MOST & -quantum


@kernel(f"{SUMS}, {SUMS}, (float64, int64, int64), int64, out uint8[]")
def round_scales(lines, average, rounding, one, out):
    """Write the scales of lines; see `rounded_scales`."""
    sums, counts = lines
    all_sums, all_counts = average
    factor, quantum, most = rounding
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
def add_byte_rows(symbols, width, narrow, sums, counts, columns):
    """Write the sums of rows, and add those of columns."""
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


@factory(lambda: ((1, 0), *FLOAT_FORMS))
def _summed(itemsize: int, shift: int) -> Kernel:
    word = np.dtype(f"uint{8 * itemsize}").type
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
        variant=f"{itemsize} {shift}",
    )
    def sum_plane(bits, width, period, room, narrow, sums, counts, columns, least, greatest):
        # sums.size == ceil(bits.size / period). If the period is not the width, the last row has
        # `width` bits. Without columns, narrow.size and room.size are 0, and least.size and
        # greatest.size are sums.size; else room.size is a multiple of `width`. See
        # `add_byte_rows` for the other arrays.
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
            add_byte_rows(part, width, narrow, own_sums, own_counts, columns)

    return sum_plane
