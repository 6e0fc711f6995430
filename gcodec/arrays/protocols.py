"""Objects of unknown libraries: their memory through DLPack or the buffer protocol.

Protocols are looked up on the type, because an object may answer to every attribute name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias

import numpy as np

from gcodec.arrays.frameworks import CUDA_DEVICE, FAILURES, first_line, unreadable

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HOST_DEVICES = (1, 3, 11, 13)  # DLPack: CPU, CUDA host, ROCm host and CUDA managed memory


class SupportsArray(Protocol):
    """An object that NumPy can make an array of."""

    @property
    def __array__(self) -> Callable[..., np.ndarray]: ...


class SupportsDLPack(Protocol):
    """An object that exports its memory through DLPack."""

    @property
    def __dlpack__(self) -> Callable[..., object]: ...

    @property
    def __dlpack_device__(self) -> Callable[[], tuple[int, int]]: ...


class SupportsCudaArray(Protocol):
    """An object on a CUDA device that exports its memory to CuPy."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]: ...


TensorLike: TypeAlias = "SupportsArray | SupportsDLPack | SupportsCudaArray | Buffer"
"""An array or a tensor of any library; see `gcodec.encode`."""

BytesLike: TypeAlias = "Buffer | SupportsArray"
"""A buffer, such as bytes or a memoryview, or an array on the host that contains bytes."""

ShapeLike: TypeAlias = SupportsIndex | Iterable[SupportsIndex]
"""The sizes of a tensor; an integer stands for one dimension."""


def is_on_cuda(x: Any, name: str) -> bool:
    """Return whether an object exports an array on a CUDA device.

    Raises
    ------
    TypeError
        If the object cannot state its device.
    """
    if hasattr(type(x), "__cuda_array_interface__"):
        return True
    exports = hasattr(type(x), "__dlpack_device__") and hasattr(type(x), "__dlpack__")
    return exports and _dlpack_device(x, name)[0] == CUDA_DEVICE


def _dlpack_device(x: Any, name: str) -> tuple[int, int]:
    """Return DLPack's kind of the device of an object, and the number of the device."""
    try:
        kind, number = x.__dlpack_device__()
        return int(kind), int(number)
    except FAILURES as error:
        raise unreadable(name, error) from error


def is_read_only_on_cuda(x: Any) -> bool:
    """Return whether an object on a CUDA device states that its memory is read-only."""
    return hasattr(type(x), "__cuda_array_interface__") and x.__cuda_array_interface__["data"][1]


def exports_array(x: Any) -> bool:
    """Return whether an object exports an array through any protocol."""
    names = ("__array__", "__dlpack__", "__cuda_array_interface__")
    if any(hasattr(type(x), name) for name in names):
        return True
    try:
        memoryview(x).release()
    except FAILURES:  # the object is no buffer, or its memory has been released
        return False
    return True


def check_no_device(x: Any, name: str) -> None:
    """Raise TypeError if an object exports an array that is not on the host."""
    place = None
    if hasattr(type(x), "__cuda_array_interface__"):
        place = "a CUDA device"
    elif hasattr(type(x), "__dlpack_device__"):
        kind, number = _dlpack_device(x, name)
        if kind not in _HOST_DEVICES:
            place = f"device {number} of DLPack's kind {kind}"
    if place is not None:
        raise TypeError(f"{name} is on {place}: copy it to the host first")


def memory_of(x: Any, name: str) -> np.ndarray | None:
    """View the memory that an object exports; return None for an object that exports none.

    Raises
    ------
    TypeError
        If the object is text or bytes, lies on a device, or cannot be read.
    """
    check_no_device(x, name)
    if isinstance(x, (str, bytes, bytearray)):
        raise TypeError(f"{name} is of type {type(x).__name__}: must be an array")
    if hasattr(type(x), "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except FAILURES as error:
            if hasattr(type(x), "__array__"):
                return None
            text = f"{name} cannot be read through DLPack: {first_line(error)}"
            raise TypeError(text) from error
    try:
        try:
            buffer = memoryview(x)
        except TypeError:  # the object is no buffer
            return None
        return np.asarray(buffer)
    except FAILURES as error:
        raise unreadable(name, error) from error


def is_masked(x: object) -> bool:
    """Return whether an object is a masked array of NumPy, without importing ``numpy.ma``."""
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(x, module.MaskedArray)


def check_unmasked(x: object, name: str) -> None:
    """Raise TypeError for a masked array of NumPy, whose mask would be lost."""
    if is_masked(x):
        raise TypeError(f"{name} is a masked array: fill it first, as in {name}.filled(0)")
