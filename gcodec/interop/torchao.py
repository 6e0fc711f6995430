"""torchao: the tensors of MXFP8, MXFP6, MXFP4 and NVFP4, as two or three arrays.

A message is a dict of NumPy arrays, which have the bytes and the shapes of torchao's:

- ``scale``: uint8, one for each block of 32 elements (16 for ``nvfp4``) along the last dimension.
  It is the ``uint8`` view of torchao's ``float8_e8m0fnu``, or of ``float8_e4m3fn`` for ``nvfp4``.
- ``data``: uint8, a byte for each element, or for two 4-bit elements along the last dimension, the
  first in the low half. It is the ``uint8`` view of torchao's ``qdata``, where elements of 6 bits
  take a byte each, too.
- ``tensor_scale``: float32 without dimensions, for ``nvfp4`` with a scale of the tensor.

The bytes are those of torchao's code for CPUs, in every case: −0, subnormal numbers, NaN with the
bits of ``torch.nan`` or its negative, and the logarithms that it rounds to integers. (For NaN with
other bits torchao has other codes of 4 and 6 bits, which also decode to NaN.) Scales are in their
plain order, not swizzled. Like torchao, `encode` refuses tensors whose last dimension is no
multiple of a block's size; the codec ``microscale`` writes them. A frame holds the same bytes,
unless it also codes them.

Source: pytorch/ao 0.18, ``torchao/prototype/mx_formats`` (BSD-3-Clause): ``mx_tensor.to_mx`` and
``to_dtype``, ``nvfp4_tensor.nvfp4_quantize``. Arrays must be on the host. This module does not
import torchao.

Examples
--------
>>> import numpy as np
>>> from gcodec.interop import torchao
>>> x = np.linspace(-4, 4, 32, dtype=np.float32)
>>> arrays = torchao.encode(x, format="mxfp4")
>>> arrays["scale"], arrays["data"][:4]
(array([127], dtype=uint8), array([238, 221, 221, 204], dtype=uint8))
>>> torchao.decode(arrays, format="mxfp4")[:4]
array([-4., -4., -3., -3.], dtype=float32)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gcodec.arrays.protocols import TensorLike
from gcodec.codecs.microscale import Microscale, check_elements, check_scales
from gcodec.errors import Corrupt, ParameterError
from gcodec.frame import Frame, FrameLike
from gcodec.interop.objects import (
    check_dtype,
    host_tensor,
    opened_frame,
    part_of,
    require_mapping,
    result_of,
    size_error,
)
from gcodec.kernels.quantize import microscale
from gcodec.kernels.quantize.block_format import FORMATS, RULES, BlockFormat
from gcodec.limits import Limits
from gcodec.payload import Payload
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.reuse import result_beside
from gcodec.wire.kinds import check_choice

_FORMATS = tuple(name for name in FORMATS if name != "mxint8")
_SCALE_DTYPES = {True: "float8_e4m3fn", False: "float8_e8m0fnu"}  # by `is_two_level`
_DATA_DTYPES = {"mxfp8e4m3": "float8_e4m3fn", "mxfp8e5m2": "float8_e5m2"}


@exact
def encode(
    x: TensorLike,
    format: str = "mxfp8e4m3",
    scale: str = "floor",
    *,
    tensor_scale: float | None = None,
) -> dict[str, np.ndarray]:
    """Quantize a tensor.

    Parameters
    ----------
    x : float32 or bfloat16 array
        Tensor on the host, whose last dimension is a multiple of 32, or of 16 for ``nvfp4``.
    format : {"mxfp8e4m3", "mxfp8e5m2", "mxfp6e2m3", "mxfp6e3m2", "mxfp4", "nvfp4"}
        Format of elements and scales.
    scale : {"floor", "rceil", "ceil", "even"}
        Rule for the scales, named as in torchao's ``ScaleCalculationMode``. ``nvfp4`` has only
        the default.
    tensor_scale : float, optional
        Scale of the tensor for ``nvfp4``, from 2^-120 to 1e35; see `tensor_scale_of`. None uses
        scales of blocks only.

    Returns
    -------
    dict of str to array
        ``scale`` and ``data``, and ``tensor_scale`` if it was given.

    Raises
    ------
    ParameterError
        If an argument is out of range, or the last dimension has another size.
    TypeError
        If the array has another dtype or is on a device.

    Examples
    --------
    >>> import numpy as np
    >>> arrays = encode(np.ones((2, 16), np.float32), "nvfp4", tensor_scale=0.5)
    >>> arrays["scale"].tolist(), arrays["data"].shape, arrays["tensor_scale"]
    ([[43], [43]], (2, 8), array(0.5, dtype=float32))
    """
    codec = _codec(format, scale, tensor_scale)
    fmt = BlockFormat.of(format)
    tensor = host_tensor(x, "torchao", ("float32", "bfloat16"))
    _check_blocks("x.shape", tensor.shape, fmt)
    return _arrays(codec.quantize(tensor.values).data, tensor.shape, fmt, tensor_scale)


@exact
def tensor_scale_of(x: TensorLike) -> float:
    """Return torchao's ``per_tensor_amax_to_scale``: the largest magnitude over 448·6.

    Raises
    ------
    ParameterError
        If `x` contains NaN or Inf, or the largest magnitude is 0 or so small or so large that
        `encode` refuses the scale.
    """
    values = host_tensor(x, "torchao", ("float32", "bfloat16")).values
    largest = np.float32(np.abs(values).max(initial=0))
    with np.errstate(under="ignore"):
        scale = float(largest / np.float32(448 * 6))
    return float(_codec("nvfp4", "floor", scale).tensor_scale)


@exact
def decode(
    arrays: Mapping[str, TensorLike],
    format: str = "mxfp8e4m3",
    scale: str = "floor",
    dtype: str = "float32",
    *,
    limits: Limits | None = None,
) -> np.ndarray:
    """Dequantize a tensor.

    Parameters
    ----------
    arrays : mapping of str to array
        The arrays of `encode`, as uint8 or in the dtypes of ``ml_dtypes``; or the tensors of
        torchao on the host.
    format : str
        See `encode`.
    scale : str
        Rule for the scales, which has no influence here.
    dtype : {"float32", "bfloat16", "float16", "float64"}
        Dtype of the result; each float32 value is rounded to it.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Returns
    -------
    array
        Decoded tensor. A block whose scale is NaN is NaN.

    Raises
    ------
    FormatError
        If an array is missing or superfluous, has another dtype, or its shape does not match; if a
        scale of ``nvfp4`` is negative, a tensor's scale is out of range, or an element has more
        than 6 bits.
    ParameterError
        If an argument is out of range.
    """
    check_dtype(dtype)
    fmt = BlockFormat.of(_codec(format, scale, None).format)
    scales, data, shape, tensor_scale = _checked(arrays, fmt, limits)
    values = result_beside(math.prod(shape), np.float32, None)
    microscale.dequantize(scales, data, fmt, tensor_scale, values)
    return result_of(values, dtype, shape, limits)


@exact
def to_frame(
    arrays: Mapping[str, TensorLike],
    format: str = "mxfp8e4m3",
    scale: str = "floor",
    *,
    name: str | None = None,
    limits: Limits | None = None,
) -> Frame:
    """Convert the arrays to a frame of `microscale`, whose payload has the same bytes.

    See `decode` for the parameters and errors; the frame states the rule for scales.
    """
    fmt = BlockFormat.of(_codec(format, scale, None).format)
    scales, data, shape, tensor_scale = _checked(arrays, fmt, limits)
    codec = _codec(format, scale, tensor_scale)
    joined = np.concatenate((scales, data))
    scalars = {"tensor_scale": codec.tensor_scale}
    payload = Payload(codec, scalars, joined, 8 * joined.size)
    return Frame(codec, "float32", shape, payload, name)


@exact
def from_frame(frame: FrameLike, *, limits: Limits | None = None) -> dict[str, np.ndarray]:
    """Convert a frame of `microscale` to the arrays; a tensor's scale of 1 is left out.

    Parameters
    ----------
    frame : Frame or bytes-like
        Frame of float32 with any code of `microscale`.
    limits : Limits, optional
        Bounds on the frame; default ``Limits()``.

    Raises
    ------
    ParameterError
        If the frame has another codec or dtype, the format ``mxint8``, or a last dimension that is
        no multiple of a block's size.
    FormatError
        If the bytes are damaged.
    """
    opened, codec = opened_frame(frame, limits, Microscale)
    fmt = BlockFormat.of(codec.format)
    if fmt.name not in _FORMATS:
        raise ParameterError.of("frame.codec", str(codec), "a format of torchao")
    _check_blocks("frame.shape", opened.shape, fmt)
    symbols = codec.unpack(opened.payload, opened.shape)
    scale = None if symbols.tensor_scale == 1 else symbols.tensor_scale
    return _arrays(symbols.data, opened.shape, fmt, scale)


def _codec(format: str, scale: str, tensor_scale: float | None) -> Microscale:
    """Return the codec of a message; raise `ParameterError` for arguments out of range."""
    check_choice("format", format, _FORMATS)
    check_choice("scale", scale, RULES)
    factor = 1.0 if tensor_scale is None else tensor_scale
    return Microscale.from_mapping({"format": format, "scale": scale, "tensor_scale": factor})


def _check_blocks(name: str, shape: tuple[int, ...], fmt: BlockFormat) -> None:
    """Raise `ParameterError` unless the last dimension consists of whole blocks."""
    if not shape or shape[-1] % fmt.block:
        allowed = f"such that the last dimension is a multiple of {fmt.block}"
        raise ParameterError.of(name, shape, allowed)


def _arrays(
    data: np.ndarray, shape: tuple[int, ...], fmt: BlockFormat, tensor_scale: float | None
) -> dict[str, np.ndarray]:
    """Return the arrays of a payload with ``code=none``."""
    *rows, last = shape
    count = fmt.blocks(math.prod(shape))
    arrays = {
        "scale": data[:count].copy().reshape(*rows, last // fmt.block),
        "data": data[count:].copy().reshape(*rows, last // fmt.per_byte),
    }
    if tensor_scale is not None:
        arrays["tensor_scale"] = np.array(tensor_scale, np.float32)
    return arrays


def _checked(
    arrays: Mapping[str, TensorLike], fmt: BlockFormat, limits: Limits | None
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...], float]:
    """Return scales and data, flat, the shape of the tensor, and the scale of the tensor."""
    require_mapping("arrays", arrays)
    known = ("scale", "data", "tensor_scale") if fmt.is_two_level else ("scale", "data")
    for key in arrays:
        if key not in known:
            raise Corrupt(f"the array {key!r} is none of {', '.join(known)}")
    scales = _bytes_of(arrays, "scale", _SCALE_DTYPES[fmt.is_two_level])
    data = _bytes_of(arrays, "data", _DATA_DTYPES.get(fmt.name, "uint8"))
    if not data.ndim:
        raise Corrupt("data has no dimensions")
    shape = (*data.shape[:-1], data.shape[-1] * fmt.per_byte)
    if shape[-1] % fmt.block:
        raise Corrupt(f"data has {data.shape[-1]} bytes in the last dimension: no whole blocks")
    expected = (*shape[:-1], shape[-1] // fmt.block)
    if scales.shape != expected:
        message = f"scale has the shape {scales.shape}: must have {expected}"
        raise size_error(message, scales.size, math.prod(expected))
    flat, elements, n = scales.reshape(-1), data.reshape(-1), math.prod(shape)
    check_scales(flat, fmt, 0)
    check_elements(elements, n, fmt, 0)
    tensor_scale = _tensor_scale(arrays)
    Limits.or_default(limits).check("the tensor", n, 4 * n)
    return flat, elements, shape, tensor_scale


def _bytes_of(arrays: Mapping[str, TensorLike], key: str, dtype: str) -> np.ndarray:
    """Return a C-contiguous array as uint8; it may have an equivalent dtype."""
    array = part_of(arrays, key)
    if array.dtype != np.uint8 and array.dtype.name != dtype:
        raise Corrupt(f"{key} has dtype {array.dtype}: must be uint8 or {dtype}")
    return np.asarray(array, order="C").view(np.uint8)


def _tensor_scale(arrays: Mapping[str, TensorLike]) -> float:
    """Return the scale of the tensor, or 1 if there is none."""
    if "tensor_scale" not in arrays:
        return 1.0
    array = part_of(arrays, "tensor_scale")
    if array.dtype != np.float32 or array.size != 1:
        raise Corrupt(f"tensor_scale is {array.size} numbers of {array.dtype}: must be a float32")
    try:
        return float(_codec("nvfp4", "floor", float(array.reshape(()))).tensor_scale)
    except ParameterError as error:
        raise Corrupt(str(error)) from None
