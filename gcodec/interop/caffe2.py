"""Caffe2 and FBGEMM: fused rows of 8, 4 or 2 bits, as PyTorch's embedding operators store them.

The object is a uint8 array with one row for each row of the matrix: ``ceil(columns*bits/8)`` bytes
of codes, the first element in the lowest bits of the first byte, then a scale and a bias, both
float32 (``FloatOrHalfToFused8BitRowwiseQuantizedSBFloat``; 8 bits only) or both float16
(``FloatOrHalfToFusedNBitRowwiseQuantizedSBHalf``), little-endian. PyTorch writes such arrays with
``torch.ops.quantized.embedding_bag_byte_prepack``, ``_4bit_prepack`` and ``_2bit_prepack``.

- **float32**: bias = min, scale = fl((max − min)/255), and a code is the integer nearest to
  fl(fl(x − min)·fl(255/fl(fl(max − min) + 1e-8))), ties to even. Rows whose range is near 1e-8 or
  below decode to few values, or one: the constant is absolute.
- **float16**: bias = min rounded to float16, range = fl(max − bias), scale = range/(2^bits − 1)
  rounded to float16, or 1 where that is zero; a code is the integer nearest to
  fl(fl(x − bias)·fl(1/scale)), cut to 0 … 2^bits − 1. A row whose minimum is rounded up beyond its
  maximum has a negative scale.
- **decoding**: scale·code + bias, rounded once, as PyTorch 2.13 does.

The kernels for x86-64 with AVX2 define the bits. The portable ones may give a zero bias another
sign; they, and for columns that fill no register newer AVX2 ones, round scale·code + bias to
float64 first, which changes the value where that is a tie between two float32 numbers. FBGEMM
refuses columns that do not fill the last byte for 4 and 2 bits; here they are padded with zero
bits, as by its reference function.

No frame of gcodec holds these rows without loss: ``minmax`` sends the minimum and the maximum, and
multiplies in float64. So this module has no ``to_frame``.

Source: pytorch/FBGEMM 71d6f8b, ``src/QuantUtils.cc`` and ``src/QuantUtilsAvx2.cc``, successors of
Caffe2's ``fused_rowwise_*`` operators; PyTorch 2.13. Arrays are those of the host: the kernels
have no CUDA twin.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from gcodec.arrays.intake import empty_like_shape, nonfinite_error
from gcodec.errors import Corrupt, ParameterError, Truncated
from gcodec.interop.objects import host_tensor, object_bytes
from gcodec.kernels.quantize import fused_rows
from gcodec.limits import Limits
from gcodec.wire.kinds import check_integer

ScaleDtype = Literal["float32", "float16"]

_MOST = 2**31 - 1  # columns


def encode(x: Any, *, bits: int = 8, scale_dtype: ScaleDtype | None = None) -> np.ndarray:
    """Quantize a matrix to fused rows.

    Parameters
    ----------
    x : (..., columns) float32 or float16 array
        On the host, of one dimension or more.
    bits : {8, 4, 2}
        Bits of a code.
    scale_dtype : {"float32", "float16"}, optional
        Dtype of scale and bias; default: float32 for 8 bits, float16 for 4 and 2, which have no
        other.

    Returns
    -------
    (..., ceil(columns * bits / 8) + 8) uint8 array
        Or + 4, with float16 numbers.

    Raises
    ------
    ParameterError
        If `x` has no columns, holds NaN or Inf, or has a row whose scale or bias is infinite in
        its dtype; if an argument is out of range.
    TypeError
        For an array of another dtype or on a device.

    Examples
    --------
    >>> import numpy as np
    >>> encode(np.array([[0, 1, 2, 3]], np.float32), bits=2)
    array([[228,   0,  60,   0,   0]], dtype=uint8)
    """
    bits, half = _format(bits, scale_dtype)
    tensor = host_tensor(x, "FBGEMM", ("float32", "float16"))
    if not tensor.shape or not 1 <= tensor.shape[-1] <= _MOST:
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
    bits : {8, 4, 2}
    scale_dtype : {"float32", "float16"}, optional
        See `encode`.
    columns : int, optional
        Columns of the matrix; default: as many as the codes of a row hold. Bytes need it.
    limits : Limits, optional
        Bounds on what is allocated; default ``Limits()``.

    Returns
    -------
    (..., columns) float32 array
        (rows, columns), of bytes.

    Raises
    ------
    FormatError
        If the array is not of uint8, a row has another length than the columns need, a scale or
        bias is NaN, infinite or otherwise none that FBGEMM writes, a padding bit is 1, or a value
        passes float32.
    ParameterError
        If an argument is out of range or missing.
    """
    bits, half = _format(bits, scale_dtype)
    limits = Limits.given(limits)
    if columns is not None:
        columns = check_integer("columns", columns, 1, _MOST, f"an integer from 1 to {_MOST}")
    if isinstance(rows, (bytes, bytearray, memoryview)):
        if columns is None:
            raise ParameterError("columns: bytes do not have it; give it as columns=…")
        flat, width = object_bytes(rows), fused_rows.row_nbytes(columns, bits, half)
        if flat.size % width:
            raise Truncated(f"{flat.size} bytes are no rows of {width}")
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
            kind = Truncated if array.shape[-1] < width else Corrupt
            raise kind(f"a row has {array.shape[-1]} bytes: {columns} columns need {width}")
    shape = (*array.shape[:-1], columns)
    n = math.prod(shape)
    limits.check("the matrix", n, 4 * n)
    out = empty_like_shape(n)
    data = np.ascontiguousarray(array).reshape(-1)
    fused_rows.dequantize(data, columns, bits, half, out)
    return out.reshape(shape)


def _format(bits: Any, scale_dtype: Any) -> tuple[int, bool]:
    if isinstance(bits, bool) or bits not in (8, 4, 2):
        raise ParameterError.of("bits", bits, "one of 8, 4, 2")
    if scale_dtype is None:
        scale_dtype = "float32" if bits == 8 else "float16"
    allowed = ("float32", "float16") if bits == 8 else ("float16",)
    if scale_dtype not in allowed:
        raise ParameterError.of("scale_dtype", scale_dtype, f"one of {', '.join(allowed)}")
    return int(bits), scale_dtype == "float16"


def _rows_array(rows: Any) -> np.ndarray:
    if not hasattr(type(rows), "__array__"):
        raise TypeError(f"rows is a {type(rows).__name__}: must be a uint8 array or bytes-like")
    try:
        array = np.asarray(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"rows cannot be read on the host: {error}") from error
    if array.dtype != np.uint8 or array.ndim == 0:
        raise Corrupt(f"rows are of {array.dtype} and {array.ndim} dimensions: must be uint8 rows")
    return array
