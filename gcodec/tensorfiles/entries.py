"""What the readers of all file formats share: entries, dtypes, size checks, messages."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path, PureWindowsPath
from types import TracebackType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gcodec.errors import Corrupt, LimitExceeded, ParameterError, Unsupported
from gcodec.limits import Limits

Array = NDArray[Any]

MAX_ENTRIES = 65_536
"""Most tensors, or members of an archive, that one file may hold."""

# What NumPy 1.x can hold too.
_MAX_RANK = 32

READABLE: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
"""The dtypes that can be loaded, by name."""


class Entry(NamedTuple):
    """One tensor of a dump, as its header describes it.

    Parameters
    ----------
    name : str
        Name of the tensor.
    dtype : str
        NumPy's or ml_dtypes' name of the type, such as "float32" or "bfloat16".
    shape : tuple of int
        Its shape.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


def shown(text: object) -> str:
    """Quote a text out of a file for a message: no control characters, not too long."""
    quoted = repr(str(text))
    return quoted if len(quoted) <= 100 else quoted[:97] + "..."


def stays_inside(name: str) -> bool:
    """Tell whether a name, read as a path on any system, stays within the folder it is put into.

    Names of archive members and of shards become paths when someone unpacks or opens them.
    """
    # Read as a Windows path, a drive, a root and both slashes are seen on every system. Windows
    # ignores dots and spaces at the end of a part.
    path = PureWindowsPath(name)
    climbs = (part.rstrip(" .") == "" and len(part) > 1 for part in path.parts)
    return not path.anchor and not any(climbs)


def element_count(what: str, shape: tuple[int, ...], itemsize: int) -> int:
    """Count the elements of a shape that NumPy can represent.

    Raises
    ------
    Corrupt
        If the array would need 2**63 bytes or more, zero-sized dimensions left aside.
    Unsupported
        If it has more than 32 dimensions.
    """
    if len(shape) > _MAX_RANK:
        raise Unsupported(f"{what} has {len(shape)} dimensions, more than {_MAX_RANK}")
    if math.prod(n for n in shape if n) * itemsize >= 2**63:
        raise Corrupt(f"{what} has an impossible shape of {len(shape)} dimensions")
    return math.prod(shape)


def readable(what: str, dtype: str) -> np.dtype[Any]:
    """Look up a dtype that can be loaded.

    Raises
    ------
    Unsupported
        If it is not one of `READABLE`.
    """
    found = READABLE.get(dtype)
    if found is None:
        raise Unsupported(f"{what} has dtype {shown(dtype)}, which cannot be loaded")
    return found


def native(array: Array) -> Array:
    """Give an array in native byte order, whose booleans are all 0 or 1."""
    if array.dtype == np.bool_:
        # A byte of 2 from a file is neither True nor False to compiled code.
        return np.asarray(array.view(np.uint8) != 0)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


class Dump:
    """A file of named tensors, opened for reading one tensor at a time.

    `open_dump` makes these. A dump is a context manager that closes its files at the end.

    Attributes
    ----------
    path : pathlib.Path
        The file.
    format : str
        "safetensors", "npz", "npy" or "pt".
    metadata : dict of str to str
        Notes that the file carries, empty in formats without any.
    entries : list of Entry
        The tensors. No tensor data is read to make this list.
    """

    format: str = ""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self.metadata: dict[str, str] = {}
        self.entries: list[Entry] = []
        self._named: dict[str, Entry] = {}
        self._closed = False

    def _set_entries(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.name in self._named:
                raise Corrupt(f"two tensors are named {shown(entry.name)}")
            if len(self.entries) >= MAX_ENTRIES:
                raise LimitExceeded(f"more than {MAX_ENTRIES} tensors in one file")
            self._named[entry.name] = entry
            self.entries.append(entry)

    def load(self, entry: Entry) -> Array:
        """Read one tensor.

        Parameters
        ----------
        entry : Entry
            One of `entries`.

        Returns
        -------
        numpy.ndarray
            The tensor, in native byte order. Its memory order is that of the file.

        Raises
        ------
        ParameterError
            If `entry` is not of this dump, or the dump is closed.
        Unsupported
            If its dtype cannot be loaded; `Unsafe` if that would run code.
        LimitExceeded
            If it is larger than the limits allow.
        FormatError
            If the file contradicts itself or ends too early.
        """
        if self._closed:
            raise ParameterError.of("dump", self.path.name, "open, but it was closed")
        if not isinstance(entry, Entry) or self._named.get(entry.name) != entry:
            raise ParameterError.of("entry", entry, f"one of the entries of {self.path.name!r}")
        return self._load(entry)

    def _load(self, entry: Entry) -> Array:
        raise NotImplementedError

    def close(self) -> None:
        """Close the files. Nothing can be loaded afterwards."""
        self._closed = True
        self._close()

    def _close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Dump:
        """Give the dump itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the files."""
        self.close()

    def __repr__(self) -> str:
        """Name the format, the file and the number of tensors."""
        return f"<{self.format} dump {os.fspath(self.path)!r} with {len(self.entries)} tensors>"


class FileDump(Dump):
    """A dump in one file, which stays open from the reading of its header on."""

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
