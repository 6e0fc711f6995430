"""Frames to the bit: every field, in the order in which they lie, up to the first that is wrong.

The fields of the header come from the table by which it is read and written, those of the payload
from its codec. Nothing is decoded but what is told, and memory does not depend on the rest.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gcodec.analysis.frame_fields import Field, field_of, gap, gaps, joined, skipped, told
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
    """The fields of one frame; to be iterated once.

    Parameters
    ----------
    data : bytes-like
        All frames of a file.
    start : int
        The byte where the frame begins.
    most : int, optional
        Symbols of a string, and numbers of a table, that are told one by one; default: all.
    first : int
        The bit of `data` from which on they are.
    limits : Limits, optional
        Of the tensor, beyond which its payload is not looked at; default ``Limits()``.
    key : bytes, optional
        To check the tag.

    Attributes
    ----------
    end : int or None
        The byte behind the frame, once its header is known.
    name, dtype : str or None
    shape : tuple of int or None
    codec : Codec or None
        What the header says, once that is known.
    totals : dict of str to int
        Bits so far, by kind.
    error : FormatError or None
        What is wrong, if something is.
    bad : int
        The bit of `data` where that begins.
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
        """Return the fields in order, as far as they are right; several alike as one."""
        held: Field | None = None
        for field in self._fields():
            self.bad = field.first + field.nbits
            for kind, nbits in field.split.items():
                self.totals[kind] = self.totals.get(kind, 0) + nbits
            if held is None:
                held = field
            elif held.symbols > 1 and field.symbols > 1 and held.name == field.name:
                held = joined(held, field)
            else:
                yield held
                held = field
        if held is not None:
            yield held

    def _fields(self) -> Iterator[Field]:
        known: Values = {}
        try:
            yield from self._header(known)
            yield from self._payload(known)
            yield from self._behind(known)
        except _Bad as bad:
            self.error, self.bad = bad.error, bad.at
        except FormatError as error:
            self.error = error
        if self.error is None and self.codec is None:
            self.error, self.bad = self._unknown, 8 * (self.start + 5)

    # --- header

    def _header(self, known: Values) -> Iterator[Field]:
        starts: dict[str, int] = {}
        for placed in header.fields_of(self._reader, known):
            starts.setdefault(placed.name, 8 * placed.start)
            yield from self._headerfield_of(placed, known)
        self.shape = tuple(known["size"])
        if self._cls is not None:
            with _at(starts["parameters"]):
                assert self.dtype is not None
                codec, self._scalars = header.codec_of(known, self.dtype)
            self.codec = codec._with_shape(self.shape)
        with _at(starts.get("size", 8 * self._reader.at)):
            check_shape(self.shape, self.start + 8)
        nbits = known["payload bits"][0]
        for section in known["seek table"]:
            with _at(starts["seek table"]):
                assert self.codec is not None
                count = self.codec.seek_count(math.prod(self.shape))
                self._table = section.table(count)
                self._table.check(self.codec.seek_blocks, count, nbits)
        tag = primitives.TAG_NBYTES * bool(known["flags"][0] & primitives.HAS_TAG)
        whole = self._reader.data[self.start : self._reader.at]
        yield self._checksum("header checksum", "header", crc32c(whole), "of all before")
        self.end = self._reader.at + -(-nbits // 8) + CHECKSUM_NBYTES + tag

    def _headerfield_of(self, placed: Placed, known: Values) -> Iterator[Field]:
        first, end, value = 8 * placed.start, 8 * placed.end, placed.value
        if placed.name == "parameters":
            if self._cls is not None:
                yield from self._declared(first, self._cls.parameters_in(value))
            elif end > first:
                yield gap("header", "parameters", first, end - first)
        elif placed.name == "scalars":
            if self._cls is not None:
                with _at(8 * self.start):
                    try:
                        codec = self._cls.from_header(bytes(known["parameters"][0]))
                    except ParameterError as error:
                        raise Corrupt(f"the parameters do not fit together: {error}") from None
                yield from self._declared(first, codec.scalars_in(value))
            elif end > first:
                yield gap("header", "scalars", first, end - first)
        elif placed.name == "seek table":
            yield from self._seek_table(placed)
        else:
            value, meaning, number = self._told(placed, known)
            yield field_of("header", placed.name, first, end - first, value, meaning, number)

    def _told(self, placed: Placed, known: Values) -> tuple[Any, str, int | None]:
        """Return value, meaning and number of a field of the header."""
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
                return value, "elements", len(known["size"]) - 1
            case "name":
                self.name = read_name(value)
                return self.name, "of the tensor", None
            case "payload bits":
                return value, f"{-(-value // 8):,} bytes", None
        return value, "bytes" if placed.name.endswith("length") else "", None

    def _declared(self, first: int, found: Iterator[ReadField]) -> Iterator[Field]:
        """Tell parameters or scalars."""
        for field, start, end, value in found:
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
            here = first + 8 * part.at
            if here + 8 * part.nbytes <= self._first:
                continue
            if left == 0:
                break
            yield from skipped(at, here)
            at, left = here + 8 * part.nbytes, None if left is None else left - 1
            yield field_of("header", part.name, here, at - here, part.value, "", part.block)
        yield from skipped(at, 8 * placed.end)

    # --- payload

    def _payload(self, known: Values) -> Iterator[Field]:
        nbits, reader = known["payload bits"][0], self._reader
        start, nbytes = 8 * reader.at, -(-nbits // 8)
        there = min(nbytes, len(reader.data) - reader.at)
        data = np.frombuffer(reader.data, np.uint8, there, reader.at)
        walk = FieldWalker(data, min(nbits, 8 * there), self._most, max(self._first - start, 0))
        undecoded = self.codec is None
        if self.codec is None:
            yield from gaps(start, 0, walk.end)
        else:
            assert self.dtype is not None and self.shape is not None
            n, nbytes_each = math.prod(self.shape), primitives.ITEMSIZE[self.dtype]
            self._limits.check("the frame", n, n * nbytes_each)
            payload = Payload(self.codec, self._scalars, data, walk.end, self._table)
            behind = 0
            try:
                for piece in self.codec._describe(payload, n, walk):
                    assert piece.first >= behind, f"{self.codec} tells bit {piece.first} twice"
                    undecoded |= piece.first > behind
                    yield from gaps(start, behind, piece.first)
                    yield told(piece, start)
                    behind = piece.first + piece.nbits
            except FormatError as error:
                raise _Bad(error, start + walk.at) from None
            undecoded |= behind < walk.end
            yield from gaps(start, behind, walk.end)
        reader.take(nbytes)
        if fill := -nbits % 8:
            value = int(data[-1]) & (1 << fill) - 1
            if value:
                raise _Bad(Corrupt("a padding bit is not zero"), start + nbits)
            yield field_of(
                "payload", "fill", start + nbits, fill, 0, "zeros to a whole byte", kind="pad"
            )
        if self.codec is not None and not undecoded and not walk.skipped:
            try:  # what all fields together may get wrong
                self.codec._unpack(payload, n)
            except FormatError as error:
                raise _Bad(error, start + 8 * (error.offset or 0)) from None

    def _behind(self, known: Values) -> Iterator[Field]:
        reader, nbytes = self._reader, -(-known["payload bits"][0] // 8)
        payload = reader.data[reader.at - nbytes : reader.at]
        yield self._checksum("payload checksum", "behind", crc32c(payload), "of the payload")
        if known["flags"][0] & primitives.HAS_TAG:
            signed, at = reader.data[self.start : reader.at], reader.at
            tag = bytes(reader.take(primitives.TAG_NBYTES))
            meaning = "BLAKE2b of all before; not checked without its key"
            if self._key is not None:
                if tag != tag_of(self._key, [signed]):
                    raise _Bad(Corrupt("the frame does not bear the tag of this key"), 8 * at)
                meaning = "BLAKE2b of all before: right"
            yield field_of("behind", "tag", 8 * at, 8 * len(tag), tag.hex(), meaning)

    def _checksum(self, name: str, part: str, right: bytes, what: str) -> Field:
        at = self._reader.at
        found = bytes(self._reader.take(CHECKSUM_NBYTES))
        if found != right:
            value = f"{int.from_bytes(right, 'little'):08x}"
            raise _Bad(Corrupt(f"the {name} is wrong: it should be {value}"), 8 * at)
        value = f"{int.from_bytes(found, 'little'):08x}"
        return field_of(part, name, 8 * at, 8 * CHECKSUM_NBYTES, value, f"CRC-32C {what}: right")


class _Bad(Exception):
    """What is wrong, and the bit of the data where it begins."""

    def __init__(self, error: FormatError, at: int) -> None:
        super().__init__(error)
        self.error, self.at = error, at


@contextlib.contextmanager
def _at(bit: int) -> Iterator[None]:
    """Say that what is wrong begins there."""
    try:
        yield
    except FormatError as error:
        raise _Bad(error, bit) from None
