"""Checks that all peers share: arrays on the host, shapes, bytes and frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from gcodec.arrays.frameworks import FAILURES, first_line
from gcodec.arrays.protocols import BytesLike, ShapeLike, TensorLike
from gcodec.arrays.source import Tensor, as_dtype, byte_buffer, byte_view, inspect, possible_shape
from gcodec.codec import Codec
from gcodec.errors import Corrupt, FormatError, ParameterError, Truncated
from gcodec.frame import Frame, FrameLike
from gcodec.limits import Limits
from gcodec.payload import Payload
from gcodec.wire.kinds import check_choice
from gcodec.wire.primitives import FLOATS, ITEMSIZE

_Codec = TypeVar("_Codec", bound=Codec)


def host_tensor(x: TensorLike, peer: str, dtypes: tuple[str, ...] | None = None) -> Tensor:
    """Take in an array on the host.

    Parameters
    ----------
    x : array
    peer : str
        Name of the peer, for error messages.
    dtypes : tuple of str, optional
        Dtypes that the peer accepts. Default: all dtypes that gcodec accepts.

    Raises
    ------
    TypeError
        If the array is on a device or has another dtype.
    """
    source = inspect(x, "x")
    source.check_on_host(peer)
    tensor = source.read()
    if dtypes is not None and tensor.dtype not in dtypes:
        raise TypeError(
            f"x has dtype {tensor.dtype}: {peer} takes {' and '.join(dtypes)}; "
            "convert it first, as in x.astype(numpy.float32)"
        )
    return tensor


def check_dtype(dtype: str) -> None:
    """Raise `ParameterError` unless a dtype is one of the floats."""
    check_choice("dtype", dtype, FLOATS)


def checked_shape(
    shape: ShapeLike, limits: Limits | None, dtype: str = "float32"
) -> tuple[tuple[int, ...], int]:
    """Return the caller's shape as a tuple, and its number of elements.

    The limits bound an array of the dtype, and the float32 values that it is rounded from.

    Raises
    ------
    ParameterError
        If no array can have this shape.
    LimitExceeded
        If the shape has more elements than the limits allow.
    """
    sizes = possible_shape(shape)
    n = math.prod(sizes)
    Limits.or_default(limits).check("the tensor", n, max(4, ITEMSIZE[dtype]) * n)
    return sizes, n


def result_of(
    values: np.ndarray, dtype: str, shape: tuple[int, ...], limits: Limits | None
) -> np.ndarray:
    """Return float32 values as an array of a dtype, to which they are rounded, and of a shape.

    Raises
    ------
    LimitExceeded
        If the array has more bytes than the limits allow.
    """
    n = values.size
    Limits.or_default(limits).check("the tensor", n, ITEMSIZE[dtype] * n)
    return np.asarray(as_dtype(values.reshape(-1), dtype)).reshape(shape)


def object_bytes(data: BytesLike, name: str = "data") -> np.ndarray:
    """View the memory of a bytes-like object or a tensor as a (n,) uint8 array.

    Raises
    ------
    TypeError
        If the object has no contiguous memory on the host.
    """
    return np.frombuffer(byte_view(data, name), np.uint8)


def require_mapping(name: str, value: object) -> None:
    """Raise TypeError unless an argument is a mapping."""
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{name} is of type {type(value).__name__}: must be a mapping, such as a dict"
        )


def part_of(message: Mapping[str, object], name: str) -> np.ndarray:
    """Return an array of a message, which may be a tensor on the host, or a sequence of numbers.

    Raises
    ------
    FormatError
        If the array is missing, or the object is not one.
    TypeError
        If the message is no mapping, or the array lies on a device.
    """
    require_mapping("message", message)
    if name not in message:
        raise Truncated(f"the array {name} is missing")
    return array_of(message[name], name)


def array_of(value: Any, name: str) -> np.ndarray:
    """Return an object of a message as an array; see `part_of`."""
    memory = byte_buffer(value, name)
    try:
        return np.asarray(memory)
    except FAILURES as error:
        raise Corrupt(f"{name} is no array: {first_line(error)}") from error


def ascending_order(positions: np.ndarray, size: int, piece: str) -> np.ndarray:
    """Return the order in which the positions of each row rise, as (rows, k) int64.

    Parameters
    ----------
    positions : (rows, k) integer array
        Positions in pieces of a tensor, in any order.
    size : int
        Number of elements of a piece.
    piece : str
        What a piece is called in error messages.

    Raises
    ------
    Corrupt
        If a position is outside its piece, or comes twice.
    """
    order = np.argsort(positions, axis=1)
    rising = np.take_along_axis(positions, order, axis=1)
    is_outside = ((rising < 0) | (rising >= size)).any()
    if is_outside or (np.diff(rising, axis=1) == 0).any():
        raise Corrupt(f"a position is outside its {piece}, or comes twice")
    return order


def numbers_of(data: np.ndarray, dtype: str) -> np.ndarray:
    """Return little-endian numbers, given their bytes, in native byte order."""
    kind = np.dtype(dtype)
    return np.ascontiguousarray(data).reshape(-1).view(kind).astype(kind.newbyteorder("="))


def size_error(message: str, size: int, expected: int, offset: int | None = None) -> FormatError:
    """Return the error for a wrong size: `Truncated` if it is too small, else `Corrupt`."""
    return (Truncated if size < expected else Corrupt)(message, offset)


def check_size(name: str, size: int, expected: int, unit: str = "bytes") -> None:
    """Raise `Truncated` or `Corrupt` unless an object of a message has the expected size."""
    if size != expected:
        raise size_error(f"{name} has {size} {unit}, not {expected}", size, expected)


def checked_frame(
    codec: Codec, data: np.ndarray, shape: tuple[int, ...], name: str | None
) -> Frame:
    """Return a frame of float32 whose payload is the bytes of a message.

    Raises
    ------
    FormatError
        If the codec cannot read the payload.
    """
    payload = Payload(codec, {}, data, 8 * data.size)
    codec.unpack(payload, shape)
    return Frame(codec, "float32", shape, payload, name)


def opened_frame(
    frame: FrameLike,
    limits: Limits | None,
    *codecs: type[_Codec],
    dtypes: tuple[str, ...] = ("float32",),
) -> tuple[Frame, _Codec]:
    """Return a frame of a dtype that one of the codecs made, and its codec.

    Parameters
    ----------
    frame : Frame or bytes-like
    limits : Limits or None
        Bounds on the frame; default ``Limits()``.
    *codecs : type
        Classes of codecs.
    dtypes : tuple of str
        Dtypes of the tensor that the caller accepts.

    Raises
    ------
    ParameterError
        If the frame has another codec or dtype.
    LimitExceeded
        If the frame has more elements than the limits allow.
    FormatError
        If the bytes are not a frame.
    """
    opened = Frame.of(frame, limits=limits)
    codec = opened.codec
    if not isinstance(codec, codecs):
        names = ", ".join(cls.name for cls in codecs)
        raise ParameterError.of("frame.codec", str(codec), f"one of {names}")
    if opened.dtype not in dtypes:
        raise ParameterError.of("frame.dtype", opened.dtype, " or ".join(dtypes))
    Limits.or_default(limits).check("the frame", opened.size, 4 * opened.size)
    return opened, codec
