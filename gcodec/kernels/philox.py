"""Philox4x32-10: random 32-bit words from a key and a counter, the same on every device.

The word of element i is word ``i & 3`` of the block whose counter is ``(i >> 2, stream)``, 64 bits
each, under the seed as key. So any element's word can be had without the ones before it, and
cutting an array into segments cannot change it. Source: Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels import pool
from gcodec.kernels.jit import inline, kernel

ROUNDING = 0  # the stream of stochastic rounding
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLY_0, _MULTIPLY_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


def check_seed(seed: int, name: str = "seed") -> int:
    """Return `seed` if it is an integer of 64 bits, else raise `ParameterError`."""
    integer = isinstance(seed, (int, np.integer)) and not isinstance(seed, bool)
    if not integer or not 0 <= seed < 1 << 64:
        raise ParameterError.of(name, seed, "an integer from 0 to 2**64 - 1")
    return int(seed)


def words(seed: int, start: int, count: int, stream: int = ROUNDING) -> np.ndarray:
    """Random words of the elements from `start` on.

    Parameters
    ----------
    seed, start, stream : int
        From 0 to 2**64 - 1; ``start + count`` may not pass 2**64.
    count : int
        Elements.

    Returns
    -------
    (count,) uint32 array
    """
    out = np.empty(count, np.uint32)

    def task(begin: int, end: int) -> None:
        first = np.uint64(start + begin)
        _words(np.uint64(check_seed(seed)), first, np.uint64(stream), out[begin:end])

    pool.run(task, count)
    return out


@inline
def philox_block(seed, block, stream):
    """Four words of 32 bits, held in uint64 so that the lanes vectorise."""
    c0, c1 = block & _MASK, block >> _HALF
    c2, c3 = stream & _MASK, stream >> _HALF
    k0, k1 = seed & _MASK, seed >> _HALF
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLY_0, c2 * _MULTIPLY_1
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _MASK, (p0 >> _HALF) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


@kernel("uint64, uint64, uint64, out uint32[]")
def _words(seed, start, stream, out):
    two, low = np.uint64(2), np.uint64(3)
    # Elements before the first whole block, then whole blocks, then the rest: i < out.size.
    head = min(np.int64((np.uint64(4) - (start & low)) & low), out.size)
    for i in range(head):
        index = start + np.uint64(i)
        block = philox_block(seed, index >> two, stream)
        out[i] = np.uint32(block[np.int64(index & low)])
    body = out[head:]
    first = (start + np.uint64(head)) >> two
    blocks = body.size // 4
    for b in range(blocks):  # 4 * b + 3 < body.size
        w0, w1, w2, w3 = philox_block(seed, first + np.uint64(b), stream)
        body[4 * b] = np.uint32(w0)
        body[4 * b + 1] = np.uint32(w1)
        body[4 * b + 2] = np.uint32(w2)
        body[4 * b + 3] = np.uint32(w3)
    rest = body[4 * blocks :]
    last = philox_block(seed, first + np.uint64(blocks), stream)
    for i in range(rest.size):  # rest.size < 4
        rest[i] = np.uint32(last[i])
