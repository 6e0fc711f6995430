"""The digest of a base: BLAKE2b of 128 bits in its tree mode, so that threads share the work.

The elements are the message, little-endian and in C order. Leaves have 2^20 bytes, an empty tensor
has one empty leaf. The parameters of the tree are: unlimited fanout, depth 2, inner digests of 16
bytes.
"""

from __future__ import annotations

import hashlib

import numpy as np

from gcodec.runtime import pool

DIGEST_NBYTES = 16
LEAF_NBYTES = 1 << 20


def digest_of(bits: np.ndarray) -> bytes:
    """Return the digest of (n,) contiguous elements."""
    data = bits.view(np.uint8).data
    count = max(-(-len(data) // LEAF_NBYTES), 1)

    def leaf(number: int, stop: int) -> bytes:
        part = data[number * LEAF_NBYTES : stop * LEAF_NBYTES]
        return _hash(part, 0, number, is_last=stop == count)

    return _hash(b"".join(pool.run_each(leaf, count)), 1, 0, is_last=True)


def _hash(data: bytes | memoryview, depth: int, number: int, is_last: bool) -> bytes:
    node = hashlib.blake2b(
        data,
        digest_size=DIGEST_NBYTES,
        fanout=0,
        depth=2,
        leaf_size=LEAF_NBYTES,
        node_offset=number,
        node_depth=depth,
        inner_size=DIGEST_NBYTES,
        last_node=is_last,
    )
    return node.digest()
