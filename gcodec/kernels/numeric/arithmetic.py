"""Element-wise sums for error feedback and aggregation, each in one pass."""

from __future__ import annotations

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.cover import streams
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import BLOCK, Emitter, block, fence, floats, lanes
from gcodec.runtime.memory import empty_beside, magnitude_bits

_TOPS = 8  # lanes of maxima


def corrected(x: np.ndarray, residual: np.ndarray, decay: np.float32) -> np.ndarray:
    """Return x + decay·residual of (n,) float32 arrays; each step is rounded once."""
    out = empty_beside(x.size, np.float32, x)
    correct(x, residual, decay, out)
    return out


@dispatched("gcodec.kernels.numeric.arithmetic_cuda")
def correct(x: np.ndarray, residual: np.ndarray, decay: np.float32, out: np.ndarray) -> int:
    """Write x + decay·residual to `out`, which may be `residual`; see `corrected`.

    Returns
    -------
    int
        Bit pattern of the largest magnitude; NaN is larger than infinity.
    """
    stream = streams(out)

    def task(i: int, j: int) -> int:
        if out is residual:
            return int(_correct_in_place(x[i:j], residual[i:j], decay))
        arrays = x[i:j], residual[i:j], decay, out[i:j]
        if stream:
            return int(_correct_past_cache(*arrays, np.zeros(_TOPS, np.uint32)))
        return int(_correct(*arrays))

    return max(pool.run(task, x.size))


@dispatched("gcodec.kernels.numeric.arithmetic_cuda")
def add_scaled(decoded: np.ndarray, scale: np.float32, out: np.ndarray) -> None:
    """Add scale·decoded to `out`, both (n,) float32; each step is rounded once."""
    pool.run(lambda i, j: _add_scaled(decoded[i:j], scale, out[i:j]), out.size)


# All arrays of a call have the same size.


@kernel("in float32[], in float32[], float32, out float32[]")
def _correct(x, residual, decay, out):
    top = np.uint32(0)
    for i in range(out.size):
        out[i] = x[i] + decay * residual[i]
        top = max(top, magnitude_bits(out[i]))
    return top


# LLVM cannot vectorize the preceding loop for overlapping arrays.
@kernel("in float32[], out float32[], float32")
def _correct_in_place(x, residual, decay):
    top = np.uint32(0)
    for i in range(residual.size):
        residual[i] = x[i] + decay * residual[i]
        top = max(top, magnitude_bits(residual[i]))
    return top


@block("x", "residual", "i", "decay", "out", "top", "zero")
def _stream_sums(e: Emitter) -> None:
    """Write x + decay·residual of 32 elements from i past the cache; raise `top`."""
    source, residual, builder = e.address("x", "i"), e.address("residual", "i"), e.builder
    e.fetch(source)
    e.fetch(residual)
    product = builder.fmul(e.splat(e.args["decay"]), e.load(residual, floats()))
    total = builder.fadd(e.load(source, floats()), product)
    e.store(total, e.address("out", "i"), align=32, streaming=True)
    bits, at = e.magnitude_bits(total), e.address("top", "zero")
    tops = e.load(at, lanes(32, _TOPS))
    for first in range(0, BLOCK, _TOPS):
        part = builder.shuffle_vector(bits, bits, lanes(32, _TOPS)([*range(first, first + _TOPS)]))
        tops = builder.select(builder.icmp_unsigned(">", part, tops), part, tops)
    e.store(tops, at)


@kernel("in float32[], in float32[], float32, out float32[], out uint32[]")
def _correct_past_cache(x, residual, decay, out, top):
    # top is _TOPS zeros; each block is inside its arrays.
    whole = out.size - out.size % BLOCK
    for i in range(0, whole, BLOCK):
        _stream_sums(x, residual, i, decay, out, top, 0)
    for i in range(whole, out.size):
        out[i] = x[i] + decay * residual[i]
        top[0] = max(top[0], magnitude_bits(out[i]))
    fence()
    largest = np.uint32(0)
    for k in range(top.size):
        largest = max(largest, top[k])
    return largest


@kernel("in float32[], float32, out float32[]")
def _add_scaled(decoded, scale, out):
    for i in range(out.size):
        out[i] += scale * decoded[i]
