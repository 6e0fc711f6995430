"""Dissect a frame: every field in the order of the bits, up to the first invalid field.

The fields of the header come from the generator that reads headers, those of the payload from the
codec. Only described symbols are decoded, and the memory does not depend on the others.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from gcodec.codec import Codec
from gcodec.codecs import by_id
from gcodec.errors import Corrupt, FormatError, ParameterError, Unsupported
from gcodec.fields.walker import FieldSpan, FieldWalker
from gcodec.frame import (
    CHECKSUM_NBYTES,
    Header,
    check_shape,
    crc32c,
    dtype_named,
    tag_of,
)
from gcodec.frame.header import HeaderField
from gcodec.limits import Limits
from gcodec.payload import Payload
from gcodec.wire import primitives
from gcodec.wire.params import Scalars
from gcodec.wire.primitives import Reader
from gcodec.wire.seek import SeekTable

_FLAGS = {
    primitives.HAS_NAME: "name",
    primitives.HAS_SEEK: "seek table",
    primitives.HAS_TAG: "tag",
}
_SEEK = {
    "length": "number of bits of the block",
    "advance": "number of elements up to the last value of the block",
    "sum": "sum over all preceding blocks",
    "state": "rANS state at the start of the block",
}
UNDECODED = "?? undecoded"


class Dissection:
    """The fields of one frame. A dissection can be iterated only once.

    Parameters
    ----------
    data : bytes-like
        All frames of a file.
    start : int
        Offset of the frame in bytes.
    most : int, optional
        Number of symbols of a string, and of entries of a table, that have a field of their own;
        default: all.
    first : int
        Bit of `data` from which on symbols have fields of their own.
    limits : Limits, optional
        Bounds on the tensor, beyond which the payload is not read; default ``Limits()``.
    key : bytes, optional
        Key that checks the tag.

    Attributes
    ----------
    end : int or None
        Offset of the byte after the frame, once the header has been read.
    name, dtype : str or None
        Name and dtype of the tensor, once they have been read.
    shape : tuple of int or None
        Shape of the tensor, once it has been read.
    codec : Codec or None
        Codec of the frame, once it has been read.
    totals : dict of str to int
        Number of bits so far, by kind.
    error : FormatError or None
        Error that ended the dissection, if any.
    bad : int
        Bit of `data` at which the error occurred.
    """

    def __init__(
        self,
        data: bytes | bytearray | memoryview,
        start: int = 0,
        *,
        most: int | None = None,
        first: int = 0,
        limits: Limits | None = None,
        key: bytes | None = None,
    ) -> None:
        self._reader = Reader(data, start)
        self._most, self._first, self._key = most, first, key
        self._limits = Limits.or_default(limits)
        self.start = start
        self.end: int | None = None
        self.name: str | None = None
        self.dtype: str | None = None
        self.shape: tuple[int, ...] | None = None
        self.codec: Codec | None = None
        self.totals: dict[str, int] = Counter()
        self.error: FormatError | None = None
        self.bad = 8 * start
        self._cls: type[Codec] | None = None
        self._unknown: FormatError | None = None
        self._scalars: Scalars = {}
        self._table: SeekTable | None = None

    def __iter__(self) -> Iterator[FieldSpan]:
        """Yield the fields in order up to the first error; merge fields of several symbols."""
        last: FieldSpan | None = None
        for field in self._fields():
            self.bad = field.first + field.nbits
            for kind, nbits in field.split.items():
                self.totals[kind] += nbits
            if last and last.symbols > 1 and field.symbols > 1 and last.name == field.name:
                last = _joined(last, field)
                continue
            if last:
                yield last
            last = field
        if last:
            yield last

    def _fields(self) -> Iterator[FieldSpan]:
        header = Header()
        try:
            yield from self._header(header)
            yield from self._payload(header)
            yield from self._trailer(header)
        except _Bad as bad:
            self.error, self.bad = bad.error, bad.at
        except FormatError as error:
            self.error = error
        if self.error is None and self.codec is None:
            self.error, self.bad = self._unknown, 8 * (self.start + 5)

    # --- header

    def _header(self, header: Header) -> Iterator[FieldSpan]:
        starts: dict[str, int] = {}
        for header_field in header.fields(self._reader):
            starts.setdefault(header_field.name, 8 * header_field.start)
            yield from self._header_fields(header_field, header)
        self.shape = header.shape
        if self._cls is not None:
            with _at(starts["parameters"]):
                assert self.dtype is not None
                codec, self._scalars = header.codec_and_scalars(self.dtype)
            self.codec = codec._with_shape(self.shape)
        with _at(starts.get("size", 8 * self._reader.at)):
            check_shape(self.shape, self.start + 8)
        if header.seek is not None:
            with _at(starts["seek table"]):
                assert self.codec is not None
                count = self.codec.seek_count(math.prod(self.shape))
                self._table = header.seek.table(count)
                self._table.check(self.codec.seek_blocks, count, header.nbits)
        tag = primitives.TAG_NBYTES * header.has_tag
        whole = self._reader.data[self.start : self._reader.at]
        covered = "the preceding header bytes"
        yield self._checksum("header checksum", "header", crc32c(whole), covered)
        self.end = self._reader.at + header.payload_nbytes + CHECKSUM_NBYTES + tag

    def _header_fields(self, header_field: HeaderField, header: Header) -> Iterator[FieldSpan]:
        first, end, value = 8 * header_field.start, 8 * header_field.end, header_field.value
        if header_field.name == "seek table":
            yield from self._seek_table(header_field)
        elif header_field.name not in ("parameters", "scalars"):
            value, meaning, number = self._described(header_field, header)
            yield _field("header", header_field.name, first, end - first, value, meaning, number)
        elif self._cls is not None:
            if header_field.name == "parameters":
                declared = self._cls.parameters_in(value)
            else:
                with _at(8 * self.start):
                    try:
                        codec = self._cls.from_header(bytes(header.parameters))
                    except ParameterError as error:
                        raise Corrupt(f"the parameters do not fit together: {error}") from None
                declared = codec.scalars_in(value)
            for field, start, stop, number in declared:
                text = field.kind.text(number) if isinstance(number, tuple) else number
                bits = first + 8 * start, 8 * (stop - start)
                yield _field("header", field.name, *bits, text, field.meaning)
        else:
            yield from _gap(first, end, "header", header_field.name)

    def _described(
        self, header_field: HeaderField, header: Header
    ) -> tuple[object, str, int | None]:
        """Return value, meaning and number of a field of the header."""
        value = header_field.value
        match header_field.name:
            case "magic":
                return str(value, "ascii"), "first bytes of every frame", None
            case "version":
                return value, "version of the frame format", None
            case "flags":
                present = [text for flag, text in _FLAGS.items() if value & flag]
                return value, ", ".join(present) or "nothing optional", None
            case "codec":
                try:
                    self._cls = by_id(value)
                except Unsupported as error:
                    self._unknown = error
                    return value, "not known to this release", None
                return value, self._cls.name, None
            case "dtype":
                self.dtype = dtype_named(value, header_field.start, self._cls)
                return value, self.dtype, None
            case "ndim":
                return value, "dimensions", None
            case "size":
                return value, "elements", len(header.shape) - 1
            case "name":
                self.name = header.decoded_name()
                return self.name, "name of the tensor", None
            case "payload bits":
                return value, f"{-(-value // 8):,} bytes", None
        return value, "bytes" if header_field.name.endswith("length") else "", None

    def _seek_table(self, header_field: HeaderField) -> Iterator[FieldSpan]:
        first, section = 8 * header_field.start, header_field.value
        head = Reader(self._reader.data, header_field.start)
        for name, meaning in (
            ("log2 of a block", f"blocks of 2^{section.log2_block} {section.blocks}"),
            ("width", "bytes of a number"),
            ("blocks", "number of blocks"),
        ):
            start = 8 * head.at
            value = head.leb128() if name == "blocks" else head.byte()
            yield _field("header", name, start, 8 * head.at - start, value, meaning)
        at, left = 8 * head.at, self._most
        for part in section.parts():
            here = first + 8 * part.at
            if here + 8 * part.nbytes <= self._first:
                continue
            if left == 0:
                break
            yield from _skipped(at, here)
            at, left = here + 8 * part.nbytes, None if left is None else left - 1
            meaning = _SEEK[part.name.partition(" ")[0]]
            yield _field("header", part.name, here, at - here, part.value, meaning, part.block)
        yield from _skipped(at, 8 * header_field.end)

    # --- payload

    def _payload(self, header: Header) -> Iterator[FieldSpan]:
        nbits, reader = header.nbits, self._reader
        start, nbytes = 8 * reader.at, header.payload_nbytes
        available = min(nbytes, len(reader.data) - reader.at)
        data = np.frombuffer(reader.data, np.uint8, available, reader.at)
        walk = FieldWalker(
            data, min(nbits, 8 * available), self._most, max(self._first - start, 0)
        )
        undecoded = self.codec is None
        if self.codec is None:
            yield from _gap(start, start + walk.end)
        else:
            assert self.dtype is not None and self.shape is not None
            n, nbytes_each = math.prod(self.shape), primitives.ITEMSIZE[self.dtype]
            self._limits.check("the frame", n, n * nbytes_each)
            payload = Payload(self.codec, self._scalars, data, walk.end, self._table)
            end = 0
            try:
                for span in self.codec._describe(payload, n, walk):
                    assert span.first >= end, f"{self.codec} describes bit {span.first} twice"
                    undecoded |= span.first > end
                    yield from _gap(start + end, start + span.first)
                    yield span._replace(first=start + span.first)
                    end = span.first + span.nbits
            except FormatError as error:
                raise _Bad(error, start + walk.at) from None
            undecoded |= end < walk.end
            yield from _gap(start + end, start + walk.end)
        reader.take(nbytes)
        if fill := -nbits % 8:
            value = int(data[-1]) & (1 << fill) - 1
            if value:
                raise _Bad(Corrupt("a padding bit is not zero"), start + nbits)
            yield _field(
                "payload", "fill", start + nbits, fill, 0, "zeros to a whole byte", kind="pad"
            )
        if self.codec is not None and not undecoded and not walk.skipped:
            try:  # an error that only all fields together reveal
                self.codec._unpack(payload, n)
            except FormatError as error:
                raise _Bad(error, start + 8 * (error.offset or 0)) from None

    def _trailer(self, header: Header) -> Iterator[FieldSpan]:
        reader, nbytes = self._reader, header.payload_nbytes
        payload = reader.data[reader.at - nbytes : reader.at]
        yield self._checksum("payload checksum", "behind", crc32c(payload), "the payload")
        if header.has_tag:
            signed, at = reader.data[self.start : reader.at], reader.at
            tag = bytes(reader.take(primitives.TAG_NBYTES))
            meaning = "BLAKE2b of the preceding bytes of the frame; not checked without its key"
            if self._key is not None:
                if tag != tag_of(self._key, [signed]):
                    raise _Bad(Corrupt("the frame does not bear the tag of this key"), 8 * at)
                meaning = "BLAKE2b of the preceding bytes of the frame: correct"
            yield _field("behind", "tag", 8 * at, 8 * len(tag), tag.hex(), meaning)

    def _checksum(self, name: str, part: str, expected: bytes, covered: str) -> FieldSpan:
        at = self._reader.at
        checksum = bytes(self._reader.take(CHECKSUM_NBYTES))
        value = f"{int.from_bytes(expected, 'little'):08x}"
        if checksum != expected:
            raise _Bad(Corrupt(f"the {name} is wrong: it should be {value}"), 8 * at)
        meaning = f"CRC-32C of {covered}: correct"
        return _field(part, name, 8 * at, 8 * CHECKSUM_NBYTES, value, meaning)


def _field(
    part: str,
    name: str,
    first: int,
    nbits: int,
    value: object,
    meaning: str = "",
    number: int | None = None,
    kind: str = "header",
) -> FieldSpan:
    """Return a field whose bits are of one kind."""
    return FieldSpan(kind, name, first, nbits, {kind: nbits}, value, meaning, number, part=part)


def _gap(
    first: int, end: int, part: str = "payload", name: str = "payload"
) -> Iterator[FieldSpan]:
    """Yield the field of bits that no codec describes, if there are any."""
    if first < end:
        yield _field(part, name, first, end - first, None, UNDECODED, kind="undecoded")


def _skipped(first: int, end: int) -> Iterator[FieldSpan]:
    """Yield one field for all entries of a seek table between two bits, if there are any."""
    if first < end:
        yield _field("header", "seek table", first, end - first, None)._replace(symbols=2)


def _joined(one: FieldSpan, other: FieldSpan) -> FieldSpan:
    """Return one field for the symbols of two."""
    split = Counter(one.split)
    split.update(other.split)
    return one._replace(
        nbits=one.nbits + other.nbits, symbols=one.symbols + other.symbols, split=split
    )


class _Bad(Exception):
    """An error, and the bit of the data at which it occurred."""

    def __init__(self, error: FormatError, at: int) -> None:
        super().__init__(error)
        self.error, self.at = error, at


@contextlib.contextmanager
def _at(bit: int) -> Iterator[None]:
    """Make a `FormatError` point to a bit."""
    try:
        yield
    except FormatError as error:
        raise _Bad(error, bit) from None
