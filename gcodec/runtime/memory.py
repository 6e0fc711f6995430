"""Memory: aligned arrays, arrays released while they are read, prefetching, and float bits."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.runtime.device import device_of
from gcodec.runtime.jit import intrinsic

_LINE = 64  # bytes in a cache line
_FEW = 1 << 16  # elements, of which to find the line takes longer than it saves
_PAGE = 1 << 21  # bytes that are released at once: a huge page
# Bytes up to which the C library may keep an array's memory when it is freed, to use it again
# without page faults. The memory of larger arrays always goes back to the system.
_LARGEST_REUSED = 1 << 25
_LEAST_DISCARDED = 1 << 22


def aligned_empty(size: int, dtype: Any) -> np.ndarray:
    """Uninitialised (size,) array that starts on a cache line, which vector stores prefer."""
    nbytes = size * np.dtype(dtype).itemsize
    block = np.empty(nbytes + _LINE, np.uint8)
    start = -block.__array_interface__["data"][0] % _LINE
    return block[start : start + nbytes].view(dtype)


def empty_beside(size: int, dtype: Any, array: Any) -> np.ndarray:
    """Return an uninitialised (size,) array; on the device of `array`, if that is on one."""
    device = None if type(array) is np.ndarray else device_of(array)
    if device is None:
        return aligned_empty(size, dtype) if size > _FEW else np.empty(size, dtype)
    made: np.ndarray = device.empty(size, dtype)
    return made


@functools.cache
def page_adviser() -> Callable[..., Any] | None:
    """Return Linux' madvise; None on other systems."""
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    found = ctypes.CDLL(None).madvise
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found


class Drainable:
    """An array on the host whose memory goes back to the system while it is read a last time.

    An encoder wraps the symbols that it writes into a payload, and a frame wraps its payload: so
    the peak of memory is that of the larger array, not the sum of both. Small arrays, and all
    arrays on systems other than Linux, stay as they are.

    Parameters
    ----------
    array : contiguous array
        Nobody else may read it later, and it must own its memory.
    refill : callable, optional
        Writes the first elements again, given how many, for a reader that takes the place of one
        that gave up. It may write more.
    nbytes : int, optional
        Number of leading bytes to release. Default: all.

    Attributes
    ----------
    array : array
        Its elements are undefined once `done` has been called for them.
    """

    def __init__(
        self,
        array: np.ndarray,
        refill: Callable[[int], None] | None = None,
        nbytes: int | None = None,
    ) -> None:
        self.array = array
        self._refill = refill
        self._advise = page_adviser() if array.nbytes > _LARGEST_REUSED else None
        self._end = 0  # of what was released, in bytes
        if self._advise is not None:
            most = array.nbytes if nbytes is None else min(nbytes, array.nbytes)
            self._address = array.__array_interface__["data"][0]
            self._first = -(-self._address // _PAGE)
            self._pages = (self._address + array.nbytes) // _PAGE - self._first
            count = (self._address + most) // _PAGE - self._first
            self._unread = [_PAGE] * max(count, 0)  # bytes of each page
            self._lock = threading.Lock()

    def limited(self, nbytes: int) -> Drainable:
        """Return a `Drainable` of the same array that releases fewer bytes."""
        return Drainable(self.array, self._refill, nbytes)

    def done(self, start: int, stop: int) -> None:
        """Release elements `start` to `stop - 1`, which must not be released twice."""
        if self._advise is None:
            return
        itemsize = self.array.itemsize
        begin, end = self._address + start * itemsize, self._address + stop * itemsize
        last = min(-(-end // _PAGE), self._first + len(self._unread))
        for page in range(max(begin // _PAGE, self._first), last):
            read = min(end, (page + 1) * _PAGE) - max(begin, page * _PAGE)
            with self._lock:
                self._unread[page - self._first] -= read
                if self._unread[page - self._first]:
                    continue
                self._end = max(self._end, (page + 1) * _PAGE - self._address)
            self._advise(page * _PAGE, _PAGE, mmap.MADV_DONTNEED)

    def drop(self) -> None:
        """Release all elements, whatever the limit; no other call may be running."""
        if self._advise is not None and self._pages:
            start = self._first * _PAGE
            self._advise(start, self._pages * _PAGE, mmap.MADV_DONTNEED)

    def restored(self) -> Drainable:
        """Return one with all elements, those written again that were released."""
        if self._end:
            assert self._refill is not None, "the array was released for good"
            self._refill(-(-self._end // self.array.itemsize))
        return Drainable(self.array, self._refill)


def drainable(array: np.ndarray, refill: Callable[[int], None] | None = None) -> Any:
    """Return a `Drainable` of an array on the host; one on a device as it is."""
    return array if device_of(array) is not None else Drainable(array, refill)


def discard(array: np.ndarray) -> None:
    """Release the memory of a large array that is about to be freed and may not be read again.

    The C library keeps the memory of freed arrays up to `_LARGEST_REUSED`, and uses it again only
    for arrays that fit.
    """
    advise = page_adviser() if array.nbytes >= _LEAST_DISCARDED else None
    if advise is not None:
        start = array.__array_interface__["data"][0]
        first, last = -(-start // mmap.PAGESIZE), (start + array.nbytes) // mmap.PAGESIZE
        size = (last - first) * mmap.PAGESIZE
        advise(first * mmap.PAGESIZE, size, mmap.MADV_DONTNEED)


def contents(array: Any) -> Any:
    """Return the array that may be a `Drainable`."""
    return array.array if type(array) is Drainable else array


def release(array: Any, start: int, stop: int) -> None:
    """Release a range of what may be a `Drainable`; see `Drainable.done`."""
    if type(array) is Drainable:
        array.done(start, stop)


def drop(array: Any) -> None:
    """Release all of what may be a `Drainable`."""
    if type(array) is Drainable:
        array.drop()


def limited(array: Any, nbytes: int) -> Any:
    """Limit the number of bytes that are released, if the array is a `Drainable`."""
    return array.limited(nbytes) if type(array) is Drainable else array


def restored(array: Any) -> Any:
    """Return what may be a `Drainable`, its elements made again where they were released."""
    return array.restored() if type(array) is Drainable else array


def clear(array: np.ndarray) -> None:
    """Write zeros to a contiguous (n,) array: as bytes, which takes half the time."""
    if device_of(array) is None:
        array = array.view(np.uint8)
    array[:] = 0


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """Copy an (n,) array; on the device of one that lies there."""
    if device_of(array) is not None:
        return array.copy()
    made = aligned_empty(array.size, array.dtype)
    made[:] = array
    return made


def flattened(array: np.ndarray) -> np.ndarray:
    """Return an array as (n,), contiguous, where it lies; a view where it is that already."""
    device = device_of(array)
    if device is None:
        return np.ascontiguousarray(array).reshape(-1)
    found: np.ndarray = device.flat(array)
    return found


def emit_prefetch(builder: Any, pointer: Any) -> None:
    """Emit a prefetch of the cache line at `pointer`: for reading, into every cache level."""
    from llvmlite import ir
    from numba.core import cgutils

    line, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [line, flag, flag, flag]),
        "llvm.prefetch.p0",
    )
    read, everywhere, data_cache = flag(0), flag(3), flag(1)
    builder.call(function, [builder.bitcast(pointer, line), read, everywhere, data_cache])


@intrinsic
def float_bits(typing_context: Any, value: Any) -> Any:
    """Return the bit pattern of a float32 as uint32."""
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def double_bits(typing_context: Any, value: Any) -> Any:
    """Return the bit pattern of a float64 as uint64."""
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.uint64(types.float64), generate


@intrinsic
def bits_float(typing_context: Any, bits: Any) -> Any:
    """Return the float32 whose bit pattern is `bits`."""
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate
