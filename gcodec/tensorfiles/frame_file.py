"""Files of frames, opened as a mapping of names to tensors, or as a dump."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from gcodec.errors import (
    Corrupt,
    FormatError,
    LimitExceeded,
    ParameterError,
    Unsupported,
    suggestion,
)
from gcodec.frame import Frame, Member, check_key, own_frames
from gcodec.limits import MAX_TENSORS, Limits
from gcodec.tensorfiles import structure
from gcodec.tensorfiles.entries import Array, Dump, Entry
from gcodec.tensorfiles.frame_list import (
    FrameHeader,
    list_frames,
    located,
    mapped,
    with_members,
)
from gcodec.tensorfiles.structure import FILE_PREFIX, MAX_NBYTES, STRUCTURE_NAME, Leaf
from gcodec.tensorfiles.tree import put_together, put_together_like
from gcodec.wire.primitives import Reader

OTHER_SUFFIXES = (".safetensors", ".npz", ".npy", ".pt", ".pth")
"""Suffixes of other formats, which no file of frames should have."""


class TensorFile(Mapping[str, np.ndarray]):
    """A file of frames, opened as a mapping of names to tensors; `gcodec.open` returns it.

    The file is memory-mapped. The first use of a name reads and verifies the headers of all
    frames; a tensor is read and decoded when it is asked for. Tensors that share a frame, as in
    the messages of `gcodec.encode_many`, are decoded together. Frames without a name become
    tensor0, tensor1 and so on. A context manager closes the file at its end. Another process that
    receives the object opens the path again; an object with a key cannot be sent.

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
        self._members: dict[int, list[Member]] = {}  # by the number of the frame that they share
        self._own_frames: dict[str, Frame] = {}  # of the members that were last used
        next(list_frames(self._data, limits))  # refuse another kind of file at once

    def headers(self) -> Mapping[str, FrameHeader]:
        """Return the verified headers of the tensors' frames by name, in the order of the file.

        A header states codec, dtype, shape and sizes. Those of tensors that share a frame have
        names and shapes of their own, and the sizes of that frame.

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
            listed = list_frames(data, self._limits)
            for item, members in with_members(listed, self._frame_of):
                if item.number == 0 and item.name == STRUCTURE_NAME:
                    first = item
                    continue
                if item.name is not None and item.name.startswith(FILE_PREFIX):
                    continue
                own = [item]
                if members is not None:
                    own = [item._replace(name=name, shape=shape) for name, shape in members]
                    self._members[item.number] = members
                if len(headers) + len(own) > MAX_TENSORS:
                    raise LimitExceeded(f"more than {MAX_TENSORS} tensors in one file")
                headers |= {names.add(header.name): header for header in own}
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

        If several tensors share the frame, gcodec decodes it and returns a new frame of this
        tensor alone, in which ``lossless`` stores the elements as they are.

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
        header = headers[name]
        if header.number not in self._members:
            return self._read(header)
        frames = self._own_frames
        if name not in frames:
            shared = self._read(header)
            with header.locate_errors():
                own = own_frames(shared, self._members[header.number])
                frames = {str(frame.name): frame for frame in own}
            self._own_frames = frames
        return frames[name]

    def _read(self, header: FrameHeader) -> Frame:
        """Return the frame of a header; errors name it."""
        with located(f"frame {header.number}", default=header.start):
            return self._frame_of(header)

    def _frame_of(self, header: FrameHeader) -> Frame:
        return Frame.read(Reader(self._open_data(), header.start), self._limits, self._key)

    def decode(self, name: str, *, like: Any = None, out: Any = None) -> Any:
        """Decode a tensor; see `gcodec.decode` for `like` and `out`, and `frame` for errors."""
        frame = self.frame(name)
        with self.headers()[name].locate_errors():
            return frame.decode(like=like, out=out)

    def decode_range(self, name: str, start: int, stop: int) -> np.ndarray:
        """Decode a range of the elements of a tensor; see `gcodec.decode_range`."""
        frame = self.frame(name)
        with self.headers()[name].locate_errors():
            return frame.decode_range(start, stop)

    def load(self, like: object = None) -> Any:
        """Decode all tensors, and return them in their tree; see `gcodec.load_file`."""
        if like is None:
            return self.rebuild(self.decode)
        return put_together_like(
            self._tree(), like, lambda name, array: self.decode(name, like=array)
        )

    def rebuild(self, decode: Callable[[str], object]) -> Any:
        """Return the tree with the tensors that a function returns for their names."""
        return put_together(self._tree(), decode)

    def _tree(self) -> object:
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

    def __getitem__(self, name: str) -> np.ndarray:
        """Decode a tensor to a NumPy array."""
        return self.decode(name)

    def __contains__(self, name: object) -> bool:
        """Return whether the file has a tensor of this name."""
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

    def __reduce__(self) -> tuple[type[TensorFile], tuple[Path, Limits]]:
        """Pickle the path and the limits, with which another process opens the file again."""
        self._open_data()
        if self._key is not None:
            raise TypeError("a TensorFile with a key cannot be pickled: open it in each process")
        return TensorFile, (self.path.absolute(), self._limits)

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
        if frame.codec.name != "raw":
            raise Corrupt(f"the structure must have the codec raw, and has {frame.codec.name}")
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
        return self._file[entry.name]

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
