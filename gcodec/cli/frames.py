"""Read a .gcf file frame by frame, and say where it is damaged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gcodec.cli.outcome import CheckFailed
from gcodec.errors import Corrupt, FormatError, GcodecError, Truncated
from gcodec.frame import Frame
from gcodec.limits import Limits
from gcodec.wire import primitives


class Placed(NamedTuple):
    """A frame and where it lies.

    Attributes
    ----------
    frame : Frame
    number : int
        Counted from 0.
    start, end : int
        Its first byte, and the byte behind it.
    """

    frame: Frame
    number: int
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """All bytes of the frame."""
        return self.end - self.start

    @property
    def payload_nbytes(self) -> int:
        """Bytes of the payload."""
        return self.frame.payload.data.size

    @property
    def checksum_nbytes(self) -> int:
        """Bytes of both checksums, and of the tag if there is one."""
        return 8 + (primitives.TAG_NBYTES if self.frame.key is not None else 0)

    @property
    def header_nbytes(self) -> int:
        """Bytes of the header, without its checksum."""
        return self.nbytes - self.payload_nbytes - self.checksum_nbytes

    @property
    def seek_nbytes(self) -> int:
        """Bytes of the seek table, which is a part of the header."""
        return 0 if self.frame.seek is None else self.frame.seek.nbytes

    @property
    def raw_nbytes(self) -> int:
        """Bytes of the tensor that was encoded."""
        return self.frame.size * primitives.ITEMSIZE[self.frame.dtype]


def read_frames(data: bytes, limits: Limits) -> Iterator[Placed]:
    """Read the frames of a file one after the other.

    Parameters
    ----------
    data : bytes
        The whole file.
    limits : Limits

    Yields
    ------
    Placed

    Raises
    ------
    CheckFailed
        At the first frame that is damaged, or if there is none at all.
    FormatError
        At the first frame that cannot be read for another reason.
    """
    if not data:
        raise CheckFailed("the file is empty: it holds no frame")
    at = number = 0
    while at < len(data):
        with telling(f"frame {number}", 0, at):
            frame, end = Frame.read(data, at, limits, None)
        yield Placed(frame, number, at, end)
        at, number = end, number + 1


@contextlib.contextmanager
def in_payload(placed: Placed) -> Iterator[None]:
    """Say which frame it is whose payload cannot be unpacked, and where in the file."""
    name = "" if placed.frame.name is None else f" {placed.frame.name!r}"
    start = placed.start + placed.header_nbytes + 4
    with telling(f"frame {placed.number}{name}", start, start):
        yield


def read_file(path: Path, limits: Limits) -> Iterator[Placed]:
    """Read the frames of a file; see `read_frames`."""
    return read_frames(path.read_bytes(), limits)


@contextlib.contextmanager
def telling(what: str, base: int, fallback: int) -> Iterator[None]:
    """Add what was read to what is raised, and count offsets from byte `base` of the file."""
    try:
        yield
    except FormatError as error:
        offset = fallback if error.offset is None else base + error.offset
        raise refusal(error, what, offset) from None


def message_of(error: FormatError) -> str:
    """Return what is wrong, without where."""
    return str(error).removesuffix(f" (at byte {error.offset})")


def refusal(error: FormatError, what: str, offset: int) -> GcodecError:
    """Return what to raise for what is wrong in `what`, at this byte of the file."""
    message = f"{what}: {message_of(error)}"
    if isinstance(error, (Corrupt, Truncated)):
        return CheckFailed(message, offset)
    return type(error)(message, offset)
