"""hivemind: the protobuf ``Tensor`` of its averaging and of OpenDiLoCo, with any compression.

A message has the fields of ``runtime.proto``: ``buffer`` (1, bytes), ``size`` (2, packed), the
``requires_grad`` flag (3), ``dtype`` (4, a name), ``compression`` (5) and ``chunks`` (6); protobuf
leaves out zeros. Integers and floats in ``buffer`` are little-endian:

- ``NONE``: the values, bfloat16 as float32.
- ``FLOAT16``: float16 of the values, limited to ±65504.
- ``MEANSTD_16BIT``: float16 of (x − m)/s, then float32 m and s of each row. A row is the last
  dimension, m its mean, and s its standard deviation, at least 2^-23.
- ``UNIFORM_8BIT``, ``QUANTILE_8BIT``: int64 256, a float32 table of 256 values, a byte each.
- ``BLOCKWISE_8BIT``: int64 number of blocks, int64 256, float32 largest magnitudes of blocks of
  4096, the table of bitsandbytes' ``dynamic8``, a byte each.

The original sums in float32, and this module in float64, so the last bits of means, deviations and
tables differ, and sometimes a code. A constant tensor has the code 255 of ``UNIFORM_8BIT`` here;
in the original, the mean may differ from the constant. ``BLOCKWISE_8BIT`` has the codes of
bitsandbytes' neutral kernel; see `gcodec.interop.bitsandbytes`. PyTorch computes its table:
without AVX2, the last bits of 42 numbers differ from those here. `decode` takes the numbers of the
message, and `to_frame` refuses them. Frames of ``raw`` and ``blockwise`` contain the same numbers.

Source: learning-at-home/hivemind 1.1.12, ``compression/`` and ``proto/runtime.proto`` (MIT).
Arrays must be on the host. This module imports neither hivemind, torch nor protobuf.

Examples
--------
>>> import numpy as np
>>> from gcodec.interop import hivemind
>>> message = hivemind.encode(np.ones(2, np.float32), "FLOAT16")
>>> message.hex(" ")
'0a 04 00 3c 00 3c 12 01 02 22 07 66 6c 6f 61 74 33 32 28 02'
>>> hivemind.decode(message)
array([1., 1.], dtype=float32)
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from gcodec.arrays.large_bytes import joined
from gcodec.arrays.protocols import BytesLike, TensorLike
from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.codecs.blockwise import Blockwise
from gcodec.codecs.raw import Raw
from gcodec.errors import Corrupt, ParameterError, Unsupported
from gcodec.frame import Frame, FrameLike
from gcodec.interop.changes import pattern_of
from gcodec.interop.objects import (
    check_size,
    checked_frame,
    checked_shape,
    host_tensor,
    numbers_of,
    object_bytes,
    opened_frame,
)
from gcodec.kernels.numeric import convert
from gcodec.kernels.quantize.value_table import ValueTable
from gcodec.limits import Limits
from gcodec.payload import Payload
from gcodec.runtime.arithmetic import exact
from gcodec.wire.kinds import check_choice, check_flag
from gcodec.wire.primitives import FLOATS, ITEMSIZE, MAX_NDIM, Reader, leb128

Compression = Literal[
    "NONE", "MEANSTD_16BIT", "FLOAT16", "QUANTILE_8BIT", "UNIFORM_8BIT", "BLOCKWISE_8BIT"
]
COMPRESSIONS: tuple[str, ...] = get_args(Compression)
"""The names of hivemind's ``CompressionType``, in the order of their numbers."""

_BLOCK = 4096
_TABLE_NBYTES = 4 * 256  # of the table of an 8-bit compression
_CODECS: dict[str, dict[str, object]] = {
    "MEANSTD_16BIT": {"kind": "meanstd16", "block": 0},
    "UNIFORM_8BIT": {"kind": "uniform8"},
    "QUANTILE_8BIT": {"kind": "quantile8"},
    "BLOCKWISE_8BIT": {"kind": "dynamic8", "block": _BLOCK},
}
_PART_SIZES = (1 << 16, 1 << 22)  # of buffers that hivemind splits, in bytes
_SIXTEEN_BITS = ("FLOAT16", "MEANSTD_16BIT")
_MOST_HALF = np.float32(65504)
_BYTES, _VARINT = 2, 0  # wire types of protobuf
_FIELDS = {1: _BYTES, 2: _BYTES, 3: _VARINT, 4: _BYTES, 5: _VARINT, 6: _VARINT}


class _Message(NamedTuple):
    """The fields of a protobuf ``Tensor``."""

    buffer: np.ndarray
    shape: tuple[int, ...]
    n: int
    dtype: str
    compression: str
    chunks: int


@exact
def encode(
    x: TensorLike, compression: Compression = "NONE", *, requires_grad: bool = False
) -> bytes:
    """Serialize a tensor as ``serialize_torch_tensor`` does.

    Parameters
    ----------
    x : array
        Tensor on the host, with a dtype that `gcodec.encode` accepts. Its values are converted to
        float32 first, except with ``NONE``.
    compression : str
        One of `COMPRESSIONS`.
    requires_grad : bool
        Flag of the message.

    Raises
    ------
    ParameterError
        If `compression` is unknown; if it has statistics, and `x` is empty or contains NaN, Inf or
        a magnitude above 2^126; or if ``MEANSTD_16BIT`` gets a tensor without dimensions.
    TypeError
        If `x` is not an array of floats, or is on a device; or is bfloat16 with ``FLOAT16`` or
        ``MEANSTD_16BIT``, which hivemind refuses.
    """
    check_choice("compression", compression, COMPRESSIONS)
    check_flag("requires_grad", requires_grad)
    dtypes = ("float32", "float16", "float64") if compression in _SIXTEEN_BITS else None
    tensor = host_tensor(x, "hivemind", dtypes)
    values = tensor.values
    if compression == "NONE":
        is_sent_as_float32 = tensor.dtype in ("float32", "bfloat16")
        buffer = values if is_sent_as_float32 else pattern_of(x, "x", "hivemind").bits
    elif compression == "FLOAT16":
        buffer = convert.to_16_bits(np.clip(values, -_MOST_HALF, _MOST_HALF), "float16")
    elif not values.size:
        raise ParameterError.of("x.shape", tensor.shape, "that of a tensor that is not empty")
    elif compression == "MEANSTD_16BIT" and not tensor.shape:
        raise ParameterError.of("x.shape", tensor.shape, "that of a tensor with dimensions")
    else:
        payload = _codec(compression).quantize(values.reshape(tensor.shape)).data
        buffer = _buffer(payload, values.size, compression)
    data = buffer.astype(buffer.dtype.newbyteorder("<"), copy=False).view(np.uint8)
    return _written(data, tensor.shape, tensor.dtype, compression, requires_grad)


@exact
def decode(message: BytesLike, *, limits: Limits | None = None) -> np.ndarray:
    """Return the tensor of a message, as ``deserialize_torch_tensor`` does.

    Parameters
    ----------
    message : bytes-like
        A protobuf ``Tensor``. If hivemind split it for streaming, the result of its
        ``combine_from_streaming``, which keeps the number of parts in ``chunks``.
    limits : Limits, optional
        Bounds on allocated memory; default ``Limits()``.

    Returns
    -------
    array
        Tensor in the dtype that the message states.

    Raises
    ------
    FormatError
        If the message is not a ``Tensor``, is the first part of one that was split, has a dtype
        that is no float, its buffer does not match its shape, or a number of its table or its
        statistics is not finite.
    """
    read = _read(message, limits)
    flat = _decoded(read)
    return flat.reshape(read.shape)


@exact
def to_frame(
    message: BytesLike, *, name: str | None = None, limits: Limits | None = None
) -> Frame:
    """Convert a message of dtype float32 to a frame of ``raw`` or `blockwise`.

    See `decode` for the parameters and errors; `name` is that of the tensor.

    Raises
    ------
    ParameterError
        If the message has another dtype.
    """
    read = _read(message, limits)
    if read.dtype != "float32":
        raise ParameterError.of("message", f"{read.dtype}, {read.compression}", "of float32")
    if read.compression in _CODECS:
        return checked_frame(_codec(read.compression), _payload(read), read.shape, name)
    dtype = "float16" if read.compression == "FLOAT16" else "float32"
    _check_buffer(read, ITEMSIZE[dtype] * read.n)
    return checked_frame(Raw.from_mapping({"dtype": dtype}), read.buffer, read.shape, name)


@exact
def from_frame(frame: FrameLike, *, limits: Limits | None = None) -> bytes:
    """Convert a frame of ``raw`` or `blockwise` to a message.

    Parameters
    ----------
    frame : Frame or bytes-like
        Frame of float32: ``raw`` with float32 or float16, or a kind of `blockwise` that hivemind
        has, with any code.
    limits : Limits, optional
        Bounds on the frame; default ``Limits()``.

    Raises
    ------
    ParameterError
        If the frame has another codec or dtype.
    FormatError
        If the bytes are damaged.
    """
    opened, codec = opened_frame(frame, limits, Raw, Blockwise)
    if isinstance(codec, Raw):
        plain, names = codec.dtype, {"float32": "NONE", "float16": "FLOAT16"}
        codec.unpack(opened.payload, opened.shape)
        data = opened.payload.data
    else:
        assert isinstance(codec, Blockwise)
        plain, names = str(codec.replaced(code="none")), {str(_codec(k)): k for k in _CODECS}
        data = codec.unpack(opened.payload, opened.shape).data
    if plain not in names or not (opened.size or isinstance(codec, Raw)):
        raise ParameterError.of("frame.codec", str(codec), "one whose numbers hivemind sends")
    compression = names[plain]
    if compression == "MEANSTD_16BIT" and not opened.shape:
        raise ParameterError.of("frame.shape", opened.shape, "that of a tensor with dimensions")
    if compression in _CODECS:
        data = _buffer(data, opened.size, compression)
    return _written(data, opened.shape, "float32", compression, False)


# --- buffers -------------------------------------------------------------------------------------


def _codec(compression: str) -> Blockwise:
    return Blockwise.from_mapping(_CODECS[compression])


def _buffer(payload: np.ndarray, n: int, compression: str) -> np.ndarray:
    """Return the buffer of a message with statistics, given the payload of `blockwise`."""
    if compression == "MEANSTD_16BIT":  # means and deviations follow the elements
        return np.roll(payload, 2 * n)
    if compression != "BLOCKWISE_8BIT":
        return np.concatenate((_count(256), payload))
    blocks = -(-n // _BLOCK)
    parts = (_count(blocks), _count(256), payload[: 4 * blocks], _dynamic(), payload[4 * blocks :])
    return np.concatenate(parts)


def _payload(message: _Message) -> np.ndarray:
    """Return the payload of `blockwise` of a message with statistics, or raise `FormatError`."""
    buffer, n = message.buffer, message.n
    if message.compression == "MEANSTD_16BIT":
        _check_buffer(message, 2 * n + 8 * _rows(message))
        return np.roll(buffer, -2 * n)
    if message.compression != "BLOCKWISE_8BIT":
        return np.concatenate(_table_and_codes(message))
    scales, table, codes = _blocks(message)
    if (table != _dynamic()).any():
        raise Unsupported("the table is not that of bitsandbytes")
    return np.concatenate((scales, codes))


def _table_and_codes(message: _Message) -> list[np.ndarray]:
    """Return the table and the codes of a message, as bytes."""
    return _parts(message, _count(256), [_TABLE_NBYTES])


def _blocks(message: _Message) -> list[np.ndarray]:
    """Return the scales, the table and the codes of a message with blocks, as bytes."""
    blocks = -(-message.n // _BLOCK)
    counts = np.concatenate((_count(blocks), _count(256)))
    return _parts(message, counts, [4 * blocks, _TABLE_NBYTES])


def _parts(message: _Message, counts: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Return the parts of a buffer that begins with these counts, and ends with the codes."""
    front = counts.size + sum(sizes)
    _check_buffer(message, front + message.n)
    if (message.buffer[: counts.size] != counts).any():
        raise Corrupt("the buffer has other numbers of blocks or table entries")
    return np.split(message.buffer[counts.size :], np.cumsum(sizes))


def _count(number: int) -> np.ndarray:
    """Return the bytes of a number of blocks or table entries, an int64."""
    return np.frombuffer(number.to_bytes(8, "little"), np.uint8)


def _dynamic() -> np.ndarray:
    """Return the bytes of the table of ``BLOCKWISE_8BIT``."""
    return ValueTable.of("dynamic8").values.astype("<f4").view(np.uint8)


def _check_buffer(message: _Message, expected: int) -> None:
    """Raise `FormatError` unless the buffer has the expected size."""
    if message.chunks > 1 and message.buffer.size < expected:
        raise Unsupported(f"one of {message.chunks} parts of a message; join the parts first")
    check_size("the buffer", message.buffer.size, expected)


def _rows(message: _Message) -> int:
    """Return the rows of a message of ``MEANSTD_16BIT``."""
    if not message.shape:
        raise Corrupt("MEANSTD_16BIT for a tensor without dimensions")
    return message.n // message.shape[-1] if message.n else 0


def _decoded(message: _Message) -> np.ndarray:
    """Return the flat values of a message."""
    buffer, n, dtype = message.buffer, message.n, NUMPY_DTYPES[message.dtype]
    if message.compression in _SIXTEEN_BITS and message.dtype == "bfloat16":
        raise Unsupported(f"bfloat16 with {message.compression}, which hivemind refuses")
    if message.compression == "BLOCKWISE_8BIT":
        scales, table, codes = _blocks(message)
        if (table != _dynamic()).any():
            return _converted(_of_blocks(scales, table, codes), dtype)
    if message.compression in _CODECS:
        codec, data = _codec(message.compression), _payload(message)
        if message.compression == "MEANSTD_16BIT" and message.dtype != "float32":
            codec.unpack(Payload(codec, {}, data, 8 * data.size), message.shape)
            return _unscaled(buffer, _rows(message), dtype)
        values = codec.decode(data, message.shape)
        return _converted(values.reshape(-1), dtype)
    if message.compression == "NONE":
        if message.dtype == "bfloat16" and buffer.size == 4 * n:
            return _converted(numbers_of(buffer, "<f4"), dtype)
        nbytes = ITEMSIZE[message.dtype]
        if message.dtype == "bfloat16" and message.chunks == 2 and buffer.size in _PART_SIZES:
            nbytes = 4  # the first of two parts of float32 is as long as all values in bfloat16
        _check_buffer(message, nbytes * n)
        bits = numbers_of(buffer, f"<u{ITEMSIZE[message.dtype]}")
        return bits.view(dtype)
    _check_buffer(message, 2 * n)
    if dtype == np.float32:
        return convert.from_16_bits(numbers_of(buffer, "<u2"), "float16")
    return _converted(numbers_of(buffer, "<f2"), dtype)


def _of_blocks(scales: np.ndarray, table: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return the float32 values of blocks with a table of their own."""
    largest, numbers = numbers_of(scales, "<f4"), numbers_of(table, "<f4")
    if not (np.isfinite(largest).all() and np.isfinite(numbers).all()):
        raise Corrupt("a largest magnitude or a number of the table is not finite")
    values = numbers[codes]
    whole = values.size // _BLOCK
    with np.errstate(over="ignore", under="ignore"):
        values[: whole * _BLOCK].reshape(-1, _BLOCK)[:] *= largest[:whole, None]
        values[whole * _BLOCK :] *= largest[whole:]
    return values


def _converted(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Convert values; a signaling NaN becomes a quiet one."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype)


def _unscaled(buffer: np.ndarray, rows: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the values of ``MEANSTD_16BIT``, with the arithmetic of their dtype."""
    if not rows:
        return np.empty(0, dtype)
    matrix = _converted(numbers_of(buffer[: -8 * rows], "<f2"), dtype).reshape(rows, -1)
    means, deviations = numbers_of(buffer[-8 * rows :], "<f4").reshape(2, rows, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        matrix *= deviations
        matrix += means
    return matrix.reshape(-1)


# --- protobuf ------------------------------------------------------------------------------------


def _written(
    buffer: np.ndarray,
    shape: tuple[int, ...],
    dtype: str,
    compression: str,
    requires_grad: bool,
) -> bytes:
    sizes = b"".join(map(leb128, shape))
    parts = [*_tagged(1, buffer), *_tagged(2, sizes)]
    if requires_grad:
        parts.append(bytes([3 << 3, 1]))
    parts += _tagged(4, dtype.encode())
    if number := COMPRESSIONS.index(compression):
        parts.append(bytes([5 << 3, number]))
    return joined(parts)


def _tagged(field: int, data: bytes | np.ndarray) -> list[bytes | np.ndarray]:
    """Return the parts of a field of bytes; none for no bytes."""
    return [bytes([field << 3 | _BYTES]) + leb128(len(data)), data] if len(data) else []


def _read(message: BytesLike, limits: Limits | None) -> _Message:
    """Read a message, whose buffer is not checked."""
    limits = Limits.or_default(limits)
    reader, fields = Reader(object_bytes(message, "message").data), dict[int, Any]()
    while reader.at < len(reader.data):
        start = reader.at
        field, wire = divmod(reader.leb128(), 8)
        if _FIELDS.get(field) != wire:
            raise Corrupt(f"a field {field} of wire type {wire}, which Tensor has not", start)
        if field in fields:
            raise Corrupt(f"a second field {field}", start)
        number = reader.leb128()
        fields[field] = number if wire == _VARINT else reader.take(number)
    number = fields.get(5, 0)
    if number >= len(COMPRESSIONS):
        raise Unsupported(f"compression {number} is not known")
    if fields.get(3, 0) > 1:
        raise Corrupt("requires_grad is neither 0 nor 1")
    name = bytes(fields.get(4, b"")).decode("ascii", "replace")
    if name not in FLOATS:
        raise Unsupported(f"dtype {name[:20]!r} is not a float")
    sizes, shape = Reader(fields.get(2, b"")), list[int]()
    while sizes.at < len(sizes.data):
        shape.append(sizes.leb128())
        if len(shape) > MAX_NDIM or shape[-1] >> 32:
            raise Corrupt("the shape has too many dimensions, or too large ones")
    try:
        _, n = checked_shape(tuple(shape), limits, name)
    except ParameterError as error:
        raise Corrupt(str(error)) from None
    buffer = np.frombuffer(fields.get(1, b""), np.uint8)
    chunks = fields.get(6, 0)
    return _Message(buffer, tuple(shape), n, name, COMPRESSIONS[number], chunks)
