"""Base of the readers of all file formats: entries, dtypes, size checks, error messages."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gcodec.errors import Corrupt, LimitExceeded, ParameterError, Truncated, Unsupported
from gcodec.limits import MAX_TENSORS, Limits
from gcodec.wire.primitives import FLOATS8

Array = NDArray[Any]

_MAX_NDIM = 32  # the limit of NumPy 1.x

READABLE: dict[str, np.dtype[np.generic]] = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
} | {name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", *FLOATS8)}
"""Dtypes that can be loaded, by name."""


_OF_ML_DTYPES = ("<V1", "|V1", "float8")


def remedy(dtype: str) -> str:
    """Return what to do about a dtype of .npy files that hides another one; empty for the others.

    numpy.save writes all types of ml_dtypes with one byte as V1, except float8_e5m2, whose code is
    f1. The files do not contain the names of the types.
    """
    if dtype not in _OF_ML_DTYPES:
        return ""
    return (
        "numpy.save stores float8 and other types of ml_dtypes as bytes without a name; convert "
        "the array before you save it, as in x.astype('float32'), which keeps every value"
    )


class Entry(NamedTuple):
    """Description of one tensor of a dump, from the header of the file.

    Attributes
    ----------
    name : str
        Name of the tensor.
    dtype : str
        Name of the dtype in NumPy or ml_dtypes, such as "float32" or "bfloat16".
    shape : tuple of int
        Shape of the tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)


def shown(text: object) -> str:
    """Quote text from a file for a message: at most 100 characters, none of them control."""
    quoted = repr(str(text))
    return quoted if len(quoted) <= 100 else quoted[:97] + "..."


def state_of(status: os.stat_result) -> tuple[int, int]:
    """Return the size of a file, and the time when it was written."""
    return status.st_size, status.st_mtime_ns


def check_unchanged(old: tuple[int, int], new: tuple[int, int]) -> None:
    """Raise `FormatError` if a file changed between two states, which readers must not mix."""
    if old != new:
        kind = Truncated if new[0] < old[0] else Corrupt
        raise kind("the file changed while it was read")


def stays_inside(name: str) -> bool:
    """Return whether a name, taken as a relative path on any system, stays within its folder.

    Names of archive members and of shards become paths when a program unpacks or opens them.
    """
    # A Windows path recognizes drives, roots and both slashes on every system. Windows ignores
    # dots and spaces at the end of a part.
    path = PureWindowsPath(name)
    ascends = any(part.rstrip(" .") == "" and len(part) > 1 for part in path.parts)
    return not path.anchor and not ascends


def element_count(description: str, shape: tuple[int, ...], itemsize: int) -> int:
    """Count the elements of a shape that NumPy can represent.

    Raises
    ------
    Corrupt
        If the array would need 2**63 bytes or more, not counting dimensions of size 0.
    Unsupported
        If the array has more than 32 dimensions.
    """
    if len(shape) > _MAX_NDIM:
        raise Unsupported(f"{description} has {len(shape)} dimensions, more than {_MAX_NDIM}")
    if math.prod(n for n in shape if n) * itemsize >= 2**63:
        raise Corrupt(f"{description} has an impossible shape of {len(shape)} dimensions")
    return math.prod(shape)


def loadable(entry: Entry) -> tuple[str, np.dtype[np.generic], int]:
    """Return the description of a tensor for messages, its dtype, and its number of elements.

    Raises
    ------
    Corrupt
        If the shape is impossible; see `element_count`.
    Unsupported
        If the dtype is not one of `READABLE`, or there are more than 32 dimensions.
    """
    description = f"tensor {shown(entry.name)}"
    if entry.dtype not in READABLE:
        raise Unsupported(f"{description} has dtype {shown(entry.dtype)}, which cannot be loaded")
    dtype = READABLE[entry.dtype]
    return description, dtype, element_count(description, entry.shape, dtype.itemsize)


def native(array: Array) -> Array:
    """Return an array in native byte order, whose booleans are all 0 or 1."""
    if array.dtype == np.bool_:
        # A file may contain the byte 2, which compiled code takes neither for True nor for False.
        return np.asarray(array.view(np.uint8) != 0)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


class Dump:
    """Open file of named tensors, which loads one tensor at a time.

    `open_dump` returns dumps. A dump is a context manager that closes its files at the end. One
    thread at a time may load tensors, because the readers of some formats share a position.

    Attributes
    ----------
    path : pathlib.Path
        Path of the file.
    format : str
        "safetensors", "npz", "npy", "pt" or "distcp".
    metadata : dict of str to str
        Metadata in the file; empty if the format has none.
    entries : list of Entry
        Descriptions of the tensors, read without any tensor data.
    omitted : dict of str to str
        Names of tensors that the reader passes over, such as sparse ones, and the reasons.
    """

    format: str = ""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self.metadata: dict[str, str] = {}
        self.entries: list[Entry] = []
        self.omitted: dict[str, str] = {}
        self._by_name: dict[str, Entry] = {}
        self._closed = False

    def _set_entries(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.name in self._by_name:
                raise Corrupt(f"two tensors are named {shown(entry.name)}")
            if len(self.entries) >= MAX_TENSORS:
                raise LimitExceeded(f"more than {MAX_TENSORS} tensors in one file")
            self._by_name[entry.name] = entry
            self.entries.append(entry)

    @property
    def files(self) -> list[Path]:
        """Files that contain the tensors."""
        return [self.path]

    def load(self, entry: Entry) -> Array:
        """Read one tensor.

        Parameters
        ----------
        entry : Entry
            Entry in `entries`.

        Returns
        -------
        numpy.ndarray
            Tensor in native byte order, with the memory order of the file.

        Raises
        ------
        ParameterError
            If `entry` does not belong to this dump, or the dump is closed.
        Unsupported
            If the dtype cannot be loaded; `Unsafe` if loading it would run code.
        LimitExceeded
            If the tensor is larger than the limits allow.
        FormatError
            If the file contradicts itself or ends too early.
        """
        if self._closed:
            raise ParameterError.of("dump", self.path.name, "open, but it was closed")
        if not isinstance(entry, Entry) or self._by_name.get(entry.name) != entry:
            raise ParameterError.of("entry", entry, f"one of the entries of {self.path.name!r}")
        return self._load(entry)

    def _load(self, entry: Entry) -> Array:
        raise NotImplementedError

    def close(self) -> None:
        """Close the files, after which no tensor can be loaded."""
        self._closed = True
        self._close()

    def _close(self) -> None:
        """Close the files that are open between loads, if there are any."""

    def __enter__(self) -> Dump:
        """Return the dump itself."""
        return self

    def __exit__(self, *exception_details: object) -> None:
        """Close the files."""
        self.close()

    def __repr__(self) -> str:
        """Return the format, the path and the number of tensors."""
        return f"<{self.format} dump {os.fspath(self.path)!r} with {len(self.entries)} tensors>"


class FileDump(Dump):
    """Dump in one file, which stays open after its header has been read."""

    def __init__(self, path: Path, limits: Limits) -> None:
        super().__init__(path, limits)
        self._file = open(path, "rb")  # noqa: SIM115
        try:
            self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        self._file.close()
