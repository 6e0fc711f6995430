r"""Files of tensors that decode to the bytes of the original .safetensors files.

A frame named ``\file:`` and the name of a file contains the bytes of that file before its tensors,
as uint8. Its tensors follow, in the order of their bytes in the file. Their frames have the names,
shapes and dtypes that the file states; of a dtype that frames lack, the tensor is uint8 in one
dimension. The index of a file in shards is such a file without tensors, and precedes the shards.
"""

from __future__ import annotations

import json
import math
import mmap
import operator
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.errors import Corrupt, FormatError, LimitExceeded, Truncated, Unsupported
from gcodec.frame import Frame, check_shape
from gcodec.limits import Limits
from gcodec.tensorfiles.atomic import AtomicFiles
from gcodec.tensorfiles.entries import check_unchanged, shown, state_of, stays_inside
from gcodec.tensorfiles.frame_list import outline
from gcodec.tensorfiles.safetensors_file import (
    INDEX_SUFFIX,
    LENGTH_NBYTES,
    MAX_HEADER,
    dtype_named,
    read_head,
    read_index,
)
from gcodec.tensorfiles.structure import FILE_PREFIX, is_reserved
from gcodec.wire.primitives import DTYPE_CODES, MAX_NDIM, encode_name

_SUFFIX = ".safetensors"


class StoredTensor(NamedTuple):
    """A tensor as the header of a file describes it.

    Attributes
    ----------
    name : str
    dtype : str
        Dtype of its frame.
    shape : tuple of int
        Shape of its frame.
    start, nbytes : int
        First byte in the file, and number of bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def size(self) -> int:
        """Number of elements of the frame."""
        return math.prod(self.shape)


def tensors_of(head: bytes) -> list[StoredTensor]:
    """Return the tensors of a .safetensors file, in the order of their bytes.

    Parameters
    ----------
    head : bytes
        The bytes of the file before its first tensor.

    Raises
    ------
    FormatError
        If the header is damaged, or bytes between tensors belong to none.
    """
    if int.from_bytes(head[:LENGTH_NBYTES], "little") != len(head) - LENGTH_NBYTES:
        raise Corrupt("the header of the file has another length than it states")
    try:
        header = json.loads(head[LENGTH_NBYTES:])
        header.pop("__metadata__", None)
        tensors = []
        for name, entry in header.items():
            if is_reserved(name):
                raise Unsupported(f"tensor {shown(name)} has a name that files of frames reserve")
            encode_name(name)  # raises for half of a surrogate pair
            start, stop = map(operator.index, entry["data_offsets"])
            dtype = dtype_named(entry["dtype"])
            shape = tuple(map(operator.index, entry["shape"]))
            if len(shape) > MAX_NDIM:
                many = f"{len(shape)} dimensions, more than {MAX_NDIM}"
                raise Unsupported(f"tensor {shown(name)} has {many}")
            if min(shape, default=0) < 0:
                raise Corrupt(f"tensor {shown(name)} has the shape {shape}")
            check_shape(shape, 0)
            if dtype not in DTYPE_CODES:
                dtype, shape = "uint8", (stop - start,)
            elif math.prod(shape) * NUMPY_DTYPES[dtype].itemsize != stop - start:
                raise Corrupt(f"tensor {shown(name)} has {stop - start} bytes")
            tensors.append(StoredTensor(name, dtype, shape, len(head) + start, stop - start))
    except FormatError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise Corrupt("the header of the file is damaged") from None
    tensors.sort(key=lambda tensor: (tensor.start, tensor.nbytes))
    at = len(head)
    for tensor in tensors:
        if tensor.start != at or tensor.nbytes < 0:
            raise Corrupt(f"the bytes before tensor {shown(tensor.name)} belong to no tensor")
        at += tensor.nbytes
    return tensors


class OriginalFile:
    """A .safetensors file whose tensors are mapped to memory one by one.

    Parameters
    ----------
    path : pathlib.Path

    Attributes
    ----------
    head : bytes
        The bytes before the first tensor.
    tensors : list of StoredTensor

    Raises
    ------
    FormatError
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self._state = state_of(os.fstat(file.fileno()))
            self.head = read_head(file)
        self.tensors = tensors_of(self.head)
        nbytes, end = self._state[0], len(self.head) + sum(t.nbytes for t in self.tensors)
        if nbytes != end:
            kind = Truncated if nbytes < end else Corrupt
            raise kind(f"the file has {nbytes} bytes, and its tensors end at {end}")

    def load(self, tensor: StoredTensor, limits: Limits) -> np.ndarray:
        """Return a tensor as its frame contains it: a view of the file.

        Raises
        ------
        FormatError
            If the tensor exceeds the limits or has booleans above 1, or another process has
            changed the file.
        """
        limits.check(f"tensor {shown(tensor.name)}", tensor.size, tensor.nbytes, tensor.nbytes)
        # A map of the whole file would keep a file descriptor, and a model can have more shards
        # than a process has descriptors.
        with self._path.open("rb") as file:
            check_unchanged(self._state, state_of(os.fstat(file.fileno())))
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        dtype = NUMPY_DTYPES[tensor.dtype]
        flat = np.frombuffer(data, np.uint8, tensor.nbytes, tensor.start)
        if tensor.dtype == "bool" and flat.max(initial=0) > 1:
            raise Unsupported(f"tensor {shown(tensor.name)} has booleans above 1")
        return flat.view(dtype).reshape(tensor.shape)


def files_of(path: Path) -> list[Path]:
    """Return the .safetensors files of an index, or the file itself.

    Raises
    ------
    FormatError
        If the index is damaged.
    """
    if not path.name.lower().endswith(INDEX_SUFFIX):
        return [path]
    return [path.parent / shard for shard in dict.fromkeys(read_index(path).values())]


def originals(path: Path) -> Iterator[tuple[str, bytes, OriginalFile | None]]:
    """Open the files of a dump one by one, which can be restored from frames.

    Yields
    ------
    name : str
        Name of the file.
    head : bytes
        The bytes before its first tensor; all bytes of an index.
    file : OriginalFile or None
        None for an index, which has no tensors.

    Raises
    ------
    FormatError
    """
    paths = files_of(path)
    for each in [path, *paths]:
        if each.parent != path.parent:
            shard = shown(each.relative_to(path.parent))
            raise Unsupported(f"shard {shard} lies in another folder than the index")
        if not _is_plain(each.name):
            raise Unsupported(f"no file named {shown(each.name)} can be restored: rename it")
    if path not in paths:
        yield path.name, path.read_bytes(), None
    for each in paths:
        file = OriginalFile(each)
        yield each.name, file.head, file


def _is_plain(name: str) -> bool:
    """Return whether any system can have a file of this name in any folder, and shows it."""
    if not name or name.startswith(".") or not name.isprintable():
        return False
    return not set(name) & set('/\\:*?"<>|') and stays_inside(name)


def file_name(name: str | None) -> str | None:
    """Return the name of the file that a frame begins; None for the frame of a tensor.

    Raises
    ------
    Corrupt
        If the name is none of a file in a folder.
    """
    if name is None or not name.startswith(FILE_PREFIX):
        return None
    own = name.removeprefix(FILE_PREFIX)
    if not _is_plain(own):
        raise Corrupt(f"a frame names the file {shown(own)}, and no folder can have such a file")
    return own


def original_name(data: object) -> str | None:
    """Return the name of the original file that frames begin with, if they have one.

    Raises
    ------
    Corrupt
        If the name is none of a file in a folder.
    """
    try:
        name = outline(data, 0).name
    except FormatError:  # which is reported when the file is read
        return None
    return file_name(name)


def first_bytes(frame: Frame) -> bytes:
    """Return the bytes of a file before its tensors, which a frame contains.

    Raises
    ------
    FormatError
    """
    if frame.dtype != "uint8" or len(frame.shape) != 1:
        raise Corrupt(
            f"the start of a file must be uint8 in one dimension, not {frame.dtype} of shape "
            f"{frame.shape}"
        )
    most = MAX_HEADER + LENGTH_NBYTES
    if frame.size > most:
        raise LimitExceeded(f"the start of a file has {frame.size} bytes, more than {most}")
    return frame.decode().tobytes()


class Restorer:
    """Writes original files from the frames of a file, all of them or none.

    Parameters
    ----------
    path_of : callable
        Returns the path for the name of a file.
    decode : callable, optional
        Returns the tensor of a frame. Default: what the frame decodes to.
    """

    def __init__(
        self,
        path_of: Callable[[str], Path],
        decode: Callable[[Frame], np.ndarray] = lambda frame: frame.decode(),
    ) -> None:
        self._path_of, self._decode = path_of, decode
        self._files = AtomicFiles()
        self._file: BinaryIO | None = None
        self._expected: Iterator[StoredTensor] = iter(())
        self.paths: list[Path] = []

    def __enter__(self) -> Restorer:
        """Return the object itself."""
        return self

    def __exit__(self, *exception_details: object) -> None:
        """Let the files appear, or delete them after an error."""
        if exception_details[0] is not None:
            self._files.__exit__(*exception_details)
            return
        with self._files:
            self._check_complete()

    def add(self, frame: Frame) -> None:
        """Write the bytes of the next frame.

        Raises
        ------
        FormatError
            If the frame is damaged, or is not the one that the file must have here.
        OSError
            If the file cannot be written.
        """
        name = file_name(frame.name)
        if name is not None:
            self._check_complete()
            head, path = first_bytes(frame), self._path_of(name)
            if path in self.paths:
                raise Unsupported(f"two files of the frames would be written to {shown(path)}")
            if self.paths and not name.endswith(_SUFFIX):  # such as that of a program
                raise Corrupt(f"a frame names the file {shown(name)} as a shard")
            is_index = name.lower().endswith(INDEX_SUFFIX)
            self._expected = iter(() if is_index else tensors_of(head))
            self._file = self._files.open(path)
            self._file.write(head)
            self.paths.append(path)
            return
        tensor = next(self._expected, None)
        if self._file is None or tensor is None:
            raise Corrupt("the tensor belongs to no file")
        if (frame.name, frame.dtype, frame.shape) != (tensor.name, tensor.dtype, tensor.shape):
            raise Corrupt(f"the file has the tensor {shown(tensor.name)} here")
        flat = np.ascontiguousarray(self._decode(frame)).reshape(-1)
        self._file.write(flat.view(np.uint8).data)

    def _check_complete(self) -> None:
        if (tensor := next(self._expected, None)) is not None:
            raise Truncated(f"the tensor {shown(tensor.name)} is missing")
