"""Memory: aligned arrays, arrays that release their memory while read, prefetching, float bits."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gcodec.runtime import Array, pool
from gcodec.runtime.device import device_of
from gcodec.runtime.jit import inline, intrinsic

LINE = 64  # bytes in a cache line
_SMALL = 1 << 16  # elements of the largest array whose alignment does not pay
_PLACES = 1 << 12  # bytes of a small page, in which a processor compares places
_LEAST_PLACED = 1 << 18  # bytes of the smallest array whose place in a small page matters
_PAGE = 1 << 21  # bytes in a huge page, the unit of release
# Size in bytes up to which the C library may keep the memory of a freed array, to use it again
# without page faults. The memory of larger arrays always returns to the system.
_LARGEST_REUSED = 1 << 25
_LEAST_DISCARDED = 1 << 22

# glibc keeps freed memory for arrays up to the size of the largest array that it has freed, and up
# to twice that size in all. If no large array had been freed, because the caller keeps all of its
# own, most calls would get fresh pages. Nobody writes to this array, so it takes no memory.
np.empty(_LARGEST_REUSED - _PAGE, np.uint8)


def aligned_empty(size: int, dtype: Any) -> np.ndarray:
    """Return an uninitialized (size,) array that starts at a cache line, for vector stores.

    A large array starts in the middle of a small page, where arrays of others start near its
    beginning. Otherwise many loads from those would wait for stores to this one: a processor first
    compares the lowest 12 bits of addresses, and takes equal ones for the same place.
    """
    nbytes = size * np.dtype(dtype).itemsize
    is_placed = nbytes >= _LEAST_PLACED
    return _placed(nbytes, *((_PLACES // 2, _PLACES) if is_placed else (0, LINE))).view(dtype)


def aligned_zeros(size: int, dtype: Any) -> np.ndarray:
    """Return a (size,) array of zeros that starts at a cache line; see `aligned_empty`."""
    zeros = aligned_empty(size, dtype)
    zeros[:] = 0
    return zeros


def tile_beside(size: int, out: np.ndarray) -> np.ndarray:
    """Return an uninitialized (size,) float32 array for a tile that is written to `out` later.

    It starts at a cache line. Loads from it do not wait for stores to `out`; see `aligned_empty`.
    """
    line = out.ctypes.data // LINE * LINE
    return _placed(4 * size, line - _PLACES // 4, _PLACES).view(np.float32)


def _placed(nbytes: int, place: int, unit: int) -> np.ndarray:
    """Return uninitialized bytes whose address exceeds a multiple of `unit` by `place`."""
    block = np.empty(nbytes + unit, np.uint8)
    start = (place - ctypes.addressof(ctypes.c_char.from_buffer(block.data))) % unit
    return block[start : start + nbytes]


def empty_beside(size: int, dtype: Any, array: Array) -> np.ndarray:
    """Return an uninitialized (size,) array on the host, or on the device of another array."""
    device = None if type(array) is np.ndarray else device_of(array)
    if device is None:
        return aligned_empty(size, dtype) if size > _SMALL else np.empty(size, dtype)
    return device.empty(size, dtype)


@functools.cache
def page_adviser() -> Callable[..., Any] | None:
    """Return the function ``madvise`` of Linux; None on other systems."""
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise


def whole_pages(array: np.ndarray) -> tuple[int, int]:
    """Return the address and the size in bytes of the pages that are within an array."""
    start, page = array.__array_interface__["data"][0], mmap.PAGESIZE
    first, last = -(-start // page), (start + array.nbytes) // page
    return first * page, (last - first) * page


class Drainable:
    """A host array that returns its memory to the system while it is read for the last time.

    An encoder wraps the symbols that it writes into a payload, and a frame wraps its payload. The
    peak memory is then the size of the larger array, not the sum of both. Small arrays, and all
    arrays on systems other than Linux, keep their memory.

    Parameters
    ----------
    array : contiguous array
        Nobody else may read the array later, and it must own its memory.
    refill : callable, optional
        Writes the first k elements, or more, again. It gets k. A new reader needs it if an earlier
        reader stopped before the end.
    nbytes : int, optional
        Number of leading bytes to release. Default: all.

    Attributes
    ----------
    array : array
        Elements are undefined after a call of `done` for them.
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
        self._end = 0  # end of the released bytes
        if self._advise is not None:
            limit = array.nbytes if nbytes is None else min(nbytes, array.nbytes)
            self._address = array.__array_interface__["data"][0]
            self._first = -(-self._address // _PAGE)
            self._pages = (self._address + array.nbytes) // _PAGE - self._first
            count = (self._address + limit) // _PAGE - self._first
            self._unread = [_PAGE] * max(count, 0)  # bytes of each page
            self._lock = threading.Lock()

    def limited(self, nbytes: int) -> Drainable:
        """Return a `Drainable` of the same array that releases fewer bytes."""
        return Drainable(self.array, self._refill, nbytes)

    def done(self, start: int, stop: int) -> None:
        """Release elements `start` to `stop - 1`. No element may be released twice."""
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
        """Release all elements, whatever the limit; no other call may run at the same time."""
        if self._advise is not None and self._pages:
            start = self._first * _PAGE
            self._advise(start, self._pages * _PAGE, mmap.MADV_DONTNEED)

    def restored(self) -> Drainable:
        """Write the released elements again, and return a `Drainable` of the whole array."""
        if self._end:
            assert self._refill is not None, "the array has been released without `refill`"
            self._refill(-(-self._end // self.array.itemsize))
        return Drainable(self.array, self._refill)


def drainable(array: Array, refill: Callable[[int], None] | None = None) -> Any:
    """Return a `Drainable` of a host array; return an array on a device unchanged."""
    return array if device_of(array) is not None else Drainable(array, refill)


def discard(array: np.ndarray) -> None:
    """Release the memory of a large array that is about to be freed; its elements are lost.

    Otherwise the C library would keep the memory of an array up to `_LARGEST_REUSED` bytes, and
    use it only for arrays that fit.
    """
    advise = page_adviser() if array.nbytes >= _LEAST_DISCARDED else None
    if advise is not None:
        advise(*whole_pages(array), mmap.MADV_DONTNEED)


def contents(array: Any) -> Any:
    """Return the array of a `Drainable`, or an array unchanged."""
    return array.array if type(array) is Drainable else array


def release(array: Any, start: int, stop: int) -> None:
    """Release a range of elements of a `Drainable`, or of symbols computed from one."""
    if hasattr(array, "done"):
        array.done(start, stop)


def drop(array: Any) -> None:
    """Release all elements of a `Drainable`, or of symbols computed from one."""
    if hasattr(array, "drop"):
        array.drop()


def limited(array: Any, nbytes: int) -> Any:
    """Limit the number of released bytes if the array is a `Drainable`."""
    return array.limited(nbytes) if type(array) is Drainable else array


def restored(array: Any) -> Any:
    """Write the released elements again if the array is a `Drainable`, and return it whole."""
    return array.restored() if type(array) is Drainable else array


def clear(array: Array) -> None:
    """Write zeros to a contiguous (n,) array; writing them as bytes takes half the time."""
    if device_of(array) is not None:
        array[:] = 0
        return

    def task(start: int, stop: int) -> None:
        array[start:stop].view(np.uint8)[:] = 0

    pool.run(task, array.size)


def aligned_copy(array: Array) -> Array:
    """Copy an (n,) array within its memory; a copy on the host is aligned."""
    if device_of(array) is not None:
        return array.copy()
    copy = aligned_empty(array.size, array.dtype)
    copy[:] = array
    return copy


def flattened(array: Array) -> np.ndarray:
    """Return an array as (n,), contiguous, in its own memory; a view if possible, else a copy."""
    device = device_of(array)
    flat: np.ndarray = np.ascontiguousarray(array) if device is None else device.flat(array)
    return flat.reshape(-1)


def emit_prefetch(builder: Any, pointer: Any) -> None:
    """Emit a prefetch of the cache line at `pointer`, for reading, into all cache levels."""
    from llvmlite import ir
    from numba.core import cgutils

    line, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(ir.VoidType(), [line, flag, flag, flag]),
        "llvm.prefetch.p0",
    )
    read, all_levels, data_cache = flag(0), flag(3), flag(1)
    builder.call(function, [builder.bitcast(pointer, line), read, all_levels, data_cache])


def _bit_cast(name: str, source: str, target: str) -> Any:
    """Make an intrinsic that reinterprets the bits of a number as another type."""

    def bit_cast(typing_context: Any, value: Any) -> Any:
        from numba.core import types

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], context.get_value_type(signature.return_type))

        return getattr(types, target)(getattr(types, source)), generate

    bit_cast.__name__ = name
    return intrinsic(bit_cast)


float_bits = _bit_cast("float_bits", "float32", "uint32")
double_bits = _bit_cast("double_bits", "float64", "uint64")
bits_float = _bit_cast("bits_float", "uint32", "float32")


@inline
def magnitude_bits(value):
    """Return the bit pattern of the absolute value of a float32 as uint32."""
    return np.uint32(float_bits(value) & np.uint32(0x7FFFFFFF))
