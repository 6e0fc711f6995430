"""Signs of an array, one bit each, and the sum of its magnitudes or squares, in one pass."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.bits.pack import FieldLayout
from gcodec.kernels.numeric.reduce import COLUMN, LANES, TILE, add_lanes, emit_column, fold
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, Kernel, kernel
from gcodec.runtime.lanes import Emitter, Value, block, doubles, floats
from gcodec.runtime.memory import empty_beside

SIGNS = FieldLayout(width=1)


@dispatched("gcodec.kernels.bits.signs_cuda")
def quantize(x: np.ndarray, squares: bool) -> tuple[np.ndarray, float]:
    """Return the signs of a (n,) float32 array, and a sum.

    Parameters
    ----------
    x : (n,) float32 array
    squares : bool
        Whether to sum the squares, or else the magnitudes.

    Returns
    -------
    bits : (ceil(n / 8),) uint8 array
        1 for x < 0, so 0 for both zeros; the first element is the most significant bit.
    total : float
        Sum in float64, in the fixed order; not finite if any element is not finite.
    """
    out = empty_beside(SIGNS.nbytes(x.size), np.uint8, None)
    sums = np.empty(-(-x.size // TILE), np.float64)
    loop: Kernel = _squares if squares else _magnitudes

    def task(start: int, stop: int) -> None:
        part = sums[start // TILE : -(-stop // TILE)]
        loop(x[start:stop], np.empty(LANES), part, out[start // 8 : -(-stop // 8)])

    pool.run(task, x.size, TILE, x)
    return out, fold(sums)


def sum_corrected(x: np.ndarray, residual: np.ndarray, decay: np.float32, squares: bool) -> float:
    """Return what `quantize` sums for x + decay·residual of (n,) float32 arrays on the host."""
    sums = np.empty(-(-x.size // TILE), np.float64)
    loop: Kernel = _squares_corrected if squares else _magnitudes_corrected

    def task(start: int, stop: int) -> None:
        part = sums[start // TILE : -(-stop // TILE)]
        loop(x[start:stop], residual[start:stop], decay, np.empty(LANES), part)

    pool.run(task, x.size, TILE, x)
    return fold(sums)


def _emit_term(e: Emitter, x: Value, squares: bool) -> list[Value]:
    """Emit what is summed of 16 elements."""
    builder = e.builder
    if squares:
        wide = builder.fpext(x, doubles(COLUMN))
        return [builder.fmul(wide, wide)]
    magnitude = builder.bitcast(e.magnitude_bits(x), floats(COLUMN))
    return [builder.fpext(magnitude, doubles(COLUMN))]


def _column(squares: bool) -> Intrinsic:
    """Make the block that processes a column of a tile of x from i.

    It stores the signs, and the sums to lanes from t.
    """

    @block("x", "i", "next", "sums", "t", "out", "at")
    def signs(e: Emitter) -> None:
        builder = e.builder
        target = e.address("out", "at")

        def terms(x: Value, row: int) -> list[Value]:
            negative = builder.fcmp_ordered("<", x, floats(COLUMN)([0.0] * COLUMN))
            e.store(e.first_highest(negative), e.element(target, row * LANES // 8), 1)
            return _emit_term(e, x, squares)

        (total,) = emit_column(e, terms)
        e.store(total, e.address("sums", "t"), 8)

    return signs


def _corrected_column(squares: bool) -> Intrinsic:
    """Make the block that sums a column of a tile of x + decay·residual from i to lanes from t."""

    @block("x", "residual", "decay", "i", "next", "sums", "t")
    def column(e: Emitter) -> None:
        (total,) = emit_column(e, lambda x, row: _emit_term(e, x, squares))
        e.store(total, e.address("sums", "t"), 8)

    return column


def _make(squares: bool) -> Kernel:
    one_column = _column(squares)

    @kernel("in float32[], out float64[], out float64[], out uint8[]", variant=f"{squares}")
    def sign_tiles(x, lanes, sums, out):
        # lanes.size == LANES, sums.size == ceil(x.size / TILE), out.size == ceil(x.size / 8)
        for tile in range(x.size // TILE):
            for t in range(0, LANES, COLUMN):  # a column ends inside its tile
                at, ahead = tile * TILE + t, (tile + 1) * TILE + t * (LANES // COLUMN)
                one_column(x, at, ahead, lanes, t, out, at // 8)
            sums[tile] = add_lanes(lanes)
        whole = x.size // TILE * TILE
        tail, bits = x[whole:], out[whole // 8 :]
        if tail.size:  # less than a tile
            lanes[:] = 0.0
            bits[:] = np.uint8(0)
            for i in range(tail.size):
                value = np.float64(tail[i])
                lanes[i % LANES] += value * value if squares else abs(value)
                if value < 0:
                    bits[i >> 3] |= np.uint8(0x80 >> (i & 7))
            sums[sums.size - 1] = add_lanes(lanes)

    return sign_tiles


def _make_corrected(squares: bool) -> Kernel:
    one_column = _corrected_column(squares)

    @kernel(
        "in float32[], in float32[], float32, out float64[], out float64[]", variant=f"{squares}"
    )
    def corrected_tiles(x, residual, decay, lanes, sums):
        # residual.size == x.size, lanes.size == LANES, sums.size == ceil(x.size / TILE)
        for tile in range(x.size // TILE):
            for t in range(0, LANES, COLUMN):  # a column ends inside its tile
                at, ahead = tile * TILE + t, (tile + 1) * TILE + t * (LANES // COLUMN)
                one_column(x, residual, decay, at, ahead, lanes, t)
            sums[tile] = add_lanes(lanes)
        whole = x.size // TILE * TILE
        if whole < x.size:  # less than a tile
            lanes[:] = 0.0
            for i in range(whole, x.size):
                value = np.float64(x[i] + decay * residual[i])
                lanes[(i - whole) % LANES] += value * value if squares else abs(value)
            sums[sums.size - 1] = add_lanes(lanes)

    return corrected_tiles


_magnitudes, _squares = _make(False), _make(True)
_magnitudes_corrected, _squares_corrected = _make_corrected(False), _make_corrected(True)
