"""Read NumPy's .npy and .npz files, and write .npz files.

NumPy has no name for bfloat16. numpy.save therefore writes arrays of ml_dtypes.bfloat16 with the
type code "V2", two opaque bytes. numpy.save writes no other tensors with that code, so this module
reads "V2" as bfloat16, and writes bfloat16 as "V2".
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

import numpy as np

from gcodec.errors import Corrupt, FormatError, LimitExceeded, Truncated, Unsafe, Unsupported
from gcodec.limits import Limits
from gcodec.tensorfiles.archive import Archive, Reader
from gcodec.tensorfiles.entries import (
    READABLE,
    Array,
    Entry,
    FileDump,
    element_count,
    native,
    remedy,
    shown,
)

_MAGIC = b"\x93NUMPY"
# NumPy itself refuses longer headers. Headers of plain arrays have about 128 bytes.
_MAX_HEADER = 10_000
# The header is a Python dict literal. This pattern accepts only its usual form, so that no parser
# can be attacked or exhausted.
_FIELD = re.compile(
    r"\s*(?P<q>['\"])(?:"
    r"descr(?P=q)\s*:\s*(?:(?P<p>['\"])(?P<descr>[^'\"\\]{0,64})(?P=p)|(?P<record>\[.*\]))|"
    r"fortran_order(?P=q)\s*:\s*(?P<fortran_order>True|False)|"
    r"shape(?P=q)\s*:\s*\((?P<shape>[\d\sL,]*)\))\s*(?:,|(?=\}))",
    re.ASCII | re.DOTALL,
)
_SHAPE = re.compile(r"\s*(?:\d{1,20}L?\s*(?:,\s*\d{1,20}L?\s*)*(?:,\s*)?)?", re.ASCII)
_CODE = re.compile(r"([<>|=]?)([biufc])(\d{1,2})", re.ASCII)
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}


class Header(NamedTuple):
    """Header of a .npy file.

    Attributes
    ----------
    dtype : str
        Name of the dtype.
    stored : numpy.dtype or None
        Dtype of the stored data with its byte order, or None if it cannot be loaded.
    shape : tuple of int
    fortran : bool
        Whether the data are in Fortran order.
    start : int
        Length of the header in bytes.
    elements : int
        Number of elements.
    """

    dtype: str
    stored: np.dtype[np.generic] | None
    shape: tuple[int, ...]
    fortran: bool
    start: int
    elements: int

    @property
    def nbytes(self) -> int:
        """Number of bytes of data, or 0 if the dtype cannot be loaded."""
        return self.elements * (self.stored.itemsize if self.stored else 0)


def _parse_dtype(descr: str) -> tuple[str, np.dtype[np.generic] | None]:
    """Return the name and the stored dtype of a type code; see `Header`."""
    if descr.lstrip("<>|=") == "V2":
        return "bfloat16", READABLE["bfloat16"]
    if descr.lstrip("|") == "O":
        return "object", None
    match = _CODE.fullmatch(descr)
    if match is None:
        return descr, None
    order, kind, size = match.groups()
    name = _KINDS[kind] + ("" if kind == "b" else str(8 * int(size)))
    dtype = READABLE.get(name)
    if dtype is None or dtype.itemsize != int(size):
        return name if dtype is None else descr, None
    return name, dtype.newbyteorder("<" if order == "<" else ">" if order == ">" else "=")


def _read_header(reader: Reader, too_short: type[FormatError]) -> Header:
    """Read the header of a .npy file or member, and check the number of bytes that follow it.

    Parameters
    ----------
    reader : Reader
    too_short : type
        Error for too few bytes of data.

    Raises
    ------
    FormatError
        If the file is not in the .npy format, or NumPy does not write such headers.
    """
    name = reader.description
    magic = reader.read(min(len(_MAGIC), reader.left))
    if not _MAGIC.startswith(magic):
        raise Corrupt(f"{name} is not in NumPy's .npy format", 0)
    lead = magic + reader.read(8 - len(magic))
    if lead[6] not in (1, 2, 3) or lead[7] != 0:
        raise Unsupported(f"{name} is of .npy version {lead[6]}.{lead[7]}")
    width = 2 if lead[6] == 1 else 4
    size = int.from_bytes(reader.read(width), "little")
    if size > _MAX_HEADER:
        raise LimitExceeded(f"{name} has a header of {size} bytes, more than {_MAX_HEADER}")
    try:
        text = reader.read(size).decode("utf-8" if lead[6] == 3 else "latin-1").strip()
    except UnicodeDecodeError:
        raise Corrupt(f"{name} has a header that is not UTF-8") from None
    matches, end = [], 1
    while match := _FIELD.match(text, end):
        matches.append(match)
        end = match.end()
    fields = {match.lastgroup: match[match.lastgroup or 0] for match in matches}
    is_complete = len(matches) == len(fields) == 3 and {"fortran_order", "shape"} <= fields.keys()
    if not is_complete or text[:1] != "{" or text[end:].strip() != "}":
        raise Corrupt(f"{name} has a malformed header")
    if _SHAPE.fullmatch(fields["shape"]) is None:
        raise Corrupt(f"{name} has a malformed shape")
    dtype, stored = ("structured", None) if "record" in fields else _parse_dtype(fields["descr"])
    shape = tuple(int(n) for n in re.findall(r"\d+", fields["shape"]))
    elements = element_count(name, shape, stored.itemsize if stored else 1)
    is_fortran = fields["fortran_order"] == "True"
    header = Header(dtype, stored, shape, is_fortran, 8 + width + size, elements)
    if stored and header.nbytes != reader.left:
        kind = too_short if header.nbytes > reader.left else Corrupt
        raise kind(
            f"{name} declares {header.nbytes} bytes of data, but {reader.left} follow its header"
        )
    return header


def _load(entry: Entry, header: Header, limits: Limits, packed: int, reader: Reader) -> Array:
    """Read an array from the start of its file or member, which stores it in `packed` bytes."""
    name = f"array {shown(entry.name)}"
    reader.read(header.start)  # not skipped, because a checksum covers the header too
    if header.dtype == "object":
        raise Unsafe(f"{name} holds Python objects: unpickling them could run code")
    if header.stored is None:
        message = f"{name} has dtype {shown(header.dtype)}, which cannot be loaded"
        raise Unsupported("; ".join(filter(None, (message, remedy(header.dtype)))))
    limits.check(name, header.elements, header.nbytes, packed)
    data = reader.read_array(header.nbytes)
    # A Fortran array is the transpose of a C array of the reversed shape.
    shape = header.shape[::-1] if header.fortran else header.shape
    array: Array = np.ndarray(shape, header.stored, data)
    return native(array.T if header.fortran else array)


class NpyDump(FileDump):
    """A .npy file: one array, named after the file."""

    format = "npy"

    def _read_header(self) -> None:
        self._nbytes = os.fstat(self._file.fileno()).st_size
        self._reader = Reader(shown(self.path.name), self._nbytes, self._file)
        self._header = _read_header(self._reader, Truncated)
        self._set_entries([Entry(self.path.stem, self._header.dtype, self._header.shape)])

    def _load(self, entry: Entry) -> Array:
        self._file.seek(0)
        return _load(entry, self._header, self.limits, self._nbytes, self._reader)


class NpzDump(FileDump):
    """A .npz file: a zip archive of .npy files."""

    format = "npz"

    def _read_header(self) -> None:
        self._archive = Archive(self._file)
        self._members: dict[str, tuple[zipfile.ZipInfo, Header]] = {}
        for member_name, member in self._archive.members.items():
            name = member_name.removesuffix(".npy")
            header = _read_header(self._archive.open(member), Corrupt)
            self._set_entries([Entry(name, header.dtype, header.shape)])
            self._members[name] = member, header

    def _load(self, entry: Entry) -> Array:
        member, header = self._members[entry.name]
        reader = self._archive.open(member)
        return _load(entry, header, self.limits, member.compress_size, reader)


def write_npz(file: BinaryIO, tensors: Iterable[tuple[str, Array]]) -> None:
    """Write tensors to an uncompressed .npz file with the same bytes on every run."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in tensors:
            is_bfloat16 = tensor.dtype.name == "bfloat16"
            stored = native(tensor).view("V2") if is_bfloat16 else tensor
            info = zipfile.ZipInfo(f"{name}.npy")
            info.external_attr = 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, stored, allow_pickle=False)
