"""The forward DCT along one axis of chunks, in a fixed order of float32 operations.

Row u of the basis of n points is symmetric if u is even, and antisymmetric if u is odd. If n is
even, the kernel therefore adds elements j and n − 1 − j, subtracts them, and computes the odd
coefficients from the n/2 differences. The n/2 sums yield the even coefficients in the same way,
until the number of sums is odd. The last sums are multiplied by the remaining rows. A coefficient
starts at +0 and adds its products by fused multiply-adds, which are rounded once: those of the
differences in falling order of j, those of the last sums in rising order.

This takes a third of the products of the whole basis if n is a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gcodec.kernels.numeric.arithmetic import copy_block
from gcodec.kernels.transform.dct_inverse import Sizes
from gcodec.runtime.jit import Intrinsic, kernel, subroutine
from gcodec.runtime.lanes import BLOCK, Emitter, Value, block, compiles_for, floats, lanes
from gcodec.runtime.memory import aligned_empty

SKIPPED = -1  # folds of an axis that is not transformed

_BATCH = 1 << 14  # most elements that all axes are transformed of at once, unless a chunk has more
_TOGETHER = 4  # coefficients that are summed at once
_SIDE = 8  # rows and columns that are transposed at once


def folds_of(n: int) -> int:
    """Return how often n points can be halved."""
    return (n & -n).bit_length() - 1


def folded_table(rows: np.ndarray, folds: int) -> np.ndarray:
    """Return the entries of an (n, n) basis in the order in which the kernel reads them.

    Parameters
    ----------
    rows : (n, n) float32 array
        Row for each frequency. With folds, rows are symmetric or antisymmetric as those of a DCT.
    folds : int
        How often n is halved, from 0 to `folds_of(n)`.

    Returns
    -------
    (n·n/2 + …,) float32 array
    """
    n, parts = len(rows), []
    for fold in range(folds):
        half = n >> fold + 1
        parts.append(rows[1 << fold :: 2 << fold, half - 1 :: -1])
    parts.append(rows[:: 1 << folds, : n >> folds])
    return np.concatenate([entries.reshape(-1) for part in parts for entries in _tiles(part)])


def _tiles(part: np.ndarray) -> list[np.ndarray]:
    """Return the transposes of 4 rows of a part at a time, then of single rows."""
    whole = len(part) - len(part) % _TOGETHER
    tiles = [part[k : k + _TOGETHER].T for k in range(0, whole, _TOGETHER)]
    return tiles + [part[k] for k in range(whole, len(part))]


def forward(
    x: np.ndarray,
    sizes: Sizes,
    tables: tuple[np.ndarray, np.ndarray, np.ndarray],
    folds: tuple[int, int, int],
    out: np.ndarray,
) -> None:
    """Transform chunks.

    Parameters
    ----------
    x, out : (m·a·b·c,) float32 arrays
        They may be the same array.
    sizes : (int, int, int)
        Sizes a, b, c of a chunk.
    tables : three float32 arrays
        Entries for each axis; see `folded_table`.
    folds : three int
        Folds of each axis; `SKIPPED` for axes that are not transformed.
    """
    transform(x, batch_of(sizes), *sizes, *tables, *folds, *panels_of(sizes), out)


def batch_of(sizes: Sizes) -> int:
    """Return the number of elements that all axes are transformed of at once."""
    size = math.prod(sizes)
    return max(_BATCH // size, 1) * size


def panels_of(sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Return the scratch memory of `transform`."""
    panels = aligned_empty(2 * max(sizes) * BLOCK, np.float32).reshape(2, -1)
    panels[:] = 0  # a panel may have fewer columns
    return panels[0], panels[1]


@block("source", "at", "pitch", "panel", "n")
def _fold(e: Emitter) -> None:
    """Set rows of a panel to the sums and differences of mirrored rows.

    Row j of n rows of 32 elements is set to the sum, and row n − 1 − j to the difference. The
    source has `pitch` elements from row to row, and may be the panel.
    """
    builder, word = e.builder, e.args["n"].type
    source, panel = e.address("source", "at"), e.args["panel"]
    last, kind = builder.sub(e.args["n"], word(1)), floats()

    def is_below(current: list[Value]) -> Value:
        return builder.icmp_signed("<", builder.add(current[0], current[0]), last)

    def fold(current: list[Value]) -> list[Value]:
        pair = current[0], builder.sub(last, current[0])
        low, high = (
            e.load(builder.gep(source, [builder.mul(j, e.args["pitch"])]), kind) for j in pair
        )
        results = builder.fadd(low, high), builder.fsub(low, high)
        for j, result in zip(pair, results, strict=True):
            e.store(result, builder.gep(panel, [builder.mul(j, word(BLOCK))]))
        return [builder.add(current[0], word(1))]

    e.loop([word(0)], is_below, fold)


def _summing(together: int) -> Intrinsic:
    """Make the block that sums the products of the rows of a panel for some coefficients."""

    @block("panel", "first", "count", "table", "entry", "out", "to", "pitch")
    def sum_rows(e: Emitter) -> None:
        """Store the sums of `count` rows of 32 elements, times entries, to rows `pitch` apart."""
        builder, word = e.builder, e.args["count"].type
        # 8 or 16 sums stay in registers, with the elements of a row and an entry.
        kind = floats(BLOCK if compiles_for("avx512f") else BLOCK // 2)

        def add(_: Value, source: Value, entries: Value, *sums: Value) -> list[Value]:
            values, totals = e.load(source, kind), list[Value]()
            for k in range(together):
                factor = e.splat(builder.load(e.element(entries, k)), kind.count)
                totals.append(e.fused(factor, values, sums[k]))
            return [e.element(source, BLOCK), e.element(entries, together), *totals]

        for lane in range(0, BLOCK, kind.count):
            source = e.element(e.address("panel", "first"), lane)
            zeros = [kind([0.0] * kind.count)] * together
            begin = [source, e.address("table", "entry"), *zeros]
            _, _, *sums = e.count(word(0), e.args["count"], word(1), begin, add)
            target = e.element(e.address("out", "to"), lane)
            for total in sums:
                e.store(total, target)
                target = builder.gep(target, [e.args["pitch"]])

    return sum_rows


_sum_rows, _sum_rows_once = _summing(_TOGETHER), _summing(1)


@block("source", "at", "pitch", "out", "to", "out_pitch", "count")
def _transpose_squares(e: Emitter) -> None:
    """Transpose `count` squares of 8x8 elements, which are beside each other in the source."""
    builder, word = e.builder, e.args["count"].type
    out_step = builder.mul(e.args["out_pitch"], word(_SIDE))

    def move(_: Value, source: Value, target: Value) -> list[Value]:
        places = [source]
        for _ in range(1, _SIDE):
            places.append(builder.gep(places[-1], [e.args["pitch"]]))
        place = target
        for column in _columns(e, places):
            e.store(column, place)
            place = builder.gep(place, [e.args["out_pitch"]])
        return [e.element(source, _SIDE), builder.gep(target, [out_step])]

    begin = [e.address("source", "at"), e.address("out", "to")]
    e.count(word(0), e.args["count"], word(1), begin, move)


def _columns(e: Emitter, rows: list[Value]) -> list[Value]:
    """Emit the columns of 8 rows of 8 elements, given the addresses of the rows."""
    kind, half = floats(_SIDE // 2), _SIDE // 2
    columns = []
    for first in (0, half):
        # Both halves of a vector are rows of a square of 4x4 elements, which are transposed.
        quarters = [e.load(e.element(row, first), kind) for row in rows]
        square = [_chosen(e, quarters[k], quarters[k + half], range(_SIDE)) for k in range(half)]
        pairs = [
            _chosen(e, square[k], square[k + 1], order)
            for k in (0, 2)
            for order in ((0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15))
        ]
        columns += [
            _chosen(e, pairs[k], pairs[k + 2], order)
            for k in (0, 1)
            for order in ((0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15))
        ]
    return columns


def _chosen(e: Emitter, one: Value, other: Value, order: Sequence[int]) -> Value:
    """Emit the vector of the lanes of two vectors, end to end, in an order."""
    return e.builder.shuffle_vector(one, other, lanes(32, len(order))([*order]))


@subroutine
def _transpose(source, at, pitch, rows, columns, out, to, out_pitch):
    """Transpose a matrix whose rows are `pitch` elements apart."""
    high, wide = rows - rows % _SIDE, columns - columns % _SIDE
    for r in range(0, high, _SIDE):
        squares = wide // _SIDE
        _transpose_squares(source, at + r * pitch, pitch, out, to + r, out_pitch, squares)
    for r in range(rows):
        for c in range(wide if r < high else 0, columns):
            out[to + c * out_pitch + r] = source[at + r * pitch + c]


@subroutine
def _transform_panel(source, at, pitch, n, table, folds, panel, out, to, out_pitch):
    """Set n rows of 32 elements of `out`, from `to` on, to the transform of rows of `source`."""
    if folds:
        _fold(source, at, pitch, panel, n)
    for fold in range(1, folds):
        _fold(panel, 0, BLOCK, panel, n >> fold)
    entry = 0
    for fold in range(folds + 1):
        if fold < folds:
            count = n >> fold + 1
            first, u, step = count * BLOCK, 1 << fold, 2 << fold
        else:
            count = n >> folds
            first, u, step = 0, 0, 1 << folds
        whole = count - count % _TOGETHER
        for k in range(0, count, _TOGETHER):
            if k < whole:
                place = to + (u + k * step) * out_pitch
                _sum_rows(panel, first, count, table, entry, out, place, step * out_pitch)
                entry += _TOGETHER * count
            else:
                for q in range(k, count):
                    place = to + (u + q * step) * out_pitch
                    _sum_rows_once(panel, first, count, table, entry, out, place, out_pitch)
                    entry += count


@block("source", "at", "pitch", "out", "to", "out_pitch", "n")
def _copy_eight(e: Emitter) -> None:
    """Copy 8 elements of each of n rows."""
    builder, word = e.builder, e.args["n"].type

    def move(_: Value, source: Value, target: Value) -> list[Value]:
        e.store(e.load(source, floats(_SIDE)), target)
        pitches = e.args["pitch"], e.args["out_pitch"]
        places = zip((source, target), pitches, strict=True)
        return [builder.gep(place, [pitch]) for place, pitch in places]

    begin = [e.address("source", "at"), e.address("out", "to")]
    e.count(word(0), e.args["n"], word(1), begin, move)


@subroutine
def _copy_rows(source, at, pitch, out, to, out_pitch, n, count):
    """Copy `count` elements of each of n rows."""
    whole = count - count % _SIDE
    for k in range(0, whole, _SIDE):
        _copy_eight(source, at + k, pitch, out, to + k, out_pitch, n)
    if whole < count:
        for i in range(n):
            for k in range(whole, count):
                out[to + i * out_pitch + k] = source[at + i * pitch + k]


@subroutine
def _run_of(column, n, inner, most):
    """Return the place of a column of (m, n, inner) values, and how many columns follow on it."""
    j = column % inner
    return column // inner * n * inner + j, min(most, inner - j)


@subroutine
def _move_columns(x, n, inner, column, count, panel, reads):
    """Copy columns of (m, n, inner) values to the rows of a panel, or back unless it `reads`."""
    lane = 0
    while lane < count:
        place, run = _run_of(column + lane, n, inner, count - lane)
        if reads:
            _copy_rows(x, place, inner, panel, lane, BLOCK, n, run)
        else:
            _copy_rows(panel, lane, BLOCK, x, place, inner, n, run)
        lane += run


@subroutine
def _transform_rows(x, n, table, folds, panel, sums, out):
    """Transform rows of n values; `out` may be x."""
    rows = x.size // n
    for row in range(0, rows, BLOCK):
        count = min(BLOCK, rows - row)
        _transpose(x, row * n, n, count, n, panel, 0, BLOCK)
        _transform_panel(panel, 0, BLOCK, n, table, folds, panel, sums, 0, BLOCK)
        _transpose(sums, 0, BLOCK, n, count, out, row * n, n)


@subroutine
def _transform_axis(x, n, inner, table, folds, panel, sums):
    """Transform the middle axis of (m, n, inner) values in place."""
    if inner == 1:
        _transform_rows(x, n, table, folds, panel, sums, x)
        return
    columns = x.size // n
    for column in range(0, columns, BLOCK):
        count = min(BLOCK, columns - column)
        at, run = _run_of(column, n, inner, count)
        if folds and run == BLOCK:
            _transform_panel(x, at, inner, n, table, folds, panel, x, at, inner)
            continue
        _move_columns(x, n, inner, column, count, panel, True)
        _transform_panel(panel, 0, BLOCK, n, table, folds, panel, sums, 0, BLOCK)
        _move_columns(x, n, inner, column, count, sums, False)


@kernel(
    "in float32[], int64, (int64, int64, int64), (in float32[], in float32[], in float32[]), "
    "(int64, int64, int64), (out float32[], out float32[]), out float32[]"
)
def transform(x, batch, sizes, tables, folds, panels, out):
    """Do what `forward` does, given what `batch_of` and `panels_of` return."""
    # x.size == out.size and `batch` are multiples of a * b * c; a panel has max(a, b, c) * BLOCK
    # elements; the table of an axis that is not skipped has an entry for each product.
    a, b, c = sizes
    first, middle, last = tables
    folds_a, folds_b, folds_c = folds
    panel, sums = panels
    for start in range(0, x.size, batch):
        stop = min(start + batch, x.size)
        part = out[start:stop]
        if folds_c >= 0:
            _transform_rows(x[start:stop], c, last, folds_c, panel, sums, part)
        else:
            whole = stop - (stop - start) % BLOCK
            for i in range(start, whole, BLOCK):
                copy_block(x, i, out, i, False)
            for i in range(whole, stop):
                out[i] = x[i]
        if folds_b >= 0:
            _transform_axis(part, b, c, middle, folds_b, panel, sums)
        if folds_a >= 0:
            _transform_axis(part, a, b * c, first, folds_a, panel, sums)
