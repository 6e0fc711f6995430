"""List the frames of a .gcf file by their headers: payloads are skipped, not read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gcodec.cli.frames import telling
from gcodec.cli.outcome import CheckFailed
from gcodec.codec import Codec
from gcodec.codecs import by_id
from gcodec.errors import Corrupt, LimitExceeded, Truncated
from gcodec.frame import check_shape, crc32c, dtype_named, header, read_name
from gcodec.limits import Limits
from gcodec.wire import primitives
from gcodec.wire.primitives import Reader, leb128
from gcodec.wire.seek import Section

_FIRST = 1 << 12  # bytes that are read where a header begins; with a seek table it may have more
_MOST = 1 << 26  # bytes of a header
_CRC = 4


class Listed(NamedTuple):
    """A frame whose header was read.

    Attributes
    ----------
    number : int
        Counted from 0.
    start : int
        Its first byte.
    codec : Codec
    dtype : str
    shape : tuple of int
    name : str or None
    header_nbytes : int
        Bytes of the header, without its checksum.
    payload_nbytes : int
    has_tag : bool
    seek : Section or None
        Its seek table, not yet checked against the payload.
    """

    number: int
    start: int
    codec: Codec
    dtype: str
    shape: tuple[int, ...]
    name: str | None
    header_nbytes: int
    payload_nbytes: int
    has_tag: bool
    seek: Section | None

    @property
    def size(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)

    @property
    def checksum_nbytes(self) -> int:
        """Bytes of both checksums, and of the tag if there is one."""
        return 2 * _CRC + (primitives.TAG_NBYTES if self.has_tag else 0)

    @property
    def nbytes(self) -> int:
        """All bytes of the frame."""
        return self.header_nbytes + self.payload_nbytes + self.checksum_nbytes

    @property
    def seek_nbytes(self) -> int:
        """Bytes of the seek table, which is a part of the header."""
        if self.seek is None:
            return 0
        fixed = 2 + len(leb128(self.seek.number))
        return fixed + len(self.seek.entries) + len(self.seek.states)

    @property
    def raw_nbytes(self) -> int:
        """Bytes of the tensor that was encoded."""
        return self.size * primitives.ITEMSIZE[self.dtype]


def list_frames(path: Path, limits: Limits) -> Iterator[Listed]:
    """Read the headers of a file one after the other.

    Yields
    ------
    Listed

    Raises
    ------
    CheckFailed
        At the first header that is damaged or whose frame ends too early, or if there is none.
    FormatError, OSError
        At the first header that cannot be read for another reason.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if hasattr(os, "posix_fadvise"):  # payloads are not wanted: read nothing ahead
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        if not size:
            raise CheckFailed("the file is empty: it holds no frame")
        at = number = 0
        while at < size:
            with telling(f"frame {number}", at, at):
                listed = _read(file, at, number, size, limits)
            yield listed
            at, number = at + listed.nbytes, number + 1


def _read(file: BinaryIO, start: int, number: int, size: int, limits: Limits) -> Listed:
    """Read the header at byte `start` of a file of so many bytes; offsets count from there."""
    window = _FIRST
    while True:
        file.seek(start)
        reader = Reader(file.read(window))
        try:
            known = header.read(reader)
            checksum = bytes(reader.take(_CRC))
            break
        except Truncated:
            if start + window >= size:
                raise
            if window >= _MOST:
                raise LimitExceeded(f"the header has more than {_MOST} bytes") from None
            window *= 8
    nbytes = reader.at - _CRC
    if checksum != crc32c(reader.data[:nbytes]):
        raise Corrupt("the header's checksum is wrong", offset=nbytes)
    by_id(known["codec"][0])  # before what else may be wrong
    dtype, shape = dtype_named(known["dtype"][0], 6), tuple(known["size"])
    listed = Listed(
        number,
        start,
        header.codec_of(known)[0],
        dtype,
        shape,
        next(map(read_name, known["name"]), None),
        nbytes,
        -(-known["payload bits"][0] // 8),
        bool(known["flags"][0] & primitives.HAS_TAG),
        next(iter(known["seek table"]), None),
    )
    if (left := size - start) < listed.nbytes:
        wanted = f"{listed.nbytes} bytes in the frame, {left} left"
        raise Truncated(f"the bytes end too early: {wanted}", offset=left)
    limits.check("the frame", listed.size, listed.raw_nbytes, listed.nbytes)
    check_shape(shape, 8)
    return listed
