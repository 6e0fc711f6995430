"""Exact patches: the difference of two tensors as a frame, and its application to the old one."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from gcodec.arrays.bit_patterns import bits_of, dtype_beside
from gcodec.arrays.frameworks import library_of
from gcodec.arrays.protocols import TensorLike
from gcodec.arrays.source import Source, Tensor, inspect, is_flat
from gcodec.codecs.patch import Patch
from gcodec.errors import ParameterError
from gcodec.frame import Frame, FrameLike, check_key
from gcodec.limits import NO_LIMITS, Limits
from gcodec.runtime import Array
from gcodec.runtime.device import Device
from gcodec.runtime.memory import empty_beside
from gcodec.wire.primitives import DTYPE_CODES

_Array = TypeVar("_Array", bound=Any)

__all__ = ["apply_patch", "encode_patch"]


def encode_patch(
    new: TensorLike, base: TensorLike, *, name: str | None = None, key: bytes | None = None
) -> bytes:
    """Encode the exact difference of two tensors as a frame.

    `apply_patch` turns the base into the new tensor, bit for bit: NaN with any payload, −0 and
    infinity included. The frame contains a digest of the base, and is refused for any other.

    Parameters
    ----------
    new : array
        New tensor on the host or a CUDA device, of any dtype that ``lossless`` accepts, or
        another float of 8 bits; the frame contains the bytes of the latter as uint8.
    base : array
        Old tensor of the same dtype and shape, also on the host or on the same device.
    name : str, optional
        Name of the tensor, stored in the frame.
    key : bytes, optional
        Secret of 1 to 64 bytes. The frame then ends with a BLAKE2b tag that only this key can
        produce.

    Returns
    -------
    bytes
        Frame of the codec ``patch``. It is never longer than the new tensor by more than its
        header and the digest.

    Raises
    ------
    ParameterError
        If the tensors differ in dtype or shape, or lie on different devices; or if an argument is
        invalid.
    TypeError
        If `new` or `base` is no array, or has an unsupported dtype or device.
    ImportError, RuntimeError, MemoryError
        If CuPy, the driver or device memory is missing for arrays on a CUDA device.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> old = np.array([0.5, -2.0, 3.0], np.float32)
    >>> frame = gcodec.encode_patch(np.array([0.5, -2.0, 3.25], np.float32), base=old)
    >>> gcodec.apply_patch(frame, old)
    array([ 0.5 , -2.  ,  3.25], dtype=float32)
    """
    key = check_key(key)
    source, other = inspect(_bytes_of(new), "new"), inspect(_bytes_of(base), "base")
    _check_beside(other, source)
    with source.context():
        tensor, old = _read(source), _read(other)
        if _float8_of(new) != _float8_of(base):
            raise ParameterError.of("base.dtype", _dtype_of(base), _dtype_of(new))
        _check_alike(old, tensor.dtype, tensor.shape)
        codec = Patch()._bound_to(tensor)
        payload = codec.difference(_bits(tensor), _bits(old))
    return Frame(codec, tensor.dtype, tensor.shape, payload, name, key).to_bytes()


def apply_patch(
    frame: FrameLike,
    base: _Array,
    out: _Array | None = None,
    *,
    limits: Limits | None = None,
    key: bytes | None = None,
) -> _Array:
    """Turn the base of a patch into the new tensor.

    Parameters
    ----------
    frame : bytes-like or Frame
        Frame that `encode_patch` returned.
    base : array
        Old tensor on the host or a CUDA device. It must be the one that the frame was made for,
        bit for bit.
    out : array, optional
        Array of the same dtype and shape, also on the host or on the same device, that receives
        the new tensor; it may be `base`. Nothing is written before the frame and the base have
        been checked, so an error leaves it unchanged.
    limits : Limits, optional
        Bounds on the frame. Default: none, because the base bounds the memory.
    key : bytes, optional
        Key of the frame's tag. A frame without a tag of this key is refused.

    Returns
    -------
    array
        The new tensor, in the library and on the device of the base; or `out`.

    Raises
    ------
    FormatError
        If the frame is damaged, is no frame, or exceeds the limits.
    ParameterError
        If the frame is no patch, the base is another tensor, `base` and `out` lie on different
        devices, or an argument is invalid.
    TypeError
        If `base` or `out` is no array, or has an unsupported device.
    ImportError, RuntimeError, MemoryError
        See `encode_patch`.

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> weights = np.array([1, 2, 3], np.int32)
    >>> frame = gcodec.encode_patch(np.array([1, 5, 3], np.int32), base=weights)
    >>> gcodec.apply_patch(frame, weights, out=weights)
    array([1, 5, 3], dtype=int32)
    >>> try:
    ...     gcodec.apply_patch(frame, weights)
    ... except gcodec.ParameterError as error:
    ...     print(str(error)[:50])
    base has the digest 3157fa32252e0b6e19b469c57789cf
    """
    frame = Frame.of(frame, limits=NO_LIMITS if limits is None else limits, key=key)
    codec = frame.codec
    if not isinstance(codec, Patch):
        raise ParameterError.of("frame.codec", str(codec), "patch; gcodec.decode decodes others")
    source = inspect(_bytes_of(base), "base")
    with source.context():
        tensor = _read(source)
        _check_alike(tensor, frame.dtype, frame.shape)
        old = _bits(tensor)
        if hasattr(out, "dtype") and _float8_of(out) != _float8_of(base):
            raise ParameterError.of("out.dtype", _dtype_of(out), _dtype_of(base))
        if out is not None:
            _apply_to(_target(_bytes_of(out), frame, source), frame, codec, old, source.device)
            return out
        array = _values_of(_applied(frame, codec, old), frame)
        result = source.result(array)
        return result if _float8_of(base) is None else result.view(base.dtype)


def _applied(frame: Frame, codec: Patch, old: Array) -> Array:
    """Return the new bit patterns in memory of their own, beside the old ones."""
    new = empty_beside(old.size, old.dtype, old)
    codec.apply(frame.payload, old, new, is_fresh=True)
    return new


def _apply_to(
    target: Array, frame: Frame, codec: Patch, old: Array, device: Device | None
) -> None:
    """Write the new tensor to an array, which may share memory with the old one."""
    if not is_flat(target):
        target[...] = _values_of(_applied(frame, codec, old), frame)
        return
    flat = target.reshape(-1).view(old.dtype)
    is_same, overlaps = _compare_memory(flat, old, device)
    if is_same:
        codec.apply(frame.payload, flat, flat)
    elif overlaps:
        flat[:] = _applied(frame, codec, old)
    else:
        codec.apply(frame.payload, old, flat)


def _compare_memory(a: Array, b: Array, device: Device | None) -> tuple[bool, bool]:
    """Return whether two arrays of one size are the same memory, and whether they share any."""
    if device is not None:
        return device.address(a) == device.address(b), device.overlap(a, b)
    is_same = a.__array_interface__["data"] == b.__array_interface__["data"]
    return is_same, np.may_share_memory(a, b)


def _values_of(bits: Array, frame: Frame) -> Array:
    """View bit patterns as a tensor of the frame; on a device, 16-bit floats as they are."""
    return bits.view(dtype_beside(bits, frame.dtype)).reshape(frame.shape)


def _float8_of(x: object) -> str | None:
    """Return the name of a dtype of floats of 8 bits that frames lack, or None for any other."""
    name = _dtype_of(x).rpartition(".")[2]
    return name if name.startswith("float8_") and name not in DTYPE_CODES else None


def _dtype_of(x: object) -> str:
    """Return the dtype of an array as its library prints it; the type of other objects."""
    return str(getattr(x, "dtype", type(x).__name__))


def _bytes_of(x: Any) -> Any:
    """View floats of 8 bits that frames lack as bytes; return other arrays as they are."""
    if _float8_of(x) is None:
        return x
    library = library_of(x)
    return x.view("uint8" if library is None else getattr(library.api, "uint8", "uint8"))


def _read(source: Source) -> Tensor:
    return source.read(all_dtypes=True, segments=True, patterns=True)


def _bits(tensor: Tensor) -> Array:
    return bits_of(tensor.values, tensor.dtype)


def _target(out: TensorLike, frame: Frame, base: Source) -> Array:
    source = inspect(out, "out")
    _check_beside(source, base)
    return source.target(frame.dtype, frame.shape)


def _check_beside(source: Source, other: Source) -> None:
    """Raise ParameterError unless two arrays are on the host, or on one device."""
    if source.device is not other.device:
        names = f"{source.name} and {other.name}"
        raise ParameterError(f"{names} are on different devices: must be on the same one")


def _check_alike(tensor: Tensor, dtype: str, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype:
        raise ParameterError.of("base.dtype", tensor.dtype, dtype)
    if tensor.shape != shape:
        raise ParameterError.of("base.shape", tensor.shape, str(shape))
