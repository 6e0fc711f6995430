"""Correct the checksums of a damaged frame, so that decoders reach the fields after them."""

from __future__ import annotations

import contextlib

import google_crc32c

import gcodec
from gcodec.codecs import by_id
from gcodec.wire.primitives import Reader
from gcodec.wire.seek import Section


def repair(data: bytes) -> bytes:
    """Return the frame with the right magic, and with checksums that match its fields."""
    out = bytearray(b"GCF\x01" + data[4:])
    if len(out) < 8:
        return bytes(out)
    at = 8

    def number() -> int:
        nonlocal at
        value = shift = 0
        while at < len(out) and shift < 70:
            byte = out[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        return value

    for _ in range(out[7]):
        number()
    if out[4] & 1:
        name_nbytes = number()  # which advances `at`
        at += name_nbytes
    parameters = at
    for _ in range(2):
        at += 1 + (out[at] if at < len(out) else 0)
    nbits = number()
    if out[4] & 2 and at < len(out):
        at += _table_nbytes(bytes(out), parameters, at)
    body = at + 4
    end = body + -(-nbits // 8)
    if end + 4 > len(out):
        # The data are too short for the payload: let the payload end with the data.
        end = len(out) - 4
    if body > end:
        return bytes(out)
    out[at:body] = crc(out[:at])
    out[end : end + 4] = crc(out[body:end])
    return bytes(out[: end + 4]) if not out[4] & 4 else bytes(out)


def _table_nbytes(data: bytes, parameters: int, at: int) -> int:
    """Return the size in bytes of the seek table of a frame, which depends on its parameters."""
    blocks = "elements"
    with contextlib.suppress(gcodec.GcodecError):
        cls = by_id(data[5])
        fields = data[parameters + 1 : parameters + 1 + data[parameters]]
        codec = cls.from_mapping(cls.read_parameters(memoryview(fields)))
        blocks = codec.seek_blocks or blocks
    reader = Reader(data, at)
    with contextlib.suppress(gcodec.FormatError):
        Section.take(reader, blocks)
    return reader.at - at


def crc(data: bytes | bytearray) -> bytes:
    return int(google_crc32c.value(bytes(data))).to_bytes(4, "little")
