"""Apache MXNet: the gradient that a worker of ``dist`` kvstore pushes, in 2 bits or 1 per element.

The object is the value of a push as bytes: the packed words alone. MXNet sends the number of
elements as a key of its own and the threshold once, as a text in a command to the servers, so the
caller of `decode` gives both. `gcodec.codecs.mxnet.two_bit` and `one_bit` define the bits;
frames of these codecs carry the same payload, so `to_frame` and `from_frame` lose nothing.

Source: apache/mxnet, ``src/kvstore/gradient_compression.cc`` and ``-inl.h``, ``kvstore_dist.h``;
2-bit as in release 1.9.1, 1-bit as in 2.0.0b1. Arrays are those of the host.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from gcodec.codecs.mxnet.one_bit import MXNet1Bit
from gcodec.codecs.mxnet.two_bit import MXNet2Bit
from gcodec.errors import ParameterError
from gcodec.frame import Frame
from gcodec.interop.objects import checked_shape, host_tensor, object_bytes, opened_frame
from gcodec.kernels.bits.pack import check_length
from gcodec.kernels.quantize.threshold import ONE_BIT, TWO_BIT
from gcodec.limits import Limits
from gcodec.payload import Payload

Type = Literal["2bit", "1bit"]

_MOST = 2**31 - 1  # elements, which MXNet counts in 32 bits


def encode(x: Any, *, type: Type = "2bit", threshold: float = 0.5, residual: Any = None) -> bytes:
    """Compress a gradient as a worker does before it pushes.

    Parameters
    ----------
    x : float32 array
        On the host, of fewer than 2**31 elements. NaN and Inf give what MXNet makes of them.
    type : {"2bit", "1bit"}
        As in ``kvstore.set_gradient_compression``.
    threshold : float
        2-bit: above zero. 1-bit: any number.
    residual : float32 array, optional
        Of the shape of `x`; what the worker has not sent yet. It is added to `x`, and replaced by
        the new residual. Default: zeros, and the new residual is lost.

    Returns
    -------
    bytes
        ``4*ceil(n/16)`` of them, or ``4*ceil(n/32)``.

    Raises
    ------
    ParameterError
        If an argument is out of range, or the residual is no array of this shape.
    TypeError
        For an array of another dtype or on a device.

    Examples
    --------
    >>> import numpy as np
    >>> encode(np.array([0.5, -0.5, 0.49, -0.7, 1.2], np.float32)).hex()
    'e2c00000'
    """
    tensor = host_tensor(x, "MXNet", ("float32",))
    if tensor.values.size > _MOST:
        raise ParameterError.of("x.size", tensor.values.size, f"at most {_MOST}")
    codec = _codec(type, threshold, False)
    values = tensor.values.reshape(tensor.shape)
    if residual is None:
        return codec.encode(values).tobytes()
    return codec.pack(codec.quantize_residual(values, residual)).tobytes()


def decode(
    data: Any,
    shape: Any,
    *,
    type: Type = "2bit",
    threshold: float = 0.5,
    server: bool = False,
    limits: Limits | None = None,
) -> np.ndarray:
    """Decompress the value of a push.

    Parameters
    ----------
    data : bytes-like
    shape : tuple of int or int
        Of the gradient.
    type : {"2bit", "1bit"}
    threshold : float
        Threshold of the worker; 1-bit messages decode without one.
    server : bool
        Whether a 2-bit message is decoded with the threshold that an MXNet server reads from the
        text of six decimals, in place of the worker's.
    limits : Limits, optional
        Bounds on what is allocated; default ``Limits()``.

    Returns
    -------
    float32 array of `shape`

    Raises
    ------
    FormatError
        If the length does not fit the number of elements, a 2-bit code is 01, or a padding bit
        is 1: MXNet writes none of these.
    ParameterError
        If an argument is out of range.
    """
    shape, payload = _payload(data, shape, type, threshold, server, limits)
    return np.asarray(payload.codec.decode(payload, shape))


def to_frame(
    data: Any,
    shape: Any,
    *,
    type: Type = "2bit",
    threshold: float = 0.5,
    server: bool = False,
    name: str | None = None,
    limits: Limits | None = None,
) -> Frame:
    """Put the value of a push into a frame of ``mxnet-2bit`` or ``mxnet-1bit``.

    Parameters
    ----------
    data, shape, type, threshold, server, limits
        See `decode`.
    name : str, optional
        Name of the tensor, stored in the frame.

    Returns
    -------
    Frame
        Its payload is `data`.

    Raises
    ------
    FormatError, ParameterError
        As for `decode`.
    """
    shape, payload = _payload(data, shape, type, threshold, server, limits)
    payload.codec.unpack(payload, shape)  # refuses what no worker writes
    payload = payload._replace(data=payload.data.copy())  # the caller's bytes may change
    return Frame(payload.codec, "float32", shape, payload, name)


def from_frame(frame: Any, *, limits: Limits | None = None) -> bytes:
    """Return the value of a push that a frame of ``mxnet-2bit`` or ``mxnet-1bit`` holds.

    Parameters
    ----------
    frame : Frame or bytes-like
        Of float32 values. A sparse or context form becomes MXNet's own words.
    limits : Limits, optional
        Bounds on what is allocated; default ``Limits()``.

    Returns
    -------
    bytes

    Raises
    ------
    ParameterError
        For a frame of another codec or dtype.
    FormatError
        If the frame is damaged.
    """
    frame = opened_frame(frame, limits, MXNet2Bit.name, MXNet1Bit.name)
    Limits.given(limits).check("the frame", frame.size, 4 * frame.size)
    return np.asarray(frame.codec.unpack(frame.payload, frame.shape).codes).tobytes()


def _codec(type: object, threshold: Any, server: bool) -> MXNet2Bit | MXNet1Bit:
    if type == "1bit":
        return MXNet1Bit().replaced(threshold=threshold)
    if type != "2bit":
        raise ParameterError.of("type", type, "one of 2bit, 1bit")
    if isinstance(threshold, str):  # "auto" is gcodec's alone
        raise ParameterError.of("threshold", threshold, "a number above zero")
    return MXNet2Bit().replaced(threshold=threshold, server="yes" if server else "no")


def _payload(
    data: Any, shape: Any, type: object, threshold: Any, server: bool, limits: Limits | None
) -> tuple[tuple[int, ...], Payload]:
    sides, n = checked_shape(shape, limits)
    codec, packed = _codec(type, threshold, server), object_bytes(data)
    layout = TWO_BIT if isinstance(codec, MXNet2Bit) else ONE_BIT
    check_length(8 * packed.size, 8 * layout.nbytes(n))
    scalars = {"threshold": codec.threshold} if isinstance(codec, MXNet2Bit) else {}
    return sides, Payload(codec, scalars, packed, 8 * packed.size)
