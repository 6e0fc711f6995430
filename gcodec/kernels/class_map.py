"""Classes of elements: the scale of the row plus that of the column, and what follows from them.

Elements lie in rows of `width`, the last of which may be shorter. Scales are integers: logarithms
of how large the levels of a row are, and of how much larger those of a column are than the
average, in quarter octaves. So the class of an element is known before any of them is read, in
any order.

Symbols are twice a level's magnitude, plus 1 where it is negative.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels import pool
from gcodec.kernels.device import twinned
from gcodec.kernels.jit import kernel, subroutine
from gcodec.kernels.lanes import Emitter, block, lanes
from gcodec.kernels.magnitudes import add_magnitudes
from gcodec.kernels.scalar_quantize import ESCAPE
from gcodec.kernels.words import load_word, trailing_zeros

CLASSES = 64
CENTRE = 64  # the scale of a column as large as the average
ScalesOf = tuple[np.ndarray, np.ndarray, int]  # of rows and columns, and the width of a row

_ABOVE = np.uint16(8)  # bits of a symbol below its class


@twinned("class_map", by="out")
def map_classes(
    rows: np.ndarray, columns: np.ndarray, width: int, start: int, out: np.ndarray
) -> None:
    """Write the classes of elements from `start` on, on the calling thread.

    Parameters
    ----------
    rows : (ceil(n / width),) uint8 array
        Scales up to 127; a class is row + column - CENTRE, or the nearest that there is.
    columns : (width,) uint8 array, or of no elements
        Scales up to 127, as if all were CENTRE where there are none.
    width, start : int
    out : uint8 array
    """
    _map_classes(rows, columns, width, start, out)


def join_classes(symbols: np.ndarray, classes: np.ndarray, out: np.ndarray) -> None:
    """Write uint16 numbers, classes above symbols, on the calling thread."""
    _join_classes(symbols, classes, out)


@twinned("class_map")
def join_symbols(
    symbols: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    width: int,
    start: int,
    unknown: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write uint16 numbers, classes above symbols, of elements from `start` on, on this thread.

    Parameters
    ----------
    symbols : (n,) uint8 array
        From element `start` on.
    rows, columns, width, start
        See `map_classes`.
    unknown : (k,) int64 array
        Which of these symbols are written as escapes; on the host.
    out : (n,) uint16 array
    """
    classes = np.empty(symbols.size, np.uint8)
    _map_classes(rows, columns, width, start, classes)
    if unknown.size:
        symbols = symbols.copy()
        symbols[unknown] = ESCAPE
    _join_classes(symbols, classes, out)


@twinned("class_map")
def class_counts(symbols: np.ndarray, every: list[ScalesOf], step: int) -> np.ndarray:
    """Count (n,) uint8 symbols of each class in every `step`-th tile of 2^12 elements.

    Parameters
    ----------
    symbols : (n,) uint8 array
    every : list of (rows, columns, width)
        One or several ways to tell classes; see `map_classes`.
    step : int

    Returns
    -------
    (len(every), CLASSES, 256) int64 array
    """

    def task(start: int, stop: int) -> np.ndarray:
        counts = np.zeros((len(every), COUNTS), np.int64)
        room, spare = np.empty(TILE, np.uint8), np.zeros(2 * APART, np.int32)
        for of, own in zip(every, counts, strict=True):
            _count_classes(symbols[start:stop], *of, start, step, room, spare, own)
        return counts

    first, *others = pool.run(task, symbols.size, TILE)
    for counts in others:
        first += counts
    return first.reshape(-1, CLASSES, 256)


def seen(n: int, step: int) -> int:
    """Return how many of n > 0 elements are in every `step`-th tile."""
    last = (n - 1) // TILE // step  # of these tiles
    return last * TILE + min(TILE, n - last * step * TILE)


@twinned("class_map")
def unknown_symbols(
    symbols: np.ndarray, rows: np.ndarray, columns: np.ndarray, width: int, tops: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols whose magnitudes are above the largest of their class.

    Parameters
    ----------
    symbols : (n,) uint8 array
    rows, columns, width
        See `map_classes`.
    tops : (CLASSES,) uint8 array

    Returns
    -------
    places : (k,) int64 array
        Rising.
    values : (k,) int64 array
        The symbols there.
    """

    def task(start: int, stop: int) -> np.ndarray:
        part = symbols[start:stop]
        room, places = np.empty(TILE, np.uint8), np.empty(1 << 8 | part.size >> 4, np.int64)
        how = rows, columns, width, start, tops, room, np.empty(1, np.uint64)
        found = _find_unknown(part, *how, places)
        if found > places.size:
            places = np.empty(found, np.int64)
            _find_unknown(part, *how, places)
        return places[:found]

    places = np.concatenate(pool.run(task, symbols.size, TILE))
    return places, symbols[places].astype(np.int64)


@twinned("class_map")
def magnitude_sums(
    symbols: np.ndarray, matrices: list[tuple[int, bool]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Add up the magnitudes of the (n,) uint8 symbols of each row and of each column.

    Parameters
    ----------
    symbols : (n,) uint8 array
    matrices : list of (int, bool)
        One or several widths of rows, and whether columns are added up too.

    Returns
    -------
    list of (rows, columns)
        (ceil(n / width),) int64 array, and (width,) int64 array or one of no elements.
    """
    return [_magnitude_sums(symbols, width, columns) for width, columns in matrices]


def _magnitude_sums(
    symbols: np.ndarray, width: int, has_columns: bool
) -> tuple[np.ndarray, np.ndarray]:
    rows = np.zeros(-(-symbols.size // width), np.int64)
    height = width if has_columns else 0

    def task(start: int, stop: int) -> np.ndarray:
        columns, narrow = np.zeros(height, np.int64), np.zeros(height, np.int32)
        # Whole rows, but for the last.
        _sum_magnitudes(symbols[start:stop], width, narrow, rows[start // width :], columns)
        return columns

    columns = np.zeros(height, np.int64)
    for part in pool.run(task, symbols.size, width):
        columns += part
    return rows, columns


_LAST, _CENTRE = np.uint8(CLASSES - 1), np.uint8(CENTRE)
TILE = 1 << 12
COUNTS = CLASSES * 256
APART = COUNTS + 80  # at multiples of a page a processor takes one table for another
_NARROW = 24  # elements of rows that are filled by columns
_LOWER, _UPPER = np.uint64(0xFF), np.uint64(0xFF00)
_EIGHT, _SIXTEEN = np.uint64(8), np.uint64(16)


@subroutine(variant="")
def fill_classes(rows, columns, width, start, out):
    """Write classes; 0 <= start, and start + out.size elements lie in `rows`."""
    row = start // width
    column = start - row * width
    if columns.size == 0 or width > _NARROW:
        _fill_wide(rows[row:], columns, width, column, out)
        return
    # Rows are too short for vectors: columns of those that are whole, and what is before.
    before = min((width - column) % width, out.size)
    _fill_wide(rows[row:], columns, width, column, out[:before])
    count = (out.size - before) // width
    whole, below = rows[row + (column > 0) :], out[before:]
    for j in range(width):
        beside = np.int16(columns[j]) - np.int16(_CENTRE)
        for i in range(count):  # the last place is count * width - 1 at most
            value = np.int16(np.int16(whole[i]) + beside)
            below[i * width + j] = np.uint8(min(max(value, np.int16(0)), np.int16(_LAST)))
    _fill_wide(whole[count:], columns, width, 0, below[count * width :])


@subroutine(variant="")
def _fill_wide(rows, columns, width, column, out):
    """Write classes from a column of the first row on."""
    row, at = 0, 0
    while at < out.size:
        count = min(width - column, out.size - at)  # so column + count <= width
        here = out[at : at + count]
        # rows.size > row, as `at` is an element; columns are as many as a row has, or none.
        scale = rows[row]
        if columns.size == 0:
            only = min(scale, _LAST)
            for j in range(here.size):
                here[j] = only
        else:
            beside = columns[column : column + count]
            # In bytes alone: of these two one is 0, and no sum passes 127 + 63.
            down, up = (
                np.uint8(_CENTRE - min(scale, _CENTRE)),
                np.uint8(max(scale, _CENTRE) - _CENTRE),
            )
            for j in range(here.size):
                value = np.uint8(np.uint8(max(beside[j], down) - down) + up)
                here[j] = min(value, _LAST)
        at += count
        row, column = row + 1, 0


@kernel("in uint8[], in uint8[], int64, int64, out uint8[]")
def _map_classes(rows, columns, width, start, out):
    fill_classes(rows, columns, width, start, out)


@kernel("in uint8[], in uint8[], out uint16[]")
def _join_classes(symbols, classes, out):
    # All three are of equal size.
    for i in range(out.size):
        out[i] = np.uint16(classes[i]) << _ABOVE | np.uint16(symbols[i])


@subroutine(variant="")
def tally(symbols, rows, columns, width, start, step, room, spare):
    """Count symbols of classes; return the least and the largest class, and the largest symbol.

    room.size == TILE; spare.size == 2 * APART, two tables of zeros whose sums are the counts.
    """
    low, high, top = _LAST, np.uint8(0), np.uint8(0)
    second = np.uint64(APART)
    for first in range(0, symbols.size, TILE):
        if (start + first) // TILE % step:
            continue
        part = symbols[first : first + TILE]
        classes = room[: part.size]
        fill_classes(rows, columns, width, start + first, classes)
        for i in range(part.size):
            low, high = min(low, classes[i]), max(high, classes[i])
            top = max(top, part[i])
        # Two tables, as a count that has just been raised is not ready to be raised again.
        whole = part.size - part.size % 8
        for i in range(0, whole, 8):
            of, word = load_word(classes, i), load_word(part, i)
            for _ in range(4):
                spare[of << _EIGHT & _UPPER | word & _LOWER] += 1
                spare[second + (of & _UPPER | word >> _EIGHT & _LOWER)] += 1
                of, word = of >> _SIXTEEN, word >> _SIXTEEN
        for i in range(whole, part.size):
            spare[np.int64(classes[i]) << 8 | np.int64(part[i])] += 1
    return np.int64(low), np.int64(high), np.int64(top)


@kernel(
    "in uint8[], in uint8[], in uint8[], int64, int64, int64, out uint8[], out int32[], "
    "out int64[]"
)
def _count_classes(symbols, rows, columns, width, start, step, room, spare, counts):
    # See `tally`; spare is left as it was; counts.size == COUNTS. Symbols are fewer than 2^31.
    low, high, top = tally(symbols, rows, columns, width, start, step, room, spare)
    one, two = spare[:COUNTS], spare[APART:]
    for row in range(low, high + 1):
        for k in range(row << 8, (row << 8) + top + 1):
            counts[k] += one[k] + two[k]
            one[k] = two[k] = 0


@block("symbols", "classes", "i", "tops", "above", "zero")
def _find_above(e: Emitter) -> None:
    """Write 64 bits, lowest first: whether symbols from i on pass the tops of their classes."""
    builder, kind = e.builder, lanes(8, 64)
    models = e.load(e.address("classes", "i"), kind, 1)
    tops = e.looked_up(e.address("tops", "zero"), models)
    sizes = builder.lshr(e.load(e.address("symbols", "i"), kind, 1), kind([1] * 64))
    mask = builder.bitcast(builder.icmp_unsigned(">", sizes, tops), lanes(64, 1))
    e.store(mask, e.address("above", "zero"), 8)


@kernel(
    "in uint8[], in uint8[], in uint8[], int64, int64, in uint8[], out uint8[], out uint64[], "
    "out int64[]"
)
def _find_unknown(symbols, rows, columns, width, start, tops, room, above, places):
    # room.size == TILE; tops.size == CLASSES; above.size == 1. Returned is how many there are;
    # those that fit are told.
    found = 0
    for first in range(0, symbols.size, TILE):
        part = symbols[first : first + TILE]
        classes = room[: part.size]
        fill_classes(rows, columns, width, start + first, classes)
        for at in range(0, classes.size, 64):
            if at + 64 <= classes.size:
                _find_above(part, classes, at, tops, above, 0)
            else:
                above[0] = 0
                for i in range(at, classes.size):
                    more = np.uint64(part[i] >> np.uint8(1) > tops[classes[i]])
                    above[0] |= more << np.uint64(i - at)
            mask = above[0]
            while mask:  # seldom
                if found < places.size:
                    places[found] = start + first + at + np.int64(trailing_zeros(mask))
                found += 1
                mask &= mask - np.uint64(1)
    return found


@kernel("in uint8[], int64, out int32[], out int64[], out int64[]")
def _sum_magnitudes(symbols, width, narrow, rows, columns):
    add_magnitudes(symbols, width, narrow, rows, columns)
