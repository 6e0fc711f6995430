"""Files of frames, listed by their headers alone."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gcodec.errors import Truncated
from gcodec.frame import CHECKSUM_NBYTES, dtype_named, header, read_name
from gcodec.wire import primitives
from gcodec.wire.primitives import Reader


class Outline(NamedTuple):
    """What the header of a frame says of the tensor, and where the frame lies.

    Attributes
    ----------
    name : str or None
    dtype : str
    shape : tuple of int
    start, end : int
        Its first byte, and the byte behind it.
    """

    name: str | None
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def outline(data: Any, start: int) -> Outline:
    """Read the header of the frame that begins at a byte; its checksum is not looked at.

    Raises
    ------
    FormatError
    """
    reader = Reader(data, start)
    known = header.read(reader)
    tag = primitives.TAG_NBYTES * bool(known["flags"][0] & primitives.HAS_TAG)
    end = reader.at + 2 * CHECKSUM_NBYTES + -(-known["payload bits"][0] // 8) + tag
    if end > len(reader.data):
        raise Truncated("the bytes end within the frame", len(reader.data))
    name = next(map(read_name, known["name"]), None)
    return Outline(
        name, dtype_named(known["dtype"][0], start + 6), tuple(known["size"]), start, end
    )


def outlines(data: Any) -> Iterator[Outline]:
    """Read the headers of frames that lie end to end; see `outline`."""
    at = 0
    while at < len(data):
        found = outline(data, at)
        yield found
        at = found.end


def mapped(path: Path) -> Any:
    """Return the bytes of a file, which are read where they are looked at."""
    if not path.stat().st_size:
        return b""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
