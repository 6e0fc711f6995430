"""Kernels that a wheel carries, compiled ahead for each level of processors.

A wheel has an archive for each level of `gcodec.runtime.processor`, with a file for each kernel
in the format of the cache. An archive is used if it was made of the installed sources.
"""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gcodec.runtime import processor, store
from gcodec.runtime.build_id import build_id

FOLDER = Path(__file__).with_name("shipped")


def code_of(name: str, signature: str) -> bytes | None:
    """Return the code of a kernel for the best level of this processor; None if there is none.

    If ``GCODEC_TARGET`` names a level, only that level counts.
    """
    target = processor.target()
    levels = processor.levels() if target.level == processor.NATIVE else [target.level]
    for level in levels:
        if (archive := _archive(level)) is not None:
            identity = identity_of(name, signature, processor.of_level(level))
            try:
                data = archive.read(store.file_name(name, identity))
            except Exception:  # the kernel is missing, or damage raises any error
                return None
            return store.unsealed(identity, data)
    return None


def identity_of(name: str, signature: str, target: processor.Processor) -> bytes:
    """Return everything that determines a shipped kernel."""
    return repr(("shipped", name, signature, *target)).encode()


def write(
    path: Path, codes: Iterator[tuple[str, str, bytes]], target: processor.Processor
) -> None:
    """Write the archive of a level.

    Parameters
    ----------
    path : Path
        Path of the archive.
    codes : iterator of (str, str, bytes)
        Name, signature and code of each kernel.
    target : Processor
        What the kernels are compiled for.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.comment = build_id().encode()
        for name, signature, code in codes:
            identity = identity_of(name, signature, target)
            # A fixed date makes archives reproducible.
            entry = zipfile.ZipInfo(store.file_name(name, identity))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, store.sealed(identity, code))


def archive_of(level: str) -> Path:
    """Return the path of the archive for a level, whether it exists or not."""
    return FOLDER / f"{level}.zip"


@functools.cache
def _archive(level: str) -> zipfile.ZipFile | None:
    """Open the archive of a level; None if there is none for these sources."""
    path = archive_of(level)
    if not path.exists():
        return None
    try:
        archive = zipfile.ZipFile(path)
    except Exception:  # damage may raise any error
        return None
    return archive if archive.comment == build_id().encode() else None
