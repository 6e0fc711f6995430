"""Files of compiled kernels, and their directory.

gcodec executes the contents of these files, so it checks two properties first. Only the user and
root can write to the directory: `opened` checks it and all of its ancestors. The file contains the
code of the requested kernel: `unsealed` compares a digest of the payload and of the kernel's
identity, which includes its source, the compiler and the processor. The digest detects accidents;
it does not authenticate.

Each kernel has a file of its own for each processor. Writers create a temporary file and rename
it, so readers need no lock, even on different machines. `Directory.locked` spares the processes
that start together from compiling the same kernel.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_MAGIC = b"gcodec kernel 1\n"
_DIGEST = 32  # bytes
_LARGEST = 1 << 28  # bytes of the largest file that is read; kernels take less than 2^20 bytes
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_PATIENCE = 60.0  # seconds to wait for another process, which compiles a kernel in less than 10
_POLL = 0.02  # seconds between two attempts to get a lock
_IDLE = 0.3  # seconds without a change after which nobody seems to write to a directory
_BY_PATH = sys.platform == "win32"  # Windows lacks directory descriptors and owners


class Refused(OSError):
    """A directory or file that other users could have written; the message is a sentence."""


# --- contents -----------------------------------------------------------------------------------


def sealed(identity: bytes, payload: bytes) -> bytes:
    """Return the contents of the file for one kernel.

    Parameters
    ----------
    identity : bytes
        Everything that determines the code. A reader with another identity gets no payload.
    payload : bytes
        Compiled code.
    """
    return b"".join((_MAGIC, _digest(identity, payload), payload))


def unsealed(identity: bytes, data: bytes) -> bytes | None:
    """Return the payload of a file's contents; None for damaged data or another kernel."""
    start = len(_MAGIC) + _DIGEST
    payload = data[start:]
    expected = _MAGIC + _digest(identity, payload)
    return payload if data[:start] == expected else None


def file_name(label: str, identity: bytes) -> str:
    """Return the name of the file for one kernel.

    Parameters
    ----------
    label : str
        Name of the kernel, to make the file name readable.
    identity : bytes
        See `sealed`.
    """
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", label)[:80]
    return f"{readable}.{_digest(identity, b'').hex()[:32]}.kernel"


def _digest(identity: bytes, payload: bytes) -> bytes:
    digest = hashlib.blake2b(len(identity).to_bytes(8, "little"), digest_size=_DIGEST)
    digest.update(identity)
    digest.update(payload)
    return digest.digest()


# --- the directory ------------------------------------------------------------------------------


class Directory:
    """An open directory that only the user and root can write to.

    Methods access files through the descriptor of the checked directory, so a later change of its
    path has no effect.

    Attributes
    ----------
    path : str
        Path of the directory when it was opened, without symbolic links.
    """

    def __init__(self, path: str, descriptor: int | None) -> None:
        self.path = path
        self._descriptor = descriptor

    def read(self, name: str) -> bytes:
        """Return the contents of a file.

        Raises
        ------
        OSError
            The file does not exist, or other users could have written it.
        """
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(self._name(name), flags, dir_fd=self._descriptor)
        try:
            status, path = os.fstat(descriptor), os.path.join(self.path, name)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
                raise Refused(f"{path} is not a file of a compiled kernel.")
            if fault := _fault(status, path):
                raise Refused(fault)
            with open(descriptor, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(descriptor)

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically: readers see either the previous contents or the new ones.

        Raises
        ------
        OSError
            The file cannot be written. No temporary file remains.
        """
        temporary = self._name(f".{name}.{os.urandom(8).hex()}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        folder = self._descriptor
        descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, self._name(name), src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:  # including an interrupt
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise

    @contextlib.contextmanager
    def locked(self, name: str, grace: float = 0.0) -> Iterator[None]:
        """Hold the lock of a file, so that one process at a time produces it.

        The system releases the lock when its owner ends in any way, on this machine or on another
        one that shares a network file system. So nobody waits for a dead owner. After a minute,
        or where the file system has no locks, the body runs without the lock: then several
        processes may produce the file, and they all produce the same.

        Parameters
        ----------
        name : str
            Name of the file.
        grace : float
            Seconds to leave the lock to the processes that are writing to the directory now. They
            produce files faster than a process that has yet to load the compiler.
        """
        path, descriptor = self._name(f".{name}.lock"), None
        with contextlib.suppress(OSError):
            self._await_idle(name, time.monotonic() + grace)
            descriptor = self._lock(path, time.monotonic() + _PATIENCE)
        try:
            yield
        finally:
            if descriptor is not None:
                with contextlib.suppress(OSError):  # on Windows, while others wait for it
                    os.unlink(path, dir_fd=self._descriptor)
                os.close(descriptor)

    def _await_idle(self, name: str, deadline: float) -> None:
        """Wait until the file exists, or nobody has changed the directory for a moment."""
        while time.monotonic() < deadline:
            age = time.time() - os.stat(self.path).st_mtime
            if not 0 <= age < _IDLE or os.path.exists(os.path.join(self.path, name)):
                return
            time.sleep(_POLL)

    def _lock(self, path: str, deadline: float) -> int | None:
        """Return the descriptor of a locked file; None if another process kept the lock."""
        while True:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            descriptor = os.open(path, flags, 0o600, dir_fd=self._descriptor)
            try:
                locked = _try_lock(descriptor)
                if locked and self._is_at(path, descriptor):
                    os.write(descriptor, f"{platform.node()} {os.getpid()}\n".encode())
                    return descriptor
            except BaseException:  # such as a file system without locks
                os.close(descriptor)
                with contextlib.suppress(OSError):  # the last owner has removed the file
                    os.unlink(path, dir_fd=self._descriptor)
                raise
            os.close(descriptor)
            if not locked:
                if time.monotonic() > deadline:
                    return None
                time.sleep(_POLL)

    def _is_at(self, path: str, descriptor: int) -> bool:
        """Return whether an open file is still at its path; its last owner may have removed it."""
        try:
            status = os.stat(path, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(status, os.fstat(descriptor))

    def is_writable(self) -> bool:
        """Return whether the permissions allow the process to write files here."""
        return os.access(self.path, os.W_OK)

    def _name(self, name: str) -> str:
        return name if self._descriptor is not None else os.path.join(self.path, name)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Directory]:
    """Open a directory of executable files, and create it if it is missing.

    The path may contain symbolic links, but its last component must be a directory. All
    directories from the root of the file system down must belong to the user or to root, and other
    users must not be able to write to them. Two kinds of ancestors are exempt: sticky directories
    such as ``/tmp``, where users cannot rename the files of others, and directories that their
    owner's private group can write to. On Windows nothing is checked: owners and modes mean little
    there, and the directories of a user are private.

    Raises
    ------
    OSError
        The directory does not exist and cannot be created; `Refused` if it is not safe.
    """
    resolved = os.path.join(os.path.realpath(path.parent), path.name)
    if _BY_PATH:
        os.makedirs(resolved, exist_ok=True)
        yield Directory(resolved, None)
        return
    # From the root down: nobody else can replace an entry of a directory that has been checked.
    ancestor = "/"
    for name in resolved.split("/")[1:]:
        _check(_ensured(ancestor), ancestor, above=True)
        ancestor = os.path.join(ancestor, name)
    _check(_ensured(resolved), resolved)
    descriptor = os.open(resolved, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    directory = Directory(resolved, descriptor)
    try:
        _check(os.fstat(descriptor), resolved)
        yield directory
    finally:
        directory._descriptor = -1  # the system may reuse the number for another file
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Lock a file for this process unless another process has locked it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _ensured(path: str) -> os.stat_result:
    """Return the status of a directory, and create it for the user alone if it is missing."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(path, 0o700)
        return os.lstat(path)


def _check(status: os.stat_result, path: str, *, above: bool = False) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise Refused(f"{path} is not a directory.")
    if fault := _fault(status, path, above=above):
        raise Refused(fault)


def _fault(status: os.stat_result, path: str, *, above: bool = False) -> str:
    """Return a sentence about other users who could write to a path; empty if nobody could.

    An ancestor (`above`) may be sticky, or writable by a group that has no other member.
    """
    if sys.platform == "win32":
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user, whose number is {status.st_uid}."
    writable = status.st_mode & _WRITABLE
    if above and status.st_mode & stat.S_ISVTX:
        return ""
    if above and writable == stat.S_IWGRP and _is_private(status.st_gid, status.st_uid):
        return ""
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    return f"Other users can write to {path}, whose mode is {mode}." if writable else ""


@functools.cache
def _is_private(group: int, user: int) -> bool:
    """Return whether a group has the user's name and no other member, as on many systems."""
    try:
        import grp
        import pwd

        owner, members = pwd.getpwuid(user), grp.getgrgid(group)
    except (ImportError, KeyError):  # a container may lack both
        return False
    return (
        owner.pw_gid == group
        and members.gr_name == owner.pw_name
        and set(members.gr_mem) <= {owner.pw_name}
    )
