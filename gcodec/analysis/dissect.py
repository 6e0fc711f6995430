"""The fields of a frame, bit by bit and in order, up to the first invalid one.

The fields of the header come from the table that reads and writes headers, those of the payload
from the codec. The dissection decodes only the fields that it reports one by one, so its memory
does not depend on the size of the tensor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gcodec.analysis.frame_fields import (
    Field,
    field_of,
    joined,
    payload_field,
    skipped,
    undecoded,
)
from gcodec.codec import Codec
from gcodec.codecs import by_id
from gcodec.errors import Corrupt, FormatError, ParameterError, Unsupported
from gcodec.frame import (
    CHECKSUM_NBYTES,
    check_shape,
    crc32c,
    dtype_named,
    header,
    read_name,
    tag_of,
)
from gcodec.frame.header import Placed, Values
from gcodec.inspect.walker import FieldWalker
from gcodec.limits import Limits
from gcodec.payload import Payload
from gcodec.wire import primitives
from gcodec.wire.params import ReadField
from gcodec.wire.primitives import Reader
from gcodec.wire.seek import SeekTable

_FLAGS = {
    primitives.HAS_NAME: "name",
    primitives.HAS_SEEK: "seek table",
    primitives.HAS_TAG: "tag",
}


class Dissection:
    """The fields of one frame; a caller iterates over them once.

    Parameters
    ----------
    data : bytes-like
        The bytes of a file, which may contain several frames.
    start : int
        First byte of the frame.
    most : int, optional
        Number of symbols of a string, or of entries of a table, that are reported one by one.
        Default: all.
    first : int
        First bit of `data` after which symbols and entries are reported one by one.
    limits : Limits, optional
        Largest tensor whose payload is dissected. Default: ``Limits()``.
    key : bytes, optional
        Key of the authentication tag. Without it the tag is not checked.

    Attributes
    ----------
    end : int or None
        Byte after the frame; None before the header is read.
    name, dtype : str or None
        Name and dtype of the tensor; None before they are read.
    shape : tuple of int or None
        Shape of the tensor; None before the header is read.
    codec : Codec or None
        Codec of the frame; None before the header is read, and for unknown codecs.
    totals : dict of str to int
        Number of bits of each kind so far.
    error : FormatError or None
        Error that ended the iteration.
    bad : int
        First bit of `data` that is invalid, if there is an error.
    """

    def __init__(
        self,
        data: Any,
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
        self.totals: dict[str, int] = {}
        self.error: FormatError | None = None
        self.bad = 8 * start
        self._cls: type[Codec] | None = None
        self._unknown: FormatError | None = None
        self._scalars: dict[str, Any] = {}
        self._table: SeekTable | None = None

    def __iter__(self) -> Iterator[Field]:
        """Yield the valid fields in order; join consecutive summaries of the same name."""
        pending: Field | None = None
        for field in self._fields():
            self.bad = field.first + field.nbits
            for kind, nbits in field.split.items():
                self.totals[kind] = self.totals.get(kind, 0) + nbits
            if pending is None:
                pending = field
            elif pending.symbols > 1 and field.symbols > 1 and pending.name == field.name:
                pending = joined(pending, field)
            else:
                yield pending
                pending = field
        if pending is not None:
            yield pending

    def _fields(self) -> Iterator[Field]:
        values: Values = {}
        try:
            yield from self._header(values)
            yield from self._payload(values)
            yield from self._trailer(values)
        except _LocatedError as located:
            self.error, self.bad = located.error, located.bit
        except FormatError as error:
            self.error = error
        if self.error is None and self.codec is None:
            self.error, self.bad = self._unknown, 8 * (self.start + 5)

    # --- header

    def _header(self, values: Values) -> Iterator[Field]:
        starts: dict[str, int] = {}
        for placed in header.fields_of(self._reader, values):
            starts.setdefault(placed.name, 8 * placed.start)
            yield from self._header_field(placed, values)
        self.shape = tuple(values["size"])
        if self._cls is not None:
            with _locate(starts["parameters"]):
                assert self.dtype is not None
                codec, self._scalars = header.codec_of(values, self.dtype)
            self.codec = codec._with_shape(self.shape)
        with _locate(starts.get("size", 8 * self._reader.at)):
            check_shape(self.shape, self.start + 8)
        nbits = values["payload bits"][0]
        for section in values["seek table"]:
            with _locate(starts["seek table"]):
                assert self.codec is not None
                count = self.codec.seek_count(math.prod(self.shape))
                self._table = section.table(count)
                self._table.check(self.codec.seek_blocks, count, nbits)
        tag_nbytes = primitives.TAG_NBYTES * bool(values["flags"][0] & primitives.HAS_TAG)
        header_bytes = self._reader.data[self.start : self._reader.at]
        yield self._checksum("header checksum", "header", crc32c(header_bytes), "of all before")
        self.end = self._reader.at + -(-nbits // 8) + CHECKSUM_NBYTES + tag_nbytes

    def _header_field(self, placed: Placed, values: Values) -> Iterator[Field]:
        name, first, end, value = placed.name, 8 * placed.start, 8 * placed.end, placed.value
        if name in ("parameters", "scalars") and self._cls is None:
            yield from undecoded("header", name, first, end)
        elif name == "parameters":
            assert self._cls is not None
            yield from self._declared(first, self._cls.parameters_in(value))
        elif name == "scalars":
            assert self._cls is not None
            with _locate(8 * self.start):
                try:
                    codec = self._cls.from_header(bytes(values["parameters"][0]))
                except ParameterError as error:
                    raise Corrupt(f"the parameters do not fit together: {error}") from None
            yield from self._declared(first, codec.scalars_in(value))
        elif name == "seek table":
            yield from self._seek_table(placed)
        else:
            value, meaning, number = self._described(placed, values)
            yield field_of("header", name, first, end - first, value, meaning, number)

    def _described(self, placed: Placed, values: Values) -> tuple[Any, str, int | None]:
        """Return the value, the meaning and the index of a field of the header."""
        value = placed.value
        match placed.name:
            case "magic":
                return str(value, "ascii"), "", None
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
                self.dtype = dtype_named(value, placed.start, self._cls)
                return value, self.dtype, None
            case "ndim":
                return value, "dimensions", None
            case "size":
                return value, "elements", len(values["size"]) - 1
            case "name":
                self.name = read_name(value)
                return self.name, "of the tensor", None
            case "payload bits":
                return value, f"{-(-value // 8):,} bytes", None
        return value, "bytes" if placed.name.endswith("length") else "", None

    def _declared(self, first: int, read_fields: Iterator[ReadField]) -> Iterator[Field]:
        """Report parameters or scalars that begin with bit `first`."""
        for field, start, end, value in read_fields:
            text = field.kind.text(value) if isinstance(value, tuple) else value
            yield field_of(
                "header", field.name, first + 8 * start, 8 * (end - start), text, field.doc
            )

    def _seek_table(self, placed: Placed) -> Iterator[Field]:
        first, section = 8 * placed.start, placed.value
        head = Reader(self._reader.data, placed.start)
        for name, meaning in (
            ("log2 of a block", f"blocks of 2^{section.log2_block} {section.blocks}"),
            ("width", "bytes of a number"),
            ("blocks", ""),
        ):
            start = 8 * head.at
            value = head.leb128() if name == "blocks" else head.uint(1)
            yield field_of("header", name, start, 8 * head.at - start, value, meaning)
        at, left = 8 * head.at, self._most
        for part in section.parts():
            entry = first + 8 * part.at
            if entry + 8 * part.nbytes <= self._first:
                continue
            if left == 0:
                break
            yield from skipped(at, entry)
            at, left = entry + 8 * part.nbytes, None if left is None else left - 1
            yield field_of("header", part.name, entry, at - entry, part.value, "", part.block)
        yield from skipped(at, 8 * placed.end)

    # --- payload

    def _payload(self, values: Values) -> Iterator[Field]:
        nbits, reader = values["payload bits"][0], self._reader
        start, nbytes = 8 * reader.at, -(-nbits // 8)
        available = min(nbytes, len(reader.data) - reader.at)
        data = np.frombuffer(reader.data, np.uint8, available, reader.at)
        end = min(nbits, 8 * available)
        walk = FieldWalker(data, end, self._most, max(self._first - start, 0))
        described = 0  # bits of the payload
        has_gaps = False
        if self.codec is not None:
            assert self.dtype is not None and self.shape is not None
            n = math.prod(self.shape)
            self._limits.check("the frame", n, n * primitives.ITEMSIZE[self.dtype])
            payload = Payload(self.codec, self._scalars, data, end, self._table)
            try:
                for span in self.codec._describe(payload, n, walk):
                    assert span.first >= described, f"{self.codec} tells bit {span.first} twice"
                    has_gaps |= span.first > described
                    yield from undecoded(
                        "payload", "payload", start + described, start + span.first
                    )
                    yield payload_field(span, start)
                    described = span.first + span.nbits
            except FormatError as error:
                raise _LocatedError(error, start + walk.at) from None
        has_gaps |= described < end
        yield from undecoded("payload", "payload", start + described, start + end)
        reader.take(nbytes)
        if fill := -nbits % 8:
            if int(data[-1]) & (1 << fill) - 1:
                raise _LocatedError(Corrupt("a padding bit is not zero"), start + nbits)
            yield field_of(
                "payload", "fill", start + nbits, fill, 0, "zeros to a whole byte", kind="pad"
            )
        if self.codec is not None and not has_gaps and not walk.skipped:
            try:  # valid fields may still contradict each other
                self.codec._unpack(payload, n)
            except FormatError as error:
                raise _LocatedError(error, start + 8 * (error.offset or 0)) from None

    # --- checksum and tag

    def _trailer(self, values: Values) -> Iterator[Field]:
        reader, nbytes = self._reader, -(-values["payload bits"][0] // 8)
        payload = reader.data[reader.at - nbytes : reader.at]
        yield self._checksum("payload checksum", "behind", crc32c(payload), "of the payload")
        if values["flags"][0] & primitives.HAS_TAG:
            signed, first = reader.data[self.start : reader.at], 8 * reader.at
            tag = bytes(reader.take(primitives.TAG_NBYTES))
            meaning = "BLAKE2b of all before; not checked without its key"
            if self._key is not None:
                if tag != tag_of(self._key, [signed]):
                    error = Corrupt("the frame does not bear the tag of this key")
                    raise _LocatedError(error, first)
                meaning = "BLAKE2b of all before: right"
            yield field_of("behind", "tag", first, 8 * len(tag), tag.hex(), meaning)

    def _checksum(self, name: str, part: str, expected: bytes, scope: str) -> Field:
        """Read a checksum; return its field, or raise an error unless it is as expected."""
        first = 8 * self._reader.at
        actual = bytes(self._reader.take(CHECKSUM_NBYTES))
        text = f"{int.from_bytes(expected, 'little'):08x}"
        if actual != expected:
            raise _LocatedError(Corrupt(f"the {name} is wrong: it should be {text}"), first)
        return field_of(part, name, first, 8 * CHECKSUM_NBYTES, text, f"CRC-32C {scope}: right")


class _LocatedError(Exception):
    """An error, and the first invalid bit of the file."""

    def __init__(self, error: FormatError, bit: int) -> None:
        super().__init__(error)
        self.error, self.bit = error, bit


@contextlib.contextmanager
def _locate(bit: int) -> Iterator[None]:
    """Attach the bit to a `FormatError` of the block."""
    try:
        yield
    except FormatError as error:
        raise _LocatedError(error, bit) from None
