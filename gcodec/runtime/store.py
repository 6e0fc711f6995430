"""Files of compiled kernels, and the directory that holds them.

A file of compiled code runs whatever it contains, so two things are settled before one is read.
Nobody but the user and root can write to the directory: `opened` checks it and every directory
above it. And the bytes are those that were written for this very kernel: `unsealed` compares a
digest over the payload and over the identity of the kernel, which names its source, the compiler
and the processor. The digest finds accidents; it does not authenticate.

Each kernel has a file of its own for each processor, written under another name and then renamed.
So processes on one directory need no lock, whichever machines they run on.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

_MAGIC = b"gcodec kernel 1\n"
_DIGEST = 32  # bytes
_LARGEST = 1 << 28  # bytes of a file that is read at all; the largest kernel takes less than 2^20
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_BY_PATH = sys.platform == "win32"  # which has neither descriptors of directories nor owners


class Refused(OSError):
    """A directory or a file that others could have written; the message is a sentence."""


# --- contents -----------------------------------------------------------------------------------


def sealed(identity: bytes, payload: bytes) -> bytes:
    """Return the contents of the file that holds the code of one kernel.

    Parameters
    ----------
    identity : bytes
        Everything that decides the code: only a reader with the same identity gets the payload.
    payload : bytes
        The code.
    """
    return b"".join((_MAGIC, _digest(identity, payload), payload))


def unsealed(identity: bytes, data: bytes) -> bytes | None:
    """Return the payload of a file's contents; None if they are damaged or of another kernel."""
    start = len(_MAGIC) + _DIGEST
    payload = data[start:]
    expected = _MAGIC + _digest(identity, payload)
    return payload if data[:start] == expected else None


def file_name(label: str, identity: bytes) -> str:
    """Return the name of the file that holds the code of one kernel.

    Parameters
    ----------
    label : str
        Name of the kernel, for people who list the directory.
    identity : bytes
        As for `sealed`.
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

    Files are reached through the descriptor of the directory that was checked. Where its path
    leads later does not matter.

    Attributes
    ----------
    path : str
        Where the directory was when it was opened, without symbolic links.
    """

    def __init__(self, path: str, descriptor: int | None) -> None:
        self.path = path
        self._descriptor = descriptor

    def read(self, name: str) -> bytes:
        """Return the contents of a file.

        Raises
        ------
        OSError
            If there is no such file, or others could have written it.
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
        """Write a file, or replace the one of this name; a reader sees the old or the new one.

        Raises
        ------
        OSError
            If the file cannot be written. Nothing is left behind then.
        """
        temporary = self._name(f".{name}.{os.urandom(8).hex()}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        where = self._descriptor
        descriptor = os.open(temporary, flags, 0o600, dir_fd=where)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, self._name(name), src_dir_fd=where, dst_dir_fd=where)
        except BaseException:  # an interrupt, too
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=where)
            raise

    def is_writable(self) -> bool:
        """Whether files can be written here, as far as permissions say."""
        return os.access(self.path, os.W_OK)

    def _name(self, name: str) -> str:
        return name if self._descriptor is not None else os.path.join(self.path, name)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Directory]:
    """Open a directory, made if it is missing, for files that are run.

    Symbolic links on the way to the directory are followed, the directory itself must not be one.
    Every directory from the root of the file system down must belong to the user or to root, and
    others must not be able to write to it. Above the directory itself, two kinds will do all the
    same: a sticky one such as ``/tmp``, where others cannot rename what is not theirs, and one
    that its owner's private group can write to. On Windows nothing is checked: owners and modes
    mean little there, and the directories of a user are private.

    Raises
    ------
    OSError
        If there is no such directory and none can be made; `Refused` if it is not safe.
    """
    resolved = os.path.join(os.path.realpath(path.parent), path.name)
    if _BY_PATH:
        os.makedirs(resolved, exist_ok=True)
        yield Directory(resolved, None)
        return
    # From the top down: once a directory is known to be safe, nobody else can exchange the next.
    ancestor = "/"
    for name in resolved.split("/")[1:]:
        _check(_made(ancestor), ancestor, above=True)
        ancestor = os.path.join(ancestor, name)
    _check(_made(resolved), resolved)
    descriptor = os.open(resolved, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    directory = Directory(resolved, descriptor)
    try:
        _check(os.fstat(descriptor), resolved)
        yield directory
    finally:
        directory._descriptor = -1  # of no file, while the number may soon be another file's
        os.close(descriptor)


def _made(path: str) -> os.stat_result:
    """Return the status of a directory, which is made for the user alone if it is missing."""
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
    """Return a sentence about who else could write there; empty if nobody could.

    A directory `above` the one that holds the files may be sticky, or writable to a group that
    has no other member.
    """
    if sys.platform == "win32":
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user, whose number is {status.st_uid}."
    others = status.st_mode & _WRITABLE
    if above and status.st_mode & stat.S_ISVTX:
        return ""
    if above and others == stat.S_IWGRP and _is_private(status.st_gid, status.st_uid):
        return ""
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    return f"Other users can write to {path}, whose mode is {mode}." if others else ""


@functools.cache
def _is_private(group: int, user: int) -> bool:
    """Whether a group is the one of its name's user alone, as many systems make for each user."""
    try:
        import grp
        import pwd

        owner, members = pwd.getpwuid(user), grp.getgrgid(group)
    except (ImportError, KeyError):  # a container may know neither
        return False
    return (
        owner.pw_gid == group
        and members.gr_name == owner.pw_name
        and set(members.gr_mem) <= {owner.pw_name}
    )
