"""Levels of buckets, whose norms are computed while the values are in a cache.

Norms and levels are those of `norms` and `levels`.
"""

from __future__ import annotations

import itertools

import numpy as np

from gcodec.kernels.numeric.arithmetic import (
    NO_TERMS,
    TERMS,
    ResidualUpdate,
    add_block,
    correct,
    fetch_terms,
)
from gcodec.kernels.numeric.norms import Norm, norms
from gcodec.kernels.numeric.philox import COUNTER_SPAN
from gcodec.kernels.numeric.reduce import TILE, bucket_squares
from gcodec.kernels.quantize import levels
from gcodec.kernels.quantize.levels import TINY, Scale, factoring, quantize_block, symbol_dtype
from gcodec.runtime.cover import streams
from gcodec.runtime.jit import Kernel, factory, kernel
from gcodec.runtime.lanes import BLOCK, fence

BUCKETS = tuple(1 << k for k in range(6, TILE.bit_length()))
"""Bucket sizes that have a kernel."""

_PAIR = 2 * BLOCK


def has_loop(bucket: int, norm: Norm, s: int) -> bool:
    """Return whether there is a kernel for such buckets."""
    return bucket in BUCKETS and norm == "l2" and symbol_dtype(s) == np.uint8


def quantize(
    x: np.ndarray,
    scale: Scale,
    seed: int,
    first: int,
    out: np.ndarray,
    update: ResidualUpdate | None = None,
) -> None:
    """Compute the norms of a part of a tensor and quantize it, on the calling thread.

    Parameters
    ----------
    x : (n,) float32 array
        Elements from number `first` on; the part ends with a bucket or with the tensor.
    scale : Scale
        Scale of the whole tensor; the norms of this part are written.
    seed : int
        Seed for stochastic rounding.
    first : int
        Number of the first element of a bucket.
    out : (n,) uint8 array
        Undefined in buckets whose norm is not finite.
    update : ResidualUpdate, optional
        Residual that is added to x; the new one is the sum minus its decoded value.
    """
    bucket, leaves_errors, terms, gradient = scale.bucket, update is not None, NO_TERMS, x
    if update is not None:
        terms, x = update.terms(x), update.new_residual
    at, whole = first // bucket, x.size - x.size % bucket
    own_norms = scale.norms[at : at + -(-x.size // bucket)]
    numbers = np.uint64(seed), np.uint64(first), np.uint32(scale.s)
    loop = _quantizer(bucket, leaves_errors)
    streaming = update is not None and update.saves and streams(update.backup)
    rounded_to = 0 if update is None else update.rounded_to
    if loop(x[:whole], *numbers, np.empty(1), *terms, streaming, rounded_to, own_norms, out):
        levels.quantize_tiny(x[:whole], scale, seed, first, out[:whole], leaves_errors, rounded_to)
    if whole < x.size:
        if update is not None:
            rest = update.part(whole, x.size)
            correct(gradient[whole:], rest.save(), rest.decay, rest.new_residual)
        own_norms[-1:] = norms(x[whole:], bucket, "l2")
        levels.quantize(
            x[whole:], scale, seed, first + whole, out[whole:], leaves_errors, rounded_to
        )
    if update is not None:
        update.mark_replaced()


@factory(lambda: itertools.product(BUCKETS, (False, True)))
def _quantizer(bucket: int, leaves_errors: bool) -> Kernel:
    squares = bucket_squares(bucket)
    two_blocks = quantize_block(8, 2, "same", ahead=bucket, leaves_errors=leaves_errors)
    scale_by, step_of = factoring(True), factoring(False)

    @kernel(
        f"{'out' if leaves_errors else 'in'} float32[], uint64, uint64, uint32, out float64[], "
        f"{TERMS}, boolean, int64, out float32[], out uint8[]",
        variant=f"{bucket} {leaves_errors}",
        vectorized=False,
    )
    def quantize_buckets(x, seed, first, s, square, terms, streaming, rounded_to, norms, out):
        # x.size is a multiple of the bucket, `first` one of _PAIR; x.size // bucket <= norms.size,
        # x.size <= out.size; square.size == 1. Returns whether any norm is tiny; elements of such
        # buckets get level 0. With `leaves_errors`, x gets the sum of gradient and residual, which
        # are as long, and then the quantization errors; x may be the residual if the backup is as
        # long.
        gradient, residual, any_tiny = terms[0], terms[1], False
        for b in range(x.size // bucket):
            start = b * bucket
            if leaves_errors:
                for i in range(start, start + bucket, BLOCK):
                    add_block(terms, i, x, i, streaming)
            squares(x, start, square)
            norm = np.float32(np.sqrt(square[0]))
            norms[b] = norm
            factor = scale_by(norm, s)
            step = step_of(norm, s) if leaves_errors else np.float32(0)
            any_tiny |= 0 < norm < TINY
            for i in range(start, start + bucket, _PAIR):
                element = first + np.uint64(i)
                span = element >> COUNTER_SPAN
                two_blocks(x, i, factor, step, rounded_to, s, seed, element, span, out, i)
                if leaves_errors:
                    fetch_terms(gradient, residual, i + bucket)
                    fetch_terms(gradient, residual, i + bucket + BLOCK)
        if leaves_errors and streaming:
            fence()
        return any_tiny

    return quantize_buckets
