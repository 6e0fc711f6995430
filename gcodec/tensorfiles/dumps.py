"""Open, find and write files of named tensors: .safetensors, .npz, .npy, and those of PyTorch."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from gcodec.errors import FormatError, ParameterError, Truncated, Unsupported
from gcodec.limits import Limits
from gcodec.tensorfiles.archive import Archive
from gcodec.tensorfiles.atomic import atomic_write
from gcodec.tensorfiles.distributed_file import METADATA, DistributedDump
from gcodec.tensorfiles.entries import READABLE, Array, Dump, Entry, stays_inside
from gcodec.tensorfiles.numpy_file import NpyDump, NpzDump, write_npz
from gcodec.tensorfiles.safetensors_file import (
    INDEX_SUFFIX,
    SafetensorsDump,
    ShardedDump,
    can_store,
    read_index,
    write_safetensors,
)
from gcodec.tensorfiles.torch_file import TorchDump
from gcodec.wire.primitives import FLOATS8

__all__ = ["Dump", "Entry", "find", "open_dump", "write_dump"]

_READERS: dict[str, Callable[[Path, Limits], Dump]] = {
    INDEX_SUFFIX: ShardedDump,
    ".safetensors": SafetensorsDump,
    ".npz": NpzDump,
    ".npy": NpyDump,
    ".pt": TorchDump,
    ".pth": TorchDump,
    ".bin": TorchDump,
}
# The suffix of an index comes first, because it contains that of a .safetensors file.
SUFFIXES = (*_READERS, ".gcf")
"""Suffixes of all files of tensors."""

_SEPARATORS = "[" + re.escape(os.sep + (os.altsep or "")) + "]"
_ANY_DEPTH = re.compile(rf"(?:^|(?<={_SEPARATORS}))\*\*(?={_SEPARATORS}|\Z)")


def open_dump(path: str | os.PathLike[str], *, limits: Limits | None = None) -> Dump:
    """Open a file of tensors, whose format follows from the suffix of its name.

    This function reads only the descriptions of the tensors; `Dump.load` reads one tensor.

    Parameters
    ----------
    path : str or os.PathLike
        A .safetensors, .safetensors.index.json, .npz, .npy, .pt, .pth or .bin file, or a folder
        of torch.distributed.checkpoint. The last three kinds of files are zip archives of
        torch.save. They and the folder are read without PyTorch, and no code in them is run.
    limits : Limits, optional
        Bounds on the size of a tensor, checked before its memory is allocated.

    Returns
    -------
    Dump
        Open file; use it as a context manager, or call `Dump.close`.

    Raises
    ------
    ParameterError
        If the file has another suffix, or the folder has no .metadata.
    FormatError
        If the file cannot be read: `Truncated`, `Corrupt`, `LimitExceeded`, `Unsupported`, or
        `Unsafe` if reading it would run code.
    OSError
        If the file cannot be opened.
    """
    target = Path(path)
    if is_checkpoint(target):
        return DistributedDump(target, Limits.or_default(limits))
    for suffix, reader in _READERS.items():
        if target.name.lower().endswith(suffix):
            if target.is_file() and target.stat().st_size == 0:
                raise Truncated("the file is empty", 0)
            return reader(target, Limits.or_default(limits))
    if not os.path.lexists(target):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target))
    suffixes = ", ".join([*_READERS][1:])
    allowed = (
        f"a file named {suffixes} or {INDEX_SUFFIX}, or a folder of .distcp files with .metadata"
    )
    if target.name.lower().endswith(".gcf"):
        allowed += "; gcodec.load_file reads a file of frames"
    raise ParameterError.of("path", str(target), allowed)


def is_checkpoint(path: Path) -> bool:
    """Return whether a path is a folder of torch.distributed.checkpoint, which is one dump."""
    return os.path.isfile(path / METADATA)  # also False for a folder that may not be read


def recognized_suffix(path: Path) -> str:
    """Return the suffix of the format that a file has by its first bytes.

    Raises
    ------
    Truncated
        If the file is empty.
    Unsupported
        If the file has none of the formats that `open_dump` reads, and contains no frames.
    OSError
        If the file cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(9)
        if not start:
            raise Truncated("the file is empty", 0)
        if start.startswith(b"PK"):
            with contextlib.suppress(FormatError):
                names = Archive(file).members
                return ".pt" if any(name.endswith("data.pkl") for name in names) else ".npz"
            return ".npz"  # whose reader will report the damage
    if start.startswith(b"GCF"):
        return ".gcf"
    if start.startswith(b"\x93NUMPY"):
        return ".npy"
    if start[8:] == b"{":
        return ".safetensors"
    formats = ".safetensors, .npz, .npy, .pt or .gcf"
    raise Unsupported(f"the bytes begin like no {formats} file")


def find(patterns: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """List the files that match patterns.

    Parameters
    ----------
    patterns : sequence of str or os.PathLike
        Files, directories or globs, where ``**`` matches any depth, but enters no hidden
        directory and no directory behind a symbolic link. A directory matches the dumps and .gcf
        files directly inside; a glob matches dumps and .gcf files. A folder of
        torch.distributed.checkpoint is one dump.

    Returns
    -------
    list of pathlib.Path
        Files in the order of the patterns, sorted within each pattern, without duplicates. A
        shard is omitted if the list contains its index.

    Raises
    ------
    ParameterError
        If a pattern matches no file.
    """
    matches: dict[str, Path] = {}
    for pattern in patterns:
        paths = matching(os.fspath(pattern))
        if not paths:
            raise ParameterError.of(
                "pattern", os.fspath(pattern), "a file, or a directory or glob with dumps"
            )
        for path in paths:
            matches.setdefault(os.path.abspath(path), path)
    shards = {shard for path in matches.values() for shard in _shards(path)}
    return [path for key, path in matches.items() if key not in shards]


def matching(pattern: str) -> list[Path]:
    """Return the files that match one pattern; see `find`."""
    path = Path(pattern)
    if pattern and path.is_dir() and not is_checkpoint(path):
        return _dumps(path.iterdir())
    if pattern and path.exists():
        return [path]
    return _dumps(map(Path, _names(pattern)))


def _names(pattern: str) -> Iterator[str]:
    """Yield the names that a glob matches.

    In contrast to `glob`, ``**`` does not follow symbolic links to directories, which can lead out
    of the directory, or back into it without end.
    """
    start, *rest = _ANY_DEPTH.split(pattern, 1)
    if not rest:
        yield from glob.iglob(pattern)
        return
    for directory in glob.iglob(start) if start else [os.curdir]:
        if not rest[0]:
            yield directory
        for folder, folders, _ in os.walk(directory):
            folders[:] = [name for name in folders if not name.startswith(".")]
            yield from _names(glob.escape(folder) + (rest[0] or os.sep + "*"))


def _dumps(paths: Iterable[Path]) -> list[Path]:
    return sorted(
        path
        for path in paths
        if (path.name.lower().endswith(SUFFIXES) and path.is_file()) or is_checkpoint(path)
    )


def _shards(path: Path) -> Iterator[str]:
    """Yield the absolute paths of the shards of an index; none for other and damaged files."""
    if path.name.lower().endswith(INDEX_SUFFIX):
        # Opening the index will raise the error, with the name of the file.
        with contextlib.suppress(FormatError, OSError):
            for shard in read_index(path).values():
                yield os.path.abspath(path.parent / shard)


def write_dump(path: str | os.PathLike[str], tensors: Iterable[tuple[str, Array]]) -> None:
    """Write tensors to a .safetensors or .npz file.

    The file appears under its name only when it is complete. Equal tensors make equal files.

    Parameters
    ----------
    path : str or os.PathLike
        File to write, whose suffix selects the format.
    tensors : iterable of (str, numpy.ndarray)
        Tensors by name: booleans, integers, floats, complex numbers, ml_dtypes.bfloat16, and
        in .safetensors files ml_dtypes.float8_e4m3fn and float8_e5m2. The writer of .npz consumes
        them one by one, the writer of .safetensors collects them first.

    Raises
    ------
    ParameterError
        If the suffix is another one, a name is repeated or not text, the format cannot store a
        dtype, or the name of a member of an .npz file would leave the folder where the archive is
        unpacked, such as ``../x``.
    OSError
        If the file cannot be written.
    """
    name = Path(path).name.lower()
    if name.endswith(".npz"):
        with atomic_write(path) as file:
            write_npz(file, _checked(tensors, _fits_npz, paths=True))
    elif name.endswith(".safetensors"):
        with atomic_write(path) as file:
            write_safetensors(file, dict(_checked(tensors, can_store)))
    else:
        raise ParameterError.of("path", os.fspath(path), "a file named .safetensors or .npz")


def _fits_npz(dtype: np.dtype[np.generic]) -> bool:
    # NumPy stores floats of 8 bits without their names.
    return dtype.name in READABLE and dtype.name not in FLOATS8


def _is_text(text: object) -> bool:
    # zipfile cuts names at a NUL, and UTF-8 cannot encode half a surrogate pair.
    return isinstance(text, str) and not re.search(r"[\x00\ud800-\udfff]", text)


def _checked(
    tensors: Iterable[tuple[str, Array]],
    is_storable: Callable[[np.dtype[np.generic]], bool],
    *,
    paths: bool = False,
) -> Iterator[tuple[str, Array]]:
    """Yield the tensors; raise for names and dtypes that the format cannot store.

    With `paths`, names must be paths within the folder where the archive is unpacked.
    """
    names = set[str]()
    for name, tensor in tensors:
        if not _is_text(name) or name in names or name == "__metadata__" or len(name) > 4096:
            allowed = "text of at most 4096 characters without NUL, other than __metadata__, once"
            raise ParameterError.of("name of a tensor", name, allowed)
        if not isinstance(tensor, np.ndarray) or not is_storable(tensor.dtype):
            kind = str(getattr(tensor, "dtype", type(tensor).__name__))
            advice = "; use .safetensors instead" if kind in FLOATS8 else ""
            raise ParameterError.of(
                f"dtype of {name!r}", kind, f"one that the format stores{advice}"
            )
        if paths and not stays_inside(name):
            allowed = "a path within the archive, without .. and drive; use .safetensors instead"
            raise ParameterError.of("name of a tensor", name, allowed)
        names.add(name)
        yield name, tensor
