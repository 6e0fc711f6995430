"""Where the bytes of a .gcf file go, as far as its headers tell."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.console import Console

from gcodec.cli import text
from gcodec.cli.frame_headers import Listed, list_frames
from gcodec.cli.notes import note
from gcodec.cli.options import selects
from gcodec.cli.render.table import Column, Grid, print_line, print_table
from gcodec.errors import ParameterError
from gcodec.limits import Limits

_COLUMNS = [
    Column("frame", left=True),
    Column("codec", left=True, rank=1),
    Column("dtype", left=True, rank=7),
    Column("shape", left=True, rank=5),
    Column("values", rank=2),
    Column("bytes"),
    Column("bits/v"),
    Column("ratio"),
    Column("header", rank=4),
    Column("payload", rank=3),
    Column("checksums", rank=6),
]
_SEEK = Column("seek table", rank=8)


class FrameReport:
    """The report on one .gcf file.

    Parameters
    ----------
    path : pathlib.Path
    frames : list of Listed
    """

    def __init__(self, path: Path, frames: list[Listed]) -> None:
        self.path = path
        self.frames = frames

    def sort(self, order: str | None) -> None:
        """Order the frames by "size", "bits" or "name"; by "err" they stay as they are."""
        if order == "name":
            self.frames.sort(key=lambda frame: frame.name or "")
        elif order == "size":
            self.frames.sort(key=lambda frame: -frame.size)
        elif order == "bits":
            self.frames.sort(key=lambda f: -8 * f.nbytes / f.size if f.size else 0)

    def document(self) -> dict[str, Any]:
        """Return the report for a JSON document."""
        return {
            "file": str(self.path),
            "kind": "frames",
            "bytes": self.path.stat().st_size,
            "frames": self.documents(),
            "total": _bytes_document(self.frames),
        }

    def documents(self) -> list[dict[str, Any]]:
        """Return a document for each frame."""
        return [
            {
                "name": frame.name,
                "codec": str(frame.codec),
                "dtype": frame.dtype,
                "shape": list(frame.shape),
                "start": frame.start,
                **_bytes_document([frame]),
                "seek": _seek_document(frame),
            }
            for frame in self.frames
        ]

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each frame."""
        return [
            {
                "frame": _name(frame),
                "codec": str(frame.codec),
                "dtype": frame.dtype,
                "shape": "x".join(map(str, frame.shape)),
                "start": frame.start,
                **_bytes_document([frame]),
            }
            for frame in self.frames
        ]

    def grid(self, top: int | None) -> Grid:
        """Return the table, of the first frames only or of all."""
        # Most files have no seek tables, and need no column for them.
        has_tables = any(frame.seek is not None for frame in self.frames)
        columns = [*_COLUMNS, _SEEK] if has_tables else _COLUMNS
        shown = self.frames[:top]
        rows = [
            [
                _name(frame),
                str(frame.codec),
                frame.dtype,
                text.shape(frame.shape),
                *_cells([frame]),
                *([_seek_cell(frame)] if has_tables else []),
            ]
            for frame in shown
        ]
        if left_over := len(self.frames) - len(shown):
            rows.append([f"({left_over} more)", *[""] * (len(columns) - 1)])
        counts = _bytes_document(self.frames)
        tables = text.beside(counts["seek_bytes"], counts["payload_bytes"])
        total = ["total", "", "", "", *_cells(self.frames), *([tables] if has_tables else [])]
        return Grid(columns, rows, total)

    def headline(self) -> str:
        """Return the line above the table."""
        return "   ".join(
            [
                self.path.name,
                "gcf",
                text.count(len(self.frames), "frame"),
                text.count(sum(frame.size for frame in self.frames), "value"),
                text.size(self.path.stat().st_size),
            ]
        )

    def show(self, console: Console, top: int | None, quiet: bool) -> None:
        """Print the report; notes go to stderr unless `quiet`."""
        print_line(console, self.headline(), "bold")
        missing = print_table(console, *self.grid(top))
        if quiet:
            return
        if missing:
            note(f"{console.width} columns have no room for: {', '.join(missing)}")
        note("payloads were not read; next: " + shlex.join(["gcodec", "verify", str(self.path)]))


def list_file(path: Path, limits: Limits, layers: tuple[str, ...]) -> FrameReport:
    """Read the headers of the frames of a file that `layers` selects.

    Raises
    ------
    ParameterError
        If it selects none.
    CheckFailed, FormatError, OSError
        If the file is damaged or cannot be read.
    """
    frames = [f for f in list_frames(path, limits) if selects(layers, f.name or "")]
    if not frames:
        raise ParameterError(f"no frame matches --layers {' '.join(layers)}")
    return FrameReport(path, frames)


def _name(frame: Listed) -> str:
    return f"(frame {frame.number})" if frame.name is None else frame.name


def _bytes_document(frames: list[Listed]) -> dict[str, Any]:
    values = sum(frame.size for frame in frames)
    nbytes = sum(frame.nbytes for frame in frames)
    return {
        "values": values,
        "bytes": nbytes,
        "bits_per_value": text.ratio(8 * nbytes, values),
        "ratio": text.ratio(sum(frame.raw_nbytes for frame in frames), nbytes),
        "header_bytes": sum(frame.header_nbytes for frame in frames),
        "payload_bytes": sum(frame.payload_nbytes for frame in frames),
        "checksum_bytes": sum(frame.checksum_nbytes for frame in frames),
        "seek_bytes": sum(frame.seek_nbytes for frame in frames),
    }


def _seek_document(frame: Listed) -> dict[str, Any] | None:
    table = frame.seek
    if table is None:
        return None
    return {
        "log2_block": table.log2_block,
        "counts": frame.codec.seek_blocks,
        "entries": table.number,
        "bytes": frame.seek_nbytes,
        "share": text.ratio(frame.seek_nbytes, frame.payload_nbytes),
    }


def _seek_cell(frame: Listed) -> str:
    table = frame.seek
    if table is None:
        return ""
    size = text.beside(frame.seek_nbytes, frame.payload_nbytes)
    return f"{table.number:,} x 2^{table.log2_block} {frame.codec.seek_blocks}, {size}"


def _cells(frames: list[Listed]) -> list[str]:
    counts = _bytes_document(frames)
    return [
        f"{counts['values']:,}",
        f"{counts['bytes']:,}",
        text.fixed(counts["bits_per_value"]),
        text.fixed(counts["ratio"]),
        *(f"{counts[key]:,}" for key in ("header_bytes", "payload_bytes", "checksum_bytes")),
    ]
