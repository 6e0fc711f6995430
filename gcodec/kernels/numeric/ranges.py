"""Minimum and maximum of each bucket of an array.

Values are compared as integer keys from their bits. In this order, −0 is below +0, and NaN is
beyond the infinities, so one pass finds the range and whether all values are finite.
"""

from __future__ import annotations

import numpy as np

from gcodec.errors import Corrupt
from gcodec.kernels.bits.pack import check_padding
from gcodec.kernels.numeric.reduce import emit_range, key_of, ranges_of_keys
from gcodec.runtime import pool
from gcodec.runtime.device import dispatched
from gcodec.runtime.jit import kernel
from gcodec.runtime.lanes import BLOCK, SIGN, Emitter, block, floats
from gcodec.runtime.memory import float_bits

RANGE_NBYTES = 8  # per bucket
_PART = 1 << 18  # elements


@dispatched("gcodec.kernels.numeric.ranges_cuda")
def ranges(x: np.ndarray, bucket: int) -> tuple[np.ndarray, bool]:
    """Return the minimum and maximum of each bucket.

    Parameters
    ----------
    x : (n,) float32 array
    bucket : int
        Number of elements in a bucket, at least 1; the last bucket may be shorter.

    Returns
    -------
    ranges : (ceil(n / bucket), 2) float32 array
        A zero is +0. The ranges are undefined unless all values are finite.
    finite : bool
        Whether all values are finite.
    """
    count = -(-x.size // bucket)
    keys = np.empty((count, 2), np.int32)
    if bucket < pool.SEGMENT:

        def buckets(start: int, stop: int) -> None:
            first, last = start // bucket, -(-stop // bucket)
            _ranges(x[start:stop], bucket, keys[first:last].reshape(-1))

        pool.run(buckets, x.size, bucket, x)
    else:
        for b in range(count):
            keys[b] = _range(x, b * bucket, min((b + 1) * bucket, x.size))
    return ranges_of_keys(keys)


@dispatched("gcodec.kernels.numeric.ranges_cuda")
def write_ranges(ranges: np.ndarray, data: np.ndarray) -> None:
    """Write (k, 2) ranges as binary32, big-endian, to the first bytes of `data`."""
    data[: ranges.nbytes].view(">f4")[:] = ranges.reshape(-1)


@dispatched("gcodec.kernels.numeric.ranges_cuda")
def read_ranges(data: np.ndarray) -> np.ndarray:
    """Read the (k, 2) ranges that `write_ranges` wrote to 8·k bytes."""
    return data.view(">f4").astype(np.float32).reshape(-1, 2)


@dispatched("gcodec.kernels.numeric.ranges_cuda")
def check_ranges(data: np.ndarray, size: int, nbits: int) -> None:
    """Raise `Corrupt` unless the first `size` bytes are valid ranges, and the padding is zero.

    Parameters
    ----------
    data : (ceil(nbits / 8),) uint8 array
    size : int
        A multiple of 8.
    nbits : int
    """
    check_padding(data, nbits)
    ranges = read_ranges(data[:size])
    low, high = ranges.T
    lows, highs = ranges.view(np.uint32).T
    wrong = ~((low > -np.inf) & (low <= high) & (high < np.inf))  # also of NaN
    wrong |= (lows == SIGN) | (highs == SIGN)  # −0
    if wrong.any():
        at = int(np.argmax(wrong))
        raise range_error(low[at], high[at], at)


def range_error(low: np.float32, high: np.float32, bucket: int) -> Corrupt:
    """Return the error of an invalid range of a bucket."""
    return Corrupt(f"{low} to {high} is not a valid range", RANGE_NBYTES * bucket)


def _range(x: np.ndarray, first: int, end: int) -> tuple[int, int]:
    """Return the keys of the range of one large bucket, elements `first` to `end`."""

    def task(start: int, stop: int) -> np.ndarray:
        keys = np.empty((-(-(stop - start) // _PART), 2), np.int32)
        # Parts are processed from the last to the first, so the cache holds the first ones for the
        # quantizer.
        for k in range(len(keys) - 1, -1, -1):
            at = start + k * _PART
            part = x[first + at : first + min(at + _PART, stop)]
            _ranges(part, _PART, keys[k])
        return keys

    keys = np.concatenate(pool.run(task, end - first))
    return int(keys[:, 0].min()), int(keys[:, 1].max())


@block("x", "i", "stop", "keys")
def range_of(e: Emitter) -> None:
    """Write the least and the greatest key of the elements from i to stop.

    Their number is a positive multiple of 32.
    """
    emit_range(e, lambda i: e.fetched(e.builder.gep(e.args["x"], [i]), floats()), e.args["keys"])


@kernel("in float32[], int64, out int32[]")
def _ranges(x, bucket, keys):
    # keys.size == 2 * ceil(x.size / bucket)
    for b in range(keys.size // 2):
        part, own = x[b * bucket : (b + 1) * bucket], keys[2 * b : 2 * b + 2]
        low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
        whole = part.size // BLOCK * BLOCK
        if whole > 0:
            range_of(part, 0, whole, own)
            low, high = own[0], own[1]
        for i in range(whole, part.size):
            key = key_of(np.int32(float_bits(part[i])))
            low, high = min(low, key), max(high, key)
        own[0], own[1] = low, high
