"""torchft: rows of FP8 with a float32 multiplier, as in ``allreduce_quantized`` and DiLoCo.

A message is a (bytes,) uint8 array. Each row of a matrix takes

    the multiplier 448/max|x| as little-endian float32, or 1 where that is infinite
    · a byte of OCP's E4M3 for each x times the multiplier · zeros to a multiple of 4 bytes

and rows of zeros follow until `ranks` divides the number of rows, so that each rank gets an equal
slice. A vector is a matrix of one column, as in the original, which takes 8 bytes for a value.
Values are divided by the multiplier. A frame of ``blockwise:kind=fp8,block=0`` has the same
numbers, its multipliers first.

The original runs in Triton, which on a GPU may divide with an error in the last bit. Devices
without FP8 send int8 numbers with the multiplier 127/max|x| instead, which this module does not
read. Several tensors of one message are not supported, nor is a message after a reduction whose
additional rows have other bytes than zeros.

Source: meta-pytorch/torchft 0.2.0, ``torchft/quantization.py`` (BSD-3-Clause). Arrays must be on
the host. This module imports neither torchft, torch nor triton.

Examples
--------
>>> import numpy as np
>>> from gcodec.interop import torchft
>>> x = np.array([[1, -0.5, 0.1]], np.float32)
>>> message = torchft.encode(x)
>>> message.tolist()
[0, 0, 224, 67, 126, 246, 99, 0]
>>> torchft.decode(message, (1, 3)).round(3)
array([[ 1.   , -0.5  ,  0.098]], dtype=float32)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcodec.arrays.protocols import BytesLike, ShapeLike, TensorLike
from gcodec.codecs.blockwise import Blockwise
from gcodec.errors import Corrupt, ParameterError
from gcodec.frame import Frame, FrameLike
from gcodec.interop.objects import (
    check_dtype,
    check_size,
    checked_frame,
    checked_shape,
    host_tensor,
    object_bytes,
    opened_frame,
    result_of,
)
from gcodec.limits import Limits
from gcodec.runtime.arithmetic import exact
from gcodec.wire.kinds import check_integer

_MOST_RANKS = 1 << 20


class _Rows(NamedTuple):
    """The matrix of a tensor, and its rows in a message."""

    shape: tuple[int, int]
    padded: int

    @classmethod
    def of(cls, shape: tuple[int, ...], ranks: int) -> _Rows:
        """Return the rows of a tensor; raise `ParameterError` for wrong arguments."""
        ranks = check_integer("ranks", ranks, 1, _MOST_RANKS, f"from 1 to {_MOST_RANKS}")
        if len(shape) not in (1, 2) or not all(shape):
            raise ParameterError.of("shape", shape, "that of a vector or matrix with elements")
        rows, columns = shape if len(shape) == 2 else (shape[0], 1)
        return cls((rows, columns), -(-rows // ranks) * ranks)

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return 4 + -(-self.shape[1] // 4) * 4


_CODEC = Blockwise.from_mapping({"kind": "fp8", "block": 0})


@exact
def encode(x: TensorLike, *, ranks: int = 1) -> np.ndarray:
    """Quantize a tensor as ``fused_quantize_into_fp8`` does.

    Parameters
    ----------
    x : array
        Vector or matrix on the host: float32, float16 or bfloat16.
    ranks : int
        Number of ranks.

    Returns
    -------
    (bytes,) uint8 array

    Raises
    ------
    ParameterError
        If an argument is out of range, or `x` contains NaN, Inf or a magnitude above 2^126.
    TypeError
        If `x` has another dtype, or is on a device.
    """
    tensor = host_tensor(x, "torchft", ("float32", "float16", "bfloat16"))
    rows = _Rows.of(tensor.shape, ranks)
    return _message(_CODEC.quantize(tensor.values.reshape(rows.shape)).data, rows)


@exact
def decode(
    message: BytesLike,
    shape: ShapeLike,
    *,
    ranks: int = 1,
    dtype: str = "float32",
    limits: Limits | None = None,
) -> np.ndarray:
    """Return the tensor of a message, as ``fused_dequantize_from_fp8`` does.

    Parameters
    ----------
    message : bytes-like
        See `encode`.
    shape : int or tuple of int
        Shape of the tensor.
    ranks : int
        Number of ranks.
    dtype : {"float32", "float16", "bfloat16", "float64"}
        Dtype of the result, to which float32 quotients are rounded.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Raises
    ------
    FormatError
        If the message has another size, a multiplier is not finite or not above 0, or a byte that
        belongs to no element is not 0.
    ParameterError
        If an argument is out of range.
    """
    check_dtype(dtype)
    sizes, rows = _sizes(shape, ranks, limits)
    return result_of(_CODEC.decode(_payload(message, rows), rows.shape), dtype, sizes, limits)


@exact
def to_frame(
    message: BytesLike,
    shape: ShapeLike,
    *,
    ranks: int = 1,
    name: str | None = None,
    limits: Limits | None = None,
) -> Frame:
    """Convert a message to a frame of `blockwise`; a vector becomes a matrix of one column.

    See `decode` for the parameters and errors; `name` is that of the tensor.
    """
    _, rows = _sizes(shape, ranks, limits)
    return checked_frame(_CODEC, _payload(message, rows), rows.shape, name)


@exact
def from_frame(frame: FrameLike, *, ranks: int = 1, limits: Limits | None = None) -> np.ndarray:
    """Convert a frame of ``blockwise:kind=fp8,block=0`` to a message.

    Parameters
    ----------
    frame : Frame or bytes-like
        Frame of a float32 matrix with any code.
    ranks : int
        Number of ranks.
    limits : Limits, optional
        Bounds on the frame; default ``Limits()``.

    Raises
    ------
    ParameterError
        If the frame has another codec, dtype or number of dimensions, or no elements.
    FormatError
        If the bytes are damaged.
    """
    opened, codec = opened_frame(frame, limits, Blockwise)
    if (codec.kind, codec.block) != ("fp8", 0) or len(opened.shape) != 2:
        raise ParameterError.of("frame", str(codec), "a matrix of blockwise:kind=fp8,block=0")
    rows = _Rows.of(opened.shape, ranks)
    return _message(codec.unpack(opened.payload, opened.shape).data, rows)


def _sizes(shape: ShapeLike, ranks: int, limits: Limits | None) -> tuple[tuple[int, ...], _Rows]:
    sizes, _ = checked_shape(shape, limits)
    return sizes, _Rows.of(sizes, ranks)


def _message(data: np.ndarray, rows: _Rows) -> np.ndarray:
    """Return the message of a payload with ``code=none``."""
    count, columns = rows.shape
    table = np.zeros((rows.padded, rows.nbytes), np.uint8)
    table[:count, :4] = data[: 4 * count].reshape(count, 4)
    table[:count, 4 : 4 + columns] = data[4 * count :].reshape(count, columns)
    return table.reshape(-1)


def _payload(message: BytesLike, rows: _Rows) -> np.ndarray:
    """Return the payload of a message, or raise `FormatError`."""
    data = object_bytes(message, "message")
    count, columns = rows.shape
    check_size("the message", data.size, rows.padded * rows.nbytes)
    table = data.reshape(rows.padded, rows.nbytes)
    if table[:, 4 + columns :].any() or table[count:].any():
        raise Corrupt("a byte that belongs to no element is not 0")
    scales, codes = table[:count, :4], table[:count, 4 : 4 + columns]
    return np.concatenate((scales.reshape(-1), codes.reshape(-1)))
