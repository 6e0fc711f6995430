"""Read zip archives of tensors from strangers: zipfile, bounded, with errors of one family."""

from __future__ import annotations

import contextlib
import errno
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, BinaryIO, cast

from gcodec.errors import Corrupt, FormatError, LimitExceeded, Truncated, Unsupported
from gcodec.tensorfiles.entries import MAX_ENTRIES, shown

_CHUNK = 1 << 20
_MAX_DIRECTORY = 4 << 20  # bytes; zipfile takes quadratic time over an odd one
# Deflate cannot do better than 258 bytes for two bits.
_MAX_RATIO = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}
_END_SIZE, _MAX_COMMENT, _HEADER_SIZE = 22, 65_535, 30
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, ArithmeticError, LookupError)


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except FormatError:
        raise
    except EOFError:
        raise Truncated(f"{what} ends too early") from None
    except RuntimeError as error:  # NotImplementedError is one.
        raise Unsupported(f"{what}: {shown(error)}") from None
    except _DAMAGED as error:
        raise Corrupt(f"{what}: {shown(error)}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise Corrupt(f"{what} lies outside the file") from None


class _Directory:
    """What zipfile reads a directory from: it refuses one too large to be parsed."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._read = file.seek, file.tell, file.read

    def read(self, size: int = -1) -> bytes:
        if size > _MAX_DIRECTORY:
            raise LimitExceeded(f"zip directory of {size} bytes, more than {_MAX_DIRECTORY}")
        data = self._read(size)
        if data.count(b"PK\1\2") > MAX_ENTRIES:
            raise LimitExceeded(f"zip archive of more than {MAX_ENTRIES} members")
        return data


class Archive:
    """The directory of a zip file; a FormatError says what is wrong with it."""

    def __init__(self, file: BinaryIO) -> None:
        nbytes = file.seek(0, 2)
        file.seek(0)
        if not b"PK".startswith(file.read(2)):
            raise Corrupt("not a zip archive", 0)
        file.seek(max(0, nbytes - _END_SIZE - _MAX_COMMENT))
        tail = file.read(_END_SIZE + _MAX_COMMENT)
        found = tail.rfind(b"PK\5\6")
        if found < 0 or len(tail) - found < _END_SIZE:
            raise Truncated("zip archive has no directory at its end", nbytes)
        with _translated("zip directory"):
            self._zip = zipfile.ZipFile(cast(IO[bytes], _Directory(file)))
        self._zip.fp = file  # The data of members is not held to the bounds of a directory.
        infos = self._zip.infolist()
        disk, _, _, count = struct.unpack_from("<4H", tail, found + 4)
        if disk not in (0, 0xFFFF):
            raise Unsupported("zip archive in several parts")
        # With zip64, the largest number may stand here for any count.
        if count != len(infos) and not (infos and count == 0xFFFF):
            raise Corrupt(f"zip directory has {len(infos)} members, not {count}")
        self.members = {info.filename: info for info in infos}
        if len(self.members) != len(infos):
            raise Corrupt("two zip members have the same name")
        # Members that share bytes are the trick of zip bombs.
        end = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            start, end = end, info.header_offset + _HEADER_SIZE + info.compress_size
            if info.header_offset < start or end > self._zip.start_dir:
                raise Corrupt(f"zip member {shown(info.filename)} overlaps with what is near it")

    def open(self, info: zipfile.ZipInfo) -> Reader:
        """Start to read a member; Unsupported or Corrupt if its header promises no good."""
        what = f"zip member {shown(info.filename)}"
        ratio = _MAX_RATIO.get(info.compress_type)
        if ratio is None or info.flag_bits & 0x2041:
            raise Unsupported(f"{what} is encrypted, or packed by another method than deflate")
        least = info.compress_size if ratio == 1 else 0
        if not least <= info.file_size <= ratio * info.compress_size:
            raise Corrupt(f"{what} cannot have the size that it declares")
        with _translated(what):
            stream = self._zip.open(info)
        if not info.CRC:
            # torch.save can be told to leave the checksum out. There is no public switch for it.
            cast(Any, stream)._expected_crc = None
        return Reader(what, info.file_size, stream)


class Reader:
    """Reads a member from front to back; zipfile checks its checksum at the end."""

    def __init__(self, what: str, size: int, stream: IO[bytes]) -> None:
        self.what, self._size, self._stream = what, size, stream

    @property
    def left(self) -> int:
        """Declared bytes not yet read."""
        return self._size - self._stream.tell()

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes; Truncated if there are fewer."""
        with _translated(self.what):
            data = self._stream.read(size)
        if len(data) != size:
            raise Truncated(f"{self.what} ends {size - len(data)} bytes too early")
        return data

    def read_into(self, view: memoryview) -> None:
        """Fill a view of bytes; as `read` otherwise."""
        for start in range(0, len(view), _CHUNK):
            part = view[start : start + _CHUNK]
            part[:] = self.read(len(part))

    def skip(self, size: int) -> None:
        """Pass over bytes. New Pythons neither read nor checksum them in stored members."""
        with _translated(self.what):
            self._stream.seek(size, 1)
