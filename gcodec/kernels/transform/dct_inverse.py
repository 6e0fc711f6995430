"""The inverse DCT of chunks with few nonzero coefficients, in a fixed order of summation.

A chunk has three sizes a, b, c, of which the first may be 1. Three sums of products yield its
value at (h, i, j): R(t, u, j) is the sum of y(t, u, v)·C(v, j) over v, P(t, i, j) is the sum of
B(u, i)·R(t, u, j) over u, and x(h, i, j) is the sum of A(t, h)·P(t, i, j) over t. A sum starts at
+0 and adds its products in rising order; each product and each sum is rounded to float32. Rows
without coefficients would add ±0, and are omitted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.runtime.jit import kernel, subroutine
from gcodec.runtime.lanes import BLOCK, Emitter, block, floats

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
    out: np.ndarray,
) -> None:
    """Compute the inverse transforms of m chunks.

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
    out : (m·a·b·c,) float32 array
    """
    a, b, c = sizes
    rows = np.empty(b * c, np.float32)
    planes = np.empty(a * b * c if a > 1 else 0, np.float32)
    factors = np.zeros(max(a, b) * _TOGETHER, np.float32)
    lines, layers = np.empty(b, np.int64), np.empty(a, np.int64)
    scratch = lines, rows, layers, planes, factors
    _inverse(starts, places, values, *sizes, *bases, *scratch, out)


@block("rows", "row", "length", "count", "factors", "n", "i", "j", "out", "at", "other", "begin")
def _add_rows(e: Emitter) -> None:
    """Add multiples of `count` rows of `length` elements to two times 32 elements of `out`.

    A row has n factors: factor i is that of the elements from `at` on, and factor j that of the
    elements from `other` on. At the begin the elements are 0.
    """
    builder, one = e.builder, e.args["count"].type(1)
    zeros, places = floats()([0.0] * BLOCK), [e.address("out", name) for name in ("at", "other")]
    totals = [builder.select(e.args["begin"], zeros, e.load(p, floats())) for p in places]
    begin = [one.type(0), e.address("rows", "row"), e.args["factors"], *totals]

    def row(current: list[Any]) -> list[Any]:
        number, source, factors, *sums = current
        values = e.load(source, floats())
        for k, name in enumerate(("i", "j")):
            factor = e.splat(builder.load(builder.gep(factors, [e.args[name]])))
            sums[k] = builder.fadd(sums[k], builder.fmul(factor, values))
        following = (builder.gep(source, [e.args["length"]]), builder.gep(factors, [e.args["n"]]))
        return [builder.add(number, one), *following, *sums]

    def going(current: list[Any]) -> Any:
        return builder.icmp_signed("<", current[0], e.args["count"])

    _, _, _, *totals = e.loop(begin, going, row)
    for total, place in zip(totals, places, strict=True):
        e.store(total, place)


@block("products", "span", "places", "values", "k", "count", "origin", "q", "longs", "out", "at")
def _add_waves(e: Emitter) -> None:
    """Set `SHORT` elements to the sum of the basis rows of `count` coefficients from k on.

    A row of the basis has `span` factors: `SHORT` cosines and sines of an element, then `longs`
    cosines and sines of a group of elements, of which the group has number q.
    """
    builder, one = e.builder, e.args["k"].type(1)
    zeros = floats()([0.0] * BLOCK)
    short = one.type(SHORT)

    def wave(current: list[Any]) -> list[Any]:
        number, *sums = current
        at = builder.add(e.args["k"], number)
        place = builder.sext(builder.load(builder.gep(e.args["places"], [at])), one.type)
        row = builder.mul(builder.sub(place, e.args["origin"]), e.args["span"])
        near = builder.gep(e.args["products"], [row])
        far = builder.gep(near, [builder.add(builder.add(short, short), e.args["q"])])
        factors = (far, builder.gep(far, [e.args["longs"]]))
        cosine, sine = (e.splat(builder.load(place)) for place in factors)
        value = e.splat(builder.load(builder.gep(e.args["values"], [at])))
        for k in range(len(sums)):
            cosines, sines = (
                builder.fmul(factor, e.load(e.element(near, first + k * BLOCK), floats()))
                for factor, first in ((cosine, 0), (sine, SHORT))
            )
            product = builder.fmul(value, builder.fsub(cosines, sines))
            sums[k] = builder.fadd(sums[k], product)
        return [builder.add(number, one), *sums]

    def going(current: list[Any]) -> Any:
        return builder.icmp_signed("<", current[0], e.args["count"])

    _, *sums = e.loop([one.type(0), *[zeros] * (SHORT // BLOCK)], going, wave)
    for k, total in enumerate(sums):
        e.store(total, e.element(e.address("out", "at"), k * BLOCK))


@subroutine
def _entry(products, n, u, i):
    """Return entry (u, i) of the basis of n > TABLED points."""
    longs = (n + SHORT - 1) // SHORT
    near = u * 2 * (SHORT + longs) + i % SHORT
    far = u * 2 * (SHORT + longs) + 2 * SHORT + i // SHORT
    cosines = np.float32(products[far] * products[near])
    return np.float32(cosines - np.float32(products[far + longs] * products[near + SHORT]))


@subroutine
def _add_row(entries, value, row):
    """Add a multiple of a row of a basis to a row."""
    for j in range(row.size):  # row.size == entries.size
        row[j] += value * entries[j]


@subroutine
def _set_long_row(products, n, places, values, k, stop, u, rows, to):
    """Set n > TABLED elements from `to` on to the sum of the coefficients k to `stop` of row u."""
    longs, whole = (n + SHORT - 1) // SHORT, n - n % SHORT
    span, count, origin = 2 * (SHORT + longs), stop - k, u * n
    for q in range(n // SHORT):
        at = to + q * SHORT
        _add_waves(products, span, places, values, k, count, origin, q, longs, rows, at)
    rows[to + whole : to + n] = np.float32(0)
    for t in range(k, stop):
        for i in range(whole, n):
            entry = _entry(products, n, places[t] - origin, i)
            rows[to + i] += np.float32(values[t] * entry)


@subroutine
def _sum_rows(rows, length, used, count, basis, n, factors, out, to):
    """Set n rows of `out` from `to` on to the sums of `count` rows times entries of the basis.

    0 < count <= used.size == n, rows.size == n * length, factors.size >= _TOGETHER * n, and
    to + n * length <= out.size.
    """
    if n == 1:  # the only entry is 1
        for i in range(length):
            out[to + i] = rows[i]
        return
    whole = length - length % BLOCK
    for r in range(0, count, _TOGETHER):
        together = min(_TOGETHER, count - r)
        for q in range(together):
            u, own = used[r + q], factors[q * n : q * n + n]
            if n <= TABLED:
                entries = basis[u * n : u * n + n]
                for i in range(n):
                    own[i] = entries[i]
            else:
                for i in range(n):
                    own[i] = _entry(basis, n, u, i)
        for i in range(0, n, 2):
            k = min(i + 1, n - 1)  # the last of an odd number is computed twice
            for j in range(0, whole, BLOCK):
                row, at, other = r * length + j, to + i * length + j, to + k * length + j
                _add_rows(rows, row, length, together, factors, n, i, k, out, at, other, r == 0)
        for i in range(n):
            target = to + i * length
            for j in range(whole, length):
                total = np.float32(0) if r == 0 else out[target + j]
                for q in range(together):
                    factor = factors[q * n + i]
                    total = np.float32(total + factor * rows[(r + q) * length + j])
                out[target + j] = total


@kernel(
    "in int64[], in int32[], in float32[], int64, int64, int64, in float32[], in float32[], "
    "in float32[], out int64[], out float32[], out int64[], out float32[], out float32[], "
    "out float32[]"
)
def _inverse(
    starts,
    places,
    values,
    a,
    b,
    c,
    first,
    middle,
    last,
    lines,
    rows,
    layers,
    planes,
    factors,
    out,
):
    # out.size == (starts.size - 1) * a * b * c, starts rises up to places.size == values.size,
    # 0 <= places < a * b * c; lines.size == b, rows.size == b * c, layers.size == a,
    # planes.size == a * b * c if a > 1; the bases have a, b and c points.
    for chunk in range(starts.size - 1):
        base = chunk * a * b * c
        k, stop = starts[chunk], starts[chunk + 1]
        if k == stop:
            out[base : base + a * b * c] = np.float32(0)
        depth = 0
        while k < stop:
            layer = places[k] // (b * c)
            height = 0
            while k < stop and places[k] < (layer + 1) * b * c:
                u = places[k] // c
                row = height * c  # height < b
                begin = k
                while k < stop and places[k] < (u + 1) * c:
                    k += 1
                if c <= TABLED:
                    rows[row : row + c] = np.float32(0)
                    for t in range(begin, k):
                        v = places[t] - u * c
                        _add_row(last[v * c : v * c + c], values[t], rows[row : row + c])
                else:
                    _set_long_row(last, c, places, values, begin, k, u, rows, row)
                lines[height] = u - layer * b
                height += 1
            if a == 1:
                _sum_rows(rows, c, lines, height, middle, b, factors, out, base)
            else:
                _sum_rows(rows, c, lines, height, middle, b, factors, planes, depth * b * c)
                layers[depth] = layer
                depth += 1
        if depth:
            _sum_rows(planes, b * c, layers, depth, first, a, factors, out, base)
