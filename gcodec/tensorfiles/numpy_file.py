"""Read NumPy's .npy and .npz files, and write .npz.

NumPy has no name for bfloat16, so numpy.save writes arrays of ml_dtypes.bfloat16 with the type
code of two opaque bytes, "V2". Nothing else that numpy.save writes for tensors has that code:
it is read as bfloat16 here, and bfloat16 is written so.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from gcodec.errors import Corrupt, LimitExceeded, Truncated, Unsafe, Unsupported
from gcodec.limits import Limits
from gcodec.tensorfiles.archive import Archive
from gcodec.tensorfiles.entries import (
    READABLE,
    Array,
    Entry,
    FileDump,
    element_count,
    native,
    shown,
)

_MAGIC = b"\x93NUMPY"
# NumPy itself refuses longer headers, and plain arrays need about 128 bytes.
_MAX_HEADER = 10_000
# The header is Python source. Only its one usual form is accepted: no parser to feed or exhaust.
_FIELD = re.compile(
    r"\s*(?P<q>['\"])(?P<key>descr|fortran_order|shape)(?P=q)\s*:\s*(?:"
    r"(?P<p>['\"])(?P<text>[^'\"\\]{0,64})(?P=p)|(?P<flag>True|False)|"
    r"\((?P<shape>[\d\sL,]*)\)|(?P<fields>\[.*\]))\s*(?:,|(?=\}))",
    re.ASCII | re.DOTALL,
)
_SHAPE = re.compile(r"\s*(?:\d{1,20}L?\s*(?:,\s*\d{1,20}L?\s*)*,?\s*)?", re.ASCII)
_CODE = re.compile(r"([<>|=]?)([biufc])(\d{1,2})", re.ASCII)
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}


class Header(NamedTuple):
    """What stands before the data of a .npy file.

    `stored` is the dtype as stored, byte order and all, or None if it cannot be loaded;
    `start` the length of the header.
    """

    dtype: str
    stored: np.dtype[Any] | None
    shape: tuple[int, ...]
    fortran: bool
    start: int
    elements: int

    @property
    def nbytes(self) -> int:
        """Bytes of data, if they can be known."""
        return self.elements * (self.stored.itemsize if self.stored else 0)


def _dtype_of(descr: str) -> tuple[str, np.dtype[Any] | None]:
    if descr.lstrip("<>|=") == "V2":
        return "bfloat16", READABLE["bfloat16"]
    if descr.lstrip("|") == "O":
        return "object", None
    match = _CODE.fullmatch(descr)
    if match is None:
        return descr, None
    order, kind, size = match.groups()
    name = _KINDS[kind] + ("" if kind == "b" else str(8 * int(size)))
    found = READABLE.get(name)
    if found is None or found.itemsize != int(size):
        return name if found is None else descr, None
    return name, found.newbyteorder("<" if order == "<" else ">" if order == ">" else "=")


def read_header(what: str, read: Callable[[int], bytes]) -> Header:
    """Read the header of a .npy file.

    Parameters
    ----------
    what : str
        Name of the file or member, for messages.
    read : callable
        Gives exactly that many of the next bytes, or raises.

    Raises
    ------
    FormatError
        If this is no .npy file, or its header is not one that NumPy writes.
    """
    lead = read(8)
    if lead[:6] != _MAGIC:
        raise Corrupt(f"{what} is not in NumPy's .npy format", 0)
    if lead[6] not in (1, 2, 3) or lead[7] != 0:
        raise Unsupported(f"{what} is of .npy version {lead[6]}.{lead[7]}")
    width = 2 if lead[6] == 1 else 4
    size = int.from_bytes(read(width), "little")
    if size > _MAX_HEADER:
        raise LimitExceeded(f"{what} has a header of {size} bytes, more than {_MAX_HEADER}")
    try:
        text = read(size).decode("utf-8" if lead[6] == 3 else "latin-1")
    except UnicodeDecodeError:
        raise Corrupt(f"{what} has a header that is not UTF-8") from None
    fields = _parse(what, text.strip())
    dtype, stored = ("structured", None) if fields["fields"] else _dtype_of(fields["descr"] or "")
    shape_text = fields["shape"] or ""
    if _SHAPE.fullmatch(shape_text) is None:
        raise Corrupt(f"{what} has a malformed shape")
    shape = tuple(int(n) for n in re.findall(r"\d+", shape_text))
    elements = element_count(what, shape, stored.itemsize if stored else 1)
    start = 8 + width + size
    return Header(dtype, stored, shape, fields["fortran_order"] == "True", start, elements)


def _parse(what: str, text: str) -> dict[str, str | None]:
    fields: dict[str, str | None] = {}
    at = 1
    while match := _FIELD.match(text, at):
        at = match.end()
        key = match["key"]
        if key in fields:
            raise Corrupt(f"{what} has {key} twice in its header")
        fields[key] = match[{"descr": "text", "fortran_order": "flag", "shape": "shape"}[key]]
        if key == "descr":
            fields["fields"] = match["fields"]
    missing = (
        fields.get("descr") is None and fields.get("fields") is None,
        fields.get("fortran_order") is None,
        fields.get("shape") is None,
    )
    if any(missing) or text[:1] != "{" or text[at:].strip() != "}":
        raise Corrupt(f"{what} has a malformed header")
    return fields


def _load(
    what: str,
    header: Header,
    limits: Limits,
    packed: int,
    read_into: Callable[[memoryview], None],
) -> Array:
    if header.dtype == "object":
        raise Unsafe(f"{what} holds Python objects: unpickling them could run code")
    if header.stored is None:
        raise Unsupported(f"{what} has dtype {shown(header.dtype)}, which cannot be loaded")
    limits.check(what, header.elements, header.nbytes, packed)
    data = bytearray(header.nbytes)
    read_into(memoryview(data))
    # A Fortran array is the transpose of a C array of the reversed shape.
    shape = header.shape[::-1] if header.fortran else header.shape
    array: Array = np.ndarray(shape, header.stored, data)
    return native(array.T if header.fortran else array)


class NpyDump(FileDump):
    """A .npy file: one array, named after the file."""

    format = "npy"

    def _read_header(self) -> None:
        self._nbytes = os.fstat(self._file.fileno()).st_size
        self._header = header = read_header(shown(self.path.name), self._read)
        if header.stored and header.start + header.nbytes != self._nbytes:
            kind = Truncated if header.start + header.nbytes > self._nbytes else Corrupt
            raise kind(
                f"{shown(self.path.name)} declares {header.nbytes} bytes of data, "
                f"but {self._nbytes - header.start} follow its header"
            )
        self._set_entries([Entry(self.path.stem, header.dtype, header.shape)])

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise Truncated(f"{shown(self.path.name)} ends too early", self._nbytes)
        return data

    def _read_into(self, view: memoryview) -> None:
        if _fill(self._file, view) != len(view):
            raise Truncated(f"{shown(self.path.name)} ends too early", self._nbytes)

    def _load(self, entry: Entry) -> Array:
        self._file.seek(self._header.start)
        return _load(
            f"array {shown(entry.name)}", self._header, self.limits, self._nbytes, self._read_into
        )


def _fill(file: BinaryIO, view: memoryview) -> int:
    done = 0
    while done < len(view):
        data = file.read(min(1 << 20, len(view) - done))
        if not data:
            break
        view[done : done + len(data)] = data
        done += len(data)
    return done


class NpzDump(FileDump):
    """A .npz file: a zip archive of .npy files."""

    format = "npz"

    def _read_header(self) -> None:
        self._archive = Archive(self._file)
        self._headers: dict[str, tuple[str, Header]] = {}
        for member_name in self._archive.members:
            name = member_name.removesuffix(".npy")
            header = self._member_header(member_name)
            self._set_entries([Entry(name, header.dtype, header.shape)])
            self._headers[name] = (member_name, header)

    def _member_header(self, member_name: str) -> Header:
        member = self._archive.members[member_name]
        reader = self._archive.open(member)
        header = read_header(reader.what, reader.read)
        if header.stored and header.nbytes != reader.left:
            raise Corrupt(
                f"{reader.what} declares {header.nbytes} bytes of data, "
                f"but {reader.left} follow its header"
            )
        return header

    def _load(self, entry: Entry) -> Array:
        member_name, header = self._headers[entry.name]
        member = self._archive.members[member_name]
        reader = self._archive.open(member)
        # Read, not skipped, as the checksum covers the header too.
        reader.read(header.start)
        what = f"array {shown(entry.name)}"
        return _load(what, header, self.limits, member.compress_size, reader.read_into)


def write_npz(file: BinaryIO, tensors: Iterable[tuple[str, Array]]) -> None:
    """Write tensors to an uncompressed .npz file, byte for byte the same on every run."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in tensors:
            is_bfloat16 = tensor.dtype.name == "bfloat16"
            stored = native(tensor).view("V2") if is_bfloat16 else tensor
            info = zipfile.ZipInfo(f"{name}.npy")
            info.external_attr = 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, stored, allow_pickle=False)
