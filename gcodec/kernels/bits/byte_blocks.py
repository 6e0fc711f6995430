"""Quantization to signed bytes: blocks of values share a step, and a value becomes q·step.

The step of a block is f32(max|v| / 127), but at most the largest float32 whose product with 127 is
finite. q is f32(v / step), rounded to nearest with ties to even and clipped to ±127; it is 0 if
the step is 0. The decoded value is f32(q·step).
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.reduce import largest_bits
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.memory import bits_float

SIZE = 256  # values of a block; the last block may be shorter
TOP = 127

# f32(largest float32 / 127) is rounded up; the largest valid step is the float32 below it.
LARGEST_STEP = np.nextafter(np.finfo(np.float32).max / np.float32(TOP), np.float32(0))


def steps_pass_float32(steps: np.ndarray) -> bool:
    """Return whether the product of 127 and any of the finite float32 steps is infinite."""
    return bool((steps > LARGEST_STEP).any())


@dispatched("gcodec.kernels.bits.byte_blocks_cuda")
def quantize(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantize (k,) finite float32 values.

    Returns
    -------
    steps : (ceil(k / SIZE),) float32 array
    codes : (k,) uint8 array
        Integers q in two's complement.
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
    """Return the (k,) decoded float32 values of codes; see `quantize`."""
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
        block = values[b * SIZE : b * SIZE + SIZE]
        block_codes = codes[b * SIZE : b * SIZE + SIZE]
        largest = bits_float(largest_bits(block, np.uint32(0)))
        step = min(largest / top, LARGEST_STEP)
        steps[b] = step
        if step == 0:
            block_codes[:] = np.uint8(0)
            continue
        for i in range(block_codes.size):  # block.size == block_codes.size
            level = np.rint(min(max(block[i] / step, -top), top))
            block_codes[i] = np.uint8(np.int32(level))


@kernel("in float32[], in uint8[], out float32[]")
def _dequantize_bytes(steps, codes, out):
    # codes.size == out.size, steps.size == ceil(out.size / SIZE)
    for b in range(steps.size):
        block_codes = codes[b * SIZE : b * SIZE + SIZE]
        block = out[b * SIZE : b * SIZE + SIZE]
        for i in range(block.size):  # block.size == block_codes.size
            level = np.int32(block_codes[i] ^ np.uint8(0x80)) - np.int32(0x80)
            block[i] = np.float32(level) * steps[b]
