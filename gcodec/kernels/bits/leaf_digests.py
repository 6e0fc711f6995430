"""Digests of the leaves of a tree: BLAKE2b of 128 bits, in a tree of depth 2.

The leaves are independent, so threads share them. The parameters of the tree are: unlimited
fanout, depth 2, inner digests of 16 bytes.
"""

from __future__ import annotations

import hashlib

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.device import dispatched

DIGEST_NBYTES = 16


@dispatched("gcodec.kernels.bits.leaf_digests_cuda")
def leaf_digests(bits: np.ndarray, leaf_nbytes: int) -> np.ndarray:
    """Return the digests of all leaves, joined.

    Parameters
    ----------
    bits : (n,) unsigned array
        Contiguous. The last leaf may be shorter, and is the only one of an empty array.
    leaf_nbytes : int
        Bytes of a leaf, a multiple of 8 from 8 to 2^32 - 8.

    Returns
    -------
    (k,) uint8 array
        For an array on a device, a `Deferred` one.
    """
    data = bits.view(np.uint8).data
    count = leaf_count(bits, leaf_nbytes)

    def leaf(number: int, stop: int) -> bytes:
        part = data[number * leaf_nbytes : stop * leaf_nbytes]
        return node_digest(part, leaf_nbytes, 0, number, is_last=stop == count)

    return np.frombuffer(b"".join(pool.run_each(leaf, count)), np.uint8)


def leaf_count(bits: np.ndarray, leaf_nbytes: int) -> int:
    """Return the number of leaves of an array."""
    return max(-(-bits.nbytes // leaf_nbytes), 1)


def node_digest(
    data: bytes | memoryview, leaf_nbytes: int, depth: int, number: int, is_last: bool
) -> bytes:
    """Return the digest of a node of the tree: of a leaf, or of the root, whose depth is 1."""
    node = hashlib.blake2b(
        data,
        digest_size=DIGEST_NBYTES,
        fanout=0,
        depth=2,
        leaf_size=leaf_nbytes,
        node_offset=number,
        node_depth=depth,
        inner_size=DIGEST_NBYTES,
        last_node=is_last,
    )
    return node.digest()
