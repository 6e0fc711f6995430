"""Arrays of any library as NumPy's, or as those of a device: where they lie, without a copy."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from gcodec.arrays.frameworks import FAILURES, first_line, library_of, unreadable
from gcodec.runtime.device import device_of
from gcodec.runtime.foreign import adopted
from gcodec.wire.primitives import DTYPE_CODES, FLOATS, INTEGERS

_HOST_DEVICES = (1, 3, 11, 13)  # of DLPack: CPU, CUDA host, ROCm host and CUDA managed memory
_CUDA_DEVICE = 2
_CONVERTIBLE = ("bool", "int", "uint", "float", "object")  # how such a dtype's name begins


def on_device(x: Any, name: str) -> tuple[Any, str] | None:
    """Return an array on a CUDA device where it lies, and its dtype; None for those elsewhere.

    Floats of 16 bits may come as their bits.

    Raises
    ------
    TypeError
        For a dtype that is not taken, or what holds no values.
    ImportError, RuntimeError
        See `gcodec.runtime.device.CupyDevice`.
    """
    if isinstance(x, (np.ndarray, np.generic)):
        return None
    library = library_of(x)
    if library is not None:
        library.check(x, name)
        if library.dtype_of(x) not in DTYPE_CODES:  # which reading it on the host refuses
            return None
        found = library.on_device(x)
        return None if found is None else (found, library.dtype_of(x))
    if device_of(x) is None:
        if not _is_on_cuda(x):
            return None
        x = adopted(x)
    if x.dtype.name not in DTYPE_CODES:
        raise dtype_error(x, name, x.dtype.name)
    return x, str(x.dtype.name)


def working_on(x: Any) -> AbstractContextManager[None]:
    """Launch on the stream on which the library of `x` works on it."""
    library = library_of(x)
    return nullcontext() if library is None else library.working_on(x)


def dtype_error(x: Any, name: str, dtype: str) -> TypeError:
    """Say that an array of this dtype is not taken, and how to convert it."""
    text = f"{name} has dtype {dtype}: gcodec takes {', '.join(FLOATS)}"
    if dtype in INTEGERS:
        text += "; gcodec.encode(…, 'raw') keeps integers and booleans unchanged"
    if dtype.startswith("complex"):
        return TypeError(f"{text}; give its real and imaginary parts one by one")
    if not dtype.startswith(_CONVERTIBLE):
        return TypeError(text)
    library = library_of(x)
    if library is not None:
        advice = library.to_float32
    elif isinstance(x, (np.ndarray, np.generic)):
        advice = "{x}.astype(numpy.float32)"
    else:
        advice = "numpy.asarray({x}, numpy.float32)"
    return TypeError(f"{text}; convert it first, as in {advice.format(x=name)}")


def as_numpy(x: Any, name: str) -> np.ndarray:
    """View an array of any kind as a NumPy array; a copy only where it shows no memory.

    Raises
    ------
    TypeError
        For what is no array, masked, of a wrong dtype, or not on the host.
    """
    array = memory_of(x, name)
    if array is not None:
        return array
    if not hasattr(type(x), "__array__"):
        raise TypeError(
            f"{name} is a {type(x).__name__}: must be an array; "
            f"make one first, as in numpy.asarray({name}, numpy.float32)"
        )
    try:
        return np.asarray(x)
    except FAILURES as error:
        raise unreadable(name, error) from error


def memory_of(x: Any, name: str) -> np.ndarray | None:
    """View the memory of an array of any kind; None for what shows none.

    Raises
    ------
    TypeError
        As for `as_numpy`.
    """
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array: fill it first, as in {name}.filled(0)")
    if isinstance(x, (np.ndarray, np.generic)):
        return np.asarray(x)
    library = library_of(x)
    if library is not None:
        if library.dtype_of(x) not in DTYPE_CODES:
            raise dtype_error(x, name, library.dtype_of(x))
        return library.memory(x, name)
    check_no_device(x, name)
    if isinstance(x, (str, bytes, bytearray)):
        raise TypeError(f"{name} is a {type(x).__name__}: must be an array")
    if hasattr(type(x), "__dlpack__"):
        return _from_dlpack(x, name)
    return _from_buffer(x, name)


def check_no_device(x: Any, name: str) -> None:
    """Raise TypeError for an array of an unknown library that is on no host.

    Protocols are looked up on the type, as an object may answer to every name.
    """
    where = None
    if hasattr(type(x), "__cuda_array_interface__"):
        where = "a CUDA device"
    elif hasattr(type(x), "__dlpack_device__"):
        kind, number = x.__dlpack_device__()
        if kind not in _HOST_DEVICES:
            where = f"device {int(number)} of DLPack's kind {int(kind)}"
    if where is not None:
        raise TypeError(f"{name} is on {where}: copy it to the host first")


def _is_on_cuda(x: Any) -> bool:
    if hasattr(type(x), "__cuda_array_interface__"):
        return True
    shows = hasattr(type(x), "__dlpack_device__") and hasattr(type(x), "__dlpack__")
    return shows and x.__dlpack_device__()[0] == _CUDA_DEVICE


def _from_dlpack(x: Any, name: str) -> np.ndarray | None:
    try:
        return np.from_dlpack(x)
    except FAILURES as error:
        if hasattr(type(x), "__array__"):
            return None
        raise TypeError(f"{name} cannot be read through DLPack: {first_line(error)}") from error


def _from_buffer(x: Any, name: str) -> np.ndarray | None:
    try:
        buffer = memoryview(x)
    except TypeError:  # no buffer at all
        return None
    except FAILURES as error:
        raise unreadable(name, error) from error
    try:
        return np.asarray(buffer)
    except FAILURES as error:
        raise unreadable(name, error) from error
