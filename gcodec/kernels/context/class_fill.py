"""Classes of elements as kernels find them, row by row; see `class_map`."""

from __future__ import annotations

import numpy as np

from gcodec.runtime.jit import subroutine
from gcodec.runtime.lanes import Emitter, block, lanes

CLASSES = 64
CENTRE = 64  # the scale of a column as large as the average

_LAST, _CENTRE = np.uint8(CLASSES - 1), np.uint8(CENTRE)
_NARROW, _BESIDE = 24, 32  # elements of rows that are filled at once, and bytes that are written


@block("one", "two", "three", "four", "down", "up", "out", "at")
def _store_row(e: Emitter) -> None:
    """Write 32 classes, those of columns whose scales are the bytes of four words.

    That is max(scale, down) - down + up, at most the last.
    """
    from llvmlite import ir

    builder, kind, words = e.builder, lanes(8, _BESIDE), lanes(64, _BESIDE // 8)
    columns = words(ir.Undefined)
    for k, name in enumerate(("one", "two", "three", "four")):
        columns = builder.insert_element(columns, e.args[name], ir.IntType(32)(k))
    columns = builder.bitcast(columns, kind)

    def every(value: ir.Value) -> ir.Value:
        first = builder.insert_element(kind(ir.Undefined), value, ir.IntType(32)(0))
        return builder.shuffle_vector(first, first, lanes(32, _BESIDE)([0] * _BESIDE))

    down, up, last = every(e.args["down"]), every(e.args["up"]), kind([int(_LAST)] * _BESIDE)
    least = builder.select(builder.icmp_unsigned(">", columns, down), columns, down)
    found = builder.add(builder.sub(least, down), up)
    found = builder.select(builder.icmp_unsigned("<", found, last), found, last)
    e.store(found, e.address("out", "at"), 1)


@subroutine(variant="")
def fill_classes(rows, columns, width, start, out):
    """Write classes; 0 <= start, and start + out.size elements lie in `rows`."""
    row = start // width
    column = start - row * width
    if columns.size == 0 or width > _NARROW:
        _fill_wide(rows[row:], columns, width, column, out)
        return
    # Rows are too short for loops of their own: each is written with what is behind it, in order.
    before = min((width - column) % width, out.size)
    _fill_wide(rows[row:], columns, width, column, out[:before])
    whole, below = rows[row + (column > 0) :], out[before:]
    one = two = three = np.uint64(0)
    for j in range(width):  # columns.size == width
        scale = np.uint64(columns[j]) << np.uint64(8 * (j & 7))
        one |= scale if j < 8 else np.uint64(0)
        two |= scale if 8 <= j < 16 else np.uint64(0)
        three |= scale if j >= 16 else np.uint64(0)
    count = (below.size - _BESIDE) // width + 1 if below.size >= _BESIDE else 0
    for i in range(count):  # so i * width + _BESIDE <= below.size
        down, up = _moved(whole[i])
        _store_row(one, two, three, np.uint64(0), down, up, below, i * width)
    _fill_wide(whole[count:], columns, width, 0, below[count * width :])


@subroutine(variant="")
def _moved(scale):
    """Return by how much scales of columns are lowered in a row, or raised, in bytes alone.

    Of both one is 0, and no sum passes 127 + 63.
    """
    down = np.uint8(_CENTRE - min(scale, _CENTRE))
    return down, np.uint8(max(scale, _CENTRE) - _CENTRE)


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
            down, up = _moved(scale)
            for j in range(here.size):
                value = np.uint8(np.uint8(max(beside[j], down) - down) + up)
                here[j] = min(value, _LAST)
        at += count
        row, column = row + 1, 0
