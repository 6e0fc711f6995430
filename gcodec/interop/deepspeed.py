"""DeepSpeed: the groups of ZeRO++, int8 for weights (qwZ) and int4 for gradients (qgZ).

A message is a dict of NumPy arrays, the two tensors of the symmetric quantizer:

- ``quantized``: int8, in the shape of the tensor; or two int4 in a byte, so that the last
  dimension is half as long; flat if it is swizzled. Numbers are x·s, rounded to nearest with
  ties to even and limited to −128 to 127 or to −8 to 7, where s is 128/max|x| or 8/max|x| of a
  group, or 1 for zeros.
- ``scales``: (groups, 1) float32: 1/s.

Values are converted to float16 first, as in the original, and decoded to float16 by default.
`partitions` swizzles the groups of qgZ: it moves the group of a device next to those of the same
device in other nodes.

The original packs int4 with a C++ struct of bit fields, whose order depends on the compiler. This
module has the order of GCC and NVCC 13.0 on x86-64, where the first of two elements lies in the
high half of a byte; nobody has compared this with a GPU. The original is also compiled with fast
approximations of divisions, so its scales may differ in the last bits. A frame of ``blockwise``
contains the same numbers.

Source: deepspeedai/DeepSpeed 0.19.8, ``csrc/includes/quantization_utils.h``,
``csrc/quantization/swizzled_quantize.cu`` and ``zero/partition_parameters.py`` (Apache-2.0).
Arrays must be on the host. This module imports neither deepspeed nor torch.

Examples
--------
>>> import numpy as np
>>> from gcodec.interop import deepspeed
>>> x = np.array([[1, -0.5, 0.25, 2]], np.float16)
>>> message = deepspeed.encode(x, bits=4, groups=1)
>>> message["quantized"].view(np.uint8).tolist(), message["scales"].tolist()
([[78, 23]], [[0.25]])
>>> deepspeed.decode(message, bits=4)
array([[ 1.  , -0.5 ,  0.25,  1.75]], dtype=float16)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gcodec.arrays.nonfinite import check_finite
from gcodec.arrays.protocols import TensorLike
from gcodec.codecs.blockwise import Blockwise
from gcodec.errors import Corrupt, ParameterError
from gcodec.frame import Frame, FrameLike
from gcodec.interop.objects import (
    check_dtype,
    checked_frame,
    checked_shape,
    host_tensor,
    numbers_of,
    opened_frame,
    part_of,
    result_of,
    size_error,
)
from gcodec.kernels.numeric import convert
from gcodec.kernels.numeric.reduce import all_finite
from gcodec.limits import Limits
from gcodec.runtime.arithmetic import exact
from gcodec.wire.kinds import check_choice, check_integer

_KINDS = {8: "int8", 4: "int4"}
_MOST = 1 << 30  # groups


@exact
def encode(
    x: TensorLike, *, bits: int = 8, groups: int, partitions: tuple[int, int] | None = None
) -> dict[str, np.ndarray]:
    """Quantize a tensor as ``quantize`` and ``swizzle_quant`` do.

    Parameters
    ----------
    x : array
        Tensor on the host, with a dtype that `gcodec.encode` accepts.
    bits : {8, 4}
        Bits of a number.
    groups : int
        Number of groups, which divides the number of elements. The size of a group is even.
    partitions : tuple of int, optional
        Number of nodes, and of devices in a node, of ``swizzle_quant``. Their product divides the
        number of groups, and the result is flat.

    Returns
    -------
    dict of str to array
        ``quantized`` and ``scales``.

    Raises
    ------
    ParameterError
        If an argument is out of range, or `x` contains NaN, Inf or a value that exceeds float16.
    TypeError
        If `x` is not an array of floats, or is on a device.
    """
    tensor = host_tensor(x, "deepspeed")
    shape = tensor.shape
    codec = _codec(bits, groups, math.prod(shape))
    values = convert.from_16_bits(convert.to_16_bits(tensor.values, "float16"), "float16")
    if not all_finite(values):
        check_finite(tensor.values)
        raise ParameterError("x: must not exceed float16, to which DeepSpeed converts values")
    data = codec.quantize(values).data
    return _message(data, shape, bits, groups, partitions)


@exact
def decode(
    message: Mapping[str, object],
    *,
    bits: int = 8,
    partitions: tuple[int, int] | None = None,
    dtype: str = "float16",
    limits: Limits | None = None,
) -> np.ndarray:
    """Return the tensor of a message, as ``dequantize`` does.

    Parameters
    ----------
    message : mapping of str to array
        See `encode`.
    bits, partitions
        As in `encode`.
    dtype : {"float16", "float32", "bfloat16", "float64"}
        Dtype of the result, to which float32 products are rounded.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Raises
    ------
    FormatError
        If an array is missing, has another dtype or a size that does not match the other or the
        partitions; or if a scale is not finite.
    ParameterError
        If an argument is out of range.
    """
    check_dtype(dtype)
    codec, data, shape = _read(message, bits, partitions, limits)
    return result_of(codec.decode(data, shape), dtype, shape, limits)


@exact
def to_frame(
    message: Mapping[str, object],
    *,
    bits: int = 8,
    partitions: tuple[int, int] | None = None,
    name: str | None = None,
    limits: Limits | None = None,
) -> Frame:
    """Convert a message to a frame of `blockwise`, of dtype float32.

    See `decode` for the parameters and errors; `name` is that of the tensor.
    """
    return checked_frame(*_read(message, bits, partitions, limits), name)


@exact
def from_frame(
    frame: FrameLike, *, partitions: tuple[int, int] | None = None, limits: Limits | None = None
) -> dict[str, np.ndarray]:
    """Convert a frame of `blockwise` to a message.

    Parameters
    ----------
    frame : Frame or bytes-like
        Frame of float32 with the kind ``int8`` or ``int4``, any code, and whole blocks.
    partitions : tuple of int, optional
        As in `encode`.
    limits : Limits, optional
        Bounds on the frame; default ``Limits()``.

    Raises
    ------
    ParameterError
        If the frame has another codec, kind, dtype or a partial block.
    FormatError
        If the bytes are damaged.
    """
    opened, codec = opened_frame(frame, limits, Blockwise)
    widths = {kind: bits for bits, kind in _KINDS.items()}
    if codec.kind not in widths or not codec.block or opened.size % codec.block:
        raise ParameterError.of("frame.codec", str(codec), "int8 or int4, with whole blocks")
    groups = opened.size // codec.block
    _codec(widths[codec.kind], groups, opened.size)
    data = codec.unpack(opened.payload, opened.shape).data
    return _message(data, opened.shape, widths[codec.kind], groups, partitions)


def _codec(bits: int, groups: int, n: int) -> Blockwise:
    """Return the codec of n elements; raise `ParameterError` for wrong arguments."""
    check_choice("bits", bits, _KINDS)
    groups = check_integer("groups", groups, 1, _MOST, f"from 1 to {_MOST}")
    if not n or n % (2 * groups):
        allowed = f"such that groups of {n} elements have an equal, even size"
        raise ParameterError.of("groups", groups, allowed)
    return Blockwise.from_mapping({"kind": _KINDS[bits], "block": n // groups})


def _nodes_and_devices(partitions: tuple[int, int] | None) -> list[int]:
    """Return the numbers of nodes and of devices; raise `ParameterError` for wrong arguments."""
    parts = (1, 1) if partitions is None else partitions
    if not isinstance(parts, (tuple, list)) or len(parts) != 2:
        raise ParameterError.of("partitions", partitions, "numbers of nodes and of devices")
    return [check_integer("partitions", k, 1, _MOST, "above 0") for k in parts]


def _order(groups: int, partitions: tuple[int, int] | None) -> np.ndarray:
    """Return the group that lies at each place of a message; see `_nodes_and_devices`."""
    nodes, devices = _nodes_and_devices(partitions)
    if groups % (nodes * devices):
        allowed = f"such that their product divides {groups} groups"
        raise ParameterError.of("partitions", partitions, allowed)
    return np.arange(groups).reshape(nodes, devices, -1).swapaxes(0, 1).reshape(-1)


def _message(
    data: np.ndarray,
    shape: tuple[int, ...],
    bits: int,
    groups: int,
    partitions: tuple[int, int] | None,
) -> dict[str, np.ndarray]:
    """Return the arrays of a payload with ``code=none``."""
    order = _order(groups, partitions)
    scales = numbers_of(data[: 4 * groups], "<f4")
    codes = data[4 * groups :].reshape(groups, -1)[order].view(np.int8)
    sizes: tuple[int, ...] = (codes.size,)
    if partitions is None:
        sizes = (*shape[:-1], shape[-1] * bits // 8)
        if math.prod(sizes) != codes.size:
            raise ParameterError.of("shape", shape, "with an even last dimension for 4 bits")
    return {"quantized": codes.reshape(sizes), "scales": scales[order].reshape(-1, 1)}


def _read(
    message: Mapping[str, object],
    bits: int,
    partitions: tuple[int, int] | None,
    limits: Limits | None,
) -> tuple[Blockwise, np.ndarray, tuple[int, ...]]:
    """Return the codec of a message, its payload, and the shape of the tensor."""
    check_choice("bits", bits, _KINDS)
    _nodes_and_devices(partitions)
    limits = Limits.or_default(limits)
    codes, scales = part_of(message, "quantized"), part_of(message, "scales")
    if codes.dtype != np.int8 or scales.dtype != np.float32:
        raise Corrupt(f"quantized and scales have dtypes {codes.dtype} and {scales.dtype}")
    if not codes.ndim:
        raise Corrupt("quantized has no dimensions")
    shape = (*codes.shape[:-1], codes.shape[-1] * (2 if bits == 4 else 1))
    try:
        _, n = checked_shape(shape, limits)
        codec, order = _codec(bits, scales.size, n), _order(scales.size, partitions)
    except ParameterError as error:
        raise size_error(str(error), scales.size, 1) from None
    back = np.argsort(order)
    front = scales.reshape(-1)[back].astype("<f4", copy=False).view(np.uint8)
    flat = codes.reshape(order.size, -1)[back].reshape(-1).view(np.uint8)
    return codec, np.concatenate((front, flat)), shape
