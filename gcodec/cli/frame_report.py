"""Show where the bytes of a .gcf file go: as a table, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from gcodec.cli import text
from gcodec.cli.frames import Placed, read_file
from gcodec.cli.notes import note
from gcodec.cli.options import selects
from gcodec.cli.table import Column, print_line, print_table
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
    frames : list of Placed
    """

    def __init__(self, path: Path, frames: list[Placed]) -> None:
        self._path = path
        self._frames = frames

    def sort(self, order: str | None) -> None:
        """Order the frames by "size", "bits" or "name"; by "err" they stay as they are."""
        if order == "name":
            self._frames.sort(key=lambda placed: placed.frame.name or "")
        elif order == "size":
            self._frames.sort(key=lambda placed: -placed.frame.size)
        elif order == "bits":
            self._frames.sort(key=lambda p: -8 * p.nbytes / p.frame.size if p.frame.size else 0)

    def document(self) -> dict[str, Any]:
        """Return the report for a JSON document."""
        return {
            "file": str(self._path),
            "kind": "frames",
            "bytes": self._path.stat().st_size,
            "frames": [
                {
                    "name": placed.frame.name,
                    "codec": str(placed.frame.codec),
                    "dtype": placed.frame.dtype,
                    "shape": list(placed.frame.shape),
                    "start": placed.start,
                    **_bytes_document([placed]),
                    "seek": _seek_document(placed),
                }
                for placed in self._frames
            ],
            "total": _bytes_document(self._frames),
        }

    def show(self, console: Console, top: int | None, quiet: bool) -> None:
        """Print the report; notes go to stderr unless `quiet`."""
        frames, path = self._frames, self._path
        headline = [
            path.name,
            "gcf",
            text.count(len(frames), "frame"),
            text.count(sum(placed.frame.size for placed in frames), "value"),
            text.size(path.stat().st_size),
        ]
        print_line(console, "   ".join(headline), "bold")
        # Most files have no seek tables, and need no column for them.
        has_tables = any(placed.frame.seek is not None for placed in frames)
        columns = [*_COLUMNS, _SEEK] if has_tables else _COLUMNS
        rows = [
            [
                f"(frame {placed.number})" if placed.frame.name is None else placed.frame.name,
                str(placed.frame.codec),
                placed.frame.dtype,
                text.shape(placed.frame.shape),
                *_cells([placed]),
                _seek_cell(placed),
            ]
            for placed in frames[:top]
        ]
        if len(rows) < len(frames):
            rows.append([f"({len(frames) - len(rows)} more)", *[""] * len(_COLUMNS)])
        counts = _bytes_document(frames)
        tables = text.beside(counts["seek_bytes"], counts["payload_bytes"])
        total = ["total", "", "", "", *_cells(frames), tables]
        missing = print_table(console, columns, rows, total)
        if missing and not quiet:
            note(f"{console.width} columns have no room for: {', '.join(missing)}")


def measure(path: Path, limits: Limits, layers: tuple[str, ...]) -> FrameReport:
    """Read the frames of a file that `layers` selects.

    Raises
    ------
    ParameterError
        If it selects none.
    CheckFailed, FormatError, OSError
        If the file is damaged or cannot be read.
    """
    frames = [p for p in read_file(path, limits) if selects(layers, p.frame.name or "")]
    if not frames:
        raise ParameterError(f"no frame matches --layers {' '.join(layers)}")
    return FrameReport(path, frames)


def _bytes_document(frames: list[Placed]) -> dict[str, Any]:
    values = sum(placed.frame.size for placed in frames)
    nbytes = sum(placed.nbytes for placed in frames)
    return {
        "values": values,
        "bytes": nbytes,
        "bits_per_value": text.ratio(8 * nbytes, values),
        "ratio": text.ratio(sum(placed.raw_nbytes for placed in frames), nbytes),
        "header_bytes": sum(placed.header_nbytes for placed in frames),
        "payload_bytes": sum(placed.payload_nbytes for placed in frames),
        "checksum_bytes": sum(placed.checksum_nbytes for placed in frames),
        "seek_bytes": sum(placed.seek_nbytes for placed in frames),
    }


def _seek_document(placed: Placed) -> dict[str, Any] | None:
    table = placed.frame.seek
    if table is None:
        return None
    return {
        "log2_block": table.log2_block,
        "counts": placed.frame.codec.seek_blocks,
        "entries": table.count,
        "bytes": table.nbytes,
        "share": text.ratio(table.nbytes, placed.payload_nbytes),
    }


def _seek_cell(placed: Placed) -> str:
    table = placed.frame.seek
    if table is None:
        return ""
    size = text.beside(table.nbytes, placed.payload_nbytes)
    return f"{table.count:,} x 2^{table.log2_block} {placed.frame.codec.seek_blocks}, {size}"


def _cells(frames: list[Placed]) -> list[str]:
    counts = _bytes_document(frames)
    return [
        f"{counts['values']:,}",
        f"{counts['bytes']:,}",
        text.fixed(counts["bits_per_value"]),
        text.fixed(counts["ratio"]),
        *(f"{counts[key]:,}" for key in ("header_bytes", "payload_bytes", "checksum_bytes")),
    ]
