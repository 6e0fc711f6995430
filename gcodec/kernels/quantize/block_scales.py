"""Scales of blocks of elements: one scale Δ, times a factor for each block, which a byte stores.

Byte B stands for (8 + B mod 8)·2^(B div 8 − 31): from 2^-28 to 15, each an eighth to a fifteenth
larger than the preceding one. The factors are float32, and their product with Δ is rounded once.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.reduce import INFINITY_BITS
from gcodec.kernels.quantize.scale_errors import square_of_error
from gcodec.runtime import pool
from gcodec.runtime.cover import store_of
from gcodec.runtime.deferred import binary32
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import ADD, Emitter, block, doubles, floats, lanes
from gcodec.runtime.memory import bits_float, float_bits

_FIRST = (127 - 28) * 8  # exponent and three bits of mantissa of byte 0, as in float32
_BELOW = 20  # lower bits of float32
_MORE, _TRIED = 1, 6  # candidates; the first exceeds that of the largest magnitude by so much
_LANES = 16
_LARGEST = INFINITY_BITS - 1


@dispatched("gcodec.kernels.quantize.block_scales_cuda", by="factors")
def scales_of(scale: np.float32, factors: np.ndarray) -> np.ndarray:
    """Return the float32 scales of (k,) bytes, given that of the tensor; they may be infinite."""
    bits = factors.astype(np.uint32) + np.uint32(_FIRST) << np.uint32(_BELOW)
    with np.errstate(over="ignore", under="ignore"):
        scales: np.ndarray = scale * bits.view(np.float32)
    return scales


@dispatched("gcodec.kernels.quantize.block_scales_cuda")
def largest_scale(bits: int, top: np.float32) -> float:
    """Return the scale by which the largest magnitude becomes about the last level.

    The product of scale and level is finite. The scale is 0 only if the magnitude is.

    Parameters
    ----------
    bits : int
        Bits of the largest magnitude as float32.
    top : float32
        Last level.
    """
    largest = np.uint32(bits).view(np.float32)
    with np.errstate(under="ignore", over="ignore"):
        scale = largest / top
        if not np.isfinite(scale * top):
            scale = np.nextafter(scale, np.float32(0))
    return binary32(max(scale, np.float32(2.0**-149)) if largest else scale)


@dispatched("gcodec.kernels.quantize.block_scales_cuda")
def choose_factors(
    values: np.ndarray, length: int, scale: np.float32, top: np.float32, mantissa: int
) -> np.ndarray:
    """Choose the factor of each block of a tensor of minifloats, by the squared error.

    There are six candidates, one after another. The second largest is the largest factor that does
    not exceed max |x| / (scale·top) of the block. Of equally good factors, the largest wins.

    Parameters
    ----------
    values : (n,) float32 array
        Finite.
    length : int
        Elements of a block; the last block may be shorter.
    scale : float32
        Finite, not negative.
    top : float32
        Last level; its product with `scale` is finite.
    mantissa : int
        Bits of the mantissa.

    Returns
    -------
    (ceil(n / length),) uint8 array
        0 for blocks of zeros.
    """
    factors = np.zeros(-(-values.size // length), np.uint8)
    if scale == 0:
        return factors
    length = min(length, max(values.size, 1))

    def task(start: int, stop: int) -> None:
        part = factors[start // length : -(-stop // length)]
        _choose(values[start:stop], length, scale, top, mantissa, np.empty(_LANES), part)

    pool.run(task, values.size, length, values)
    return factors


@dispatched("gcodec.kernels.quantize.block_scales_cuda")
def divide(
    x: np.ndarray, first: int, length: int, scales: np.ndarray, out: np.ndarray
) -> np.ndarray:
    """Divide elements by the scales of their blocks, on the calling thread.

    Parameters
    ----------
    x : (n,) float32 array
    first : int
        Number of the first element in the tensor.
    length : int
        Elements of a block.
    scales : float32 array
        Scales of all blocks. Division by 0 yields 0; quotients are limited to finite numbers.
    out : float32 array
        n elements or more.

    Returns
    -------
    (n,) float32 array
        The first n elements of `out`.
    """
    quotients = out[: x.size]
    _divide_blocks(x, first, length, scales, quotients)
    return quotients


@dispatched("gcodec.kernels.quantize.block_scales_cuda")
def multiply(
    values: np.ndarray,
    first: int,
    length: int,
    scales: np.ndarray,
    out: np.ndarray,
    add: np.float32 | None = None,
) -> None:
    """Multiply elements by the scales of their blocks, on the calling thread.

    Parameters
    ----------
    values, first, length, scales
        See `divide`.
    out : (n,) float32 array
        May be `values`.
    add : float32, optional
        Factor of the products that are added to `out`; each step is rounded once.
    """
    _scale_blocks(values, first, length, scales, *store_of(add, False), out)


@block("x", "i", "delta", "top", "raised", "lanes")
def _add_squares(e: Emitter) -> None:
    """Add the squared errors of _LANES elements of x from i on to as many float64 lanes."""
    builder = e.builder
    real, word = floats(_LANES), lanes(32, _LANES)
    magnitude = builder.bitcast(e.magnitude_bits(e.load(e.address("x", "i"), real)), real)
    delta, top = e.splat(e.args["delta"], _LANES), e.splat(e.args["top"], _LANES)
    ratio = e.smaller(builder.fdiv(magnitude, delta), top)
    # As in `scale_errors`.
    unit = builder.and_(builder.bitcast(ratio, word), word([0xFF << 23] * _LANES))
    unit = e.larger(unit, word([128 << 23] * _LANES))
    large = builder.add(unit, e.splat(e.args["raised"], _LANES))
    large = builder.bitcast(builder.or_(large, word([1 << 22] * _LANES)), real)
    level = builder.fsub(builder.fadd(ratio, large), large)
    sent = builder.fmul(level, delta)
    wide = doubles(_LANES)
    error = builder.fsub(builder.fpext(magnitude, wide), builder.fpext(sent, wide))
    sums = e.args["lanes"]
    total = builder.fadd(e.load(sums, wide), builder.fmul(error, error))
    e.store(total, sums)


@kernel("in float32[], int64, float32, float32, int64, out float64[], out uint8[]")
def _choose(x, length, scale, top, mantissa, sums, factors):
    # factors.size == ceil(x.size / length), all zeros; sums.size == _LANES
    raised = np.uint32(23 - mantissa << 23)
    for k in range(factors.size):
        start, stop = k * length, min((k + 1) * length, x.size)
        largest = np.uint32(0)
        for i in range(start, stop):
            largest = max(largest, np.uint32(float_bits(x[i]) & np.uint32(0x7FFFFFFF)))
        if largest == 0:
            continue
        needed = float_bits(bits_float(largest) / np.float32(scale * top)) >> np.uint32(_BELOW)
        best = np.inf
        for tried in range(_TRIED):
            factor = min(max(np.int64(needed) - _FIRST + _MORE - tried, 0), 255)
            bits = np.uint32(factor + _FIRST << _BELOW)
            delta = np.float32(scale * bits_float(bits))
            if delta == 0 or not np.float32(delta * top) < np.inf:
                continue
            for t in range(_LANES):
                sums[t] = 0.0
            whole = stop - (stop - start) % _LANES
            for i in range(start, whole, _LANES):
                _add_squares(x, i, delta, top, raised, sums)
            error = 0.0
            for i in range(whole, stop):
                error += square_of_error(x[i], delta, top, mantissa)
            for width in (8, 4, 2, 1):
                for t in range(width):  # t + width < _LANES
                    sums[t] += sums[t + width]
            error += sums[0]
            if error < best:
                best, factors[k] = error, np.uint8(factor)


# In the next kernels, out.size == x.size, and each block up to the last element has a scale.


@kernel("in float32[], int64, int64, in float32[], out float32[]")
def _divide_blocks(x, first, length, scales, out):
    i = 0
    while i < x.size:
        k = (first + i) // length
        stop = min((k + 1) * length - first, x.size)
        divisor = scales[k] if scales[k] > 0 else np.float32(np.inf)
        for j in range(i, stop):
            bits = float_bits(x[j] / divisor)
            size = min(np.uint32(bits & np.uint32(0x7FFFFFFF)), np.uint32(_LARGEST))
            out[j] = bits_float(np.uint32(bits & np.uint32(0x80000000)) | size)
        i = stop


@kernel("in float32[], int64, int64, in float32[], int64, float32, out float32[]")
def _scale_blocks(x, first, length, scales, store, times, out):
    # store: WRITE or ADD
    i = 0
    while i < x.size:
        k = (first + i) // length
        stop, scale = min((k + 1) * length - first, x.size), scales[k]
        for j in range(i, stop):
            product = np.float32(x[j] * scale)
            out[j] = out[j] + times * product if store == ADD else product
        i = stop
