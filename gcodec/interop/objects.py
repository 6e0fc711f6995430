"""Checks that the modules of all peers share: arrays on the host, shapes, bytes and frames."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gcodec.arrays.source import Tensor, inspect, size_of
from gcodec.errors import ParameterError
from gcodec.frame import Frame
from gcodec.limits import Limits
from gcodec.wire.primitives import MAX_NDIM

_ADDRESSABLE = 1 << 59  # elements beyond which NumPy makes no array, not even an empty one


def host_tensor(x: Any, peer: str, dtypes: tuple[str, ...] | None = None) -> Tensor:
    """Take in an array that lies on the host.

    Parameters
    ----------
    x : array
    peer : str
        Name of the peer, for messages.
    dtypes : tuple of str, optional
        Dtypes that the peer takes; default: all that gcodec takes.

    Raises
    ------
    TypeError
        For an array on a device or of another dtype.
    """
    source = inspect(x, "x")
    if source.device is not None:
        raise TypeError(
            f"x lies on a device: the messages of {peer} are made on the host; copy it"
        )
    tensor = source.read()
    if dtypes is not None and tensor.dtype not in dtypes:
        raise TypeError(
            f"x has dtype {tensor.dtype}: {peer} takes {' and '.join(dtypes)}; "
            "convert it first, as in x.astype(numpy.float32)"
        )
    return tensor


def checked_shape(shape: Any, limits: Limits | None) -> tuple[tuple[int, ...], int]:
    """Return the caller's shape as a tuple, and its number of elements.

    Raises
    ------
    ParameterError
        If no array has this shape.
    LimitExceeded
        If there are more elements than the limits allow.
    """
    try:
        n = size_of(shape)
    except TypeError:
        raise ParameterError.of("shape", shape, "an integer or a tuple of integers") from None
    sides = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    sides = tuple(int(side) for side in sides)
    if len(sides) > MAX_NDIM or math.prod(filter(None, sides)) >= _ADDRESSABLE:
        raise ParameterError.of("shape", shape, f"at most {MAX_NDIM} sizes of an array")
    Limits.given(limits).check("the tensor", n, 4 * n)
    return sides, n


def object_bytes(data: Any) -> np.ndarray:
    """View the memory of a bytes-like object as a (n,) uint8 array.

    Raises
    ------
    TypeError
        For what has no contiguous memory.
    """
    try:
        return np.frombuffer(data, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise TypeError(f"data is a {type(data).__name__}: must be bytes-like") from error


def opened_frame(frame: Any, limits: Limits | None, *names: str) -> Frame:
    """Return a frame of float32 values made by one of these codecs.

    Parameters
    ----------
    frame : Frame or bytes-like
    limits : Limits or None
    *names : str
        Names of codecs.

    Raises
    ------
    ParameterError
        For a frame of another codec or dtype.
    FormatError
        If the bytes are no frame.
    """
    opened = frame if isinstance(frame, Frame) else Frame.from_bytes(frame, limits=limits)
    if opened.codec.name not in names:
        raise ParameterError.of("frame.codec", str(opened.codec), f"one of {', '.join(names)}")
    if opened.dtype != "float32":
        raise ParameterError.of("frame.dtype", opened.dtype, "float32")
    return opened
