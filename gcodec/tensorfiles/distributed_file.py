"""Read the folders that torch.distributed.checkpoint writes, without PyTorch.

The file .metadata is a pickle that describes the tensors, and where their chunks lie. Each rank
writes files .distcp; a chunk is a range of bytes of such a file, and itself a file of torch.save.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from gcodec.errors import Corrupt, FormatError, LimitExceeded, Truncated, Unsafe, Unsupported
from gcodec.limits import MAX_TENSORS, Limits
from gcodec.tensorfiles.entries import (
    READABLE,
    Array,
    Dump,
    Entry,
    check_unchanged,
    element_count,
    loadable,
    shown,
    state_of,
    stays_inside,
)
from gcodec.tensorfiles.torch_file import DIALECT as TORCH_SAVE
from gcodec.tensorfiles.torch_file import DTYPES, TorchArchive
from gcodec.tensorfiles.unpickler import Dialect, Global, Mapping, Record, dimensions, unpickle

METADATA = ".metadata"
"""Name of the file that makes a folder a checkpoint."""

_SUFFIX = ".distcp"
_MAX_METADATA = 64 << 20
_MAX_NAME = 4096
# A pickle can name the same record or list many times, so its own size bounds neither.
_MAX_CHUNKS = 1 << 18  # of all tensors; a pickle of 5,000,000 opcodes has fewer records
_MAX_FIELDS = 64  # of a record
_MAX_CELLS = 1 << 20  # of the grid on which the chunks of a tensor are checked
_MODULE = "torch.distributed.checkpoint.metadata."
_STORAGE = "torch.distributed.checkpoint.filesystem._StorageInfo"
_MEMORY_FORMAT = f"{_MODULE}_MEM_FORMAT_ENCODING"
_GETATTR = "builtins.getattr"
_OF_TORCH_SAVE = ("torch.Size", "torch.serialization._get_layout", "collections.OrderedDict")
_PATHS = tuple(
    f"{module}.{system}Path"
    for module in ("pathlib", "pathlib._local")  # the latter in Python 3.13
    for system in ("Posix", "Windows")
)


def _call(function: str, args: tuple[object, ...]) -> object:
    """Return the record that represents the result of a function."""
    if function in _OF_TORCH_SAVE:
        return TORCH_SAVE.call(function, args)
    if function == _GETATTR:
        # Python 3.11.0 to 3.11.3 pickle a member of an enumeration as one of its attributes.
        match args:
            case (Global(name=name), str()) if name == _MEMORY_FORMAT:
                pass
            case _:
                raise Unsafe("the pickle reads an attribute that is not part of a tensor")
    return Record(function, args)  # a memory format or the path of the writer, which are ignored


DIALECT = Dialect(
    writer="torch.distributed.checkpoint",
    protocols=(4, 5),
    constants=DTYPES,
    functions=frozenset({*_OF_TORCH_SAVE, _MEMORY_FORMAT, _GETATTR, *_PATHS}),
    call=_call,
    classes=frozenset(
        {
            *(f"{_MODULE}{name}" for name in ("Metadata", "StorageMeta", "MetadataIndex")),
            *(f"{_MODULE}{name}StorageMetadata" for name in ("Tensor", "Bytes", "Chunk")),
            f"{_MODULE}TensorProperties",
            _STORAGE,
        }
    ),
)
"""Pickles of torch.distributed.checkpoint."""


class _Chunk(NamedTuple):
    """A part of a tensor, and where its bytes lie."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start: int
    nbytes: int

    @property
    def slices(self) -> tuple[slice, ...]:
        """The part of the tensor."""
        ranges = zip(self.offsets, self.shape, strict=True)
        return tuple(slice(start, start + n) for start, n in ranges)


class DistributedDump(Dump):
    """A folder of torch.distributed.checkpoint.

    `load` reads the chunks of a tensor one after another, so one file is open at a time, and one
    chunk is in memory.
    """

    format = "distcp"

    def __init__(self, path: Path, limits: Limits) -> None:
        super().__init__(path, limits)
        metadata = path / METADATA
        size = metadata.stat().st_size
        if size > _MAX_METADATA:
            raise LimitExceeded(f"{METADATA} of {size} bytes, more than {_MAX_METADATA}")
        fields = _fields(unpickle(metadata.read_bytes(), DIALECT), f"{_MODULE}Metadata")
        self._chunks: dict[str, list[_Chunk]] = {}
        storages = _storages(fields.get("storage_data"))
        entries: list[Entry] = []
        visits = iter(range(_MAX_CHUNKS))
        for name, record in _items(fields.get("state_dict_metadata"), "state_dict_metadata"):
            if not isinstance(name, str) or len(name) > _MAX_NAME:
                raise Corrupt(f"a name of {METADATA} is not text, or too long")
            if isinstance(record, Record) and record.name == f"{_MODULE}BytesStorageMetadata":
                continue  # another value than a tensor
            entry, self._chunks[name] = _tensor(name, record, storages, visits)
            entries.append(entry)
        self._set_entries(entries)
        self._files = sorted({chunk.file for chunks in self._chunks.values() for chunk in chunks})
        self._states = {name: _state_of(path / name) for name in self._files}
        for name, chunks in self._chunks.items():
            for chunk in chunks:
                if chunk.start + chunk.nbytes > self._states[chunk.file][0]:
                    raise Truncated(f"tensor {shown(name)} reaches beyond {shown(chunk.file)}")

    @property
    def files(self) -> list[Path]:
        """The files of all ranks, and the metadata."""
        return [self.path / name for name in (METADATA, *self._files)]

    def _load(self, entry: Entry) -> Array:
        description, dtype, elements = loadable(entry)
        chunks = self._chunks[entry.name]
        nbytes = elements * dtype.itemsize
        self.limits.check(description, elements, nbytes, sum(chunk.nbytes for chunk in chunks))
        if not elements:
            return np.empty(entry.shape, dtype)
        if len(chunks) == 1:
            return self._load_chunk(entry, chunks[0])
        whole: Array = np.empty(entry.shape, dtype)
        for chunk in chunks:
            whole[chunk.slices] = self._load_chunk(entry, chunk)
        return whole

    def _load_chunk(self, entry: Entry, chunk: _Chunk) -> Array:
        """Read a chunk from its range of bytes."""
        expected = Entry("tensor", entry.dtype, chunk.shape)
        try:
            with open(self.path / chunk.file, "rb", buffering=0) as file:
                check_unchanged(self._states[chunk.file], state_of(os.fstat(file.fileno())))
                window = _Window(file, chunk.start, chunk.nbytes)
                archive = TorchArchive(cast(BinaryIO, io.BufferedReader(window)), self.limits)
                if archive.entries != [expected]:
                    raise Corrupt(f"it is not a {entry.dtype} tensor of shape {chunk.shape}")
                return archive.load(expected)
        except FormatError as error:
            place = f"chunk of tensor {shown(entry.name)} in {shown(chunk.file)}"
            raise type(error)(f"{place}: {error}") from None


class _Window(io.RawIOBase):
    """A range of bytes of an open file, which reads like a file of its own."""

    def __init__(self, file: BinaryIO, start: int, nbytes: int) -> None:
        self._file, self._start, self._nbytes, self._at = file, start, nbytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._nbytes)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast(bytearray, buffer)).cast("B")
        view = view[: max(0, self._nbytes - self._at)]
        self._file.seek(self._start + self._at)
        count: int = cast(io.FileIO, self._file).readinto(view) or 0
        self._at += count
        return count


# --- the metadata


def _fields(value: object, name: str) -> dict[str, object]:
    """Return the attributes of a record."""
    kind = name.rpartition(".")[2]
    if not isinstance(value, Record) or value.name != name:
        raise Corrupt(f"{METADATA} has another value in place of a {kind}")
    items = _items(value.state, kind)
    if len(items) > _MAX_FIELDS:
        raise Corrupt(f"{METADATA} has a {kind} of {len(items)} attributes")
    return {key: item for key, item in items if isinstance(key, str)}


def _items(value: object, name: str) -> list[tuple[object, object]]:
    """Return the items of a dict."""
    if not isinstance(value, Mapping):
        raise Corrupt(f"{METADATA} has no dict of {name}")
    return value.items


def _storages(value: object) -> dict[tuple[str, str], tuple[str, int, int]]:
    """Return the file, the first byte and the size of each chunk, by tensor and offsets.

    The offsets are texts, whose hashes are random. A file could contain integers of equal hashes,
    with which a dict takes quadratic time.
    """
    storages: dict[tuple[str, str], tuple[str, int, int]] = {}
    for key, info in _items(value, "storage_data"):
        index, place = _fields(key, f"{_MODULE}MetadataIndex"), _fields(info, _STORAGE)
        name, offsets = index.get("fqn"), index.get("offset")
        if not isinstance(name, str):
            raise Corrupt(f"{METADATA} has a chunk without a name")
        if offsets is None:  # another value than a tensor
            continue
        if place.get("transform_descriptors") is not None:
            raise Unsupported(f"tensor {shown(name)} is stored compressed, by an extension")
        match [place.get(key) for key in ("relative_path", "offset", "length")]:
            case [str(file), int(start), int(nbytes)] if min(start, nbytes) >= 0:
                pass
            case _:
                raise Corrupt(f"{METADATA} has a chunk of {shown(name)} without a place")
        if not (file.endswith(_SUFFIX) and file.isprintable() and stays_inside(file)):
            raise Corrupt(f"{METADATA} names {shown(file)}, which is not a {_SUFFIX} file inside")
        storages[name, str(dimensions(offsets))] = file, start, nbytes
    return storages


def _tensor(
    name: str,
    record: object,
    storages: dict[tuple[str, str], tuple[str, int, int]],
    visits: Iterator[int],
) -> tuple[Entry, list[_Chunk]]:
    """Return the description of a tensor, and its chunks, each of which takes one of `visits`."""
    description = f"tensor {shown(name)}"
    fields = _fields(record, f"{_MODULE}TensorStorageMetadata")
    match fields.get("properties"):
        case Record(state=(Global(name=dtype), *_)) if dtype.startswith("torch."):
            dtype = dtype.removeprefix("torch.")
        case _:
            raise Corrupt(f"{description} has no dtype")
    shape = dimensions(fields.get("size"))
    itemsize = READABLE[dtype].itemsize if dtype in READABLE else 1
    elements = element_count(description, shape, itemsize)
    listed = fields.get("chunks")
    if not isinstance(listed, list) or len(listed) > MAX_TENSORS:
        raise Corrupt(f"{description} has no list of chunks, or one of more than {MAX_TENSORS}")
    chunks = []
    for part in listed:
        if next(visits, None) is None:
            raise LimitExceeded(f"{METADATA} has more than {_MAX_CHUNKS} chunks")
        place = _fields(part, f"{_MODULE}ChunkStorageMetadata")
        offsets, sizes = dimensions(place.get("offsets")), dimensions(place.get("sizes"))
        if not len(offsets) == len(sizes) == len(shape) or any(
            start + n > whole for start, n, whole in zip(offsets, sizes, shape, strict=True)
        ):
            raise Corrupt(f"{description} has a chunk outside of its shape")
        if not math.prod(sizes):
            continue
        storage = storages.get((name, str(offsets)))
        if storage is None:
            raise Corrupt(f"{description} has a chunk that no file contains")
        chunks.append(_Chunk(offsets, sizes, *storage))
    if elements:
        _check_tiling(description, shape, chunks)
    return Entry(name, dtype, shape), chunks


def _check_tiling(description: str, shape: tuple[int, ...], chunks: Sequence[_Chunk]) -> None:
    """Raise `Corrupt` unless each element of a tensor lies in exactly one chunk."""
    # The edges of all chunks cut the tensor into a grid of cells.
    parts = [chunk.slices for chunk in chunks]
    edges = [
        sorted({0, n} | {edge for part in parts for edge in (part[axis].start, part[axis].stop)})
        for axis, n in enumerate(shape)
    ]
    if math.prod(len(cuts) - 1 for cuts in edges) > _MAX_CELLS:
        raise LimitExceeded(f"{description} is cut into chunks too irregularly")
    marked = 0
    places = [{edge: place for place, edge in enumerate(cuts)} for cuts in edges]
    counts = np.zeros([len(cuts) - 1 for cuts in edges], np.int32)
    for part in parts:
        cells = tuple(
            slice(place[own.start], place[own.stop])
            for place, own in zip(places, part, strict=True)
        )
        marked += math.prod(cell.stop - cell.start for cell in cells)
        if marked > counts.size:
            break  # some overlap
        counts[cells] += 1
    if marked != counts.size or not np.all(counts):
        raise Corrupt(f"{description} has chunks that overlap, or leave a gap")


def _state_of(path: Path) -> tuple[int, int]:
    try:
        return state_of(path.stat())
    except FileNotFoundError:
        raise Corrupt(f"{METADATA} names {shown(path.name)}, which is missing") from None
