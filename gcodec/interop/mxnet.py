"""Apache MXNet: gradients that a worker of the ``dist`` kvstore pushes, 2 bits or 1 per element.

A message is the value of a push as bytes: the packed words alone. MXNet sends the number of
elements as the number of a separate key without a value, and the threshold once, as text in a
command to the servers. The caller of `decode` therefore passes both. `gcodec.codecs.mxnet.two_bit`
and `one_bit` define the bits. Frames of these codecs contain the same payload, so `to_frame` and
`from_frame` are lossless.

Source: apache/mxnet, ``src/kvstore/gradient_compression.cc`` and ``-inl.h``, ``kvstore_dist.h``;
2-bit as in release 1.9.1, 1-bit as in 2.0.0b1. Arrays must be on the host.

Examples
--------
>>> import numpy as np
>>> from gcodec.interop import mxnet
>>> message = mxnet.encode(np.array([0.7, -0.2, -0.9], np.float32), threshold=0.5)
>>> message.hex()
'c8000000'
>>> mxnet.decode(message, 3, threshold=0.5)
array([ 0.5,  0. , -0.5], dtype=float32)
>>> frame = mxnet.to_frame(message, 3, threshold=0.5)
>>> mxnet.from_frame(frame) == message
True
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from gcodec.arrays.protocols import BytesLike, ShapeLike, TensorLike
from gcodec.codecs.mxnet import MXNet1Bit, MXNet2Bit
from gcodec.errors import ParameterError
from gcodec.frame import Frame, FrameLike
from gcodec.interop.objects import (
    checked_shape,
    host_tensor,
    object_bytes,
    opened_frame,
)
from gcodec.kernels.bits.pack import check_length
from gcodec.kernels.quantize.threshold import ONE_BIT, TWO_BIT
from gcodec.limits import Limits
from gcodec.payload import Payload
from gcodec.runtime.arithmetic import exact
from gcodec.wire.kinds import check_choice, check_flag

Type = Literal["2bit", "1bit"]

_MAX_ELEMENTS = 2**31 - 1  # MXNet counts elements in 32 bits


@exact
def encode(
    x: TensorLike,
    *,
    type: Type = "2bit",
    threshold: float = 0.5,
    residual: TensorLike | None = None,
) -> bytes:
    """Compress a gradient as a worker does before a push.

    Parameters
    ----------
    x : float32 array
        Gradient on the host, with fewer than 2**31 elements. NaN and Inf are encoded as MXNet
        encodes them.
    type : {"2bit", "1bit"}
        Compression type, as in ``kvstore.set_gradient_compression``.
    threshold : float
        Quantization threshold; above zero for 2-bit, any number for 1-bit.
    residual : float32 array, optional
        Unsent remainder of earlier gradients, in the shape of `x`. It is added to `x`, and
        overwritten with the new residual. Default: zeros, and the new residual is discarded.

    Returns
    -------
    bytes
        ``4*ceil(n/16)`` bytes for 2-bit, ``4*ceil(n/32)`` bytes for 1-bit.

    Raises
    ------
    ParameterError
        If an argument is out of range, or the residual is not an array of this shape.
    TypeError
        If the array has another dtype or is on a device.

    Examples
    --------
    >>> import numpy as np
    >>> encode(np.array([0.5, -0.5, 0.49, -0.7, 1.2], np.float32)).hex()
    'e2c00000'
    """
    tensor = host_tensor(x, "MXNet", ("float32",))
    if tensor.values.size > _MAX_ELEMENTS:
        raise ParameterError.of("x.size", tensor.values.size, f"at most {_MAX_ELEMENTS}")
    codec = _codec(type, threshold, False)
    values = tensor.values.reshape(tensor.shape)
    if residual is None:
        return codec.encode(values).tobytes()
    return codec.pack(codec.quantize_residual(values, residual)).tobytes()


@exact
def decode(
    data: BytesLike,
    shape: ShapeLike,
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
        Message of a worker.
    shape : tuple of int or int
        Shape of the gradient.
    type : {"2bit", "1bit"}
        Compression type of the message.
    threshold : float
        Threshold of the worker. Decoding 1-bit messages does not need it.
    server : bool
        Whether to decode a 2-bit message with the threshold that an MXNet server parses from a
        text with six decimals, instead of the worker's threshold.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Returns
    -------
    float32 array of `shape`

    Raises
    ------
    FormatError
        If the length does not match the number of elements, a 2-bit code is 01, or a padding bit
        is 1. MXNet never writes such messages.
    ParameterError
        If an argument is out of range.
    """
    shape, payload = _payload(data, shape, type, threshold, server, limits)
    return np.asarray(payload.codec.decode(payload, shape))


@exact
def to_frame(
    data: BytesLike,
    shape: ShapeLike,
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
        Frame whose payload is a copy of `data`.

    Raises
    ------
    FormatError, ParameterError
        As for `decode`.
    """
    shape, payload = _payload(data, shape, type, threshold, server, limits)
    payload.codec.unpack(payload, shape)  # raises for bits that no worker writes
    payload = payload._replace(data=payload.data.copy())  # the caller may change its bytes
    return Frame(payload.codec, "float32", shape, payload, name)


@exact
def from_frame(frame: FrameLike, *, limits: Limits | None = None) -> bytes:
    """Return the value of a push from a frame of ``mxnet-2bit`` or ``mxnet-1bit``.

    Parameters
    ----------
    frame : Frame or bytes-like
        Frame of float32 values. Sparse and context forms are converted to MXNet's own words.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Returns
    -------
    bytes

    Raises
    ------
    ParameterError
        If the frame has another codec or dtype.
    FormatError
        If the frame is damaged.
    """
    frame, codec = opened_frame(frame, limits, MXNet2Bit, MXNet1Bit)
    return np.asarray(codec.unpack(frame.payload, frame.shape).codes).tobytes()


def _codec(type: object, threshold: object, server: bool) -> MXNet2Bit | MXNet1Bit:
    check_choice("type", type, get_args(Type))
    check_flag("server", server)
    if type == "1bit":
        return MXNet1Bit().replaced(threshold=threshold)
    if isinstance(threshold, str):  # only gcodec knows "auto"
        raise ParameterError.of("threshold", threshold, "a number above zero")
    return MXNet2Bit().replaced(threshold=threshold, server="yes" if server else "no")


def _payload(
    data: BytesLike,
    shape: ShapeLike,
    type: object,
    threshold: object,
    server: bool,
    limits: Limits | None,
) -> tuple[tuple[int, ...], Payload]:
    sizes, n = checked_shape(shape, limits)
    codec, packed = _codec(type, threshold, server), object_bytes(data)
    layout = TWO_BIT if isinstance(codec, MXNet2Bit) else ONE_BIT
    check_length(8 * packed.size, 8 * layout.nbytes(n))
    scalars = {"threshold": codec.threshold} if isinstance(codec, MXNet2Bit) else {}
    return sizes, Payload(codec, scalars, packed, 8 * packed.size)
