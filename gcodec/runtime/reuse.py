"""Reuse of the memory of large results that the caller has dropped.

The system zeroes fresh pages at their first use, which takes longer than most codecs decode. The C
library reuses only the memory of smaller arrays. So when the last view of a large result is gone,
its memory waits here for the next result of about the same size.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from typing import Any

import numpy as np

from gcodec.errors import ParameterError
from gcodec.runtime import Array
from gcodec.runtime.device import device_of
from gcodec.runtime.memory import aligned_empty, empty_beside, page_adviser, whole_pages

_LEAST = 1 << 24  # bytes of the smallest array whose memory waits; see `memory._LARGEST_REUSED`
_LEAST_SCRATCH = 1 << 22  # NumPy's threshold for huge pages, which a smaller array would split
_DEFAULT_MIB = 256
_EXCESS = 1 / 8  # a block may exceed the array that reuses it by this share of the array


def kept_nbytes() -> int:
    """Return the bytes of dropped results that may wait: ``GCODEC_KEPT_MIB``, or else 256 MiB."""
    text = os.environ.get("GCODEC_KEPT_MIB")
    if text is None:
        return _DEFAULT_MIB << 20
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        allowed = "an integer number of MiB below 10**9, or 0 to keep none"
        raise ParameterError.of("GCODEC_KEPT_MIB", text, allowed)
    return int(text) << 20


class _Block:
    """Memory that nobody uses; unlike arrays, blocks are equal only to themselves."""

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


class _Blocks:
    """Blocks of memory that nobody uses, in the order in which they were dropped.

    Both methods may run within each other, at any place in any thread: `put` when an array is
    freed, `take` in a signal handler; and an interrupt may end them at any place. A lock could
    then stay taken, so they share only a list, which C code changes.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._limit = 0
        self._advise = page_adviser()

    def take(self, nbytes: int) -> np.ndarray | None:
        """Return the latest block for an array of `nbytes`, or None."""
        self._limit = kept_nbytes()
        if not self._limit:
            self._blocks.clear()
        most = nbytes + math.floor(_EXCESS * nbytes)
        for block in reversed(self._blocks[:]):
            if nbytes <= block.array.nbytes <= most:
                with contextlib.suppress(ValueError):  # another call has taken it
                    self._blocks.remove(block)
                    return block.array
        return None

    def put(self, array: np.ndarray) -> None:
        """Keep a block, and free the oldest blocks beyond the limit."""
        if array.nbytes > self._limit:
            return
        self._make_reclaimable(array)
        self._blocks.append(_Block(array))
        while sum([block.array.nbytes for block in self._blocks[:]]) > self._limit:
            with contextlib.suppress(IndexError):  # another call has freed it
                self._blocks.pop(0)

    def forget(self) -> None:
        """Free all blocks in a forked child, which would copy each page that it writes to."""
        self._blocks = []

    def _make_reclaimable(self, array: np.ndarray) -> None:
        """Allow the system to take the pages when memory is scarce; until then, they stay."""
        if self._advise is not None and hasattr(mmap, "MADV_FREE"):
            self._advise(*whole_pages(array), mmap.MADV_FREE)


class _Lease:
    """Owner of a block on behalf of the arrays that view it, whose last one returns the block."""

    __slots__ = ("__array_interface__", "_block", "_blocks")

    def __init__(self, block: np.ndarray, blocks: _Blocks) -> None:
        self._block, self._blocks = block, blocks
        self.__array_interface__: dict[str, Any] = {
            "data": (block.__array_interface__["data"][0], False),
            "shape": (block.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._blocks.put(self._block)


_BLOCKS = _Blocks()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_BLOCKS.forget)


def result_beside(size: int, dtype: Any, array: Array) -> np.ndarray:
    """Return an uninitialized (size,) result on the host, or on the device of another array.

    When the last view of a large result on the host is gone, its memory waits for other results.
    """
    nbytes = size * np.dtype(dtype).itemsize
    if nbytes < _LEAST or device_of(array) is not None:
        return empty_beside(size, dtype, array)
    return _leased(nbytes).view(dtype)


def scratch(nbytes: int) -> np.ndarray:
    """Return a view of uninitialized bytes for a short use, which begins at a cache line.

    Examples are a payload that is about to be copied to a frame, and a copy that undoes an error.
    When the last view of many bytes is gone, their memory waits for other arrays.
    """
    if nbytes >= _LEAST_SCRATCH:
        return _leased(nbytes)
    return aligned_empty(nbytes, np.uint8)


def _leased(nbytes: int) -> np.ndarray:
    block = _BLOCKS.take(nbytes)
    lease = _Lease(aligned_empty(nbytes, np.uint8) if block is None else block, _BLOCKS)
    return np.asarray(lease)[:nbytes]
