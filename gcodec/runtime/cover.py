"""Loops over whole blocks of an array, and the choice between cached and streaming stores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gcodec.runtime import Array, pool
from gcodec.runtime.lanes import ADD, BLOCK, STREAM, STREAMED, WRITE
from gcodec.runtime.memory import LINE

_ALIGNED = 1 << 18  # bytes of the smallest result whose alignment pays
_STREAMING = 1 << 24  # bytes of the smallest result that no cache holds until it is read


def cover(
    blocks: Callable[[int, int], None],
    padded: Callable[[int, int], None],
    head: int,
    n: int,
    beside: Array = None,
) -> None:
    """Process n elements: `blocks` gets whole blocks from `head` on, `padded` gets both ends.

    The thread pool runs `blocks`; for `beside`, see `pool.run`.
    """
    stop = n - (n - head) % BLOCK
    if head:
        padded(0, head)
    pool.run(lambda start, end: blocks(head + start, head + end), stop - head, BLOCK, beside)
    if stop < n:
        padded(stop, n)


def to_cache_line(stream: np.ndarray, step: int) -> int:
    """Return the number of elements before the first cache line of a float32 stream.

    A store that crosses two cache lines is slower by a tenth. The result is 0 if the number is not
    a multiple of `step`, the number of elements in a byte of the packed input. It is also 0 for a
    `ConvertedArray`, whose segments start at cache lines of their own.
    """
    if type(stream) is not np.ndarray:
        return 0
    head = -(stream.ctypes.data // stream.itemsize) % (LINE // stream.itemsize)
    return 0 if head % step or head > stream.size else head


def head_of(stream: np.ndarray, step: int) -> int:
    """Do what `to_cache_line` does; return 0 for an array so small that this does not pay."""
    is_small = type(stream) is np.ndarray and stream.nbytes < min(_ALIGNED, _STREAMING)
    return 0 if is_small else to_cache_line(stream, step)


def streams(out: np.ndarray) -> bool:
    """Return whether stores to (n,) `out` can and should bypass the cache."""
    return out.nbytes >= _STREAMING and out.ctypes.data % STREAMED == 0


def store_of(add: np.float32 | None, stream: bool) -> tuple[int, np.float32]:
    """Return the arguments "store" and "scale" of a kernel that decodes; see `Emitter.store_as`.

    Parameters
    ----------
    add : float32, optional
        Factor of the values that are added.
    stream : bool
        Whether values that are not added bypass the cache.
    """
    if add is not None:
        return ADD, np.float32(add)
    return STREAM if stream else WRITE, np.float32(1)
