"""Signs of an array, one bit each, and the sum of magnitudes or squares, in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels import pool
from gcodec.kernels.jit import Kernel, kernel
from gcodec.kernels.lanes import BLOCK, Emitter, block, doubles, floats, lanes
from gcodec.kernels.memory import aligned_empty
from gcodec.kernels.pack import FieldLayout
from gcodec.kernels.reduce import LANES, TILE, add_lanes, emit_accumulate, fold

SIGNS = FieldLayout(width=1)


def quantize(x: np.ndarray, squares: bool) -> tuple[np.ndarray, float]:
    """Signs of a (n,) float32 array, and a sum.

    Parameters
    ----------
    x : (n,) float32 array
    squares : bool
        Whether the squares are added up, or else the magnitudes.

    Returns
    -------
    bits : (ceil(n / 8),) uint8 array
        1 for x < 0, so 0 for both zeros; the first element is the most significant bit.
    total : float
        In float64 by the fixed order; not finite if any element is not.
    """
    # Whole blocks are written; the bytes behind the last element are left out.
    out = aligned_empty(-(-x.size // BLOCK) * BLOCK // 8, np.uint8)
    sums = np.empty(-(-x.size // TILE), np.float64)
    loop: Kernel = _squares if squares else _magnitudes

    def task(start: int, stop: int) -> None:
        scratch = np.empty(LANES), np.zeros(BLOCK, np.float32)
        bits = out[start // 8 : -(-stop // BLOCK) * BLOCK // 8]
        loop(x[start:stop], *scratch, sums[start // TILE : -(-stop // TILE)], bits)

    pool.run(task, x.size, TILE)
    return out[: SIGNS.nbytes(x.size)], fold(sums)


def _block(squares: bool) -> Any:
    """Make the block: signs of 32 elements of x from i, and their sum to lanes from t."""

    @block("x", "i", "sums", "t", "out", "at")
    def signs(e: Emitter) -> None:
        from llvmlite import ir

        builder = e.builder
        source = e.address("x", "i")
        e.fetch(source)
        x = e.load(source, floats())
        negative = builder.fcmp_ordered("<", x, floats()([0.0] * BLOCK))
        # The first lane is the lowest bit; it has to be the highest of the first byte.
        bits = builder.bswap(builder.bitreverse(builder.bitcast(negative, ir.IntType(BLOCK))))
        e.store(bits, e.address("out", "at"), align=1)
        if squares:
            wide = builder.fpext(x, doubles())
            terms = builder.fmul(wide, wide)
        else:
            magnitude = builder.and_(
                builder.bitcast(x, lanes(32)), lanes(32)([0x7FFFFFFF] * BLOCK)
            )
            terms = builder.fpext(builder.bitcast(magnitude, floats()), doubles())
        emit_accumulate(e, terms, e.address("sums", "t"))

    return signs


def _make(squares: bool) -> Kernel:
    one_block = _block(squares)

    @kernel(
        "in float32[], out float64[], out float32[], out float64[], out uint8[]",
        variant=f"{squares}",
    )
    def sign_tiles(x, lanes, rest, sums, out):
        # sums.size == ceil(x.size / TILE), out has BLOCK // 8 bytes for each block begun, and the
        # BLOCK elements of rest are zeros: they complete the last block, and change no lane.
        for tile in range(sums.size):
            lanes[:] = 0.0
            values = x[tile * TILE : tile * TILE + TILE]
            bits = out[tile * TILE // 8 : (tile + 1) * TILE // 8]
            whole = values.size - values.size % BLOCK
            for i in range(0, whole, BLOCK):
                one_block(values, i, lanes, i % LANES, bits, i // 8)
            if whole < values.size:
                for i in range(values.size - whole):  # fewer than BLOCK
                    rest[i] = values[whole + i]
                one_block(rest, 0, lanes, whole % LANES, bits, whole // 8)
            sums[tile] = add_lanes(lanes)

    return sign_tiles


_magnitudes, _squares = _make(False), _make(True)
