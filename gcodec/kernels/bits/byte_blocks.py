"""Signed bytes in blocks that share a step: q·step, q from −127 to 127, and back.

The step of a block is f32(max|v| / 127), or the largest float32 of which 127 are finite, whichever
is less; q is f32(v / step) rounded to nearest, ties to even, at most 127 either way, and 0 where
the step is. It stands for f32(q·step).
"""

from __future__ import annotations

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.memory import bits_float, float_bits

SIZE = 256  # values of a block, of which the last may have fewer
TOP = 127

# f32(largest float32 / 127), which is a little more than that, is the one float32 above.
LARGEST_STEP = np.nextafter(np.finfo(np.float32).max / np.float32(TOP), np.float32(0))


def steps_pass_float32(steps: np.ndarray) -> bool:
    """Whether 127 of any of these finite float32 steps are infinite."""
    return bool((steps > LARGEST_STEP).any())


@dispatched("gcodec.kernels.bits.byte_blocks_cuda")
def quantize(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantise (k,) finite float32 values.

    Returns
    -------
    steps : (ceil(k / SIZE),) float32 array
    codes : (k,) uint8 array
        In two's complement.
    """
    steps = np.empty(-(-values.size // SIZE), np.float32)
    codes = np.empty(values.size, np.uint8)

    def task(start: int, stop: int) -> None:
        part = steps[start // SIZE : -(-stop // SIZE)]
        _quantize_bytes(values[start:stop], part, codes[start:stop])

    pool.run(task, values.size, SIZE)
    return steps, codes


@dispatched("gcodec.kernels.bits.byte_blocks_cuda")
def dequantize(steps: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return the (k,) float32 values that codes stand for; see `quantize`."""
    out = np.empty(codes.size, np.float32)

    def task(start: int, stop: int) -> None:
        part = steps[start // SIZE : -(-stop // SIZE)]
        _dequantize_bytes(part, codes[start:stop], out[start:stop])

    pool.run(task, codes.size, SIZE)
    return out


@kernel("in float32[], out float32[], out uint8[]")
def _quantize_bytes(values, steps, codes):
    # codes.size == values.size, steps.size == ceil(values.size / SIZE)
    top = np.float32(TOP)
    for b in range(steps.size):
        some = values[b * SIZE : b * SIZE + SIZE]
        found = codes[b * SIZE : b * SIZE + SIZE]
        largest = np.uint32(0)
        for i in range(some.size):
            largest = max(largest, np.uint32(float_bits(some[i]) & np.uint32(0x7FFFFFFF)))
        step = min(bits_float(largest) / top, LARGEST_STEP)
        steps[b] = step
        if step == 0:
            found[:] = np.uint8(0)
            continue
        for i in range(found.size):  # some.size == found.size
            level = np.rint(min(max(some[i] / step, -top), top))
            found[i] = np.uint8(np.int32(level))


@kernel("in float32[], in uint8[], out float32[]")
def _dequantize_bytes(steps, codes, out):
    # codes.size == out.size, steps.size == ceil(out.size / SIZE)
    for b in range(steps.size):
        some = codes[b * SIZE : b * SIZE + SIZE]
        found = out[b * SIZE : b * SIZE + SIZE]
        for i in range(found.size):  # some.size == found.size
            level = np.int32(some[i] ^ np.uint8(0x80)) - np.int32(0x80)
            found[i] = np.float32(level) * steps[b]
