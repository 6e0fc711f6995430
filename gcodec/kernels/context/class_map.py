"""Classes of elements, which are the contexts of their symbols, and statistics of each class.

Elements lie in rows of `width`; the last row may be shorter. The class of an element is the scale
of its row plus the scale of its column. Scales are integers in quarter octaves: the logarithm of
the mean level of a row, and the logarithm of the mean level of a column relative to the mean of
all levels. So the decoder knows the classes of all elements before it reads any symbol.

A symbol is twice the magnitude of a level, plus 1 if the level is negative.
"""

from __future__ import annotations

import threading

import numpy as np

from gcodec.kernels.bits.computed_symbols import Symbols, parts_in
from gcodec.kernels.context.escapes import listed_positions
from gcodec.kernels.numeric.magnitudes import add_magnitudes
from gcodec.kernels.numeric.words import load_word, trailing_zeros
from gcodec.kernels.quantize.scalar_quantize import ESCAPE
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel, subroutine
from gcodec.runtime.lanes import Emitter, Value, block, lanes

CLASSES = 64
CENTER = 64  # the scale of a column whose mean is that of all elements
COUNTS = CLASSES * 256  # size of a table of counts: of each symbol in each class
TILE = 1 << 12  # elements that kernels classify at once

ScaleArrays = tuple[np.ndarray, np.ndarray, int]  # scales of rows and columns, width of a row
SCALES = "(in uint8[], in uint8[], int64)"
"""Types of `ScaleArrays`, one parameter of kernels."""
TALLY = "(out uint8[], out uint16[], out int32[])"
"""Types of the arrays in which `tally` counts, one parameter of kernels."""

_LAST, _CENTER = np.uint8(CLASSES - 1), np.uint8(CENTER)
_NARROW = 24  # largest width of rows that are filled by vectors
_VECTOR = 32  # classes that one vector holds
_CLASS, _CLASS_BITS = np.uint16(8), np.uint16(0xFF00)  # the class's place above a symbol

_TABLES = 4  # count tables of a thread
_PITCH = COUNTS + 80  # from table to table; a multiple of a page would make stores collide
_SECOND, _THIRD, _FOURTH = (np.uint64(k * _PITCH) for k in range(1, _TABLES))
_LOW, _SIXTEEN = np.uint64(0xFFFF), np.uint64(16)
_COUNTED = 1 << 30  # symbols whose counts fit into 32 bits
_PART = 32  # counts of a model that are usually all 0

_thread = threading.local()


@dispatched("gcodec.kernels.context.class_map_cuda", by="out")
def map_classes(
    rows: np.ndarray, columns: np.ndarray, width: int, start: int, out: np.ndarray
) -> None:
    """Write the classes of the elements from `start` on, on the calling thread.

    Parameters
    ----------
    rows : (ceil(n / width),) uint8 array
        Scales up to 127. A class is row + column − CENTER, limited to 0 … CLASSES − 1.
    columns : (width,) uint8 array, or an empty one
        Scales up to 127; an empty array means CENTER for every column.
    width, start : int
    out : uint8 array
    """
    fill_classes(rows, columns, width, start, out)


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
    """Write the words of `join_classes` for the elements from `start` on, on this thread.

    Parameters
    ----------
    symbols : (n,) uint8 array
        Symbols of the elements from `start` on.
    rows, columns, width, start
        See `map_classes`.
    unknown : (k,) int64 array on the host
        Positions in `symbols` that get the escape symbol.
    out : (n,) uint16 array
    """
    classes = np.empty(TILE, np.uint8)
    _join_symbols(symbols, rows, columns, width, start, unknown, classes, out)


@dispatched("gcodec.kernels.context.class_map_cuda")
def class_counts(symbols: Symbols, scale_sets: list[ScaleArrays], step: int) -> np.ndarray:
    """Count the symbols of each class in every `step`-th tile of 2^12 elements.

    Parameters
    ----------
    symbols : (n,) uint8 array
    scale_sets : list of (rows, columns, width)
        One or more sets of scales; see `map_classes`.
    step : int

    Returns
    -------
    (len(scale_sets), CLASSES, 256) int64 array
    """

    def task(start: int, stop: int) -> np.ndarray:
        counts = np.zeros((len(scale_sets), COUNTS), np.int64)
        classes, joined = np.empty(TILE, np.uint8), np.empty(TILE, np.uint16)
        row, tables = np.empty(256, np.int32), count_tables()
        for first, symbols_part in parts_in(symbols, start, stop, TILE, step):
            for at in range(0, symbols_part.size, _COUNTED):
                part = symbols_part[at : at + _COUNTED]
                for scales, out in zip(scale_sets, counts, strict=True):
                    own = (first + at, step, classes, joined, tables, row, out)
                    _count_classes(part, *scales, *own)
        return counts

    counts = pool.run_added(task, symbols.size, TILE)
    return counts.reshape(-1, CLASSES, 256)


def sampled_count(n: int, step: int) -> int:
    """Return how many of n > 0 elements lie in every `step`-th tile."""
    last = (n - 1) // TILE // step  # number of the last tile that is taken
    return last * TILE + min(TILE, n - last * step * TILE)


def reach(counts: np.ndarray) -> np.ndarray:
    """Return one more than the largest magnitude that each model has; 0 if it has no symbol.

    Parameters
    ----------
    counts : (k, 256) int64 array
        Counts of symbols by model.

    Returns
    -------
    (k,) uint8 array
    """
    out = np.empty(len(counts), np.uint8)
    _find_reach(counts.reshape(-1), out)
    return out


@dispatched("gcodec.kernels.context.class_map_cuda")
def escaped_symbols(
    symbols: Symbols, rows: np.ndarray, columns: np.ndarray, width: int, tops: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the symbols whose magnitudes exceed the largest one of their class.

    Parameters
    ----------
    symbols : (n,) uint8 array
    rows, columns, width
        See `map_classes`.
    tops : (CLASSES,) uint8 array
        Largest magnitude of each class.

    Returns
    -------
    places : (k,) int64 array
        Positions in increasing order.
    values : (k,) int64 array
        Symbols at these positions.
    """

    def task(start: int, stop: int) -> list[tuple[np.ndarray, np.ndarray]]:
        classes, mask = np.empty(TILE, np.uint8), np.empty(1, np.uint64)

        def listed(at: int, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            scales = rows, columns, width
            places = listed_positions(
                lambda out: _find_unknown(part, *scales, at, tops, classes, mask, out),
                1 << 8 | part.size >> 4,
            )
            # A copy, because the array has room for more.
            return places.copy(), part[places - at].astype(np.int64)

        return [listed(*part) for part in parts_in(symbols, start, stop, TILE)]

    parts = [part for parts in pool.run(task, symbols.size, TILE) for part in parts]
    places, values = map(np.concatenate, zip(*parts, strict=True))
    return places, values


@dispatched("gcodec.kernels.context.class_map_cuda")
def magnitude_sums(
    symbols: Symbols, matrices: list[tuple[int, bool]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Sum the magnitudes of (n,) uint8 symbols by row and by column.

    Parameters
    ----------
    symbols : (n,) uint8 array
    matrices : list of (int, bool)
        One or more matrices: the width of a row, and whether columns are summed too.

    Returns
    -------
    list of (rows, columns)
        (ceil(n / width),) int64 array; (width,) int64 array, or an empty one.
    """
    return [_magnitude_sums(symbols, width, columns) for width, columns in matrices]


def _magnitude_sums(
    symbols: Symbols, width: int, has_columns: bool
) -> tuple[np.ndarray, np.ndarray]:
    if symbols.size == width and not has_columns and not isinstance(symbols, np.ndarray):
        rows, columns = _magnitude_sums(symbols, TILE, False)
        return rows.sum(keepdims=True), columns
    rows = np.zeros(-(-symbols.size // width), np.int64)
    height = width if has_columns else 0

    def task(start: int, stop: int) -> np.ndarray:
        columns, narrow = np.zeros(height, np.int64), np.zeros(height, np.int32)
        # A segment has whole rows; only the last row may be shorter.
        for at, part in parts_in(symbols, start, stop, width):
            add_magnitudes(part, width, narrow, rows[at // width :], columns)
        return columns

    return rows, pool.run_added(task, symbols.size, width)


def count_tables() -> np.ndarray:
    """Return the calling thread's tables for `tally`, all zeros; kernels leave them zero."""
    if not hasattr(_thread, "tables"):
        _thread.tables = np.zeros(_TABLES * _PITCH, np.int32)
    return _thread.tables


# --- classes -------------------------------------------------------------------------------------


@block("one", "two", "three", "four", "lower", "rise", "out", "at")
def _store_row(e: Emitter) -> None:
    """Write 32 classes; four words hold the column scales as bytes.

    A class is max(scale, lower) − lower + rise, at most the last class.
    """
    builder, kind = e.builder, lanes(8, _VECTOR)
    words = [e.args[name] for name in ("one", "two", "three", "four")]
    columns = builder.bitcast(e.filled(lanes(64, _VECTOR // 8), words), kind)

    def smaller(a: Value, b: Value) -> Value:
        return builder.select(builder.icmp_unsigned("<", a, b), a, b)

    def larger(a: Value, b: Value) -> Value:
        return builder.select(builder.icmp_unsigned(">", a, b), a, b)

    lower, last = e.splat(e.args["lower"], _VECTOR), kind([int(_LAST)] * _VECTOR)
    lowered = builder.sub(larger(columns, lower), lower)
    classes = smaller(builder.add(lowered, e.splat(e.args["rise"], _VECTOR)), last)
    e.store(classes, e.address("out", "at"), 1)


@kernel(f"{SCALES}, int64, out uint8[]")
def fill_classes(scales, start, out):
    """Write classes; see `map_classes`. The scales of rows cover start + out.size elements."""
    rows, columns, width = scales
    row = start // width
    column = start - row * width
    if columns.size == 0 or width > _NARROW:
        _fill_wide(rows[row:], columns, width, column, out)
        return
    # Rows are too short for a loop each. A vector stores one row and some bytes after it, which
    # the next vectors overwrite.
    head = min((width - column) % width, out.size)
    _fill_wide(rows[row:], columns, width, column, out[:head])
    whole, body = rows[row + (column > 0) :], out[head:]
    one = two = three = np.uint64(0)
    for j in range(width):  # columns.size == width
        scale = np.uint64(columns[j]) << np.uint64(8 * (j & 7))
        one |= scale if j < 8 else np.uint64(0)
        two |= scale if 8 <= j < 16 else np.uint64(0)
        three |= scale if j >= 16 else np.uint64(0)
    count = (body.size - _VECTOR) // width + 1 if body.size >= _VECTOR else 0
    for i in range(count):  # i * width + _VECTOR <= body.size
        lower, rise = _shift(whole[i])
        _store_row(one, two, three, np.uint64(0), lower, rise, body, i * width)
    _fill_wide(whole[count:], columns, width, 0, body[count * width :])


@subroutine
def _shift(scale):
    """Return by how much a row lowers the scales of columns, and by how much it raises them.

    One of the two is 0, and no sum exceeds 127 + 63, so bytes suffice.
    """
    lower = np.uint8(_CENTER - min(scale, _CENTER))
    return lower, np.uint8(max(scale, _CENTER) - _CENTER)


@subroutine
def _fill_wide(rows, columns, width, column, out):
    """Write classes from a column of the first row on."""
    row, at = 0, 0
    while at < out.size:
        count = min(width - column, out.size - at)  # so column + count <= width
        part = out[at : at + count]
        # rows.size > row, as `at` is an element; there is a column for each element, or none.
        scale = rows[row]
        if columns.size == 0:
            only = min(scale, _LAST)
            for j in range(part.size):
                part[j] = only
        else:
            scales = columns[column : column + count]
            lower, rise = _shift(scale)
            for j in range(part.size):
                value = np.uint8(np.uint8(max(scales[j], lower) - lower) + rise)
                part[j] = min(value, _LAST)
        at += count
        row, column = row + 1, 0


@kernel("in uint8[], in uint8[], out uint16[]")
def join_classes(symbols, classes, out):
    """Write uint16 words, the class in the high byte, the symbol in the low byte."""
    # All three have the same size.
    for i in range(out.size):
        out[i] = np.uint16(classes[i]) << _CLASS | np.uint16(symbols[i])


@kernel(f"in uint8[], {SCALES}, int64, in int64[], out uint8[], out uint16[]")
def _join_symbols(symbols, scales, start, unknown, classes, out):
    # classes.size == TILE; out.size == symbols.size, which exceeds every element of `unknown`.
    for first in range(0, out.size, TILE):
        part, target = symbols[first : first + TILE], out[first : first + TILE]
        own = classes[: target.size]
        fill_classes(scales, start + first, own)
        for i in range(target.size):
            target[i] = np.uint16(own[i]) << _CLASS | np.uint16(part[i])
    for i in range(unknown.size):
        out[unknown[i]] = out[unknown[i]] & _CLASS_BITS | np.uint16(ESCAPE)


# --- counts --------------------------------------------------------------------------------------


@subroutine
def tally(symbols, scales, start, step, room):
    """Count symbols by class in `tables`; return the least and largest class, and the top symbol.

    `room` contains two arrays of size TILE, `classes` and `joined`, and `tables`: several tables
    of zeros, whose sum becomes the counts; `take_counts` adds them up. There are fewer than 2^31
    symbols.
    """
    classes, joined, tables = room
    low, high, top = np.uint8(CLASSES - 1), np.uint8(0), np.uint8(0)
    for first in range(0, symbols.size, TILE):
        if (start + first) // TILE % step:
            continue
        part = symbols[first : first + TILE]
        own, words = classes[: part.size], joined[: part.size]
        fill_classes(scales, start + first, own)
        for i in range(part.size):
            low, high = min(low, own[i]), max(high, own[i])
            top = max(top, part[i])
        for i in range(part.size):
            words[i] = np.uint16(own[i]) << _CLASS | np.uint16(part[i])
        # Several tables: a count that has just been stored is not yet ready to be loaded again.
        whole = part.size - part.size % 4
        for i in range(0, whole, 4):
            word = load_word(words, i)
            tables[word & _LOW] += 1
            word >>= _SIXTEEN
            tables[_SECOND + (word & _LOW)] += 1
            word >>= _SIXTEEN
            tables[_THIRD + (word & _LOW)] += 1
            tables[_FOURTH + (word >> _SIXTEEN)] += 1
        for i in range(whole, part.size):
            tables[np.uint64(words[i])] += 1
    return np.int64(low), np.int64(high), np.int64(top)


@subroutine
def take_counts(tables, model, top, counts):
    """Move the counts of the symbols up to `top` of a class from `tables` to `counts`.

    counts.size > top. Return the largest symbol that occurs, or −2.
    """
    start, out = model << 8, counts[: top + 1]
    one, two = tables[start : start + top + 1], tables[_PITCH + start : _PITCH + start + top + 1]
    three = tables[2 * _PITCH + start : 2 * _PITCH + start + top + 1]
    four = tables[3 * _PITCH + start : 3 * _PITCH + start + top + 1]
    last = np.int32(-2)
    for k in range(out.size):
        out[k] = np.int32(np.int32(one[k] + two[k]) + np.int32(three[k] + four[k]))
        one[k] = two[k] = three[k] = four[k] = 0
        last = max(last, np.int32(k) if out[k] > 0 else np.int32(-2))
    return np.int64(last)


@kernel(f"in uint8[], {SCALES}, int64, int64, {TALLY}, out int32[], out int64[]")
def _count_classes(symbols, scales, start, step, room, row, counts):
    # See `tally`; its tables are zero again in the end; row.size == 256, counts.size == COUNTS.
    low, high, top = tally(symbols, scales, start, step, room)
    for model in range(low, high + 1):
        take_counts(room[2], model, top, row)
        out = counts[model << 8 : (model << 8) + top + 1]
        for k in range(out.size):
            out[k] += row[k]


@kernel("in int64[], out uint8[]", vectorized=False)
def _find_reach(counts, out):
    # counts.size == 256 * out.size
    for model in range(out.size):
        row, top = counts[model << 8 : model + 1 << 8], 0
        for first in range(0, row.size, _PART):
            part, bits = row[first : first + _PART], np.int64(0)
            for k in range(part.size):
                bits |= part[k]
            for k in range(part.size if bits else 0):
                top = first + k + 2 if part[k] else top
        out[model] = np.uint8(top >> 1)


# --- unknown symbols and sums --------------------------------------------------------------------


@block("symbols", "classes", "i", "tops", "above")
def _find_above(e: Emitter) -> None:
    """Write 64 bits, lowest first: whether symbols from i on exceed the tops of their classes."""
    builder, kind = e.builder, lanes(8, 64)
    models = e.load(e.address("classes", "i"), kind, 1)
    tops = e.looked_up(e.args["tops"], models)
    sizes = builder.lshr(e.load(e.address("symbols", "i"), kind, 1), kind([1] * 64))
    mask = builder.bitcast(builder.icmp_unsigned(">", sizes, tops), lanes(64, 1))
    e.store(mask, e.args["above"], 8)


@kernel(f"in uint8[], {SCALES}, int64, in uint8[], out uint8[], out uint64[], out int64[]")
def _find_unknown(symbols, scales, start, tops, classes, above, places):
    # classes.size == TILE; tops.size == CLASSES; above.size == 1. See `listed_positions`.
    count = 0
    for first in range(0, symbols.size, TILE):
        part = symbols[first : first + TILE]
        own = classes[: part.size]
        fill_classes(scales, start + first, own)
        for at in range(0, own.size, 64):
            if at + 64 <= own.size:
                _find_above(part, own, at, tops, above)
            else:
                above[0] = 0
                for i in range(at, own.size):
                    bit = np.uint64(part[i] >> np.uint8(1) > tops[own[i]])
                    above[0] |= bit << np.uint64(i - at)
            mask = above[0]
            while mask:  # seldom
                if count < places.size:
                    places[count] = start + first + at + np.int64(trailing_zeros(mask))
                count += 1
                mask &= mask - np.uint64(1)
    return count
