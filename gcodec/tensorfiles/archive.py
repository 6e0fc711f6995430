"""Bounded reader of untrusted zip archives, on top of zipfile; it raises only `FormatError`."""

from __future__ import annotations

import contextlib
import errno
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, BinaryIO, cast

from gcodec.errors import Corrupt, FormatError, LimitExceeded, Truncated, Unsupported
from gcodec.limits import MAX_TENSORS
from gcodec.tensorfiles.entries import shown

_CHUNK = 1 << 20
_MAX_DIRECTORY = 4 << 20  # bytes; zipfile takes quadratic time for a malicious directory
# Deflate encodes at most 258 bytes in two bits.
_MAX_RATIO = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
_END_SIZE, _MAX_COMMENT, _HEADER_SIZE = 22, 65_535, 30
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, ArithmeticError, LookupError)


@contextlib.contextmanager
def _format_errors(description: str) -> Iterator[None]:
    """Raise the `FormatError` that corresponds to an error of zipfile."""
    try:
        yield
    except FormatError:
        raise
    except EOFError:
        raise Truncated(f"{description} ends too early") from None
    except RuntimeError as error:  # includes NotImplementedError
        raise Unsupported(f"{description}: {shown(error)}") from None
    except _DAMAGED as error:
        raise Corrupt(f"{description}: {shown(error)}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise Corrupt(f"{description} lies outside the file") from None


class _Directory:
    """File from which zipfile reads the directory; it refuses one that is too large to parse."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._read = file.seek, file.tell, file.read

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_DIRECTORY:
            raise LimitExceeded(f"zip directory of {size} bytes, more than {_MAX_DIRECTORY}")
        data = self._read(size)
        if data.count(b"PK\1\2") > MAX_TENSORS:
            raise LimitExceeded(f"zip archive of more than {MAX_TENSORS} members")
        return data


class Archive:
    """Checked directory of a zip file.

    Attributes
    ----------
    members : dict of str to ZipInfo
        Members by name.
    """

    def __init__(self, file: BinaryIO) -> None:
        nbytes = file.seek(0, 2)
        file.seek(0)
        if not b"PK".startswith(file.read(2)):
            raise Corrupt("not a zip archive", 0)
        file.seek(max(0, nbytes - _END_SIZE - _MAX_COMMENT))
        tail = file.read(_END_SIZE + _MAX_COMMENT)
        end_record = tail.rfind(b"PK\5\6")
        if end_record < 0 or len(tail) - end_record < _END_SIZE:
            raise Truncated("zip archive has no directory at its end", nbytes)
        with _format_errors("zip directory"):
            self._zip = zipfile.ZipFile(cast(IO[bytes], _Directory(file)))
        self._zip.fp = file  # the bounds of the directory do not apply to the members' data
        infos = self._zip.infolist()
        disk, _, _, count = struct.unpack_from("<4H", tail, end_record + 4)
        if disk not in (0, 0xFFFF):
            raise Unsupported("zip archive in several parts")
        # In a zip64 archive, the field may contain 0xFFFF for any count.
        if count != len(infos) and not (infos and count == 0xFFFF):
            raise Corrupt(f"zip directory has {len(infos)} members, not {count}")
        self.members = {info.filename: info for info in infos}
        if len(self.members) != len(infos):
            raise Corrupt("two zip members have the same name")
        # Zip bombs use members that share bytes.
        end = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            start, end = end, info.header_offset + _HEADER_SIZE + info.compress_size
            if info.header_offset < start or end > self._zip.start_dir:
                raise Corrupt(f"zip member {shown(info.filename)} overlaps its neighbor")

    def open(self, info: zipfile.ZipInfo) -> Reader:
        """Open a member; raise `Unsupported` or `Corrupt` if its header is not acceptable."""
        description = f"zip member {shown(info.filename)}"
        ratio = _MAX_RATIO.get(info.compress_type)
        if ratio is None or info.flag_bits & 0x2041:
            raise Unsupported(
                f"{description} is encrypted, or packed by another method than deflate"
            )
        smallest = info.compress_size if ratio == 1 else 0
        if not smallest <= info.file_size <= ratio * info.compress_size:
            raise Corrupt(f"{description} cannot have the size that it declares")
        with _format_errors(description):
            stream = self._zip.open(info)
        if not info.CRC:
            # torch.save can omit the checksum. zipfile has no public switch for that.
            cast(Any, stream)._expected_crc = None
        return Reader(description, info.file_size, stream)


class Reader:
    """Sequential reader of a member or a file of known size.

    At the end of a member, zipfile verifies its checksum.

    Parameters
    ----------
    description : str
        Name of the member or file, for error messages.
    size : int
        Declared number of bytes.
    stream : binary file
    """

    def __init__(self, description: str, size: int, stream: IO[bytes]) -> None:
        self.description, self._size, self._stream = description, size, stream

    @property
    def left(self) -> int:
        """Number of declared bytes not yet read."""
        return self._size - self._stream.tell()

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes; raise `Truncated` if fewer remain."""
        with _format_errors(self.description):
            data = self._stream.read(size)
        if len(data) != size:
            raise Truncated(f"{self.description} ends {size - len(data)} bytes too early")
        return data

    def read_array(self, nbytes: int) -> bytearray:
        """Read exactly `nbytes` bytes in chunks, so that memory is not needed twice."""
        data = bytearray(nbytes)
        for start in range(0, nbytes, _CHUNK):
            part = memoryview(data)[start : start + _CHUNK]
            part[:] = self.read(len(part))
        return data

    def skip(self, size: int) -> None:
        """Skip bytes. Newer Pythons neither read nor verify skipped bytes of stored members."""
        with _format_errors(self.description):
            self._stream.seek(size, 1)
