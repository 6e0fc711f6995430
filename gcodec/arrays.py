"""Arrays of any framework: in as flat float32, out as the caller's library and dtype.

A framework is recognised by the modules that are already loaded, never imported.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

from gcodec.errors import ParameterError
from gcodec.kernels import convert
from gcodec.kernels.memory import aligned_empty
from gcodec.kernels.reduce import all_finite
from gcodec.wire import DTYPE_CODES, MAX_NDIM

NUMPY_DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
}
NonFinite = Literal["raise", "zero", "propagate"]

_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


class Tensor(NamedTuple):
    """What intake makes of an array.

    Attributes
    ----------
    values : (n,) float32 array
        C-contiguous and aligned; the caller's own memory where that already was so.
    dtype : str
        The dtype that came in, which is the dtype that goes out.
    shape : tuple of int
    """

    values: np.ndarray
    dtype: str
    shape: tuple[int, ...]


def intake(x: Any, name: str = "x") -> Tensor:
    """Take in an array of any framework.

    Parameters
    ----------
    x : array
        NumPy array or scalar (any order, stride, byte order), buffer, DLPack exporter, torch or
        JAX tensor on the host; float32, float16, bfloat16 or float64.
    name : str
        What messages call it.

    Raises
    ------
    TypeError
        For other dtypes, masked arrays, device arrays and things that are no arrays.
    """
    array = _host(x, name)
    dtype = _NAMES.get(array.dtype.newbyteorder("="))
    if dtype is None:
        raise TypeError(
            f"{name} has dtype {array.dtype}: gcodec takes {', '.join(DTYPE_CODES)}; "
            f"convert it first, as in {name}.astype(numpy.float32)"
        )
    if array.ndim > MAX_NDIM:
        raise ParameterError.of(f"{name}.ndim", array.ndim, f"at most {MAX_NDIM}")
    shape = array.shape
    native = np.require(array, array.dtype.newbyteorder("="), ["C", "A"]).reshape(-1)
    if dtype == "float32":
        return Tensor(native, dtype, shape)
    if dtype == "float64":
        with np.errstate(all="ignore"):
            return Tensor(native.astype(np.float32), dtype, shape)
    return Tensor(convert.from_16_bits(native.view(np.uint16), dtype), dtype, shape)


def with_policy(tensor: Tensor, nonfinite: NonFinite) -> Tensor:
    """Apply the policy for NaN and Inf to a tensor that was taken in."""
    if nonfinite not in ("raise", "zero", "propagate"):
        raise ParameterError.of("nonfinite", nonfinite, "one of raise, zero, propagate")
    if nonfinite == "propagate" or all_finite(tensor.values):
        return tensor
    wrong = ~np.isfinite(tensor.values)
    if nonfinite == "raise":
        raise ParameterError(
            f"x holds {np.count_nonzero(wrong)} NaN or Inf, the first at flat index "
            f"{np.argmax(wrong)}: must be finite under nonfinite='raise'"
        )
    return tensor._replace(values=np.where(wrong, np.float32(0), tensor.values))


def outlet(values: np.ndarray, dtype: str) -> np.ndarray:
    """(n,) float32 values as an array of `dtype`; the very array for float32."""
    if dtype == "float32":
        return values
    if dtype == "float64":
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return values.astype(np.float64)
    return convert.to_16_bits(values, dtype).view(NUMPY_DTYPES[dtype])


def dtype_like(like: Any, shape: tuple[int, ...]) -> str:
    """Return the name of the dtype of `like`, an array that a result of `shape` is to be like."""
    if not hasattr(like, "shape") or not hasattr(like, "dtype"):
        raise TypeError(f"like is a {type(like).__name__}: must be an array")
    if tuple(like.shape) != shape:
        raise ParameterError.of("like.shape", tuple(like.shape), str(shape))
    text = getattr(like.dtype, "name", str(like.dtype).removeprefix("torch."))
    if text not in DTYPE_CODES:
        raise ParameterError.of("like.dtype", text, f"one of {', '.join(DTYPE_CODES)}")
    return str(text)


def as_library_of(array: np.ndarray, like: Any) -> Any:
    """Hand a host array over as an array of the library of `like`, on its device."""
    if _is_torch(like):
        torch = sys.modules["torch"]
        if _NAMES[array.dtype] == "bfloat16":
            tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array)
        return tensor.to(like.device)
    if _is_jax(like):
        return sys.modules["jax"].device_put(array, like.device)
    return array


def writable(array: Any, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """View an array of the caller's that a result is written to as a NumPy array.

    Raises
    ------
    ParameterError
        Unless it has exactly this dtype and shape and can be written to.
    TypeError
        If it is no array.
    """
    if isinstance(array, np.generic):
        raise ParameterError(f"{name} is a scalar: must be an array, which can be written to")
    view = _host(array, name)
    if _NAMES.get(view.dtype) != dtype:
        raise ParameterError.of(f"{name}.dtype", str(view.dtype), dtype)
    if view.shape != shape:
        raise ParameterError.of(f"{name}.shape", view.shape, str(shape))
    if not view.flags.writeable:
        raise ParameterError(f"{name} is read-only: must be writable")
    return view


def is_flat(array: np.ndarray) -> bool:
    """Whether kernels can work on the array where it lies."""
    return bool(array.flags.c_contiguous and array.flags.aligned)


def size_of(shape: Any) -> int:
    """Return the number of elements of `shape`, a tuple of integers or an integer."""
    dims = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if any(not isinstance(d, (int, np.integer)) or d < 0 for d in dims):
        raise ParameterError.of("shape", shape, "non-negative integers")
    return math.prod(int(d) for d in dims)


def empty_like_shape(shape: Any) -> np.ndarray:
    """Uninitialised, aligned (n,) float32 array for the elements of `shape`."""
    return aligned_empty(size_of(shape), np.float32)


def _host(x: Any, name: str) -> np.ndarray:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: fill it first, as in {name}.filled(0)")
    if isinstance(x, (np.ndarray, np.generic)):
        return np.asarray(x)
    if _is_torch(x):
        return _from_torch(x, name)
    if _is_jax(x):
        return np.asarray(x)
    if hasattr(x, "__cuda_array_interface__"):
        raise TypeError(f"{name} is on a CUDA device: copy it to the host first")
    if isinstance(x, (str, bytes, bytearray)):
        raise TypeError(f"{name} is a {type(x).__name__}: must be an array")
    if hasattr(x, "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{name} cannot be read through DLPack: {error}") from error
    try:
        return np.asarray(memoryview(x))
    except TypeError:
        raise TypeError(
            f"{name} is a {type(x).__name__}: must be an array; "
            f"make one first, as in numpy.asarray({name}, dtype=numpy.float32)"
        ) from None


def _from_torch(x: Any, name: str) -> np.ndarray:
    torch = sys.modules["torch"]
    if x.device.type != "cpu":
        raise TypeError(f"{name} is on {x.device}: copy it to the host first, as in {name}.cpu()")
    if x.layout is not torch.strided or x.is_conj() or x.is_neg():
        raise TypeError(f"{name} is no plain dense tensor: make it one, as in {name}.to_dense()")
    x = x.detach()
    if x.dtype is torch.bfloat16:
        bits: np.ndarray = x.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: np.ndarray = x.numpy()
    return array


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _is_jax(x: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)
