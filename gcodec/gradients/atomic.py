"""Write a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


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
        If the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    try:
        mode: int | None = os.stat(path).st_mode  # of what /dev/stdout is, which has no path
    except FileNotFoundError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(f"cannot write {str(path)!r}: it is a directory")
    if mode is not None and not stat.S_ISREG(mode):
        # Replacing /dev/null or a pipe by a plain file would break it for everybody else.
        with open(path, "wb") as file:
            yield file
        return
    temporary = target.with_name(f".gcodec-{secrets.token_hex(8)}.tmp")
    try:
        # Mode "x" lets the umask set the permissions, which tempfile's 0600 would override.
        with open(temporary, "xb") as file:
            yield file
            # Or the new name could be on the disk before the bytes are, when the power fails.
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
