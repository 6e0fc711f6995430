"""The build id: a hash of all sources of kernels. This module uses the standard library only."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

_RUNTIME = Path(__file__).parent
KERNELS = _RUNTIME.with_name("kernels")


@functools.cache
def build_id() -> str:
    """Return the hash of everything in gcodec that determines machine code, 32 hex digits.

    These are the sources of the kernels and of the compiler. A helper of one file is part of the
    kernels of others, so the hash covers all files.
    """
    digest = hashlib.blake2b(digest_size=16)
    for folder in (_RUNTIME, KERNELS):
        for path, name in sorted(_sources(folder, folder.name)):
            with open(path, "rb") as file:
                digest.update(name.encode() + b"\0" + file.read())
    return digest.hexdigest()


def _sources(folder: str | Path, name: str) -> list[tuple[str, str]]:
    """Return the paths of the Python files below a folder, each with a name relative to gcodec."""
    sources = []
    with os.scandir(folder) as entries:
        for entry in entries:
            within = f"{name}/{entry.name}"
            if entry.is_dir():
                sources += _sources(entry.path, within)
            elif entry.name.endswith(".py"):
                sources.append((entry.path, within))
    return sources
