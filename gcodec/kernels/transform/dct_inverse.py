"""The inverse DCT of chunks with few nonzero coefficients, in a fixed order of summation.

A chunk has three sizes a, b, c, of which the first may be 1. Three sums of products yield its
value at (h, i, j): R(t, u, j) is the sum of y(t, u, v)·C(v, j) over v, P(t, i, j) is the sum of
B(u, i)·R(t, u, j) over u, and x(h, i, j) is the sum of A(t, h)·P(t, i, j) over t. A sum starts at
+0 and adds its products in rising order; each product and each sum is rounded to float32. Rows
without coefficients would add ±0, and are omitted.

Cosines are symmetric, so the product of a coefficient or a row is computed once for all elements
where it is the same apart from its sign. The sign of a product that is 0 does not matter, because
no sum is ever −0.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.arithmetic import fetch_block
from gcodec.kernels.transform.chunk_layout import Layout, put_rows, rectangle
from gcodec.runtime.cover import store_of
from gcodec.runtime.jit import Intrinsic, kernel, subroutine
from gcodec.runtime.lanes import (
    BLOCK,
    Emitter,
    Value,
    block,
    compiles_for,
    floats,
)
from gcodec.runtime.memory import aligned_empty

TABLED = 256  # points of the largest basis that is a table of n·n entries; others have factors
SHORT = 64  # points that share a factor
Sizes = tuple[int, int, int]

_TOGETHER = 64  # most rows whose factors are gathered at a time


def inverse(
    starts: np.ndarray,
    places: np.ndarray,
    values: np.ndarray,
    sizes: Sizes,
    bases: tuple[np.ndarray, np.ndarray, np.ndarray],
    mirrored: bool,
    layout: Layout,
    first: int,
    out: np.ndarray,
    add: np.float32 | None = None,
) -> None:
    """Compute the inverse transforms of m chunks, and write or add them to a tensor.

    Parameters
    ----------
    starts : (m + 1,) int64 array
        Index of the first coefficient of each chunk, followed by the number of coefficients.
    places : (k,) int32 array
        Place of each coefficient in its chunk; rising in a chunk, and below the chunk's size.
    values : (k,) float32 array
        Coefficients.
    sizes : (int, int, int)
        Sizes a, b, c of a chunk.
    bases : three float32 arrays
        Basis of each axis: a table with entry (u, i) at u·n + i, or factors for more than `TABLED`
        points; see `gcodec.kernels.transform.basis.table`.
    mirrored : bool
        Whether entry (u, n − 1 − i) of every table is entry (u, i), times −1 if u is odd.
    layout : Layout
        Where chunks of a·b·c elements are in `out`.
    first : int
        Number of the first chunk.
    out : (n,) float32 array
    add : float32, optional
        Factor of the values that are added to `out`. By default, they are written.
    """
    while mirrored and sizes[2] == 1 and sizes != (1, 1, 1):  # sums along rows are faster
        sizes, bases = (1, *sizes[:2]), (bases[2], *bases[:2])
    a, b, c = sizes
    rows = aligned_empty(b * c, np.float32)
    chunk = aligned_empty(a * b * c, np.float32) if a * b > 1 else rows
    planes = aligned_empty(a * b * c if a > 1 else 0, np.float32)
    factors = np.zeros(max(a, b) * _TOGETHER, np.float32)
    lines, layers = np.empty(b, np.int64), np.empty(a, np.int64)
    scratch = lines, rows, layers, planes, factors, np.empty(_TOGETHER, np.float32), chunk
    target = *layout[:3], first, *store_of(add, False)
    _inverse(starts, places, values, *sizes, *bases, mirrored, *scratch, *target, out)


def _adding(is_mirrored: bool) -> Intrinsic:
    """Make the block that adds multiples of rows to two rows, or to two rows and their mirrors."""
    added = "rows", "row", "length", "count", "factors", "signs", "n"

    @block(*added, "first", "second", "out", "at", "begin", "final", "place")
    def add_rows(e: Emitter) -> None:
        """Add multiples of `count` rows of `length` elements to 32 elements of rows of `out`.

        An added row has n factors, one for each row of `out`. Of a mirrored basis, the factor of
        row n − 1 − i is that of row i times the sign of the added row. At the begin, the elements
        of `out` are 0. `final` receives the sums in the end: its elements, those of the first row
        from `place` on, are prefetched.
        """
        builder, one = e.builder, e.args["count"].type(1)
        columns = [e.args[name] for name in ("first", "second")]
        mirrors = [builder.sub(builder.sub(e.args["n"], one), i) for i in columns]
        targets = columns + mirrors if is_mirrored else columns
        # The sums of all rows stay in registers: 512 bits have 32 of them, and 256 bits have 16.
        kind = floats(BLOCK if compiles_for("avx512f") else BLOCK // 2)

        def row(number: Value, source: Value, factors: Value, *before: Value) -> list[Value]:
            values, sums = e.load(source, kind), list(before)
            sign = e.splat(builder.load(builder.gep(e.args["signs"], [number])), kind.count)
            for k, i in enumerate(columns):
                factor = e.splat(builder.load(builder.gep(factors, [i])), kind.count)
                product = builder.fmul(factor, values)
                sums[k] = builder.fadd(sums[k], product)
                if is_mirrored:  # a factor of ±1 is exact, so only the sum is rounded
                    sums[k + 2] = e.fused(product, sign, sums[k + 2])
            following = builder.gep(source, [e.args["length"]])
            return [following, builder.gep(factors, [e.args["n"]]), *sums]

        starts = [builder.mul(i, e.args["length"]) for i in targets]
        for i in starts:
            e.fetch(builder.gep(e.address("final", "place"), [i]), 0)
        for j in range(0, BLOCK, kind.count):
            places = [e.element(builder.gep(e.address("out", "at"), [i]), j) for i in starts]
            zeros = kind([0.0] * kind.count)
            totals = [builder.select(e.args["begin"], zeros, e.load(p, kind)) for p in places]
            source = e.element(e.address("rows", "row"), j)
            begin = [source, e.args["factors"], *totals]
            _, _, *totals = e.count(one.type(0), e.args["count"], one, begin, row)
            for total, place in zip(totals, places, strict=True):
                e.store(total, place)

    return add_rows


_add_rows, _add_mirrored_rows = _adding(False), _adding(True)


def _waving(is_mirrored: bool) -> Intrinsic:
    """Make the block that adds two coefficients to groups of elements.

    Group q has the elements from `SHORT`·q on. An entry of the basis is the difference of two
    products of its factors. That of the same element in group `longs` − q is their sum, times ±1.
    """
    names = "row", "value", "mirrored_value", "next_row", "next_value", "next_mirrored_value"

    @block("factors", *names, "q", "stop", "longs", "out", "at")
    def add_waves(e: Emitter) -> None:
        """Add two rows of the basis, times values, to the groups from q to `stop`.

        If mirrored, they are added to groups `longs` − q, too, times other values.
        """
        builder, word, target = e.builder, e.args["q"].type, e.address("out", "at")
        kind = floats(BLOCK // 2 if compiles_for("avx512f") else BLOCK // 4)
        rows = [e.address("factors", row) for row in names[::3]]
        values = [[e.splat(e.args[name], kind.count) for name in names[k : k + 2]] for k in (1, 4)]

        def add_to(q: Value) -> list[Value]:
            groups = [q, builder.sub(e.args["longs"], q)] if is_mirrored else [q]
            starts = [builder.gep(target, [builder.mul(group, word(SHORT))]) for group in groups]
            far = []
            for row in rows:
                cosine = e.element(builder.gep(row, [q]), 2 * SHORT)
                pair = cosine, builder.gep(cosine, [e.args["longs"]])
                far.append([e.splat(builder.load(factor), kind.count) for factor in pair])

            def add(j: Value) -> list[Value]:
                places = [builder.gep(start, [j]) for start in starts]
                sums = [e.load(place, kind) for place in places]
                for row, own_far, own_values in zip(rows, far, values, strict=True):
                    near = [e.element(builder.gep(row, [j]), first) for first in (0, SHORT)]
                    cosines, sines = (
                        builder.fmul(factor, e.load(place, kind))
                        for factor, place in zip(own_far, near, strict=True)
                    )
                    entries = builder.fsub(cosines, sines), builder.fadd(cosines, sines)
                    for k in range(len(sums)):
                        sums[k] = builder.fadd(sums[k], builder.fmul(own_values[k], entries[k]))
                for total, place in zip(sums, places, strict=True):
                    e.store(total, place)
                return []

            e.count(word(0), word(SHORT), word(kind.count), [], add)
            return []

        e.count(e.args["q"], e.args["stop"], word(1), [], add_to)

    return add_waves


_add_waves, _add_mirrored_waves = _waving(False), _waving(True)


@subroutine
def _entry(products, n, u, i):
    """Return entry (u, i) of the basis of n > TABLED points."""
    longs = (n + SHORT - 1) // SHORT
    near = u * 2 * (SHORT + longs) + i % SHORT
    far = u * 2 * (SHORT + longs) + 2 * SHORT + i // SHORT
    cosines = np.float32(products[far] * products[near])
    return np.float32(cosines - np.float32(products[far + longs] * products[near + SHORT]))


@subroutine
def _add_row(entries, value, row, is_first):
    """Add a multiple of a row of a basis to a row, or set the row to it."""
    if is_first:
        for j in range(row.size):  # row.size == entries.size
            row[j] = np.float32(0) + value * entries[j]  # never −0
    else:
        for j in range(row.size):
            row[j] += value * entries[j]


@subroutine
def _set_long_row(products, n, places, values, k, stop, u, rows, to):
    """Set n > TABLED elements from `to` on to the sum of the coefficients k to `stop` of row u."""
    longs, whole = (n + SHORT - 1) // SHORT, n - n % SHORT
    length = 2 * (SHORT + longs)
    rows[to : to + n] = np.float32(0)
    for t in range(k, stop, 2):
        v, value = places[t] - u * n, values[t]
        w, other = v, np.float32(0)  # if no coefficient follows, 0 is added
        if t + 1 < stop:
            w, other = places[t + 1] - u * n, values[t + 1]
        for following in range(t + 2, min(t + 4, places.size)):
            row = np.int64(np.uint32(places[following]) % np.uint32(n)) * length
            for i in range(row, row + length, BLOCK):
                fetch_block(products, i)
        one = v * length, value, np.float32(value * (1 - 2 * (v % 2)))
        two = w * length, other, np.float32(other * (1 - 2 * (w % 2)))
        waves = products, *one, *two
        if n == whole:
            _add_mirrored_waves(*waves, 1, (longs + 1) // 2, longs, rows, to)
            for q in range(0, longs, longs // 2 if longs % 2 == 0 else longs):
                _add_waves(*waves, q, q + 1, longs, rows, to)
        else:
            _add_waves(*waves, 0, n // SHORT, longs, rows, to)
            for i in range(whole, n):
                rows[to + i] += np.float32(value * _entry(products, n, v, i))
                rows[to + i] += np.float32(other * _entry(products, n, w, i))


@subroutine
def _sum_rows(rows, length, used, count, basis, n, scratch, out, to, final, place):
    """Set n rows of `out` from `to` on to the sums of `count` rows times entries of the basis.

    `final` receives the rows in the end, from `place` on.

    0 < count <= used.size == n, rows.size == n * length, factors.size >= _TOGETHER * n,
    signs.size == _TOGETHER, and to + n * length <= out.size.
    """
    mirrored, factors, signs = scratch
    if n == 1:  # the only entry is 1
        target = out[to : to + length]
        for i in range(target.size):
            target[i] = rows[i]
        return
    whole = length - length % BLOCK
    is_mirrored = mirrored and n <= TABLED
    half = (n + 1) // 2 if is_mirrored else n  # rows from n - half on mirror those below half
    for r in range(0, count, _TOGETHER):
        together = min(_TOGETHER, count - r)
        for q in range(together):
            u = used[r + q]
            signs[q] = np.float32(1 - 2 * (u % 2))
            if n <= TABLED:
                size = half if whole == length else n
                entries, own = basis[u * n : u * n + size], factors[q * n : q * n + size]
                for i in range(size):
                    own[i] = entries[i]
            else:
                for i in range(n):
                    factors[q * n + i] = _entry(basis, n, u, i)
        for i in range(0, half, 2):
            k = min(i + 1, half - 1)  # the last of an odd number is computed twice
            for j in range(0, whole, BLOCK):
                added = rows, r * length + j, length, together, factors, signs, n
                if is_mirrored:
                    _add_mirrored_rows(*added, i, k, out, to + j, r == 0, final, place + j)
                else:
                    _add_rows(*added, i, k, out, to + j, r == 0, final, place + j)
        for q in range(together if whole < length else 0):
            row = rows[(r + q) * length + whole : (r + q + 1) * length]
            for i in range(n):
                factor, target = factors[q * n + i], to + i * length + whole
                for j in range(row.size):
                    total = np.float32(0) if r + q == 0 else out[target + j]
                    out[target + j] = total + factor * row[j]


@kernel(
    "in int64[], in int32[], in float32[], (int64, int64, int64), "
    "(in float32[], in float32[], in float32[]), boolean, "
    "(out int64[], out float32[], out int64[], "
    "out float32[], out float32[], out float32[], out float32[]), "
    "(int64, int64, int64), int64, int64, float32, out float32[]"
)
def _inverse(
    starts, places, values, sizes, bases, mirrored, room, layout, number, store, scale, out
):
    # The layout has height * width == a * b * c, and chunks up to number + starts.size - 2; starts
    # rises up to places.size == values.size, 0 <= places < a * b * c; lines.size == b,
    # rows.size == b * c, layers.size == a, planes.size == a * b * c if a > 1,
    # chunk.size == a * b * c, and chunk is rows if a * b == 1; the bases have a, b and c points.
    a, b, c = sizes
    first, middle, last = bases
    lines, rows, layers, planes, factors, signs, chunk = room
    columns, height, width = layout
    scratch = mirrored, factors, signs
    for m in range(starts.size - 1):
        k, stop = starts[m], starts[m + 1]
        start, valid, count = rectangle(out.size, columns, height, width, number + m)
        final, place = (out, start) if height == 1 else (chunk, 0)
        if k == stop:
            chunk[:] = np.float32(0)
        depth = 0
        while k < stop:
            layer = places[k] // (b * c)
            used = 0
            while k < stop and places[k] < (layer + 1) * b * c:
                u = np.int64(np.uint32(places[k]) // np.uint32(c))
                row = used * c  # used < b
                begin = k
                while k < stop and places[k] < (u + 1) * c:
                    k += 1
                if c <= TABLED:
                    for t in range(begin, k):
                        v, own = places[t] - u * c, rows[row : row + c]
                        _add_row(last[v * c : v * c + c], values[t], own, t == begin)
                else:
                    _set_long_row(last, c, places, values, begin, k, u, rows, row)
                lines[used] = u - layer * b
                used += 1
            if a == 1 and b > 1:
                _sum_rows(rows, c, lines, used, middle, b, scratch, chunk, 0, final, place)
            elif a > 1:
                plane = planes, depth * b * c
                _sum_rows(rows, c, lines, used, middle, b, scratch, *plane, *plane)
                layers[depth] = layer
                depth += 1
        if depth:
            _sum_rows(planes, b * c, layers, depth, first, a, scratch, chunk, 0, final, place)
        put_rows(chunk, start, valid, count, columns, width, store, scale, out)
