"""Minifloats of a whole tensor, on the threads of the pool or on a device; see `minifloat`."""

from __future__ import annotations

import numpy as np

from gcodec.kernels.quantize import minifloat
from gcodec.kernels.quantize.float_format import MiniFloat
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.lanes import BLOCK
from gcodec.runtime.memory import aligned_empty


@dispatched("gcodec.kernels.quantize.minifloat_cuda")
def quantize(x: np.ndarray, scale: np.float32, fmt: MiniFloat) -> tuple[np.ndarray, bool]:
    """Return the codes of (n,) values, and if all are finite; see `minifloat.quantize`."""
    out = aligned_empty(minifloat.codes_nbytes(x.size, fmt), np.uint8)

    def task(start: int, stop: int) -> bool:
        part = minifloat.part_of(out, start, stop, fmt)
        return minifloat.quantize(x[start:stop], scale, fmt, part)

    return out, all(pool.run(task, x.size, BLOCK))


@dispatched("gcodec.kernels.quantize.minifloat_cuda")
def quantize_residual(
    x: np.ndarray,
    residual: np.ndarray,
    decay: np.float32,
    scale: np.float32,
    fmt: MiniFloat,
    left: np.ndarray,
) -> np.ndarray:
    """Return the codes of x + decay·residual; see `minifloat.quantize_residual`."""
    out = aligned_empty(minifloat.codes_nbytes(x.size, fmt), np.uint8)

    def task(start: int, stop: int) -> None:
        part = minifloat.part_of(out, start, stop, fmt)
        here, after = (x[start:stop], residual[start:stop]), left[start:stop]
        minifloat.quantize_residual(*here, decay, scale, fmt, part, after)

    pool.run(task, x.size, BLOCK)
    return out


@dispatched("gcodec.kernels.quantize.minifloat_cuda")
def dequantize(
    codes: np.ndarray,
    scale: np.float32,
    fmt: MiniFloat,
    out: np.ndarray,
    add: np.float32 | None = None,
) -> None:
    """Write (n,) values that codes stand for, or add a multiple; see `minifloat.dequantize`."""
    stream = add is None and minifloat.streams(out, fmt)

    def task(start: int, stop: int) -> None:
        part = minifloat.part_of(codes, start, stop, fmt)
        minifloat.dequantize(part, scale, fmt, out[start:stop], add, stream=stream)

    pool.run(task, out.size, BLOCK)
