"""Launcher of leaf_digests.cu; see `gcodec.kernels.bits.leaf_digests`."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from gcodec.kernels.bits.leaf_digests import DIGEST_NBYTES, leaf_count
from gcodec.runtime import Array
from gcodec.runtime.cuda_grid import blocks, device_with
from gcodec.runtime.deferred import Deferred

_LANES = 4  # threads of a leaf
_THREADS = 32  # per block, so that few leaves use many processors


def leaf_digests(bits: Array, leaf_nbytes: int, copy: Array = None) -> np.ndarray:
    """Return the digests of all leaves, joined."""
    device, leaves = device_with(bits), leaf_count(bits, leaf_nbytes)
    digests = device.empty(leaves * DIGEST_NBYTES // 8, np.uint64)
    grid = blocks(leaves * _LANES, threads=_THREADS)
    arguments = bits.view(np.uint8), bits.nbytes, leaf_nbytes, leaves, digests
    device.launch("leaf_digests", "digest_leaves", grid, _THREADS, *arguments)
    if copy is not None:
        copy[:] = bits
    deferred: Any = Deferred(device, digests, lambda words: words.view(np.uint8))
    return cast(np.ndarray, deferred)
