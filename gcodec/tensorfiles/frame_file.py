"""Files of frames: listed by their headers, read frame by frame, or opened by names."""

from __future__ import annotations

import contextlib
import io
import math
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gcodec.codec import Codec
from gcodec.codecs import by_id
from gcodec.errors import (
    Corrupt,
    FormatError,
    LimitExceeded,
    ParameterError,
    Truncated,
    Unsupported,
    suggestion,
)
from gcodec.frame import (
    CHECKSUM_NBYTES,
    Frame,
    Header,
    check_key,
    check_shape,
    crc32c,
    dtype_named,
)
from gcodec.limits import Limits
from gcodec.tensorfiles import structure
from gcodec.tensorfiles.entries import MAX_ENTRIES, Array, Dump, Entry
from gcodec.tensorfiles.structure import FILE_PREFIX, MAX_NBYTES, STRUCTURE_NAME, Leaf
from gcodec.tensorfiles.tree import put_together, put_together_like
from gcodec.wire import primitives
from gcodec.wire.primitives import Reader
from gcodec.wire.seek import Section

OTHER_SUFFIXES = (".safetensors", ".npz", ".npy", ".pt", ".pth")
"""Suffixes of other formats, which no file of frames should have."""

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
    seek_nbytes : int
        Size of the seek table, which is a part of the header.
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
    seek_nbytes: int

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

    def locate_errors(self) -> AbstractContextManager[None]:
        """Make errors of unpacking the payload name the frame and their offset in the file."""
        name = "" if self.frame.name is None else f" {self.frame.name!r}"
        start = self.start + len(self.frame.header())
        return located(f"frame {self.number}{name}", start, start)


_Frame = TypeVar("_Frame", Outline, FrameHeader, StoredFrame)


def mapped(path: Path) -> Any:
    """Return the bytes of a file as a memory map, which the system reads on access.

    A pipe is read to its end.
    """
    with path.open("rb") as file:
        return mapped_file(file)[0]


def mapped_file(file: Any) -> tuple[Any, int]:
    """Return the bytes of an open binary file, and its position among them.

    A plain file of the system becomes a memory map; other files, such as pipes and compressed
    ones, are read to their end.

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
    data = "" if isinstance(file, io.TextIOBase) else file.read()  # it cannot decode frames
    if isinstance(data, str):
        raise TypeError("data is a file that is open for text: open it for bytes, with mode 'rb'")
    return data, 0


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


def outlines(data: Any) -> Iterator[Outline]:
    """Read the headers of the consecutive frames of a file; see `outline`."""
    return _consecutive(data, lambda at, number: outline(data, at))


def list_frames(data: Any, limits: Limits) -> Iterator[FrameHeader]:
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
    reader, head, seek_nbytes = Reader(data, start), Header(), 0
    for field in head.fields(reader):
        if field.name == "seek table":
            seek_nbytes = field.end - field.start
    header_nbytes = reader.at - start
    if header_nbytes > _MAX_HEADER_NBYTES:
        raise LimitExceeded(f"the header has more than {_MAX_HEADER_NBYTES} bytes", start)
    checksum = bytes(reader.take(CHECKSUM_NBYTES))
    if checksum != crc32c(reader.data[start : start + header_nbytes]):
        raise Corrupt("the header's checksum is wrong", start + header_nbytes)
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
        seek_nbytes=seek_nbytes,
    )
    available = len(data) - start
    if available < frame.nbytes:
        expected = f"the frame has {frame.nbytes} bytes, and {available} are left"
        raise Truncated(f"the bytes end too early: {expected}", len(data))
    limits.check("the frame", frame.size, frame.raw_nbytes, frame.nbytes)
    check_shape(frame.shape, start + 8)
    return frame


def read_frames(data: bytes, limits: Limits, key: bytes | None = None) -> Iterator[StoredFrame]:
    """Read and verify the frames of a file one by one.

    Parameters
    ----------
    data : bytes
        The file.
    limits : Limits
        Bounds on each tensor.
    key : bytes, optional
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
        frame, end = Frame.read(data, at, limits, key)
        return StoredFrame(frame, number, at, end)

    return _consecutive(data, read)


class TensorFile(Mapping[str, Any]):
    """A file of frames, opened as a mapping of names to tensors; `gcodec.open` returns it.

    The file is memory-mapped. The first use of a name reads and verifies the headers of all
    frames; a tensor is read and decoded when it is asked for. Frames without a name become
    tensor0, tensor1 and so on. A context manager closes the file at its end.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    limits : Limits
        Bounds on each tensor.
    key : bytes, optional
        Key of the frames' tags.

    Attributes
    ----------
    path : pathlib.Path
        Path of the file.

    Examples
    --------
    >>> import gcodec
    >>> with gcodec.open("examples/fc.gcf") as file:
    ...     file.shapes(), file["fc.bias"].dtype
    ({'fc.bias': (10,), 'fc.weight': (10, 64)}, dtype('float32'))
    """

    def __init__(self, path: Path, limits: Limits, key: bytes | None = None) -> None:
        self.path = path
        self._limits, self._key = limits, check_key(key)
        self._data: Any = mapped(path)
        self._structure: FrameHeader | None = None
        self._headers: dict[str, FrameHeader] | None = None
        next(list_frames(self._data, limits))  # refuse another kind of file at once

    def headers(self) -> Mapping[str, FrameHeader]:
        """Return the verified headers of the tensors' frames by name, in the order of the file.

        A header states codec, dtype, shape and sizes.

        Raises
        ------
        FormatError
            If a header is damaged or exceeds the limits, two frames have the same name, or the
            file has more than 65,536 tensors.
        ParameterError
            If the file is closed.
        """
        data = self._open_data()
        if self._headers is None:
            names, headers = TensorNames(), dict[str, FrameHeader]()
            first = None
            for item in list_frames(data, self._limits):
                if item.number == 0 and item.name == STRUCTURE_NAME:
                    first = item
                elif item.name is not None and item.name.startswith(FILE_PREFIX):
                    continue
                elif len(headers) == MAX_ENTRIES:
                    raise LimitExceeded(f"more than {MAX_ENTRIES} tensors in one file")
                else:
                    headers[names.add(item.name)] = item
            if isinstance(data, mmap.mmap) and hasattr(mmap, "MADV_NORMAL"):
                data.madvise(mmap.MADV_NORMAL)  # payloads are read from their start to their end
            self._structure, self._headers = first, headers
        return MappingProxyType(self._headers)

    def names(self) -> list[str]:
        """Return the names of the tensors, in the order of the file."""
        return list(self.headers())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors by name, without decoding."""
        return {name: header.shape for name, header in self.headers().items()}

    def dtypes(self) -> dict[str, str]:
        """Return the dtypes of the tensors by name, without decoding."""
        return {name: header.dtype for name, header in self.headers().items()}

    def frame(self, name: str) -> Frame:
        """Read and verify the frame of a tensor, without decoding its payload.

        Raises
        ------
        KeyError
            If the file has no tensor of this name.
        FormatError
            If the frame is damaged, or does not bear the tag of the key.
        """
        headers = self.headers()
        if name not in headers:
            raise KeyError(f"{self.path.name} has no tensor {name!r}{suggestion(name, headers)}")
        return self._read(headers[name])

    def _read(self, header: FrameHeader) -> Frame:
        with located(f"frame {header.number}", default=header.start):
            return Frame.read(self._open_data(), header.start, self._limits, self._key)[0]

    def decode(self, name: str, *, like: Any = None, out: Any = None) -> Any:
        """Decode a tensor; see `gcodec.decode` for `like` and `out`, and `frame` for errors."""
        frame = self.frame(name)
        with located(f"frame {self.headers()[name].number} {name!r}"):
            return frame.decode(like=like, out=out)

    def decode_range(self, name: str, start: int, stop: int) -> np.ndarray:
        """Decode a range of the elements of a tensor; see `gcodec.decode_range`."""
        frame = self.frame(name)
        with located(f"frame {self.headers()[name].number} {name!r}"):
            return frame.decode_range(start, stop)

    def load(self, like: Any = None) -> Any:
        """Decode all tensors, and return them in their tree; see `gcodec.load_file`."""
        if like is None:
            return self.rebuild(self.decode)

        def decode_like(name: str, array: Any) -> Any:
            try:
                return self.decode(name, like=array)
            except ParameterError as error:
                raise ParameterError(f"tensor {name!r}: {error}") from None

        return put_together_like(self._tree(), like, decode_like)

    def rebuild(self, decode: Callable[[str], Any]) -> Any:
        """Return the tree with the tensors that a function returns for their names."""
        return put_together(self._tree(), decode)

    def _tree(self) -> Any:
        """Return the structure of the tree, whose tensors are places."""
        names = self.names()
        if self._structure is None:
            return {name: Leaf(name) for name in names}
        return read_structure(self._read(self._structure), names)

    def _open_data(self) -> Any:
        if self._data is None:
            raise ParameterError.of("file", self.path.name, "open, but it was closed")
        return self._data

    def close(self) -> None:
        """Close the file, after which no tensor can be decoded."""
        self._data = None  # frames may still be views of the map

    def __getitem__(self, name: str) -> Any:
        """Decode a tensor to a NumPy array."""
        return self.decode(name)

    def __contains__(self, name: object) -> bool:
        """Whether the file has a tensor of this name."""
        return name in self.headers()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in the order of the file."""
        return iter(self.headers())

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self.headers())

    __eq__, __hash__ = object.__eq__, object.__hash__  # decode nothing to compare files

    def __enter__(self) -> TensorFile:
        """Return the file itself."""
        return self

    def __exit__(self, *exception_details: object) -> None:
        """Close the file."""
        self.close()

    def __repr__(self) -> str:
        """Return the path, and the number and the size of the tensors."""
        description = f"TensorFile {os.fspath(self.path)!r}"
        if self._data is None:
            return f"<closed {description}>"
        try:
            headers = self.headers().values()
        except FormatError as error:
            return f"<damaged {description}: {error}>"
        tensors = f"{len(headers)} tensor{'s' * (len(headers) != 1)}"
        raw_nbytes = sum(header.raw_nbytes for header in headers)
        return f"<{description}: {tensors}, {raw_nbytes:,} bytes in {len(self._data):,}>"


def read_structure(frame: Frame, names: Sequence[str]) -> Any:
    """Read the tree of a file from its first frame; see `structure.read`.

    Parameters
    ----------
    frame : Frame
        Frame whose name is `STRUCTURE_NAME`.
    names : sequence of str
        Names of the tensors that follow.
    """
    with located(f"frame 0 {STRUCTURE_NAME!r}"):
        if frame.dtype != "uint8" or len(frame.shape) != 1 or frame.size > MAX_NBYTES:
            raise Corrupt(
                f"the structure must be at most {MAX_NBYTES} uint8 in one dimension, and is "
                f"{frame.dtype} of shape {frame.shape}"
            )
        return structure.read(frame.decode().tobytes(), names)


class FrameDump(Dump):
    """A file of frames, opened as a dump: each entry is the tensor of a frame."""

    format = "gcf"

    def __init__(self, path: Path, limits: Limits, key: bytes | None = None) -> None:
        super().__init__(path, limits)
        self._file = TensorFile(path, limits, key)
        self._set_entries(
            Entry(name, header.dtype, header.shape)
            for name, header in self._file.headers().items()
        )

    def _load(self, entry: Entry) -> Array:
        array: Array = self._file[entry.name]
        return array

    def _close(self) -> None:
        self._file.close()


class TensorNames:
    """The names under which a file of tensors stores the frames that are added one by one."""

    def __init__(self) -> None:
        self._names = set[str]()
        self._unnamed = 0

    def add(self, name: str | None) -> str:
        """Return the name of the next frame's tensor; number the tensors without one.

        Raises
        ------
        Unsupported
            If a preceding frame has the same name.
        """
        if name is None:
            name, self._unnamed = f"tensor{self._unnamed}", self._unnamed + 1
        if name in self._names:
            raise Unsupported(f"two frames are named {name!r}: names must be unique")
        self._names.add(name)
        return name


@contextlib.contextmanager
def located(part: str, start: int = 0, default: int = 0) -> Iterator[None]:
    """Make a `FormatError` name the part of the file that was read.

    Parameters
    ----------
    part : str
        Name of the part, such as "frame 3".
    start : int
        Byte of the file from which offsets of errors are counted.
    default : int
        Offset for errors without one.
    """
    try:
        yield
    except FormatError as error:
        offset = default if error.offset is None else start + error.offset
        raise relocated(error, part, offset) from None


def relocated(error: FormatError, part: str, offset: int | None) -> FormatError:
    """Return an error of the same type that names a part of the file and a byte offset."""
    return type(error)(f"{part}: {message_of(error)}", offset)


def message_of(error: FormatError) -> str:
    """Return the message of an error without its offset."""
    return str(error).removesuffix(f" (at byte {error.offset})")
