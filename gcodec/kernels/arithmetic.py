"""Element-wise sums that feedback and aggregation need, each in one pass."""

from __future__ import annotations

import numpy as np

from gcodec.kernels import pool
from gcodec.kernels.device import twinned
from gcodec.kernels.jit import kernel
from gcodec.kernels.memory import aligned_empty, float_bits


@twinned("arithmetic")
def corrected(x: np.ndarray, residual: np.ndarray, decay: np.float32) -> np.ndarray:
    """Return x + decay·residual of (n,) float32 arrays, each step rounded once."""
    out = aligned_empty(x.size, np.float32)
    correct(x, residual, decay, out)
    return out


@twinned("arithmetic")
def correct(x: np.ndarray, residual: np.ndarray, decay: np.float32, out: np.ndarray) -> int:
    """Write x + decay·residual to `out`, which may be `residual`; see `corrected`.

    Returned is the bit pattern of the largest magnitude; NaN counts above infinity.
    """

    def task(i: int, j: int) -> int:
        if out is residual:
            return int(_correct_in_place(x[i:j], residual[i:j], decay))
        return int(_correct(x[i:j], residual[i:j], decay, out[i:j]))

    return max(pool.run(task, x.size))


@twinned("arithmetic")
def add_scaled(decoded: np.ndarray, scale: np.float32, out: np.ndarray) -> None:
    """Add scale·decoded to `out`, both (n,) float32, each step rounded once."""
    pool.run(lambda i, j: _add_scaled(decoded[i:j], scale, out[i:j]), out.size)


# All arrays of a call have the same size.


@kernel("in float32[], in float32[], float32, out float32[]")
def _correct(x, residual, decay, out):
    top = np.uint32(0)
    for i in range(out.size):
        out[i] = x[i] + decay * residual[i]
        top = max(top, np.uint32(float_bits(out[i]) & np.uint32(0x7FFFFFFF)))
    return top


# The other loop would be one of single elements where its arrays are the same.
@kernel("in float32[], out float32[], float32")
def _correct_in_place(x, residual, decay):
    top = np.uint32(0)
    for i in range(residual.size):
        residual[i] = x[i] + decay * residual[i]
        top = max(top, np.uint32(float_bits(residual[i]) & np.uint32(0x7FFFFFFF)))
    return top


@kernel("in float32[], float32, out float32[]")
def _add_scaled(decoded, scale, out):
    for i in range(out.size):
        out[i] += scale * decoded[i]
