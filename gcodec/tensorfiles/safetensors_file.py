"""Read .safetensors files, whole or in shards, and write them."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from gcodec.errors import Corrupt, FormatError, LimitExceeded, ParameterError, Truncated
from gcodec.limits import MAX_TENSORS, Limits
from gcodec.tensorfiles.entries import (
    READABLE,
    Array,
    Dump,
    Entry,
    check_unchanged,
    loadable,
    native,
    shown,
    state_of,
    stays_inside,
)
from gcodec.wire.primitives import FLOATS8

_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8"},
    **{"BOOL": "bool", "C64": "complex64"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"},
    **{"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"},
    **{"F4": "float4_e2m1fn", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn"},
}
INDEX_SUFFIX = ".safetensors.index.json"
"""Suffix of the index of a file in shards."""

_MAX_INDEX = 64 << 20
MAX_HEADER = 100_000_000  # bytes; the library refuses longer headers
LENGTH_NBYTES = 8  # of the length of the header, which precedes it


def dtype_named(code: str) -> str:
    """Return the name of a dtype, given its code in a file."""
    return _DTYPES.get(code, code.lower())


def _format_error(error: SafetensorError, path: Path) -> FormatError:
    kind = Truncated if _is_truncated(path) else Corrupt
    return kind(f"safetensors cannot read it: {shown(error)}")


def _is_truncated(path: Path) -> bool:
    """Return whether a damaged file is too short, which the library does not report."""
    try:
        ends = (end for _, end in _places(path).values())
        return max(ends, default=0) > path.stat().st_size
    except Truncated:
        return True
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return False


def read_head(file: BinaryIO) -> bytes:
    """Read the bytes of a .safetensors file before its first tensor.

    Raises
    ------
    Truncated
        If the file ends too early.
    Corrupt
        If the header is longer than the library permits.
    """
    head = file.read(LENGTH_NBYTES)
    length = int.from_bytes(head, "little")
    if len(head) == LENGTH_NBYTES and length > MAX_HEADER:
        raise Corrupt(f"the header has {length} bytes")
    size = os.fstat(file.fileno()).st_size
    if size < LENGTH_NBYTES + length:
        raise Truncated("the file ends within its header", size)
    return head + file.read(length)


def _places(path: Path) -> dict[str, tuple[int, int]]:
    """Return the first byte of each tensor of a file, and the byte after it."""
    with open(path, "rb") as file:
        head = read_head(file)
    header = json.loads(head[LENGTH_NBYTES:])
    header.pop("__metadata__", None)
    offsets = {name: tensor["data_offsets"] for name, tensor in header.items()}
    return {name: (len(head) + start, len(head) + end) for name, (start, end) in offsets.items()}


class SafetensorsDump(Dump):
    """A .safetensors file, memory-mapped by the safetensors library.

    Attributes
    ----------
    state : tuple of int
        State of the file when it was opened; see `state_of`.
    """

    format = "safetensors"

    def __init__(self, path: Path, limits: Limits) -> None:
        super().__init__(path, limits)
        self.state = state_of(os.stat(path))
        try:
            # The library annotates the class, but not its methods.
            self._file = cast(Any, safe_open(str(path), framework="numpy"))
            self.metadata = dict(sorted((self._file.metadata() or {}).items()))
            self._set_entries(self._entry(name) for name in self._file.keys())  # noqa: SIM118
        except SafetensorError as error:
            raise _format_error(error, path) from None
        except FileNotFoundError:  # as which the library reports every failure to open a file
            path.open("rb").close()
            raise

    def _entry(self, name: str) -> Entry:
        part = self._file.get_slice(name)
        code = part.get_dtype()
        return Entry(name, dtype_named(code), tuple(part.get_shape()))

    def _load(self, entry: Entry) -> Array:
        description, dtype, elements = loadable(entry)
        nbytes = elements * dtype.itemsize
        self.limits.check(description, elements, nbytes, nbytes)
        check_unchanged(self.state, state_of(os.stat(self.path)))
        if entry.dtype in FLOATS8:  # the library cannot return these as arrays of NumPy
            start, _ = self._places[entry.name]
            array: Array = np.fromfile(self.path, dtype, elements, offset=start)
            if array.size < elements:
                raise Truncated(f"{description} has {array.size} of {elements} bytes")
            return array.reshape(entry.shape)
        try:
            array = self._file.get_tensor(entry.name)
        except SafetensorError as error:
            raise _format_error(error, self.path) from None
        return native(array)

    @functools.cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        return _places(self.path)

    def _close(self) -> None:
        self._file.__exit__(None, None, None)


def read_index(path: Path) -> dict[str, str]:
    """Read the shard of each tensor from a .safetensors.index.json file.

    Returns
    -------
    dict of str to str
        Names of shards by tensor name. All shards are within the folder of the index.

    Raises
    ------
    FormatError
        If the index is damaged, too large, or names a shard outside its folder.
    """
    size = path.stat().st_size
    if size > _MAX_INDEX:
        raise LimitExceeded(f"index of {size} bytes, more than {_MAX_INDEX}")
    if not size:
        raise Truncated("index is empty")
    try:
        index = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise Corrupt("index is not JSON") from None
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict):
        raise Corrupt("index has no weight_map")
    if len(shards) > MAX_TENSORS:
        raise LimitExceeded(f"more than {MAX_TENSORS} tensors in one index")
    for shard in shards.values():
        if not isinstance(shard, str) or not (
            shard.endswith(".safetensors") and shard.isprintable() and stays_inside(shard)
        ):
            raise Corrupt(f"index names {shown(shard)}, which is not a shard in its folder")
    return shards


class ShardedDump(Dump):
    """Several .safetensors files, and the index that names them."""

    format = "safetensors"

    def __init__(self, path: Path, limits: Limits) -> None:
        super().__init__(path, limits)
        self._shards = read_index(path)
        self._open: tuple[str, SafetensorsDump] | None = None
        self._states: dict[str, tuple[int, int]] = {}
        entries: dict[str, Entry] = {}
        try:
            for shard in dict.fromkeys(self._shards.values()):
                dump = self._shard(shard)
                for entry in dump.entries:
                    place = self._shards.get(entry.name)
                    if place is None:
                        self.omitted[entry.name] = "not in the index"
                    elif place == shard:
                        entries[entry.name] = entry
                self.metadata |= dump.metadata
            for name, shard in self._shards.items():
                if name not in entries:
                    raise Corrupt(f"shard {shown(shard)} has no tensor {shown(name)}")
        except BaseException:
            self.close()
            raise
        self._set_entries(entries[name] for name in self._shards)

    @property
    def files(self) -> list[Path]:
        """The shards."""
        return [self.path.parent / shard for shard in dict.fromkeys(self._shards.values())]

    def _shard(self, shard: str) -> SafetensorsDump:
        # Only one shard is open at a time, because there can be more shards than file descriptors.
        if self._open is None or self._open[0] != shard:
            self._close()
            path = self.path.parent / shard
            if os.path.exists(path) and not os.path.isfile(path):  # a pipe may never end
                raise Corrupt(f"index names {shown(shard)}, which is a directory or a device")
            try:
                self._open = (shard, SafetensorsDump(path, self.limits))
                state = self._open[1].state
                check_unchanged(self._states.setdefault(shard, state), state)
            except FormatError as error:
                raise type(error)(f"shard {shown(shard)}: {error}") from None
        return self._open[1]

    def _load(self, entry: Entry) -> Array:
        return self._shard(self._shards[entry.name]).load(entry)

    def _close(self) -> None:
        if self._open is not None:
            self._open[1].close()
        self._open = None


@functools.cache  # NumPy composes the name of a dtype at each access
def can_store(dtype: np.dtype[np.generic]) -> bool:
    """Return whether the format can store a dtype, and the reader can load it again."""
    return dtype.name in _DTYPES.values() and dtype.name in READABLE


def write_safetensors(file: BinaryIO, tensors: Mapping[str, Array]) -> None:
    """Write tensors to a .safetensors file, with the bytes of the safetensors library.

    Raises
    ------
    ParameterError
        If the library is too old for a dtype of the tensors.
    """
    head, names = _head_of(tensors)
    file.write(head)
    for name in names:
        tensor = native(tensors[name])
        stored = np.asarray(tensor, tensor.dtype.newbyteorder("<"), order="C")
        file.write(stored.reshape(-1).view(np.uint8).data)


def _head_of(tensors: Mapping[str, Array]) -> tuple[bytes, list[str]]:
    """Return the bytes of a file before its tensors, and the names in the order of their bytes."""
    # The library would copy all tensors twice. It orders tensors of no size in the same way.
    try:
        empty = save({n: np.empty(0, x.dtype.newbyteorder("=")) for n, x in tensors.items()})
    except SafetensorError as error:
        raise ParameterError(f"safetensors cannot write these tensors: {shown(error)}") from None
    header, end = json.loads(empty[LENGTH_NBYTES:]), 0
    for name, entry in header.items():
        start, end = end, end + tensors[name].nbytes
        entry |= {"shape": tensors[name].shape, "data_offsets": (start, end)}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_NBYTES)  # as the library aligns the first tensor
    return len(text).to_bytes(LENGTH_NBYTES, "little") + text, list(header)
