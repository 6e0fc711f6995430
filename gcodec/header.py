"""The header of a frame as a table of fields, by which it is written, read and shown.

    magic "GCF" · version · flags · codec · dtype · ndim · sizes · [name] · parameters · scalars ·
    payload bits · [seek table]

Its checksum comes behind. Source: docs/wire-format.md, part A.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gcodec.codec import Codec
from gcodec.codecs import by_id
from gcodec.errors import Corrupt, ParameterError, Unsupported
from gcodec.wire import primitives
from gcodec.wire.primitives import Reader, leb128
from gcodec.wire.seek import Section, SeekTable

Values = dict[str, list[Any]]
"""What a header holds, by the names of its fields."""


class Entry(NamedTuple):
    """A field of the table.

    Attributes
    ----------
    name : str
    read : callable
        Reads the value, given what comes before it; raises `FormatError`.
    write : callable
        Returns the bytes of a value.
    times : callable
        Tells how often the field comes, given what comes before it. None: once.
    """

    name: str
    read: Callable[[Reader, Values], Any]
    write: Callable[[Any], bytes]
    times: Callable[[Values], int] | None = None


class Placed(NamedTuple):
    """A field where it lies.

    Attributes
    ----------
    name : str
    start, end : int
        Its first byte, and the byte behind it.
    value : Any
    """

    name: str
    start: int
    end: int
    value: Any


def write(values: Values) -> bytes:
    """Return the bytes of a header, without its checksum."""
    return b"".join([entry.write(value) for entry in FIELDS for value in values[entry.name]])


def read(reader: Reader) -> Values:
    """Read a header, without its checksum.

    Raises
    ------
    FormatError
    """
    known: Values = {}
    for entry in FIELDS:
        times = 1 if entry.times is None else entry.times(known)
        known[entry.name] = [entry.read(reader, known) for _ in range(times)]
    return known


def fields_of(reader: Reader, known: Values) -> Iterator[Placed]:
    """Read a header field by field, as `read` does, and put into `known` what is found."""
    for entry in FIELDS:
        found = known[entry.name] = []
        for _ in range(1 if entry.times is None else entry.times(known)):
            start = reader.at
            found.append(entry.read(reader, known))
            yield Placed(entry.name, start, reader.at, found[-1])


def codec_of(known: Values, dtype: str = "float32") -> tuple[Codec, dict[str, Any]]:
    """Return the codec of a message, and the message's scalars.

    Parameters
    ----------
    known : Values
        The header up to and with the scalars.
    dtype : str
        Dtype of the tensor, where it is already known to be one of `wire.DTYPE_CODES`.

    Raises
    ------
    FormatError
    """
    cls = by_id(known["codec"][0])
    try:
        codec = cls.from_header(bytes(known["parameters"][0]))
        values = codec.read_scalars(known["scalars"][0])
        codec = codec.of_message(values)._of_dtype(dtype)
    except ParameterError as error:
        raise Corrupt(f"the parameters do not fit together: {error}") from None
    if unresolved := codec.unresolved():
        raise Corrupt(f"{unresolved[0]}: the frame does not tell it")
    return codec, values


def _read_magic(reader: Reader, known: Values) -> bytes:
    start = reader.at
    found = bytes(reader.data[start : start + len(primitives.MAGIC)])
    if not primitives.MAGIC.startswith(found):
        raise Corrupt("this is no frame: it does not begin with GCF", offset=start)
    return bytes(reader.take(len(primitives.MAGIC)))


def _read_version(reader: Reader, known: Values) -> int:
    start = reader.at
    version = reader.uint(1)
    if version != primitives.VERSION:
        raise Unsupported(
            f"frame version {version}; this release reads {primitives.VERSION}", start
        )
    return version


def _read_flags(reader: Reader, known: Values) -> int:
    start = reader.at
    flags = reader.uint(1)
    if flags & ~(primitives.HAS_NAME | primitives.HAS_SEEK | primitives.HAS_TAG):
        raise Unsupported(f"flags {flags:#04x} are not known to this release", start)
    return flags


def _read_ndim(reader: Reader, known: Values) -> int:
    start = reader.at
    ndim = reader.uint(1)
    if ndim > primitives.MAX_NDIM:
        raise Corrupt(f"ndim {ndim} is above {primitives.MAX_NDIM}", start)
    return ndim


def _read_section(reader: Reader, known: Values) -> Section:
    codec, _ = codec_of(known)
    if codec.seek_blocks is None:
        raise Corrupt(f"a seek table, but {codec} has no blocks", reader.at)
    return Section.take(reader, codec.seek_blocks)


def _read_byte(reader: Reader, known: Values) -> int:
    return reader.uint(1)


def _read_leb128(reader: Reader, known: Values) -> int:
    return reader.leb128()


def _take(length: str) -> Callable[[Reader, Values], memoryview]:
    """Read as many bytes as a field before tells."""
    return lambda reader, known: reader.take(known[length][0])


def _write_byte(value: int) -> bytes:
    return bytes([value])


def _if_flag(flag: int) -> Callable[[Values], int]:
    return lambda known: int(bool(known["flags"][0] & flag))


FIELDS = (
    Entry("magic", _read_magic, bytes),
    Entry("version", _read_version, _write_byte),
    Entry("flags", _read_flags, _write_byte),
    Entry("codec", _read_byte, _write_byte),
    Entry("dtype", _read_byte, _write_byte),
    Entry("ndim", _read_ndim, _write_byte),
    Entry("size", _read_leb128, leb128, lambda known: known["ndim"][0]),
    Entry("name length", _read_leb128, leb128, _if_flag(primitives.HAS_NAME)),
    Entry("name", _take("name length"), bytes, _if_flag(primitives.HAS_NAME)),
    Entry("parameters length", _read_byte, _write_byte),
    Entry("parameters", _take("parameters length"), bytes),
    Entry("scalars length", _read_byte, _write_byte),
    Entry("scalars", _take("scalars length"), bytes),
    Entry("payload bits", _read_leb128, leb128),
    Entry("seek table", _read_section, SeekTable.to_bytes, _if_flag(primitives.HAS_SEEK)),
)
"""All of it, in order."""
