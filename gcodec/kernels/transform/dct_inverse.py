"""The inverse DCT of chunks with few nonzero coefficients, in a fixed order of summation.

A chunk has three sizes a, b, c, of which the first may be 1. Three sums of products yield its
value at (h, i, j): R(t, u, j) is the sum of y(t, u, v)·C(v, j) over v, P(t, i, j) is the sum of
B(u, i)·R(t, u, j) over u, and x(h, i, j) is the sum of A(t, h)·P(t, i, j) over t. A sum starts at
+0 and adds its products in rising order; each product and each sum is rounded to float32. Rows
without coefficients would add ±0, and are omitted.
"""

from __future__ import annotations

import numpy as np

from gcodec.runtime.jit import kernel, subroutine
from gcodec.runtime.lanes import BLOCK, Emitter, block, floats

TABLED = 256  # points of the largest basis that is a table of n·n entries; others have factors
SHORT = 64  # points that share a factor
Sizes = tuple[int, int, int]

_TOGETHER = 8  # rows that are added up at a time


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
    rows = np.empty((b + _TOGETHER - 1) * c, np.float32)
    planes = np.empty((a + _TOGETHER - 1) * b * c if a > 1 else 0, np.float32)
    factors = np.zeros(max(a, b) * _TOGETHER, np.float32)
    lines, layers = np.empty(b, np.int64), np.empty(a, np.int64)
    scratch = lines, rows, layers, planes, factors
    _inverse(starts, places, values, *sizes, *bases, *scratch, out)


@block("rows", "row", "length", "factors", "at", "out", "to", "begin")
def _add_rows(e: Emitter) -> None:
    """Add multiples of rows of `length` elements to 32 elements of `out`, or to 0 at the begin."""
    builder = e.builder
    source, factor = e.address("rows", "row"), e.address("factors", "at")
    target = e.address("out", "to")
    zeros = floats()([0.0] * BLOCK)
    total = builder.select(e.args["begin"], zeros, e.load(target, floats()))
    for r in range(_TOGETHER):
        times = e.splat(builder.load(e.element(factor, r)))
        total = builder.fadd(total, builder.fmul(times, e.load(source, floats())))
        source = builder.gep(source, [e.args["length"]])
    e.store(total, target)


@block("products", "near", "cosine", "sine", "value", "row", "at")
def _add_entries(e: Emitter) -> None:
    """Add a multiple of 32 entries of a basis to as many elements."""
    builder, near, target = e.builder, e.address("products", "near"), e.address("row", "at")
    factors = (e.splat(e.args[name]) for name in ("cosine", "sine"))
    waves = (e.load(place, floats()) for place in (near, e.element(near, SHORT)))
    cosines, sines = (builder.fmul(*pair) for pair in zip(factors, waves, strict=True))
    entries = builder.fsub(cosines, sines)
    product = builder.fmul(e.splat(e.args["value"]), entries)
    e.store(builder.fadd(e.load(target, floats()), product), target)


@subroutine(variant="entry")
def _entry(products, n, u, i):
    """Return entry (u, i) of the basis of n > TABLED points."""
    longs = (n + SHORT - 1) // SHORT
    near = u * 2 * (SHORT + longs) + i % SHORT
    far = u * 2 * (SHORT + longs) + 2 * SHORT + i // SHORT
    cosines = np.float32(products[far] * products[near])
    return np.float32(cosines - np.float32(products[far + longs] * products[near + SHORT]))


@subroutine(variant="add_row")
def _add_row(entries, value, row):
    """Add a multiple of a row of a basis to a row."""
    for j in range(row.size):  # row.size == entries.size
        row[j] += value * entries[j]


@subroutine(variant="add_long_row")
def _add_long_row(products, n, u, value, rows, to):
    """Add a multiple of row u of a basis of n > TABLED points to n elements from `to` on."""
    longs = (n + SHORT - 1) // SHORT
    near = u * 2 * (SHORT + longs)
    far = near + 2 * SHORT
    for q in range(n // SHORT):
        cosine, sine = products[far + q], products[far + longs + q]
        for i in range(0, SHORT, BLOCK):
            _add_entries(products, near + i, cosine, sine, value, rows, to + q * SHORT + i)
    for i in range(n - n % SHORT, n):
        rows[to + i] += np.float32(value * _entry(products, n, u, i))


@subroutine(variant="sum_rows")
def _sum_rows(rows, length, used, count, basis, n, factors, out, to):
    """Set n rows of `out` from `to` on to the sums of `count` rows times entries of the basis.

    0 < count <= used.size == n, rows.size == (n + 7) * length, factors.size >= 8 * n, and
    to + n * length <= out.size.
    """
    if n == 1:  # the only entry is 1
        for i in range(length):
            out[to + i] = rows[i]
        return
    whole = length - length % BLOCK
    rows[count * length : (count + -count % _TOGETHER) * length] = np.float32(0)
    for r in range(0, count, _TOGETHER):
        # Rows after the last one are 0, so their factors do not matter.
        for q in range(min(_TOGETHER, count - r)):
            u = used[r + q]
            for i in range(n):
                if n <= TABLED:
                    factors[i * _TOGETHER + q] = basis[u * n + i]
                else:
                    factors[i * _TOGETHER + q] = _entry(basis, n, u, i)
        for i in range(n):
            target = to + i * length
            for j in range(0, whole, BLOCK):
                row = r * length + j
                _add_rows(rows, row, length, factors, i * _TOGETHER, out, target + j, r == 0)
            for j in range(whole, length):
                total = np.float32(0) if r == 0 else out[target + j]
                for q in range(_TOGETHER):
                    factor = factors[i * _TOGETHER + q]
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
    # 0 <= places < a * b * c; lines.size == b, rows.size == (b + 7) * c, layers.size == a,
    # planes.size == (a + 7) * b * c if a > 1; the bases have a, b and c points.
    for chunk in range(starts.size - 1):
        base = chunk * a * b * c
        k, stop = starts[chunk], starts[chunk + 1]
        if k == stop:
            out[base : base + a * b * c] = np.float32(0)
        depth = 0
        while k < stop:
            t = places[k] // (b * c)
            height = 0
            while k < stop and places[k] < (t + 1) * b * c:
                u = places[k] // c
                row = height * c  # height < b
                rows[row : row + c] = np.float32(0)
                while k < stop and places[k] < (u + 1) * c:
                    v = places[k] - u * c
                    value = values[k]
                    if c <= TABLED:
                        _add_row(last[v * c : v * c + c], value, rows[row : row + c])
                    else:
                        _add_long_row(last, c, v, value, rows, row)
                    k += 1
                lines[height] = u - t * b
                height += 1
            if a == 1:
                _sum_rows(rows, c, lines, height, middle, b, factors, out, base)
            else:
                _sum_rows(rows, c, lines, height, middle, b, factors, planes, depth * b * c)
                layers[depth] = t
                depth += 1
        if depth:
            _sum_rows(planes, b * c, layers, depth, first, a, factors, out, base)
