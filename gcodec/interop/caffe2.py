"""Caffe2 and FBGEMM: fused rows of 8, 4 or 2 bits, as PyTorch's embedding operators store them.

A message is a uint8 array with one row for each row of the matrix: ``ceil(columns*bits/8)`` bytes
of codes, with the first element in the lowest bits of the first byte, then a scale and a bias.
These are both float32 (``FloatOrHalfToFused8BitRowwiseQuantizedSBFloat``; 8 bits only) or both
float16 (``FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf``), little-endian. PyTorch writes such
arrays with ``torch.ops.quantized.embedding_bag_byte_prepack``, ``_4bit_prepack`` and
``_2bit_prepack``.

- **float32**: bias = min, scale = fl((max − min)/255), and a code is the integer nearest to
  fl(fl(x − min)·fl(255/fl(fl(max − min) + 1e-8))), ties to even. The constant is absolute, so rows
  whose range is about 1e-8 or smaller decode to few distinct values, or to one.
- **float16**: bias = min rounded to float16, range = fl(max − bias), scale = range/(2^bits − 1)
  rounded to float16, or 1 if that is zero; a code is the integer nearest to
  fl(fl(x − bias)·fl(1/scale)), clipped to 0 … 2^bits − 1. A row whose minimum is rounded above its
  maximum has a negative scale.
- **decoding**: scale·code + bias, rounded once, as PyTorch 2.13 does.

FBGEMM's kernels for x86-64 with AVX2 define the bits. Its portable kernels may give a zero bias
another sign. The portable kernels, and those of PyTorch 2.15 for columns that do not fill a
register, first round scale·code + bias to float64, which changes the value if that is a tie
between two float32 numbers. For 4 and 2 bits FBGEMM refuses columns that do not fill the last
byte; this module pads them with zero bits, as FBGEMM's reference function does.

No frame of gcodec can store these rows losslessly: ``minmax`` sends the minimum and the maximum,
and multiplies in float64. This module therefore has no ``to_frame``.

Source: pytorch/FBGEMM 71d6f8b, ``src/QuantUtils.cc`` and ``src/QuantUtilsAvx2.cc``, successors of
Caffe2's ``fused_rowwise_*`` operators; PyTorch 2.13. Arrays must be on the host: these kernels
have no CUDA counterpart.

Examples
--------
>>> import numpy as np
>>> from gcodec.interop import caffe2
>>> rows = caffe2.encode(np.array([[0, 1, 2, 3]], np.float32), bits=2)
>>> caffe2.decode(rows, bits=2)
array([[0., 1., 2., 3.]], dtype=float32)
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from gcodec.arrays.nonfinite import nonfinite_error
from gcodec.arrays.protocols import TensorLike
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.interop.objects import host_tensor, object_bytes, size_error
from gcodec.kernels.quantize import fused_rows
from gcodec.limits import Limits
from gcodec.runtime.arithmetic import exact
from gcodec.runtime.reuse import result_beside
from gcodec.wire.kinds import check_choice, check_integer

ScaleDtype = Literal["float32", "float16"]

_MAX_COLUMNS = 2**31 - 1


@exact
def encode(x: TensorLike, *, bits: int = 8, scale_dtype: ScaleDtype | None = None) -> np.ndarray:
    """Quantize a matrix to fused rows.

    Parameters
    ----------
    x : (..., columns) float32 or float16 array
        Matrix on the host, with one dimension or more.
    bits : {8, 4, 2}
        Number of bits in a code.
    scale_dtype : {"float32", "float16"}, optional
        Dtype of scale and bias. Default: float32 for 8 bits; float16 for 4 and 2 bits, which
        allow no other dtype.

    Returns
    -------
    (..., ceil(columns * bits / 8) + 8) uint8 array
        Fused rows. With a float16 scale the last dimension is 4 shorter.

    Raises
    ------
    ParameterError
        If `x` has no columns, contains NaN or Inf, or has a row whose scale or bias is infinite
        in its dtype; if an argument is out of range.
    TypeError
        If the array has another dtype or is on a device.

    Examples
    --------
    >>> import numpy as np
    >>> encode(np.array([[0, 1, 2, 3]], np.float32), bits=2)
    array([[228,   0,  60,   0,   0]], dtype=uint8)
    """
    bits, half = _format(bits, scale_dtype)
    tensor = host_tensor(x, "FBGEMM", ("float32", "float16"))
    if not tensor.shape or not 1 <= tensor.shape[-1] <= _MAX_COLUMNS:
        raise ParameterError.of(
            "x.shape", tensor.shape, "one column or more in the last dimension"
        )
    columns = tensor.shape[-1]
    width = fused_rows.row_nbytes(columns, bits, half)
    rows = math.prod(tensor.shape[:-1])
    out = np.empty(rows * width, np.uint8)
    if fused_rows.quantize(tensor.values, columns, bits, half, out) is not None:
        raise nonfinite_error(tensor.values)
    return out.reshape(*tensor.shape[:-1], width)


@exact
def decode(
    rows: Any,
    *,
    bits: int = 8,
    scale_dtype: ScaleDtype | None = None,
    columns: int | None = None,
    limits: Limits | None = None,
) -> np.ndarray:
    """Dequantize fused rows.

    Parameters
    ----------
    rows : (..., width) uint8 array, or bytes-like
        Fused rows of one matrix or of several.
    bits : {8, 4, 2}
        Number of bits in a code.
    scale_dtype : {"float32", "float16"}, optional
        See `encode`.
    columns : int, optional
        Number of columns. Default: as many columns as a row has room for. Required for a
        bytes-like object.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Returns
    -------
    (..., columns) float32 array
        Decoded matrix; (rows, columns) for a bytes-like object.

    Raises
    ------
    FormatError
        If the array is not uint8, the length of a row does not match the columns, a scale or bias
        is NaN, infinite or otherwise a number that FBGEMM never writes, a padding bit is 1, or a
        value exceeds float32.
    ParameterError
        If an argument is out of range or missing.
    """
    bits, half = _format(bits, scale_dtype)
    limits = Limits.or_default(limits)
    if columns is not None:
        allowed = f"an integer from 1 to {_MAX_COLUMNS}"
        columns = check_integer("columns", columns, 1, _MAX_COLUMNS, allowed)
    if not hasattr(type(rows), "__array__"):
        flat = object_bytes(rows, "rows")
        if columns is None:
            raise ParameterError("columns: must be passed for bytes, which do not store it")
        width = fused_rows.row_nbytes(columns, bits, half)
        if flat.size % width:
            raise Truncated(f"{flat.size} bytes are not whole rows of {width} bytes")
        array = flat.reshape(-1, width)
    else:
        array = _rows_array(rows)
        tail = fused_rows.row_nbytes(0, bits, half)
        if array.shape[-1] <= tail:
            raise Truncated(f"a row has {array.shape[-1]} bytes: must have more than {tail}")
        if columns is None:
            columns = (array.shape[-1] - tail) * 8 // bits
        width = fused_rows.row_nbytes(columns, bits, half)
        if array.shape[-1] != width:
            message = f"a row has {array.shape[-1]} bytes: {columns} columns need {width}"
            raise size_error(message, array.shape[-1], width)
    shape = (*array.shape[:-1], columns)
    n = math.prod(shape)
    limits.check("the matrix", n, 4 * n)
    out = result_beside(n, np.float32, None)
    data = np.ascontiguousarray(array).reshape(-1)
    fused_rows.dequantize(data, columns, bits, half, out)
    return out.reshape(shape)


def _format(bits: int, scale_dtype: str | None) -> tuple[int, bool]:
    check_choice("bits", bits, (8, 4, 2))
    if scale_dtype is None:
        scale_dtype = "float32" if bits == 8 else "float16"
    allowed = ("float32", "float16") if bits == 8 else ("float16",)
    check_choice("scale_dtype", scale_dtype, allowed)
    return int(bits), scale_dtype == "float16"


def _rows_array(rows: object) -> np.ndarray:
    try:
        array = np.asarray(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"rows cannot be read on the host: {error}") from error
    if array.dtype != np.uint8 or array.ndim == 0:
        raise Corrupt(f"rows are {array.ndim}-dimensional {array.dtype}: must be uint8 rows")
    return array
