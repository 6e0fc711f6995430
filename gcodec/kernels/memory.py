"""Memory: aligned arrays, prefetching, and the bits of a float."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcodec.kernels.device import device_of
from gcodec.kernels.jit import intrinsic

_LINE = 64  # bytes in a cache line
_FEW = 1 << 16  # elements, of which to find the line takes longer than it saves


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
