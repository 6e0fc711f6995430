"""Classes of elements: the scale of the row plus that of the column, and what follows from them.

Elements lie in rows of `width`, the last of which may be shorter. Scales are integers: logarithms
of how large the levels of a row are, and of how much larger those of a column are than the
average, in quarter octaves. So the class of an element is known before any of them is read, in
any order.

Symbols are twice a level's magnitude, plus 1 where it is negative.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.context.class_fill import CENTRE as CENTRE
from gcodec.kernels.context.class_fill import CLASSES as CLASSES
from gcodec.kernels.context.class_fill import fill_classes
from gcodec.kernels.context.class_tally import COUNTS, TILE, spare_tables, taken, tally
from gcodec.kernels.numeric.magnitudes import add_magnitudes
from gcodec.kernels.numeric.words import trailing_zeros
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import Emitter, block, lanes

ScalesOf = tuple[np.ndarray, np.ndarray, int]  # of rows and columns, and the width of a row

_ABOVE, _OF_CLASS = np.uint16(8), np.uint16(0xFF00)  # bits of a symbol below its class


@dispatched("gcodec.kernels.context.class_map_cuda", by="out")
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


@dispatched("gcodec.kernels.context.class_map_cuda")
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
    room = np.empty(TILE, np.uint8)
    _join_symbols(symbols, rows, columns, width, start, unknown, room, out)


@dispatched("gcodec.kernels.context.class_map_cuda")
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
        room = np.empty(TILE, np.uint8), np.empty(TILE, np.uint16)
        how = step, *room, spare_tables(), np.empty(256, np.int32)
        for of, own in zip(every, counts, strict=True):
            _count_classes(symbols[start:stop], *of, start, *how, own)
        return counts

    first, *others = pool.run(task, symbols.size, TILE)
    for counts in others:
        first += counts
    return first.reshape(-1, CLASSES, 256)


def seen(n: int, step: int) -> int:
    """Return how many of n > 0 elements are in every `step`-th tile."""
    last = (n - 1) // TILE // step  # of these tiles
    return last * TILE + min(TILE, n - last * step * TILE)


@dispatched("gcodec.kernels.context.class_map_cuda")
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

    first, *others = pool.run(task, symbols.size, TILE)
    places = np.concatenate((first, *others)) if others else first
    return places, symbols[places].astype(np.int64)


@dispatched("gcodec.kernels.context.class_map_cuda")
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


@kernel("in uint8[], in uint8[], int64, int64, out uint8[]")
def _map_classes(rows, columns, width, start, out):
    fill_classes(rows, columns, width, start, out)


@kernel("in uint8[], in uint8[], out uint16[]")
def _join_classes(symbols, classes, out):
    # All three are of equal size.
    for i in range(out.size):
        out[i] = np.uint16(classes[i]) << _ABOVE | np.uint16(symbols[i])


@kernel("in uint8[], in uint8[], in uint8[], int64, int64, in int64[], out uint8[], out uint16[]")
def _join_symbols(symbols, rows, columns, width, start, unknown, room, out):
    # room.size == TILE, out.size == symbols.size, above all unknown.
    for first in range(0, out.size, TILE):
        part, here = symbols[first : first + TILE], out[first : first + TILE]
        classes = room[: here.size]
        fill_classes(rows, columns, width, start + first, classes)
        for i in range(here.size):
            here[i] = np.uint16(classes[i]) << _ABOVE | np.uint16(part[i])
    for i in range(unknown.size):
        out[unknown[i]] = out[unknown[i]] & _OF_CLASS | np.uint16(ESCAPE)


@kernel(
    "in uint8[], in uint8[], in uint8[], int64, int64, int64, out uint8[], out uint16[], "
    "out int32[], out int32[], out int64[]"
)
def _count_classes(symbols, rows, columns, width, start, step, room, joined, spare, row, counts):
    # See `tally`; spare is left as it was; row.size == 256, counts.size == COUNTS.
    low, high, top = tally(symbols, rows, columns, width, start, step, room, joined, spare)
    for of in range(low, high + 1):
        taken(spare, of, top, row)
        here = counts[of << 8 : (of << 8) + top + 1]
        for k in range(here.size):
            here[k] += row[k]


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
