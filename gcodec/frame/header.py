"""The frame header: its fields in the order of their bytes.

    magic "GCF" · version · flags · codec · dtype · ndim · sizes · [name] · parameters · scalars ·
    payload bits · [seek table]

The header's checksum follows the fields. Source: docs/wire-format.md, part A.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from gcodec.codec import Codec
from gcodec.codecs import by_id
from gcodec.errors import Corrupt, Unsupported
from gcodec.payload import Payload
from gcodec.wire import primitives
from gcodec.wire.params import Scalars
from gcodec.wire.primitives import Reader, leb128
from gcodec.wire.seek import Section

_DTYPE_NAMES = {code: name for name, code in primitives.DTYPE_CODES.items()}


class HeaderField(NamedTuple):
    """A field that has been read, with its position.

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


class Header:
    """Header fields that have been read.

    Attributes
    ----------
    flags, codec_id, dtype_code, nbits : int
        `nbits` is the number of bits of the payload.
    shape : tuple of int
    name, parameters, scalars : memoryview
        Bytes of the fields; without a name, `name` is None.
    seek : Section or None
        Unparsed seek table.
    """

    flags: int
    codec_id: int
    dtype_code: int
    shape: tuple[int, ...] = ()
    name: memoryview | None = None
    parameters: memoryview
    scalars: memoryview
    nbits: int
    seek: Section | None = None

    @classmethod
    def read(cls, reader: Reader) -> Header:
        """Read a header, without its checksum; raise `FormatError` if it is invalid."""
        header = cls()
        for _ in header._read(reader):
            pass
        return header

    def fields(self, reader: Reader) -> Iterator[HeaderField]:
        """Read a header as `read` does, but field by field into an empty header."""
        start = reader.at
        for name, value in self._read(reader):
            yield HeaderField(name, start, reader.at, value)
            start = reader.at

    def _read(self, reader: Reader) -> Iterator[tuple[str, object]]:
        """Yield the name and the value of each field after it has been read."""
        start, magic = reader.at, primitives.MAGIC
        if not magic.startswith(bytes(reader.data[start : start + len(magic)])):
            raise Corrupt("not a frame: the bytes do not begin with GCF", offset=start)
        yield "magic", bytes(reader.take(len(magic)))  # or raise Truncated
        version = reader.byte()
        if version != primitives.VERSION:
            text = f"frame version {version}; this release reads {primitives.VERSION}"
            raise Unsupported(text, reader.at - 1)
        yield "version", version
        self.flags = flags = reader.byte()
        if flags & ~(primitives.HAS_NAME | primitives.HAS_SEEK | primitives.HAS_TAG):
            raise Unsupported(f"flags {flags:#04x} are not known to this release", reader.at - 1)
        yield "flags", flags
        self.codec_id = reader.byte()
        yield "codec", self.codec_id
        self.dtype_code = reader.byte()
        yield "dtype", self.dtype_code
        ndim = reader.byte()
        if ndim > primitives.MAX_NDIM:
            raise Corrupt(f"ndim {ndim} is above {primitives.MAX_NDIM}", reader.at - 1)
        yield "ndim", ndim
        for _ in range(ndim):
            self.shape += (reader.leb128(),)
            yield "size", self.shape[-1]
        if flags & primitives.HAS_NAME:
            length = reader.leb128()
            yield "name length", length
            self.name = reader.take(length)
            yield "name", self.name
        length = reader.byte()
        yield "parameters length", length
        self.parameters = reader.take(length)
        yield "parameters", self.parameters
        length = reader.byte()
        yield "scalars length", length
        self.scalars = reader.take(length)
        yield "scalars", self.scalars
        self.nbits = reader.leb128()
        yield "payload bits", self.nbits
        if flags & primitives.HAS_SEEK:
            codec, _ = self.codec_and_scalars()
            if codec.seek_blocks is None:
                raise Corrupt(f"a seek table, but {codec} has no blocks", reader.at)
            self.seek = Section.take(reader, codec.seek_blocks)
            yield "seek table", self.seek

    def decoded_name(self) -> str | None:
        """Return the tensor's name, if there is one; raise `Corrupt` if it is not UTF-8."""
        try:
            return None if self.name is None else str(self.name, "utf-8")
        except UnicodeDecodeError as error:
            raise Corrupt("the name is not UTF-8") from error

    @property
    def has_tag(self) -> bool:
        """Whether a tag ends the frame."""
        return bool(self.flags & primitives.HAS_TAG)

    @property
    def payload_nbytes(self) -> int:
        """Size of the payload."""
        return -(-self.nbits // 8)

    def codec_and_scalars(self, dtype: str = "float32") -> tuple[Codec, Scalars]:
        """Return the codec of the message, and the scalars of the message.

        Parameters
        ----------
        dtype : str
            Dtype of the tensor; see `dtype_named`.

        Raises
        ------
        FormatError
            If the codec is unknown, or its parameters are invalid.
        """
        fields = bytes(self.parameters), bytes(self.scalars)
        codec, scalars = by_id(self.codec_id)._of_header(*fields, dtype)
        return codec, scalars.copy()


def write(
    codec: Codec,
    dtype: str,
    shape: tuple[int, ...],
    name: str | None,
    payload: Payload,
    has_tag: bool,
) -> bytes:
    """Return the bytes of the header of a frame, without its checksum."""
    parameters, scalars = codec.write_parameters(), codec.write_scalars(payload.scalars)
    flags = primitives.HAS_NAME * (name is not None) | primitives.HAS_TAG * has_tag
    flags |= primitives.HAS_SEEK * (payload.seek is not None)
    dtype_code = primitives.DTYPE_CODES[dtype]
    fixed = bytes((primitives.VERSION, flags, codec.id, dtype_code, len(shape)))
    parts = [primitives.MAGIC, fixed, *map(leb128, shape)]
    if name is not None:
        text = primitives.encode_name(name)
        parts += [leb128(len(text)), text]
    for fields in (parameters, scalars):
        parts += [bytes((len(fields),)), fields]
    parts.append(leb128(payload.nbits))
    if payload.seek is not None:
        parts.append(payload.seek.to_bytes())
    return b"".join(parts)


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
        If the code is unknown, or the codec does not accept the dtype.
    """
    if code not in _DTYPE_NAMES:
        raise Unsupported(f"dtype {code} is not known to this release", offset)
    dtype = _DTYPE_NAMES[code]
    if dtype in primitives.UNCONVERTED and codec is not None and not codec.accepts_all_dtypes:
        text = f"dtype {code}, {dtype}, is not known to this release in frames of {codec.name}"
        raise Unsupported(text, offset)
    return dtype


def check_shape(
    shape: tuple[int, ...], offset: int | None = None, named: str = "such a shape"
) -> None:
    """Raise `Corrupt`, with a byte offset if known, unless an empty array can have this shape."""
    if 0 in shape and math.prod(filter(None, shape)) >> primitives.LOG2_ADDRESSABLE:
        raise Corrupt(f"no array has {named}", offset)
