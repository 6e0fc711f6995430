r"""Files of tensors that decode to the bytes of the original .safetensors files.

A frame named ``\file:`` and the name of a file contains the bytes of that file before its tensors,
as uint8. Its tensors follow, in the order of their bytes in the file. Their frames have the names,
shapes and dtypes that the file states; of a dtype that frames lack, the tensor is uint8 in one
dimension. The index of a file in shards is such a file without tensors, and precedes the shards.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from gcodec.arrays.source import NUMPY_DTYPES
from gcodec.errors import Corrupt, FormatError, LimitExceeded, Truncated, Unsupported
from gcodec.frame.header import check_shape
from gcodec.limits import Limits
from gcodec.tensorfiles.atomic import atomic_write
from gcodec.tensorfiles.entries import shown, stays_inside
from gcodec.tensorfiles.frame_file import outline
from gcodec.tensorfiles.safetensors_file import MAX_HEADER, dtype_named, read_index
from gcodec.tensorfiles.structure import FILE_PREFIX
from gcodec.wire.primitives import DTYPE_CODES, MAX_NDIM

INDEX_SUFFIX = ".safetensors.index.json"
_LENGTH_NBYTES = 8


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
    try:
        header = json.loads(head[_LENGTH_NBYTES:])
        header.pop("__metadata__", None)
        tensors = []
        for name, entry in header.items():
            if name.startswith(FILE_PREFIX):
                raise Unsupported(f"a tensor has the name {shown(name)}, which files have")
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
    """A .safetensors file, memory-mapped.

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
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_NBYTES), "little")
            if length > MAX_HEADER:
                raise Corrupt(f"the header has {length} bytes")
            file.seek(0)
            self.head = file.read(_LENGTH_NBYTES + length)
            self.tensors = tensors_of(self.head)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        end = len(self.head) + sum(tensor.nbytes for tensor in self.tensors)
        if end != len(self._map):
            raise Corrupt(f"the file has {len(self._map)} bytes, and its tensors end at {end}")

    def load(self, tensor: StoredTensor, limits: Limits) -> np.ndarray:
        """Return a tensor as its frame contains it: a view of the file."""
        limits.check(f"tensor {shown(tensor.name)}", tensor.size, tensor.nbytes, tensor.nbytes)
        dtype = NUMPY_DTYPES[tensor.dtype]
        flat = np.frombuffer(self._map, np.uint8, tensor.nbytes, tensor.start)
        if tensor.dtype == "bool" and flat.max(initial=0) > 1:
            raise Unsupported(f"tensor {shown(tensor.name)} has booleans above 1")
        return flat.view(dtype).reshape(tensor.shape)


def originals(path: Path) -> Iterator[tuple[str, bytes, OriginalFile | None]]:
    """Open the files of a dump one by one.

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
    if not path.name.lower().endswith(INDEX_SUFFIX):
        file = OriginalFile(path)
        yield path.name, file.head, file
        return
    shards = dict.fromkeys(read_index(path).values())
    yield path.name, path.read_bytes(), None
    for shard in shards:
        if "/" in shard or "\\" in shard:
            raise Unsupported(f"shard {shown(shard)} lies in another folder than the index")
        file = OriginalFile(path.parent / shard)
        yield shard, file.head, file


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
    is_plain = own.isprintable() and not set(own) & set('/\\:*?"<>|') and stays_inside(own)
    if not own or not is_plain or own.startswith("."):
        raise Corrupt(f"a frame names the file {shown(own)}")
    return own


def original_name(data: Any) -> str | None:
    """Return the name of the original file that frames begin with, if they have one."""
    try:
        return file_name(outline(data, 0).name)
    except FormatError:  # which is reported when the file is read
        return None


def first_bytes(frame: Any) -> bytes:
    """Return the bytes of a file before its tensors, which a frame contains.

    Raises
    ------
    FormatError
    """
    if frame.dtype != "uint8" or len(frame.shape) != 1:
        raise Corrupt(f"the start of a file must be uint8 in one dimension, not {frame.dtype}")
    if frame.size > MAX_HEADER + _LENGTH_NBYTES:
        raise LimitExceeded(f"the start of a file has {frame.size} bytes")
    data: bytes = frame.decode().tobytes()
    return data


class Restorer:
    """Writes original files from the frames of a file.

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
        decode: Callable[[Any], np.ndarray] = lambda frame: frame.decode(),
    ) -> None:
        self._path_of, self._decode = path_of, decode
        self._stack = contextlib.ExitStack()
        self._file: BinaryIO | None = None
        self._expected: Iterator[StoredTensor] = iter(())
        self.paths: list[Path] = []

    def __enter__(self) -> Restorer:
        """Return the object itself."""
        return self

    def __exit__(self, *exception_details: Any) -> None:
        """Complete the last file, or delete it after an error."""
        if exception_details[0] is None:
            self._check_complete()
        self._stack.__exit__(*exception_details)

    def add(self, frame: Any) -> None:
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
            self._stack.close()  # the preceding file appears under its name
            head, path = first_bytes(frame), self._path_of(name)
            is_index = name.lower().endswith(INDEX_SUFFIX)
            self._expected = iter(() if is_index else tensors_of(head))
            self._file = self._stack.enter_context(atomic_write(path))
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
