"""The digest of a base: BLAKE2b of 128 bits in its tree mode, so that threads share the work.

The elements are the message, little-endian and in C order. Leaves have 2^20 bytes, an empty tensor
has one empty leaf; see `gcodec.kernels.bits.leaf_digests`. On a device, kernels digest the leaves,
and the host computes the root.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.bits.leaf_digests import DIGEST_NBYTES, leaf_digests, node_digest
from gcodec.runtime.deferred import map_deferred

__all__ = ["DIGEST_NBYTES", "LEAF_NBYTES", "digest_of"]

LEAF_NBYTES = 1 << 20


def digest_of(bits: np.ndarray, copy: np.ndarray | None = None) -> Any:
    """Return the digest of (n,) contiguous elements: bytes, or on a device `Deferred` ones.

    `copy` receives the elements; see `leaf_digests`.
    """
    return map_deferred(_root, leaf_digests(bits, LEAF_NBYTES, copy))


def _root(leaves: np.ndarray) -> bytes:
    return node_digest(leaves.data, LEAF_NBYTES, 1, 0, is_last=True)
