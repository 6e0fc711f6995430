"""The frame header as a table of fields: one table writes, reads and describes the header.

    magic "GCF" · version · flags · codec · dtype · ndim · sizes · [name] · parameters · scalars ·
    payload bits · [seek table]

The header's checksum follows the table. Source: docs/wire-format.md, part A.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from gcodec.codec import Codec
from gcodec.codecs import by_id
from gcodec.errors import Corrupt, ParameterError, Unsupported
from gcodec.wire import primitives
from gcodec.wire.primitives import Reader, leb128
from gcodec.wire.seek import Section, SeekTable

Values: TypeAlias = dict[str, list[Any]]
"""Values of the header fields by name: a list each, empty for an absent optional field."""

_ADDRESSABLE = 1 << 59  # elements of the largest array that NumPy creates, even an empty one
_DTYPE_NAMES = {code: name for name, code in primitives.DTYPE_CODES.items()}


class Entry(NamedTuple):
    """Field of the table.

    Attributes
    ----------
    name : str
    read : callable
        Function that reads one value, given the values of the preceding fields. It raises
        `FormatError`.
    write : callable
        Function that returns the bytes of one value.
    count : callable
        Function that returns the number of values, given the values of the preceding fields.
    """

    name: str
    read: Callable[[Reader, Values], Any]
    write: Callable[[Any], bytes]
    count: Callable[[Values], int] = lambda values: 1


class Placed(NamedTuple):
    """Field value and its position.

    Attributes
    ----------
    name : str
        Name of the field.
    start, end : int
        First byte, and end (exclusive).
    value : object
    """

    name: str
    start: int
    end: int
    value: Any


def write(values: Values) -> bytes:
    """Return the bytes of a header, without its checksum."""
    return b"".join([entry.write(value) for entry in FIELDS for value in values[entry.name]])


def read(reader: Reader) -> Values:
    """Read a header, without its checksum; raise `FormatError` if it is invalid."""
    values: Values = {}
    for entry in FIELDS:
        values[entry.name] = [entry.read(reader, values) for _ in range(entry.count(values))]
    return values


def fields_of(reader: Reader, values: Values) -> Iterator[Placed]:
    """Read a header as `read` does, but field by field; add each value to `values`."""
    for entry in FIELDS:
        values[entry.name] = []
        for _ in range(entry.count(values)):
            start = reader.at
            value = entry.read(reader, values)
            values[entry.name].append(value)
            yield Placed(entry.name, start, reader.at, value)


def codec_of(values: Values, dtype: str = "float32") -> tuple[Codec, dict[str, Any]]:
    """Return the codec of a message, and the scalars of the message.

    Parameters
    ----------
    values : Values
        Header fields, at least up to the scalars.
    dtype : str
        Dtype of the tensor; see `dtype_named`.

    Raises
    ------
    FormatError
        If the codec is unknown, or its parameters are invalid.
    """
    codec_class = by_id(values["codec"][0])
    try:
        codec = codec_class.from_header(bytes(values["parameters"][0]))
        scalars = codec.read_scalars(values["scalars"][0])
        codec = codec.of_message(scalars)._with_dtype(dtype)
    except ParameterError as error:
        raise Corrupt(f"the parameters do not fit together: {error}") from None
    if unresolved := codec.unresolved():
        raise Corrupt(f"{unresolved[0]}: the frame does not state its value")
    return codec, scalars


def dtype_named(code: int, offset: int, codec: type[Codec] | None = None) -> str:
    """Return the name of a dtype.

    Parameters
    ----------
    code : int
        Code in the header.
    offset : int
        Byte offset of the code, for the error message.
    codec : subclass of Codec, optional
        Codec of the frame, to check that it supports the dtype.

    Raises
    ------
    Unsupported
        If the code is unknown, or the codec takes no integers.
    """
    if code not in _DTYPE_NAMES:
        raise Unsupported(f"dtype {code} is not known to this release", offset)
    dtype = _DTYPE_NAMES[code]
    if dtype in primitives.INTEGERS and codec is not None and not codec.accepts_integers:
        text = f"dtype {code}, {dtype}, is not known to this release in frames of {codec.name}"
        raise Unsupported(text, offset)
    return dtype


def check_shape(shape: tuple[int, ...], offset: int) -> None:
    """Raise `Corrupt`, with a byte offset, if no empty array can have this shape."""
    if 0 in shape and math.prod(filter(None, shape)) >= _ADDRESSABLE:
        raise Corrupt("no array has such a shape", offset)


def read_name(raw: memoryview) -> str:
    """Return the tensor's name; raise `Corrupt` if it is not UTF-8."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as error:
        raise Corrupt("the name is not UTF-8") from error


def _read_magic(reader: Reader, values: Values) -> bytes:
    magic, start = primitives.MAGIC, reader.at
    if not magic.startswith(bytes(reader.data[start : start + len(magic)])):
        raise Corrupt("not a frame: the bytes do not begin with GCF", offset=start)
    return bytes(reader.take(len(magic)))  # or raise Truncated


def _read_version(reader: Reader, values: Values) -> int:
    version = reader.uint(1)
    if version != primitives.VERSION:
        text = f"frame version {version}; this release reads {primitives.VERSION}"
        raise Unsupported(text, reader.at - 1)
    return version


def _read_flags(reader: Reader, values: Values) -> int:
    flags = reader.uint(1)
    if flags & ~(primitives.HAS_NAME | primitives.HAS_SEEK | primitives.HAS_TAG):
        raise Unsupported(f"flags {flags:#04x} are not known to this release", reader.at - 1)
    return flags


def _read_ndim(reader: Reader, values: Values) -> int:
    ndim = reader.uint(1)
    if ndim > primitives.MAX_NDIM:
        raise Corrupt(f"ndim {ndim} is above {primitives.MAX_NDIM}", reader.at - 1)
    return ndim


def _read_section(reader: Reader, values: Values) -> Section:
    codec, _ = codec_of(values)
    if codec.seek_blocks is None:
        raise Corrupt(f"a seek table, but {codec} has no blocks", reader.at)
    return Section.take(reader, codec.seek_blocks)


def _read_byte(reader: Reader, values: Values) -> int:
    return reader.uint(1)


def _read_leb128(reader: Reader, values: Values) -> int:
    return reader.leb128()


def _take(length: str) -> Callable[[Reader, Values], memoryview]:
    """Return a function that reads as many bytes as the field named `length` states."""
    return lambda reader, values: reader.take(values[length][0])


def _write_byte(value: int) -> bytes:
    return bytes([value])


def _if_flag(flag: int) -> Callable[[Values], int]:
    return lambda values: int(bool(values["flags"][0] & flag))


FIELDS = (
    Entry("magic", _read_magic, bytes),
    Entry("version", _read_version, _write_byte),
    Entry("flags", _read_flags, _write_byte),
    Entry("codec", _read_byte, _write_byte),
    Entry("dtype", _read_byte, _write_byte),
    Entry("ndim", _read_ndim, _write_byte),
    Entry("size", _read_leb128, leb128, lambda values: values["ndim"][0]),
    Entry("name length", _read_leb128, leb128, _if_flag(primitives.HAS_NAME)),
    Entry("name", _take("name length"), bytes, _if_flag(primitives.HAS_NAME)),
    Entry("parameters length", _read_byte, _write_byte),
    Entry("parameters", _take("parameters length"), bytes),
    Entry("scalars length", _read_byte, _write_byte),
    Entry("scalars", _take("scalars length"), bytes),
    Entry("payload bits", _read_leb128, leb128),
    Entry("seek table", _read_section, SeekTable.to_bytes, _if_flag(primitives.HAS_SEEK)),
)
"""All header fields, in order."""
