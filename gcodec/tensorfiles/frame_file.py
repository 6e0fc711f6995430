"""Files of frames, listed by their headers without decoding."""

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
    """Name, dtype and shape from the header of a frame, and the position of the frame.

    Attributes
    ----------
    name : str or None
    dtype : str
    shape : tuple of int
    start, end : int
        Offsets of the first byte of the frame, and of the first byte after it.
    """

    name: str | None
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def outline(data: Any, start: int) -> Outline:
    """Read the header of the frame at offset `start`, without a check of its checksum.

    Raises
    ------
    FormatError
        If the header is damaged, or the data end within the frame.
    """
    reader = Reader(data, start)
    fields = header.read(reader)
    tag_nbytes = primitives.TAG_NBYTES * bool(fields["flags"][0] & primitives.HAS_TAG)
    payload_nbytes = -(-fields["payload bits"][0] // 8)
    end = reader.at + 2 * CHECKSUM_NBYTES + payload_nbytes + tag_nbytes
    if end > len(reader.data):
        raise Truncated("the bytes end within the frame", len(reader.data))
    name = next(map(read_name, fields["name"]), None)
    dtype = dtype_named(fields["dtype"][0], start + 6)
    return Outline(name, dtype, tuple(fields["size"]), start, end)


def outlines(data: Any) -> Iterator[Outline]:
    """Read the headers of consecutive frames; see `outline`."""
    start = 0
    while start < len(data):
        frame = outline(data, start)
        yield frame
        start = frame.end


def mapped(path: Path) -> Any:
    """Return the memory-mapped bytes of a file."""
    if not path.stat().st_size:
        return b""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
