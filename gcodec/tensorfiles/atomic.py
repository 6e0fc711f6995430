"""Write a file completely or not at all, with errors that name it."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast


class NamedWriter(io.FileIO):
    """Unbuffered file whose errors give it a name.

    Parameters
    ----------
    file : str, os.PathLike or int
        Path, or file descriptor, which is not closed.
    mode : str
        Mode of `io.FileIO`.
    named : str
        Name of the file in errors.
    """

    def __init__(self, file: str | os.PathLike[str] | int, mode: str, named: str) -> None:
        self.named = named
        try:
            super().__init__(file, mode, closefd=not isinstance(file, int))
        except OSError as error:
            self.refuse(error)

    def write(self, data: Any, /) -> int:
        """Write bytes, and return their number."""
        try:
            return super().write(data) or 0
        except OSError as error:
            self.refuse(error)

    def refuse(self, error: OSError) -> NoReturn:
        """Raise an error of the same type that names the file."""
        raise type(error)(error.errno, error.strerror, self.named) from None

    def sync(self) -> None:
        """Flush the bytes to the disk."""
        try:
            os.fsync(self.fileno())
        except OSError as error:
            self.refuse(error)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that appears under its name only when it is complete.

    The bytes go to a temporary file in the same folder, which replaces the target when the block
    ends. If an exception, such as KeyboardInterrupt, ends the block, the temporary file is
    deleted and the target stays unchanged. The new file takes over the permissions of an existing
    target. A symbolic link is followed, and a device or pipe is written directly.

    Parameters
    ----------
    path : str or os.PathLike
        File to write.

    Yields
    ------
    BinaryIO
        Binary file, open for writing; seekable unless `path` is a pipe.

    Raises
    ------
    OSError
        If the file cannot be written. Its `filename` is `path`.
    """
    name = os.fspath(path)
    target = Path(os.path.realpath(path))
    try:
        mode: int | None = os.stat(path).st_mode  # follows /dev/stdout, which may have no path
    except FileNotFoundError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(f"cannot write {str(path)!r}: it is a directory")
    if mode is not None and not stat.S_ISREG(mode):
        # Replacing /dev/null or a pipe by a plain file would break it for its other users.
        with io.BufferedWriter(NamedWriter(path, "wb", name)) as file:
            yield cast(BinaryIO, file)
        return
    temporary = target.with_name(f".gcodec-{secrets.token_hex(8)}.tmp")
    try:
        # Mode "x" lets the umask set the permissions, which tempfile's 0600 would override.
        raw = NamedWriter(temporary, "xb", name)
        with io.BufferedWriter(raw) as file:
            yield cast(BinaryIO, file)
            # Otherwise a power failure could leave the new name on the disk without the bytes.
            file.flush()
            raw.sync()
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
