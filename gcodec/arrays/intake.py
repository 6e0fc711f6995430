"""Arrays of any library: in as flat float32, out as the caller's library and dtype."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, cast

import ml_dtypes
import numpy as np

from gcodec.arrays.frameworks import Library, library_of
from gcodec.arrays.protocols import as_numpy, check_no_device, dtype_error, memory_of, on_device
from gcodec.errors import ParameterError
from gcodec.kernels.numeric import convert
from gcodec.kernels.numeric.convert import ConvertedArray, is_converted
from gcodec.kernels.numeric.reduce import (
    INFINITY_BITS,
    all_finite,
    max_abs_bits,
    max_abs_bits_corrected,
)
from gcodec.runtime.deferred import when_known
from gcodec.runtime.device import Device, device_of, host
from gcodec.runtime.memory import empty_beside
from gcodec.runtime.pool import SEGMENT
from gcodec.wire.primitives import FLOATS, INTEGERS, MAX_NDIM

NUMPY_DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
} | {name: np.dtype(name) for name in INTEGERS}
NonFinite = Literal["raise", "zero", "propagate"]

_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


class Tensor(NamedTuple):
    """What intake makes of an array.

    Attributes
    ----------
    values : (n,) float32 array
        C-contiguous and aligned; the caller's own memory where that already was so. On the device
        of an array that came from one. Integers and booleans stay in their own dtype, and are
        always on the host. Or a `ConvertedArray`, where the caller asked for segments.
    dtype : str
        The dtype that came in, which is the dtype that goes out.
    shape : tuple of int
    """

    values: np.ndarray
    dtype: str
    shape: tuple[int, ...]


def intake(x: Any, name: str = "x", *, integers: bool = False, segments: bool = False) -> Tensor:
    """Take in an array of any library.

    Parameters
    ----------
    x : array
        On the host: NumPy array or scalar (any order, stride, byte order), torch, JAX, TensorFlow
        or MLX array, DLPack exporter, buffer, or an object with ``__array__``. On a CUDA device:
        CuPy array, torch tensor, or an object with ``__cuda_array_interface__``. float32, float16,
        bfloat16 or float64.
    name : str
        What messages call it.
    integers : bool
        Whether arrays of integers and booleans are taken, too.
    segments : bool
        Whether the caller reads the values by segments only, so that values on the host that are
        not float32 may be a `ConvertedArray`.

    Raises
    ------
    TypeError
        For other dtypes, masked arrays, arrays on other devices and things that are no arrays.
    ImportError, RuntimeError
        The device cannot be used; see `gcodec.runtime.device.CupyDevice`.
    """
    if (found := on_device(x, name)) is not None:
        if found[1] in INTEGERS and not integers:
            raise dtype_error(x, name, found[1])
        return _device_tensor(*found, name)
    array = as_numpy(x, name)
    dtype = _NAMES.get(array.dtype) or _NAMES.get(array.dtype.newbyteorder("="))
    if dtype is None or (dtype in INTEGERS and not integers):
        raise dtype_error(x, name, array.dtype.name)
    if array.ndim > MAX_NDIM:
        raise ParameterError.of(f"{name}.ndim", array.ndim, f"at most {MAX_NDIM}")
    shape = array.shape
    if array.dtype not in _NAMES or not is_flat(array):
        array = np.require(array, array.dtype.newbyteorder("="), ["C", "A"])
    native = array.reshape(-1)
    if dtype == "float32" or dtype in INTEGERS:
        return Tensor(native, dtype, shape)
    source = native if dtype == "float64" else native.view(np.uint16)
    values: Any = ConvertedArray(source, dtype)
    return Tensor(values if segments else values.whole(), dtype, shape)


def _device_tensor(array: Any, dtype: str, name: str) -> Tensor:
    device = device_of(array)
    assert device is not None
    if array.ndim > MAX_NDIM:
        raise ParameterError.of(f"{name}.ndim", array.ndim, f"at most {MAX_NDIM}")
    flat = device.flat(array)
    if dtype in INTEGERS:
        return Tensor(host(flat).view(NUMPY_DTYPES[dtype]), dtype, tuple(array.shape))
    if dtype == "float64":
        flat = convert.from_float64(flat)
    elif dtype != "float32":
        flat = convert.from_16_bits(flat.view(np.uint16), dtype)
    return Tensor(flat, dtype, tuple(array.shape))


def check_nonfinite(nonfinite: object) -> None:
    """Raise `ParameterError` unless this is a policy for NaN and Inf."""
    if nonfinite not in ("raise", "zero", "propagate"):
        raise ParameterError.of("nonfinite", nonfinite, "one of raise, zero, propagate")


def with_policy(tensor: Tensor, nonfinite: NonFinite, *, segments: bool = False) -> Tensor:
    """Apply the policy for NaN and Inf to a tensor that was taken in; see `intake`.

    Integers and booleans have neither.
    """
    if tensor.dtype in INTEGERS:
        return tensor
    if nonfinite == "raise":
        check_finite(tensor.values)
    values: Any = tensor.values
    if nonfinite != "zero" or (device_of(values) is None and all_finite(values)):
        return tensor
    if segments and type(values) is np.ndarray:
        values = ConvertedArray(values, "float32")
    if type(values) is ConvertedArray:
        return tensor._replace(values=cast(Any, values.finite_or_zero()))
    return tensor._replace(values=convert.finite_or_zero(values))


def check_finite(values: np.ndarray) -> None:
    """Raise `ParameterError` for NaN or Inf; of values on a device before the call ends."""
    check_top(max_abs_bits(values), values)


def check_top(bits: Any, values: np.ndarray) -> None:
    """Do so, given the bits of the largest magnitude."""

    def check(top: int) -> None:
        if top >= INFINITY_BITS:
            raise nonfinite_error(values)

    when_known(bits, check)


def check_corrected(
    values: np.ndarray, residual: np.ndarray, decay: np.float32, name: str = "x"
) -> None:
    """Raise `ParameterError` unless all of values + decay·residual are finite; as above."""
    check_sum(max_abs_bits_corrected(values, residual, decay), values, name)


def check_sum(bits: Any, values: np.ndarray, name: str = "x") -> None:
    """Do so, given the bits of the largest magnitude of the sum."""

    def check(top: int) -> None:
        if top < INFINITY_BITS:
            return
        if all_finite(values):
            raise ParameterError(f"{name}: must not pass float32 when its residual is added")
        raise nonfinite_error(values)

    when_known(bits, check)


def check_left(
    left: np.ndarray, values: np.ndarray, residual: np.ndarray, decay: np.float32, name: str
) -> None:
    """Do so, given what is left of the sum: that is only looked at if this is not finite."""

    def check(top: int) -> None:
        if top >= INFINITY_BITS:
            check_sum(int(max_abs_bits_corrected(values, residual, decay)), values, name)

    when_known(max_abs_bits(left), check)


def nonfinite_error(values: np.ndarray) -> ParameterError:
    """Say how many of the values are NaN or Inf, and where the first is."""
    held = values if is_converted(values) else host(values)
    count, first = 0, 0
    for at in range(0, held.size, SEGMENT):
        wrong = ~np.isfinite(held[at : at + SEGMENT])
        if not count and wrong.any():
            first = at + int(np.argmax(wrong))
        count += int(np.count_nonzero(wrong))
    return ParameterError(
        f"x holds {count} NaN or Inf, the first at flat index {first}: must be finite"
    )


def shares_memory(data: Any, values: Any) -> bool:
    """Whether bytes on the host may lie where the values do that were taken in."""
    source = values.source if type(values) is ConvertedArray else values
    arrays = type(data) is np.ndarray and type(source) is np.ndarray
    return arrays and bool(np.may_share_memory(data, source))


def outlet(values: np.ndarray, dtype: str) -> np.ndarray:
    """(n,) float32 values as an array of `dtype`; the very array for float32.

    Integers and booleans are in their dtype already, and are returned as they are. On a device
    floats of 16 bits stay bits: not every release of CuPy has bfloat16.
    """
    if dtype == "float32" or dtype in INTEGERS:
        return values
    if dtype == "float64":
        return convert.to_float64(values)
    bits = convert.to_16_bits(values, dtype)
    return bits if device_of(bits) is not None else bits.view(NUMPY_DTYPES[dtype])


def dtype_like(like: Any, shape: tuple[int, ...], dtype: str) -> str:
    """Return the name of the dtype of `like`, an array that a result is to be like.

    Parameters
    ----------
    like : array
    shape : tuple of int
        Shape of the result, which `like` must have.
    dtype : str
        Dtype of the frame: one of floats can be converted to another, integers and booleans to
        none.
    """
    library = library_of(like)
    if library is not None:
        library.check(like, "like")
    elif on_device(like, "like") is None:
        _check_like(like)
    if tuple(like.shape) != shape:
        raise ParameterError.of("like.shape", tuple(like.shape), str(shape))
    text = str(like.dtype.name) if library is None else library.dtype_of(like)
    if text not in (FLOATS if dtype in FLOATS else (dtype,)):
        allowed = f"one of {', '.join(FLOATS)}" if dtype in FLOATS else dtype
        raise ParameterError.of("like.dtype", text, allowed)
    return text


def device_like(like: Any) -> Device | None:
    """Return the device of an array of any library that kernels can work on; None else."""
    found = None if like is None else on_device(like, "like")
    return None if found is None else device_of(found[0])


def as_library_of(array: np.ndarray, like: Any) -> Any:
    """Hand an array over as an array of the library of `like`, on its device.

    What is of no library known here gets a NumPy array, or from a device CuPy's.
    """
    library = library_of(like)
    if device_of(array) is not None:
        dtype = str(like.dtype.name) if library is None else library.dtype_of(like)
        if library is not None:
            return library.of_device(array, dtype)
        view: Any = array.view(NUMPY_DTYPES[dtype])
        return view
    if library is not None:
        return library.make(array, like)
    if isinstance(like, np.generic):
        return array[()]
    return array.astype(like.dtype, copy=False)  # for the byte order


def writable(array: Any, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """View an array of the caller's that a result is written to as a NumPy array.

    Raises
    ------
    ParameterError
        Unless it has exactly this dtype and shape and can be written to.
    TypeError
        If it is no array, or of a library whose arrays never change.
    """
    if isinstance(array, np.generic):
        raise ParameterError(f"{name} is a scalar: must be an array, which can be written to")
    library = _writing_library(array, name)
    if library is not None and library.dtype_of(array) != dtype:
        raise ParameterError.of(f"{name}.dtype", library.dtype_of(array), dtype)
    if (found := on_device(array, name)) is not None:
        if library is not None:
            library.note_write(array)
        there: np.ndarray = _writable_on_device(*found, name, dtype, shape)
        return there
    view = memory_of(array, name)
    if view is None:
        raise TypeError(f"{name} is a {type(array).__name__}: must be an array to write to")
    if _NAMES.get(view.dtype) != dtype:
        raise ParameterError.of(f"{name}.dtype", str(view.dtype), dtype)
    if view.shape != shape:
        raise ParameterError.of(f"{name}.shape", view.shape, str(shape))
    if not view.flags.writeable:
        raise ParameterError(f"{name} is read-only: must be writable")
    shared = any(step == 0 and n > 1 for step, n in zip(view.strides, shape, strict=True))
    if shared and view.size:
        raise ParameterError(f"{name} is broadcast: each element must have memory of its own")
    if library is not None:
        library.note_write(array)
    return view


def _writable_on_device(
    array: Any, found: str, name: str, dtype: str, shape: tuple[int, ...]
) -> Any:
    if found != dtype:
        raise ParameterError.of(f"{name}.dtype", found, dtype)
    if tuple(array.shape) != shape:
        raise ParameterError.of(f"{name}.shape", tuple(array.shape), str(shape))
    if not array.flags.c_contiguous:
        raise ParameterError(f"{name} is strided: on a device it must be C-contiguous")
    return array.view(np.uint16) if array.dtype.itemsize == 2 else array


def byte_buffer(data: Any, name: str) -> Any:
    """Return the memory of an array that is to hold bytes; other bytes-likes as they are.

    Raises
    ------
    TypeError
        Where the bytes cannot be reached.
    """
    library = library_of(data)
    return data if library is None else library.memory(data, name)


def writable_bytes(out: Any, name: str) -> memoryview:
    """View a buffer of the caller's, to which bytes are written.

    Raises
    ------
    ParameterError
        If it is read-only.
    TypeError
        If it is no contiguous buffer.
    """
    library = _writing_library(out, name)
    try:
        target = memoryview(byte_buffer(out, name)).cast("B")
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {error}") from error
    if target.readonly:
        raise ParameterError(f"{name} is read-only: must be writable")
    if library is not None:
        library.note_write(out)
    return target


def is_flat(array: np.ndarray) -> bool:
    """Whether kernels can work on the array where it lies."""
    if type(array) is not np.ndarray and device_of(array) is not None:
        return True  # `writable` takes no others
    return bool(array.flags.c_contiguous and array.flags.aligned)


def size_of(shape: Any) -> int:
    """Return the number of elements of `shape`, a tuple of integers or an integer."""
    dims = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if any(not isinstance(d, (int, np.integer)) or d < 0 for d in dims):
        raise ParameterError.of("shape", shape, "non-negative integers")
    return math.prod(int(d) for d in dims)


def empty_like_shape(shape: Any, beside: Any = None) -> np.ndarray:
    """Uninitialised, aligned (n,) float32 array for the elements of `shape`.

    It lies on the device of the array `beside`, if that is on one.
    """
    return empty_beside(size_of(shape), np.float32, beside)


def _check_like(like: Any) -> None:
    check_no_device(like, "like")
    shows = [hasattr(like, "shape"), hasattr(getattr(like, "dtype", None), "name")]
    if not all(shows) or not hasattr(type(like), "__array__"):
        raise TypeError(f"like is a {type(like).__name__}: must be an array")


def _writing_library(array: Any, name: str) -> Library | None:
    library = library_of(array)
    if library is not None and not library.writes:
        raise TypeError(
            f"{name} is an array of {library.title}, which cannot be written to: "
            "give a NumPy array"
        )
    return library
