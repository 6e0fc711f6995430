"""Write a file whole or not at all, with errors that name it."""

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
    """An unbuffered file whose errors of writing name it, as those of opening do.

    Parameters
    ----------
    file : str, os.PathLike or int
        A path or a file descriptor, which is then left open.
    mode : str
    named : str
        What errors call the file.
    """

    def __init__(self, file: Any, mode: str, named: str) -> None:
        super().__init__(file, mode, closefd=not isinstance(file, int))
        self.named = named

    def write(self, data: Any, /) -> int:
        """Write bytes; return how many."""
        try:
            return super().write(data) or 0
        except OSError as error:
            self.refuse(error)

    def refuse(self, error: OSError) -> NoReturn:
        """Raise the error with the name of the file."""
        raise type(error)(error.errno, error.strerror, self.named) from None

    def sync(self) -> None:
        """Have the bytes on the disk."""
        try:
            os.fsync(self.fileno())
        except OSError as error:
            self.refuse(error)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that appears under its name only once it is complete.

    The bytes go to a temporary file in the same folder, which replaces the target when the block
    ends. If the block is left by any exception, KeyboardInterrupt included, the temporary file is
    removed and the target stays as it was. An existing target passes its permissions on, a
    symbolic link is written through, and a device or pipe is written directly.

    Parameters
    ----------
    path : str or os.PathLike
        The file to write.

    Yields
    ------
    BinaryIO
        A seekable binary file, open for writing (not seekable if `path` is a pipe).

    Raises
    ------
    OSError
        If the file cannot be written; its `filename` is `path`.
    """
    name = os.fspath(path)
    target = Path(os.path.realpath(path))
    try:
        mode: int | None = os.stat(path).st_mode  # of what /dev/stdout is, which has no path
    except FileNotFoundError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(f"cannot write {str(path)!r}: it is a directory")
    if mode is not None and not stat.S_ISREG(mode):
        # Replacing /dev/null or a pipe by a plain file would break it for everybody else.
        with io.BufferedWriter(NamedWriter(path, "wb", name)) as file:
            yield cast(BinaryIO, file)
        return
    temporary = target.with_name(f".gcodec-{secrets.token_hex(8)}.tmp")
    try:
        # Mode "x" lets the umask set the permissions, which tempfile's 0600 would override.
        raw = NamedWriter(temporary, "xb", name)
        with io.BufferedWriter(raw) as file:
            yield cast(BinaryIO, file)
            # Or the new name could be on the disk before the bytes are, when the power fails.
            file.flush()
            raw.sync()
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
