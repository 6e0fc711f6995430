"""Open, find and write files of named tensors: .safetensors, .npz, .npy and PyTorch's .pt."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gcodec.errors import FormatError, ParameterError
from gcodec.limits import Limits
from gcodec.tensorfiles.atomic import atomic_write
from gcodec.tensorfiles.entries import READABLE, Array, Dump, Entry, stays_inside
from gcodec.tensorfiles.numpy_file import NpyDump, NpzDump, write_npz
from gcodec.tensorfiles.safetensors_file import (
    SafetensorsDump,
    ShardedDump,
    can_store,
    read_index,
    write_safetensors,
)
from gcodec.tensorfiles.torch_file import TorchDump

__all__ = ["Dump", "Entry", "find", "open_dump", "write_dump"]

_INDEX = ".safetensors.index.json"
_READERS: dict[str, Callable[[Path, Limits], Dump]] = {
    _INDEX: ShardedDump,
    ".safetensors": SafetensorsDump,
    ".npz": NpzDump,
    ".npy": NpyDump,
    ".pt": TorchDump,
    ".pth": TorchDump,
    ".bin": TorchDump,
}
_FOUND = (*_READERS, ".gcf")


def open_dump(path: str | os.PathLike[str], *, limits: Limits | None = None) -> Dump:
    """Open a file of tensors; the suffix of its name tells the format.

    Only what describes the tensors is read: `Dump.load` then reads them one by one.

    Parameters
    ----------
    path : str or os.PathLike
        A .safetensors, .safetensors.index.json, .npz, .npy, .pt, .pth or .bin file. The last
        three are zip archives of torch.save; they are read without PyTorch, and nothing that
        they contain is run.
    limits : Limits, optional
        Bounds on the size of a tensor, checked before memory for it is taken.

    Returns
    -------
    Dump
        The open file, to be used as a context manager or closed by `Dump.close`.

    Raises
    ------
    ParameterError
        If the suffix is none of these.
    FormatError
        If the file cannot be read: `Truncated`, `Corrupt`, `LimitExceeded`, `Unsupported`, or
        `Unsafe` where reading it would mean to run code.
    OSError
        If the file cannot be opened.
    """
    target = Path(path)
    for suffix, reader in _READERS.items():
        if target.name.lower().endswith(suffix):
            return reader(target, Limits.given(limits))
    raise ParameterError.of("path", str(target), f"a file named {', '.join(_READERS)}")


def find(patterns: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """List the files that patterns stand for.

    Parameters
    ----------
    patterns : sequence of str or os.PathLike
        Each a file; a directory, for the dumps and .gcf files directly inside; or a glob, for
        the dumps and .gcf files that match, with ``**`` for any depth.

    Returns
    -------
    list of pathlib.Path
        The files in the order of the patterns, sorted within each, and each only once. A shard
        is left out if the index that lists it is among them.

    Raises
    ------
    ParameterError
        If a pattern stands for no file.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        paths = _matches(os.fspath(pattern))
        if not paths:
            raise ParameterError.of(
                "pattern", os.fspath(pattern), "a file, or a directory or glob that has dumps"
            )
        for path in paths:
            found.setdefault(os.path.abspath(path), path)
    shards = {shard for path in found.values() for shard in _shards(path)}
    return [path for key, path in found.items() if key not in shards]


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    if pattern and path.is_dir():
        return _dumps(path.iterdir())
    if pattern and path.exists():
        return [path]
    return _dumps(Path(name) for name in glob.iglob(pattern, recursive=True))


def _dumps(paths: Iterable[Path]) -> list[Path]:
    return sorted(p for p in paths if p.name.lower().endswith(_FOUND) and p.is_file())


def _shards(path: Path) -> Iterator[str]:
    if not path.name.lower().endswith(_INDEX):
        return
    try:
        shards = set(read_index(path).values())
    except FormatError:
        # Opening the index tells what is wrong with it, and by then the name of the file is known.
        return
    for shard in shards:
        yield os.path.abspath(path.parent / shard)


def write_dump(
    path: str | os.PathLike[str],
    tensors: Iterable[tuple[str, Array]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors to a .safetensors or .npz file.

    The file appears under its name only when it is complete. Equal tensors make equal files,
    but safetensors puts the metadata in any order.

    Parameters
    ----------
    path : str or os.PathLike
        Where to write; the suffix tells the format.
    tensors : iterable of (str, numpy.ndarray)
        Tensors by name: booleans, integers, floats, complex numbers, or ml_dtypes.bfloat16.
        For .npz they are taken and written one by one, for .safetensors gathered first.
    metadata : mapping of str to str, optional
        Notes to go with them. Only .safetensors has a place for these.

    Raises
    ------
    ParameterError
        If the suffix is neither, a name comes twice or is no text, a dtype has no place in the
        format, or there is metadata for an .npz file. Also if a name is for a member of an .npz
        file that would be unpacked outside of its folder, such as ``../x``.
    OSError
        If the file cannot be written.
    """
    name = Path(path).name.lower()
    notes = dict(metadata or {})
    if not all(_is_text(text) for pair in notes.items() for text in pair):
        raise ParameterError.of("metadata", notes, "a mapping of text to text")
    if name.endswith(".npz"):
        if notes:
            raise ParameterError.of("metadata", notes, "None for .npz, which has no place for it")
        with atomic_write(path) as file:
            write_npz(file, _members(_checked(tensors, lambda dtype: dtype.name in READABLE)))
    elif name.endswith(".safetensors"):
        with atomic_write(path) as file:
            write_safetensors(file, dict(_checked(tensors, can_store)), notes)
    else:
        raise ParameterError.of("path", os.fspath(path), "a file named .safetensors or .npz")


def _is_text(text: object) -> bool:
    # Zip cuts names at a NUL, and half a surrogate pair has no bytes in UTF-8.
    return isinstance(text, str) and not re.search(r"[\x00\ud800-\udfff]", text)


def _members(tensors: Iterable[tuple[str, Array]]) -> Iterator[tuple[str, Array]]:
    """Refuse names that are no paths within the folder where an archive is unpacked."""
    for name, tensor in tensors:
        if not stays_inside(name):
            allowed = (
                "a path within the archive, without .. and drive; .safetensors takes any name"
            )
            raise ParameterError.of("name of a tensor", name, allowed)
        yield name, tensor


def _checked(
    tensors: Iterable[tuple[str, Array]], is_storable: Callable[[np.dtype[np.generic]], bool]
) -> Iterator[tuple[str, Array]]:
    names = set[str]()
    for name, tensor in tensors:
        if not _is_text(name) or name in names or name == "__metadata__" or len(name) > 4096:
            raise ParameterError.of(
                "name of a tensor", name, "text of at most 4096 characters that comes only once"
            )
        if not isinstance(tensor, np.ndarray) or not is_storable(tensor.dtype):
            kind = getattr(tensor, "dtype", type(tensor).__name__)
            raise ParameterError.of(f"dtype of {name!r}", str(kind), "one that the format stores")
        names.add(name)
        yield name, tensor
