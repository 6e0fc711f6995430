"""Psyche: DisTrO's messages, with the largest DCT coefficients of each tile of a parameter.

Each of the last two dimensions is cut by its largest divisor up to `chunk`, and each tile has an
orthonormal DCT-II; a vector is cut into runs. A worker sends the k coefficients of largest
magnitude of each tile, or all if a tile has fewer. A message is postcard's encoding of four
fields, in which an integer is a little-endian varint of groups of 7 bits, a signed one in zigzag
order, and a sequence of bytes or integers begins with its length:

- ``sparse_idx``: a tensor of uint8 with the positions in the flattened tile. For tiles of up to
  256 elements, a position is one byte, up to 65536 two, else four, little-endian. They are bytes
  in the tensor's dimensions, too, the last of which is k times their number.
- ``sparse_val``: a tensor of the coefficients, with the dimensions of tiles and k: in the dtype of
  the parameter; or one bit for each, the first in the lowest, which is 1 for a negative one.
- ``xshape``: the shape of the transformed parameter, u16 each: tiles and width of a vector; else
  leading dimensions, rows and columns of tiles, height and width.
- ``totalk``: the number of elements of a tile, u32.

A tensor has the fields ``dims``, i64 each; ``kind``, a byte: 0 is uint8, 5 float16, 6 float32, 7
float64, 11 bool, 15 bfloat16; ``requires_grad``, a byte; and ``data``, a byte which is 0 for whole
elements and 1 for bits, and a sequence of bytes. A sign decodes to 1 or −1, since Psyche applies
the signs of decoded values only.

The original transforms in the dtype of the parameter, with libtorch; this module transforms in
float32 and rounds the results. So values differ in their last bits, and among coefficients of
nearly the same magnitude, other ones may be sent. Positions have no defined order in the original,
and ascend here. A message with a position that occurs twice, which the original averages, is
refused.

Messages convert to and from frames of ``dct8:layout=tiles``; see `to_frame`. Source:
PsycheFoundation/psyche 0bdb13d, ``shared/modeling/src/distro.rs`` and
``shared/network/src/serialized_distro.rs`` (Apache-2.0). Arrays must be on the host.

Examples
--------
>>> import numpy as np
>>> from gcodec.interop import psyche
>>> x = np.array([[4, 4], [-2, -2]], np.float32)
>>> message = psyche.encode(x, k=2, value="sign")
>>> message.hex(" ")
'03 02 02 04 00 00 00 02 00 02 03 02 02 04 0b 00 01 01 00 04 01 01 02 02 04'
>>> psyche.decode(message).round(3)
array([[1., 1.],
       [0., 0.]], dtype=float32)
>>> psyche.from_frame(psyche.to_frame(message)) == message
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from gcodec.arrays.protocols import BytesLike, TensorLike
from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.errors import Corrupt, ParameterError, Unsupported
from gcodec.frame import Frame, FrameLike
from gcodec.interop import tiles
from gcodec.interop.objects import check_size, object_bytes
from gcodec.limits import Limits
from gcodec.runtime.arithmetic import exact
from gcodec.wire.kinds import check_choice
from gcodec.wire.primitives import Reader, leb128

Value = Literal["full", "sign"]
_T = TypeVar("_T")

_UINT8, _BOOL = 0, 11
_KINDS = {"float16": 5, "float32": 6, "float64": 7, "bfloat16": 15}
_DTYPES = {kind: NUMPY_DTYPES[name].newbyteorder("<") for name, kind in _KINDS.items()}
_FULL, _ONE_BIT = 0, 1
_MOST_SIDE = 2**16 - 1  # a size of ``xshape``


class _Tensor(NamedTuple):
    """A tensor of a message: its dimensions, the code of its dtype, and its bytes."""

    dims: tuple[int, ...]
    kind: int
    form: int
    data: bytes


@exact
def encode(x: TensorLike, k: int = 8, chunk: int = 64, *, value: Value = "full") -> bytes:
    """Compress a parameter to a message of Psyche.

    Parameters
    ----------
    x : array
        Tensor of at least one dimension on the host, with a dtype that `gcodec.encode` accepts.
        The caller keeps the residual, as for ``gcodec.interop.panthalia``.
    k : int
        Coefficients that a tile sends.
    chunk : int
        Largest side of a tile, up to 4096.
    value : {"full", "sign"}
        Whether coefficients are sent in the dtype of the tensor, or as signs.

    Raises
    ------
    ParameterError
        If an argument is out of range, or `x` is a scalar, is empty, contains NaN or Inf, has a
        coefficient that exceeds its dtype, or needs a size above 65535 in ``xshape``.
    TypeError
        If `x` is not an array of floats, or is on a device.
    """
    check_choice("value", value, get_args(Value))
    return _written(tiles.largest(x, "Psyche", k, chunk), value)


@exact
def decode(
    data: bytes | bytearray | memoryview,
    *,
    dtype: str = "float32",
    limits: Limits | None = None,
) -> np.ndarray:
    """Decode a message of Psyche.

    Parameters
    ----------
    data : bytes-like
        Message of one parameter; see `split`.
    dtype : {"float32", "bfloat16", "float16", "float64"}
        Dtype of the result, to which each float32 value is rounded.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Returns
    -------
    array
        Decoded tensor in its shape.

    Raises
    ------
    FormatError
        If the bytes end too early or go on after the message, two fields contradict each other, a
        position is outside its tile or comes twice, or a value is not finite.
    ParameterError
        If the dtype is not one of the floats.
    TypeError
        If the message is not bytes-like.
    """
    return tiles.restored(_read(data, limits), dtype, limits)


def split(data: bytes | bytearray | memoryview) -> list[bytes]:
    """Return the message of each parameter, which Psyche joins without gaps.

    Raises
    ------
    FormatError
        If the last message is not complete, or a number or kind is invalid.
    TypeError
        If `data` is not bytes-like.
    """
    reader, messages = _Reader(object_bytes(data).data), list[bytes]()
    while reader.at < len(reader.data):
        first = reader.at
        reader.message()
        messages.append(bytes(reader.data[first : reader.at]))
    return messages


@exact
def to_frame(
    data: bytes | bytearray | memoryview,
    *,
    name: str | None = None,
    limits: Limits | None = None,
) -> Frame:
    """Put a message into a frame of ``dct8:layout=tiles`` that decodes to the same values.

    The frame has the dtype of the values; signs are float32. Signs, and values that are levels of
    8 bits, are sent as these, and other values with ``values=float32``.

    Parameters
    ----------
    data, limits
        See `decode`.
    name : str, optional
        Name of the tensor, stored in the frame.

    Returns
    -------
    Frame
        Frame with positions in ascending order.

    Raises
    ------
    ParameterError
        If the tensor is neither a vector nor a matrix, a tile has more than 65536 elements, or a
        float64 is no float32.
    FormatError, TypeError
        As for `decode`.
    """
    return tiles.to_frame(_read(data, limits), name)


@exact
def from_frame(frame: FrameLike, *, value: Value = "sign", limits: Limits | None = None) -> bytes:
    """Return the message with the coefficients of a frame of ``dct8:layout=tiles``.

    Parameters
    ----------
    frame : Frame or bytes-like
        Frame of a vector or a matrix, whose tiles divide it.
    value : {"sign", "full"}
        Whether to send signs, or the coefficients in the dtype of the frame.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Raises
    ------
    ParameterError
        If the frame has another codec or layout, tiles that do not divide the tensor, a dtype that
        does not have the coefficients, or, for signs, a coefficient other than 1 and −1.
    FormatError
        If the frame is damaged.
    """
    check_choice("value", value, get_args(Value))
    sent = tiles.from_frame(frame, limits)
    if value == "sign" and not (np.abs(sent.values) == 1).all():
        raise ParameterError.of("value", value, "full, since not all coefficients are 1 or −1")
    return _written(sent, value)


def _written(coefficients: tiles.Coefficients, value: Value) -> bytes:
    """Return the message of coefficients in the dtype of their values, or of their signs."""
    positions, values, shape = coefficients
    if max(shape) > _MOST_SIDE:
        raise ParameterError.of("xshape", shape, f"of sizes up to {_MOST_SIDE}")
    leading, (_, k) = tiles.leading_of(shape), values.shape
    size = tiles.size_of_tile(shape)
    places = positions.astype(_index_dtype(size)).tobytes()
    dims = *leading, k * _index_dtype(size).itemsize
    parts = _tensor_bytes(_Tensor(dims, _UINT8, _FULL, places))
    dims = *leading, k
    if value == "sign":
        bits = np.packbits(np.signbit(values).reshape(-1), bitorder="little")
        parts += _tensor_bytes(_Tensor(dims, _BOOL, _ONE_BIT, bits.tobytes()))
    else:
        kind = _KINDS[values.dtype.name]
        parts += _tensor_bytes(_Tensor(dims, kind, _FULL, values.astype(_DTYPES[kind]).tobytes()))
    return parts + leb128(len(shape)) + b"".join(map(leb128, shape)) + leb128(size)


def _tensor_bytes(tensor: _Tensor) -> bytes:
    dims = b"".join(leb128(2 * size) for size in tensor.dims)  # not negative, in zigzag order
    head = leb128(len(tensor.dims)) + dims + bytes([tensor.kind, 0, tensor.form])
    return head + leb128(len(tensor.data)) + tensor.data


def _index_dtype(size: int) -> np.dtype[Any]:
    """Return the dtype of positions in a tile of `size` elements."""
    nbytes = 1 if size <= 1 << 8 else 2 if size <= 1 << 16 else 4
    return np.dtype(f"<u{nbytes}")


def _read(data: BytesLike, limits: Limits | None) -> tiles.Coefficients:
    """Return the coefficients of a message, with positions in its order."""
    reader = _Reader(object_bytes(data).data)
    index, value, shape, size = reader.message()
    if reader.at < len(reader.data):
        raise Corrupt(f"{len(reader.data) - reader.at} bytes follow the message", reader.at)
    leading = tiles.checked_leading(shape, size, limits)
    k = value.dims[-1] if value.dims else 0
    if value.dims != (*leading, k) or not 1 <= k <= size:
        raise Corrupt(f"sparse_val has the dimensions {value.dims}, xshape is {shape}")
    dtype = _index_dtype(size)
    if index.dims != (*leading, k * dtype.itemsize) or (index.kind, index.form) != (_UINT8, _FULL):
        raise Corrupt(f"sparse_idx has the dimensions {index.dims} and the kind {index.kind}")
    count = math.prod(leading) * k
    positions = _numbers(index.data, "sparse_idx", count, dtype)
    if (value.kind, value.form) == (_BOOL, _ONE_BIT):
        packed = _numbers(value.data, "sparse_val", -(-count // 8), np.dtype(np.uint8))
        bits = np.unpackbits(packed, bitorder="little")
        if bits[count:].any():
            raise Corrupt("the bits after the last sign are not 0")
        values = np.where(bits[:count], np.float32(-1), np.float32(1))
    elif value.kind in _DTYPES and value.form == _FULL:
        values = _numbers(value.data, "sparse_val", count, _DTYPES[value.kind])
    else:
        raise Unsupported(f"sparse_val has the kind {value.kind} in the form {value.form}")
    return tiles.Coefficients(positions.reshape(-1, k), values.reshape(-1, k), shape)


def _numbers(data: bytes, name: str, count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the numbers of a tensor, which must have as many."""
    check_size(name, len(data), count * dtype.itemsize)
    return np.frombuffer(data, dtype)


class _Reader(Reader):
    """Reader of postcard's types; raises `Truncated` and `Corrupt`."""

    def message(self) -> tuple[_Tensor, _Tensor, tuple[int, ...], int]:
        """Read positions, values, shape and size of a tile."""
        index, value = self._tensor(), self._tensor()
        shape = self._sequence(lambda: self._varint(16))
        return index, value, shape, self._varint(32)

    def _tensor(self) -> _Tensor:
        dims = self._sequence(self._zigzag)
        kind, requires_grad = self.take(2)
        if requires_grad > 1:
            raise Corrupt(f"requires_grad is {requires_grad}", self.at - 1)
        form = self._varint(32)
        if form > _ONE_BIT:
            raise Corrupt(f"the form of data is {form}", self.at)
        return _Tensor(dims, kind, form, bytes(self.take(self._varint(64))))

    def _sequence(self, element: Callable[[], _T]) -> tuple[_T, ...]:
        count = self._varint(64)
        if count > tiles.MOST_DIMENSIONS:
            raise Corrupt(f"a tensor has {count} dimensions", self.at)
        return tuple(element() for _ in range(count))

    def _zigzag(self) -> int:
        number = self._varint(64)
        return number >> 1 ^ -(number & 1)

    def _varint(self, nbits: int) -> int:
        first, number = self.at, 0
        for shift in range(0, nbits, 7):
            byte = self.byte()
            number |= (byte & 127) << shift
            if byte < 128:
                break
        if byte >= 128 or number >> nbits:
            raise Corrupt(f"a number has more than {nbits} bits", first)
        return number
