"""Levels of buckets of which the norms are found on the way, while values are in a cache.

Norms and levels are those of `norms` and `levels`.
"""

from __future__ import annotations

import numpy as np

from gcodec.kernels.numeric.norms import Norm, norms
from gcodec.kernels.numeric.philox import COUNTER_SPAN
from gcodec.kernels.numeric.reduce import TILE, bucket_squares
from gcodec.kernels.quantize import levels
from gcodec.kernels.quantize.level_blocks import quantize_block
from gcodec.kernels.quantize.levels import TINY, Scale, factoring, symbol_dtype
from gcodec.runtime.jit import Kernel, factory, kernel
from gcodec.runtime.lanes import BLOCK

BUCKETS = tuple(1 << k for k in range(6, TILE.bit_length()))
"""Elements of the buckets that there is a loop for."""

_PAIR = 2 * BLOCK


def has_loop(bucket: int, norm: Norm, s: int) -> bool:
    """Whether there is a loop for such buckets."""
    return bucket in BUCKETS and norm == "l2" and symbol_dtype(s) == np.uint8


def quantize(x: np.ndarray, scale: Scale, seed: int, first: int, out: np.ndarray) -> None:
    """Find the norms of a part of a tensor and quantise it, on the calling thread.

    Parameters
    ----------
    x : (n,) float32 array
        From element `first` of the tensor on, where a bucket begins, to the end of one, or of all.
    scale : Scale
        Of the tensor; the norms of this part are written.
    seed, first : int
    out : (n,) uint8 array
        What is written where a norm is not finite, is not defined.
    """
    bucket = scale.bucket
    at, whole = first // bucket, x.size - x.size % bucket
    found = scale.norms[at : at + -(-x.size // bucket)]
    numbers = np.uint64(seed), np.uint64(first), np.uint32(scale.s)
    tiny = _quantizer(bucket)(x[:whole], *numbers, np.empty(1), found, out)
    if tiny:
        levels.quantize(x[:whole], scale, seed, first, out[:whole])
    if whole < x.size:
        found[-1:] = norms(x[whole:], bucket, "l2")
        levels.quantize(x[whole:], scale, seed, first + whole, out[whole:])


@factory(lambda: ((bucket,) for bucket in BUCKETS))
def _quantizer(bucket: int) -> Kernel:
    squares = bucket_squares(bucket)
    two_blocks = quantize_block(8, 2, "same", ahead=bucket)
    scale_by = factoring(up=True)

    @kernel(
        "in float32[], uint64, uint64, uint32, out float64[], out float32[], out uint8[]",
        variant=str(bucket),
    )
    def quantize_buckets(x, seed, first, s, square, norms, out):
        # x.size is a multiple of the bucket, and `first` one of _PAIR; x.size // bucket <=
        # norms.size, x.size <= out.size; square.size == 1. Returned is whether some norm is tiny;
        # its elements are 0.
        any_tiny = False
        for b in range(x.size // bucket):
            start = b * bucket
            squares(x, start, square, 0)
            norm = np.float32(np.sqrt(square[0]))
            norms[b] = norm
            factor = scale_by(norm, s)
            any_tiny |= 0 < norm < TINY
            for i in range(start, start + bucket, _PAIR):
                here = first + np.uint64(i)
                two_blocks(x, i, factor, s, seed, here, here >> COUNTER_SPAN, out, i)
        return any_tiny

    return quantize_buckets
