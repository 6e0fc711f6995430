"""The consecutive frames of a file: their headers alone, or frame by frame."""

from __future__ import annotations

import errno
import io
import math
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gcodec.codec import Codec
from gcodec.codecs import by_id
from gcodec.errors import Corrupt, FormatError, LimitExceeded, Truncated
from gcodec.frame import (
    CHECKSUM_NBYTES,
    MEMBERS_NAME,
    Frame,
    Header,
    Member,
    check_crc,
    check_shape,
    check_shared,
    crc32c,
    dtype_named,
    members_of,
)
from gcodec.limits import Limits
from gcodec.wire import primitives
from gcodec.wire.primitives import Reader
from gcodec.wire.seek import Section

_CHUNK = 1 << 20  # bytes
_MAX_HEADER_NBYTES = 1 << 26


class Outline(NamedTuple):
    """The name of a frame's tensor, and the bytes that the frame occupies.

    Attributes
    ----------
    name : str or None
        Name of the tensor.
    start, end : int
        First byte of the frame, and the byte after its last one.
    """

    name: str | None
    start: int
    end: int


class FrameHeader(NamedTuple):
    """The header of a frame of a file, verified by its checksum.

    Attributes
    ----------
    number : int
        Index of the frame in the file, from 0.
    start : int
        First byte of the frame.
    codec : Codec
        Codec of the frame.
    dtype : str
        Dtype of the tensor.
    shape : tuple of int
        Shape of the tensor.
    name : str or None
        Name of the tensor.
    header_nbytes : int
        Size of the header without its checksum.
    payload_nbytes : int
        Size of the payload.
    has_tag : bool
        Whether the frame is authenticated.
    seek : Section or None
        Seek table, not yet checked against the payload.
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
    def seek_nbytes(self) -> int:
        """Size of the seek table, which is a part of the header."""
        return 0 if self.seek is None else self.seek.nbytes

    @property
    def size(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    @property
    def checksum_nbytes(self) -> int:
        """Size of both checksums, and of the tag if the frame has one."""
        return 2 * CHECKSUM_NBYTES + primitives.TAG_NBYTES * self.has_tag

    @property
    def nbytes(self) -> int:
        """Size of the frame."""
        return self.header_nbytes + self.payload_nbytes + self.checksum_nbytes

    @property
    def end(self) -> int:
        """Byte after the last one of the frame."""
        return self.start + self.nbytes

    @property
    def raw_nbytes(self) -> int:
        """Size of the tensor that was encoded."""
        return self.size * primitives.ITEMSIZE[self.dtype]

    def locate_errors(self) -> AbstractContextManager[None]:
        """Make errors of unpacking the payload name the frame and their offset in the file."""
        return _located_in_payload(
            self.number, self.name, self.start + self.header_nbytes + CHECKSUM_NBYTES
        )


class StoredFrame(NamedTuple):
    """A frame of a file, and the bytes that it occupies.

    Attributes
    ----------
    frame : Frame
        The frame.
    number : int
        Index of the frame in the file, from 0.
    start, end : int
        First byte of the frame, and the byte after its last one.
    """

    frame: Frame
    number: int
    start: int
    end: int

    @property
    def name(self) -> str | None:
        """Name of the tensor."""
        return self.frame.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.frame.shape

    def locate_errors(self) -> AbstractContextManager[None]:
        """Make errors of unpacking the payload name the frame and their offset in the file."""
        frame = self.frame
        tag_nbytes = primitives.TAG_NBYTES if frame.key is not None else 0
        after = self.end - tag_nbytes - CHECKSUM_NBYTES
        return _located_in_payload(self.number, frame.name, after - frame.payload.data.size)


_Frame = TypeVar("_Frame", Outline, FrameHeader, StoredFrame)
_Item = TypeVar("_Item", FrameHeader, StoredFrame)


def mapped(path: Path) -> Any:
    """Return the bytes of a file as a memory map, which the system reads on access.

    A pipe is read by `read_stream`.
    """
    with path.open("rb") as file:
        return mapped_file(file)[0]


def mapped_file(file: Any) -> tuple[Any, int]:
    """Return the bytes of an open binary file, and its position among them.

    A plain file of the system becomes a memory map; other files, such as pipes and compressed
    ones, are read by `read_stream`.

    Raises
    ------
    TypeError
        If the file is open for text.
    """
    # Objects that decompress also have a file descriptor, but that of the compressed bytes.
    raw = file if isinstance(file, io.FileIO) else getattr(file, "raw", None)
    if isinstance(raw, io.FileIO) and stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        if file.writable():
            file.flush()
        if not os.fstat(raw.fileno()).st_size:
            return b"", 0
        return mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ), file.tell()
    return read_stream(file), 0


def read_stream(file: Any) -> bytearray:
    """Return the bytes of an open binary file from its position to its end.

    If they do not begin as a frame does, only the first ones are read, because a pipe or a device
    may never end.

    Raises
    ------
    TypeError
        If the file is open for text.
    BlockingIOError
        If the file does not wait for bytes; see `read_chunk`.
    """
    data, magic = bytearray(), primitives.MAGIC
    while magic.startswith(data[: len(magic)]):
        nbytes = len(magic) - len(data) if len(data) < len(magic) else _CHUNK
        # A text file may be unable to decode frames.
        chunk = "" if isinstance(file, io.TextIOBase) else read_chunk(file, nbytes)
        if isinstance(chunk, str):
            raise TypeError(
                "data is a file that is open for text: open it for bytes, with mode 'rb'"
            )
        if not chunk:
            break
        data += chunk
    return data


def read_chunk(file: Any, nbytes: int) -> Any:
    """Return the next bytes of an open file; none at its end.

    Raises
    ------
    BlockingIOError
        If the file is a stream that does not wait for bytes, and has none yet.
    """
    chunk = file.read(nbytes)
    if chunk is None:
        raise BlockingIOError(errno.EAGAIN, "the stream is non-blocking, and has no bytes yet")
    return chunk


def outline(data: Any, start: int) -> Outline:
    """Read the header of the frame that begins at a byte, without checking its checksum.

    Raises
    ------
    FormatError
        If the header cannot be read, or the data ends within the frame.
    """
    reader = Reader(data, start)
    head = Header.read(reader)
    tag = primitives.TAG_NBYTES * head.has_tag
    end = reader.at + 2 * CHECKSUM_NBYTES + head.payload_nbytes + tag
    if end > len(reader.data):
        raise Truncated("the bytes end within the frame", len(reader.data))
    return Outline(head.decoded_name(), start, end)


def outlines(data: object) -> Iterator[Outline]:
    """Read the headers of the consecutive frames of a file; see `outline`."""
    return _consecutive(data, lambda at, number: outline(data, at))


def list_frames(data: object, limits: Limits) -> Iterator[FrameHeader]:
    """Read and verify the headers of the frames of a file; skip the payloads.

    Parameters
    ----------
    data : bytes-like
        The file.
    limits : Limits
        Bounds on each tensor.

    Yields
    ------
    FrameHeader

    Raises
    ------
    FormatError
        At the first header that cannot be read; the error names the frame and the offset.
    """
    if isinstance(data, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        data.madvise(mmap.MADV_RANDOM)  # payloads are skipped: read nothing ahead
    return _consecutive(data, lambda at, number: _read_header(data, at, number, limits))


def _consecutive(data: Any, read: Callable[[int, int], _Frame]) -> Iterator[_Frame]:
    """Read the frames of a file by a function of the offset and the number of a frame."""
    if not len(data):
        raise Corrupt("the file is empty: it contains no frame")
    at = number = 0
    while at < len(data):
        with located(f"frame {number}", default=at):
            frame = read(at, number)
        yield frame
        at, number = frame.end, number + 1


def _read_header(data: Any, start: int, number: int, limits: Limits) -> FrameHeader:
    reader = Reader(data, start)
    head = Header.read(reader)
    header_nbytes = reader.at - start
    if header_nbytes > _MAX_HEADER_NBYTES:
        raise LimitExceeded(f"the header has more than {_MAX_HEADER_NBYTES} bytes", start)
    check_crc(reader, crc32c(reader.data[start : reader.at]), "header")
    by_id(head.codec_id)  # an unknown codec is reported before any other problem
    dtype = dtype_named(head.dtype_code, start + 6)
    frame = FrameHeader(
        number=number,
        start=start,
        codec=head.codec_and_scalars()[0],
        dtype=dtype,
        shape=head.shape,
        name=head.decoded_name(),
        header_nbytes=header_nbytes,
        payload_nbytes=head.payload_nbytes,
        has_tag=head.has_tag,
        seek=head.seek,
    )
    available = len(data) - start
    if available < frame.nbytes:
        expected = f"the frame has {frame.nbytes} bytes, and {available} are left"
        raise Truncated(f"the bytes end too early: {expected}", len(data))
    limits.check("the frame", frame.size, frame.raw_nbytes, frame.nbytes)
    check_shape(frame.shape, start + 8)
    return frame


def read_frames(
    data: bytes | memoryview, limits: Limits, key: bytes | None
) -> Iterator[StoredFrame]:
    """Read and verify the frames of a file or a message one by one.

    Parameters
    ----------
    data : bytes-like
        The file.
    limits : Limits
        Bounds on each tensor.
    key : bytes or None
        Key of the frames' tags.

    Yields
    ------
    StoredFrame

    Raises
    ------
    FormatError
        At the first frame that cannot be read; the error names the frame and the offset.
    """

    def read(at: int, number: int) -> StoredFrame:
        reader = Reader(data, at)
        return StoredFrame(Frame.read(reader, limits, key), number, at, reader.at)

    return _consecutive(data, read)


def with_members(
    frames: Iterable[_Item], read: Callable[[_Item], Frame]
) -> Iterator[tuple[_Item, list[Member] | None]]:
    """Skip the lists of members among consecutive frames.

    Parameters
    ----------
    frames : iterable
        Frames, or their headers.
    read : callable
        Returns the frame of a list.

    Yields
    ------
    frame
        A frame that contains one tensor, or one that several tensors share.
    members : list of Member or None
        The tensors that share it.

    Raises
    ------
    FormatError
        If a list is damaged, or if no frame that its members may share follows it.
    """
    members: list[Member] | None = None
    for frame in frames:
        with located(f"frame {frame.number}", default=None):
            if members is not None:
                check_shared(frame.name, frame.shape, members)
            elif frame.name == MEMBERS_NAME:
                members = members_of(read(frame))
                continue
        yield frame, members
        members = None
    if members is not None:
        raise Truncated("the bytes end after a list of members")


class located:
    """Context manager that makes a `FormatError` name the part of the file that was read.

    Parameters
    ----------
    part : str
        Name of the part, such as "frame 3".
    start : int
        Byte of the file from which offsets of errors are counted.
    default : int or None
        Offset for errors without one; None if the part is no part of a file.
    """

    def __init__(self, part: str, start: int = 0, default: int | None = 0) -> None:
        self._part, self._start, self._default = part, start, default

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FormatError):
            offset = self._default if error.offset is None else self._start + error.offset
            raise relocated(error, self._part, offset) from None


def _located_in_payload(number: int, name: str | None, start: int) -> AbstractContextManager[None]:
    """Make errors name the frame with this number and name, whose payload begins at `start`."""
    named = "" if name is None else f" {name!r}"
    return located(f"frame {number}{named}", start, start)


def relocated(error: FormatError, part: str, offset: int | None) -> FormatError:
    """Return an error of the same type that names a part of the file and a byte offset."""
    return type(error)(f"{part}: {message_of(error)}", offset)


def message_of(error: FormatError) -> str:
    """Return the message of an error without its offset."""
    return str(error).removesuffix(f" (at byte {error.offset})")
