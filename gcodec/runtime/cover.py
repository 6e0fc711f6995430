"""Cover an array by whole blocks on the pool, and tell which memory suits them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.runtime import pool
from gcodec.runtime.lanes import BLOCK

_LINE = 64  # bytes in a cache line
_STREAMING = 1 << 22  # elements from which a result is too large to be found in a cache again


def cover(
    blocks: Callable[[int, int], None],
    padded: Callable[[int, int], None],
    head: int,
    n: int,
    beside: Any = None,
) -> None:
    """Cover n elements: whole blocks from `head` on the pool, each end in a padded block.

    For `beside`, see `pool.run`.
    """
    stop = n - (n - head) % BLOCK
    if head:
        padded(0, head)
    pool.run(lambda start, end: blocks(head + start, head + end), stop - head, BLOCK, beside)
    if stop < n:
        padded(stop, n)


def to_cache_line(stream: np.ndarray, step: int) -> int:
    """Elements before the first cache line of a float32 stream, if a multiple of `step`, else 0.

    Stores across two lines cost a tenth of the speed. Packed bytes hold `step` elements each.
    Segments that are converted begin lines of their own.
    """
    if type(stream) is not np.ndarray:
        return 0
    head = -(stream.ctypes.data // stream.itemsize) % (_LINE // stream.itemsize)
    return 0 if head % step or head > stream.size else head


def streams(out: np.ndarray) -> bool:
    """Whether blocks of (n,) float32 `out` can and should be stored past the cache."""
    return out.size >= _STREAMING and out.ctypes.data % 32 == 0
