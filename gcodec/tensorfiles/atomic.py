"""Write files completely or not at all, with errors that name them."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn, cast

if TYPE_CHECKING:
    from concurrent.futures import Future

TEMPORARY = ".gcodec-*.tmp"
"""Pattern of the names of temporary files, which only a crash leaves."""

_LEAST_BEHIND = 1 << 20  # bytes that take longer to write than to hand to a thread


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
    is_private : bool
        Whether only the owner may read a file that is created.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | int,
        mode: str,
        named: str,
        is_private: bool = False,
    ) -> None:
        self.named = named
        opener = _open_private if is_private else None
        try:
            super().__init__(file, mode, closefd=not isinstance(file, int), opener=opener)
        except OSError as error:
            self.refuse(error)

    def write(self, data: Any, /) -> int:
        """Write all bytes, and return their number.

        The system may write only the first ones, as where a disk becomes full. A stream of text
        without a buffer, such as the standard output of python -u, does not try again.
        """
        left = memoryview(data).cast("B")
        nbytes = left.nbytes
        while left:
            try:
                written = super().write(left)
            except OSError as error:
                self.refuse(error)
            if not written:
                self.refuse(
                    BlockingIOError(errno.EAGAIN, "the stream is non-blocking, and is full")
                )
            left = left[written:]
        return nbytes

    def refuse(self, error: OSError) -> NoReturn:
        """Raise an error of the same type that names the file."""
        raise _naming(error, self.named) from None

    def sync(self) -> None:
        """Flush the bytes of a plain file to the disk."""
        try:
            if stat.S_ISREG(os.fstat(self.fileno()).st_mode):
                os.fsync(self.fileno())
        except OSError as error:
            self.refuse(error)


def _open_private(path: str, flags: int) -> int:
    """Open a file; one that is created is for its owner alone."""
    return os.open(path, flags, 0o600)


def _naming(error: OSError, name: str) -> OSError:
    """Return an error of the same type that names a file."""
    return type(error)(error.errno, error.strerror, name)


class _NewFile(NamedTuple):
    """A temporary file that becomes the file of a name.

    Attributes
    ----------
    name : str
        Path that the caller passed.
    temporary, target : pathlib.Path
        The temporary file, and the file that it replaces.
    mode : int or None
        Mode of the target, or None if it does not exist.
    """

    name: str
    temporary: Path
    target: Path
    mode: int | None

    def appear(self) -> None:
        """Replace the target."""
        try:
            if self.mode is not None:
                self.temporary.chmod(stat.S_IMODE(self.mode))
            os.replace(self.temporary, self.target)
        except OSError as error:
            raise _naming(error, self.name) from None


class AtomicFiles:
    """Files that appear under their names only when all of them are complete.

    The bytes go to temporary files in the same folders, which replace the targets when the block
    ends. If an exception, such as KeyboardInterrupt, ends the block, the temporary files are
    deleted and the targets stay unchanged. A new file takes over the permissions of an existing
    target. A symbolic link is followed, and a device or pipe is written directly.
    """

    def __init__(self) -> None:
        self._new = list[_NewFile]()
        self._file: io.BufferedWriter | None = None

    def open(self, path: str | os.PathLike[str]) -> BinaryIO:
        """Complete the preceding file, and open the next one.

        Returns
        -------
        BinaryIO
            Binary file, open for writing; seekable unless `path` is a pipe.

        Raises
        ------
        OSError
            If the file cannot be written. Its `filename` is `path`.
        """
        self._complete()
        name = os.fspath(path)
        try:
            mode: int | None = os.stat(path).st_mode  # follows /dev/stdout, which may have no path
        except FileNotFoundError:
            mode = None
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if mode is not None and not stat.S_ISREG(mode):
            # Replacing /dev/null or a pipe by a plain file would break it for its other users.
            raw = NamedWriter(path, "wb", name)
        else:
            target = Path(os.path.realpath(path))
            temporary = target.with_name(TEMPORARY.replace("*", secrets.token_hex(8)))
            self._new.append(_NewFile(name, temporary, target, mode))
            # Mode "x" lets the umask set the permissions of a new file, which tempfile's 0600
            # would override. Those of an existing target come last, as it may be secret.
            raw = NamedWriter(temporary, "xb", name, is_private=mode is not None)
        self._file = io.BufferedWriter(raw)
        return cast(BinaryIO, self._file)

    def _complete(self) -> None:
        """Flush the bytes of the file that is open to the disk, and close it."""
        if self._file is not None:
            # Otherwise a power failure could leave the new name on the disk without the bytes.
            self._file.flush()
            cast(NamedWriter, self._file.raw).sync()
            self._file.close()
            self._file = None

    def __enter__(self) -> AtomicFiles:
        """Return the object itself."""
        return self

    def __exit__(self, exception_type: object, *exception_details: object) -> None:
        """Let the files appear, or delete them after an exception."""
        appeared = list[_NewFile]()
        try:
            if exception_type is None:
                self._complete()
                for new in self._new:
                    new.appear()
                    appeared.append(new)
        except BaseException:
            for new in appeared:
                if new.mode is None:
                    new.target.unlink(missing_ok=True)
            raise
        finally:
            with contextlib.suppress(OSError):
                if self._file is not None:
                    self._file.close()
            for new in self._new:
                with contextlib.suppress(OSError):
                    new.temporary.unlink()


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that appears under its name only when it is complete; see `AtomicFiles.open`."""
    with AtomicFiles() as files:
        yield files.open(path)


class WriteBehind:
    """Writes large chunks to a file on a thread, while the caller makes the next chunk.

    One chunk at a time is being written. An error in writing it is raised by the next call, or at
    the end of the block.

    Parameters
    ----------
    file : BinaryIO
        File that nobody else writes to in the meantime.
    """

    def __init__(self, file: BinaryIO) -> None:
        from concurrent.futures import ThreadPoolExecutor  # imports logging

        self._file, self._thread = file, ThreadPoolExecutor(1, "gcodec-write")
        self._pending: Future[int] | None = None

    def write(self, data: bytes) -> None:
        """Write bytes after those of earlier calls."""
        self._wait()
        if len(data) < _LEAST_BEHIND:
            self._file.write(data)
        else:
            self._pending = self._thread.submit(self._file.write, data)

    def _wait(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def __enter__(self) -> WriteBehind:
        """Return the object itself."""
        return self

    def __exit__(self, exception_type: object, *exception_details: object) -> None:
        """Wait for the last chunk; raise its error unless an exception ends the block."""
        with self._thread:
            if exception_type is None:
                self._wait()
