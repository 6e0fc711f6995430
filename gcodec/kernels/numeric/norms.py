"""Norms of buckets: the Euclidean norm, with sums in the fixed order, or the largest magnitude."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.numeric.convert import part
from gcodec.kernels.numeric.reduce import (
    INFINITY_BITS,
    LANES,
    TILE,
    largest_bits,
    max_abs_bits,
    sum_squares,
    tile_squares,
)
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.memory import bits_float

Norm = Literal["l2", "max"]

_PART = 1 << 18  # elements whose norms are computed at a time


@dispatched("gcodec.kernels.numeric.norms_cuda")
def norms(x: np.ndarray, bucket: int, kind: Norm) -> np.ndarray:
    """Return the norms of the buckets of a (n,) float32 array, each rounded once to float32.

    Parameters
    ----------
    x : (n,) float32 array or ConvertedArray
    bucket : int
        Number of elements in a bucket; the last bucket may be shorter.
    kind : {"l2", "max"}

    Returns
    -------
    (ceil(n / bucket),) float32 array
        A norm is not finite if an element is not finite, or if the norm overflows float32.
    """
    out = np.empty(-(-x.size // bucket), np.float32)
    if bucket >= pool.SEGMENT:
        for b in range(out.size):
            out[b] = _norm(part(x, b * bucket, (b + 1) * bucket), kind)
        return out

    def task(start: int, stop: int) -> None:
        step = max(_PART // bucket, 1) * bucket
        for at in range(start, stop, step):
            values = x[at : min(at + step, stop)]
            _fill(values, bucket, kind, out[at // bucket : -(-(at + values.size) // bucket)])

    pool.run(task, x.size, bucket)
    return out


@dispatched("gcodec.kernels.numeric.norms_cuda", by="data")
def write_norms(norms: np.ndarray, data: np.ndarray) -> None:
    """Write norms as binary32, big-endian, to the first bytes of `data`."""
    data[: norms.nbytes] = norms.astype(">f4").view(np.uint8)


def read_norms(data: np.ndarray) -> np.ndarray:
    """Read the norms that `write_norms` wrote to 4·k bytes on the host."""
    bits = data.view(">u4").astype(np.uint32)
    is_wrong = bits >= INFINITY_BITS  # the sign is the highest bit
    if is_wrong.any():
        raise norm_error(int(is_wrong.argmax()))
    return bits.view(np.float32)


def norm_error(bucket: int) -> Corrupt:
    """Return the error of an invalid norm of a bucket."""
    return Corrupt("a norm must be finite, and not negative", 4 * bucket)


def _fill(x: np.ndarray, bucket: int, kind: Norm, out: np.ndarray) -> None:
    """Write the norms of buckets of less than 2^19 elements, hence of at most 128 tiles."""
    if kind == "max":
        _largest(x, bucket, out)
        return
    tiles = -(-bucket // TILE)
    sums = np.zeros((out.size, tiles))
    tile_squares(x, bucket, tiles, np.empty(LANES), sums.reshape(-1))
    # The binary tree pairs the sums of tiles; a missing sum is 0.
    while tiles > 1:
        half = 1 << (tiles - 1).bit_length() - 1
        sums[:, : tiles - half] += sums[:, half:tiles]
        tiles = half
    with np.errstate(over="ignore", under="ignore"):
        out[:] = np.sqrt(sums[:, 0])


def _norm(x: np.ndarray, kind: Norm) -> np.float32:
    if kind == "max":
        return np.uint32(max_abs_bits(x)).view(np.float32)
    with np.errstate(over="ignore"):
        return np.float32(np.sqrt(sum_squares(x)))


@kernel("in float32[], int64, out float32[]")
def _largest(x, bucket, out):
    # out.size == ceil(x.size / bucket)
    for b in range(out.size):
        values = x[b * bucket : b * bucket + bucket]
        out[b] = bits_float(largest_bits(values, np.uint32(0)))
