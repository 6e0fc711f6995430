"""Signs of an array, one bit each, and the sum of its magnitudes or squares, in one pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from gcodec.kernels.bits.pack import FieldLayout
from gcodec.kernels.numeric.reduce import COLUMN, LANES, TILE, add_lanes, emit_column, fold
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import Intrinsic, Kernel, factory, kernel
from gcodec.runtime.lanes import Emitter, Value, block, doubles, floats
from gcodec.runtime.memory import empty_beside

SIGNS = FieldLayout(width=1)
_NO_RESIDUAL, _NO_SIGNS = np.empty(0, np.float32), np.empty(0, np.uint8)


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
    loop = _summing(squares, False)

    def run(start: int, stop: int, *sums: np.ndarray) -> None:
        loop(x[start:stop], _NO_RESIDUAL, np.float32(0), *sums, out[start // 8 : -(-stop // 8)])

    return out, _total(x, run)


def sum_corrected(x: np.ndarray, residual: np.ndarray, decay: np.float32, squares: bool) -> float:
    """Return what `quantize` sums for x + decay·residual of (n,) float32 arrays on the host."""
    loop = _summing(squares, True)

    def run(start: int, stop: int, *sums: np.ndarray) -> None:
        loop(x[start:stop], residual[start:stop], decay, *sums, _NO_SIGNS)

    return _total(x, run)


def _total(x: np.ndarray, run: Callable[..., None]) -> float:
    """Return the sum of tiles; ``run(start, stop, lanes, sums)`` writes those of a segment."""
    sums = np.empty(-(-x.size // TILE), np.float64)

    def task(start: int, stop: int) -> None:
        run(start, stop, np.empty(LANES), sums[start // TILE : -(-stop // TILE)])

    pool.run(task, x.size, TILE, x)
    return fold(sums)


def _column(squares: bool, corrected: bool) -> Intrinsic:
    """Make the block that processes a column of a tile from i, and adds it to lanes from t.

    It also stores the signs, unless the values are those of x + decay·residual.
    """

    @block("x", "residual", "decay", "i", "next", "sums", "t", "out", "at")
    def column(e: Emitter) -> None:
        builder = e.builder

        def terms(x: Value, row: int) -> list[Value]:
            if not corrected:
                negative = builder.fcmp_ordered("<", x, floats(COLUMN)([0.0] * COLUMN))
                place = e.element(e.address("out", "at"), row * LANES // 8)
                e.store(e.first_highest(negative), place, 1)
            if squares:
                wide = builder.fpext(x, doubles(COLUMN))
                return [builder.fmul(wide, wide)]
            magnitude = builder.bitcast(e.magnitude_bits(x), floats(COLUMN))
            return [builder.fpext(magnitude, doubles(COLUMN))]

        (total,) = emit_column(e, terms, corrected)
        e.store(total, e.address("sums", "t"), 8)

    return column


@factory(lambda: itertools.product((False, True), repeat=2))
def _summing(squares: bool, corrected: bool) -> Kernel:
    """Make the kernel that sums tiles of x and stores its signs, or sums x + decay·residual."""
    one_column = _column(squares, corrected)

    @kernel(
        "in float32[], in float32[], float32, out float64[], out float64[], out uint8[]",
        variant=f"{squares} {corrected}",
    )
    def sum_tiles(x, residual, decay, lanes, sums, out):
        # lanes.size == LANES, sums.size == ceil(x.size / TILE). If `corrected`, residual.size ==
        # x.size and out.size == 0; else residual.size == 0 and out.size == ceil(x.size / 8).
        for tile in range(x.size // TILE):
            for t in range(0, LANES, COLUMN):  # a column ends inside its tile
                at, ahead = tile * TILE + t, (tile + 1) * TILE + t * (LANES // COLUMN)
                one_column(x, residual, decay, at, ahead, lanes, t, out, at // 8)
            sums[tile] = add_lanes(lanes)
        whole = x.size // TILE * TILE
        if whole < x.size:  # less than a tile
            lanes[:] = 0.0
            out[whole // 8 :] = np.uint8(0)
            for i in range(whole, x.size):
                value = np.float64(x[i] + decay * residual[i] if corrected else x[i])
                lanes[i % LANES] += value * value if squares else abs(value)
                if not corrected and value < 0:
                    out[i >> 3] |= np.uint8(0x80 >> (i & 7))
            sums[sums.size - 1] = add_lanes(lanes)

    return sum_tiles
