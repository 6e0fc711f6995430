"""Copies of chunks between a tensor and an array of whole chunks.

The tensor is a matrix whose last row may be shorter. A chunk is a rectangle of the matrix, with
padding where it extends beyond.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.kernels.numeric.arithmetic import copy_block, fetch_block
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import inline, kernel
from gcodec.runtime.lanes import ADD, AHEAD, BLOCK, Emitter, block, floats


class Layout(NamedTuple):
    """Where the chunks of a tensor are.

    Attributes
    ----------
    columns : int
        Columns of the matrix.
    height, width : int
        Rows and columns of a chunk. A matrix with an incomplete row has chunks of whole rows.
    edge : bool
        Whether the padding repeats the last row and column; else it is 0.
    """

    columns: int
    height: int
    width: int
    edge: bool


@dispatched("gcodec.kernels.transform.chunk_layout_cuda")
def gather(x: np.ndarray, layout: Layout, first: int, out: np.ndarray) -> None:
    """Write the chunks of x from number `first` on to `out`, a whole number of them."""
    _gather(x, *layout, first, out)


@inline
def rectangle(n, columns, height, width, number):
    """Return the first element of a chunk, and its rows and columns inside the matrix."""
    across = (columns + width - 1) // width
    row, column = number // across * height, number % across * width
    start, below = row * columns + column, (n + columns - 1) // columns - row
    return start, min(height, below), min(width, columns - column, n - start)


@block("decoded", "j", "target", "i", "store", "scale")
def _put(e: Emitter) -> None:
    """Store 32 decoded elements from j on in `target` from i on; see `Emitter.store_as`."""
    e.store_as(e.load(e.address("decoded", "j"), floats()), e.address("target", "i"))


@inline
def put_rows(decoded, start, rows, count, columns, width, store, scale, out):
    """Write or add the first `count` elements of the first `rows` rows of a chunk to `out`."""
    whole = count - count % BLOCK
    for r in range(rows):
        at, own = start + r * columns, r * width
        for j in range(0, whole, BLOCK):
            _put(decoded, own + j, out, at + j, store, scale)
        for j in range(whole, count):
            value = decoded[own + j]
            if store == ADD:
                value = np.float32(out[at + j] + np.float32(scale * value))
            out[at + j] = value


@kernel("in float32[], int64, int64, int64, boolean, int64, out float32[]")
def _gather(x, columns, height, width, edge, first, out):
    # out.size is a multiple of height * width, and each of its chunks has elements of x
    ahead = AHEAD if height == 1 else 4 * columns  # elements between a load and a prefetch
    for m in range(out.size // (height * width)):
        start, rows, count = rectangle(x.size, columns, height, width, first + m)
        whole = count - count % BLOCK
        for r in range(rows):
            at, to = start + r * columns, (m * height + r) * width
            for j in range(0, whole, BLOCK):
                copy_block(x, at + j, out, to + j, False)
                fetch_block(x, at + j + ahead)
            for j in range(whole, count):
                out[to + j] = x[at + j]
            last = out[to + count - 1] if edge else np.float32(0)
            for j in range(count, width):
                out[to + j] = last
        for r in range(rows, height):
            above, to = (m * height + rows - 1) * width, (m * height + r) * width
            for j in range(width):
                out[to + j] = out[above + j]
