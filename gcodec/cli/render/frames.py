"""The view of a file of frames by ``gcodec inspect``: a table, JSON and CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcodec.cli.render import text
from gcodec.cli.render.output import Column, Table, View
from gcodec.tensorfiles.frame_list import FrameHeader


class FrameView(View[dict[str, Any]]):
    """The view of a .gcf file.

    Parameters
    ----------
    path : pathlib.Path
        The file, or - for standard input.
    title : str
        Name of the file above the table; see `gcodec.cli.render.text.titles`.
    nbytes : int
        Size of the file.
    frames : list of FrameHeader
        Headers of the frames.
    tries_codecs : bool
        Whether the options ask for trials of codecs, which need a dump.
    """

    all_columns = "--width N or --json"

    def __init__(
        self,
        path: Path,
        title: str,
        nbytes: int,
        frames: list[FrameHeader],
        tries_codecs: bool,
    ) -> None:
        self.path, self.title, self._tries_codecs = path, title, tries_codecs
        self.rows = [_frame_row(frame) for frame in frames]
        self._nbytes, self._total = nbytes, _frame_bytes(frames)
        self._has_tags = any(frame.has_tag for frame in frames)
        self.orders = {
            "name": lambda row: row["name"] or "",
            "size": lambda row: -row["values"],
            "bits": lambda row: -(row["bits_per_value"] or 0),
        }

    def headline(self) -> str:
        """Return the line above the table."""
        parts = [self.title, "gcf", text.count(len(self.rows), "frame")]
        parts.append(text.count(self._total["values"], "value"))
        return "   ".join([*parts, text.size(self._nbytes)])

    def table(self, top: int | None = None) -> Table[dict[str, Any]]:
        """Return the table, with the first frames or all of them."""
        has_tables = any(row["seek"] is not None for row in self.rows)
        columns = [*_FRAME_COLUMNS, _SEEK_COLUMN] if has_tables else _FRAME_COLUMNS
        return Table(columns, self.rows, self._total, top=top)

    def notes(self) -> list[str]:
        """Return what was not done, and the next step."""
        key = ["--key-file", "KEY"] if self._has_tags else []
        command = text.command(["gcodec", "verify", *key, text.argument(self.path)])
        notes = [f"payloads were not read; next: {command}"]
        if self._tries_codecs:
            notes.insert(0, "no codec was tried on frames; gcodec decode makes a dump")
        return notes

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the file."""
        return {
            "file": str(self.path),
            "kind": "frames",
            "bytes": self._nbytes,
            "frames": self._frames(),
            "total": self._total,
        }

    def _frames(self) -> list[dict[str, object]]:
        return [{key: row[key] for key in row if key != "frame"} for row in self.rows]

    def lines(self) -> list[dict[str, Any]]:
        """Return the JSON document of each frame."""
        return [{"file": str(self.path), **frame} for frame in self._frames()]

    def records(self) -> list[dict[str, Any]]:
        """Return the flat record of each frame, for CSV."""
        return [
            {
                "file": str(self.path),
                **{key: row[key] for key in row if key not in ("name", "seek")},
                "shape": "x".join(map(str, row["shape"])),
            }
            for row in self.rows
        ]


def _frame_row(frame: FrameHeader) -> dict[str, object]:
    """Return the title of a frame, and the items of its JSON document."""
    seek = frame.seek
    return {
        "frame": f"(frame {frame.number})" if frame.name is None else frame.name,
        "name": frame.name,
        "codec": str(frame.codec),
        "dtype": frame.dtype,
        "shape": list(frame.shape),
        "start": frame.start,
        **_frame_bytes([frame]),
        "seek": None
        if seek is None
        else {
            "log2_block": seek.log2_block,
            "counts": frame.codec.seek_blocks,
            "entries": seek.number,
            "bytes": frame.seek_nbytes,
            "share": text.ratio(frame.seek_nbytes, frame.payload_nbytes),
        },
    }


def _frame_bytes(frames: list[FrameHeader]) -> dict[str, Any]:
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


def _seek_text(record: dict[str, Any]) -> str:
    share = text.payload_share(record["seek_bytes"], record["payload_bytes"])
    if "seek" not in record:  # the total
        return share
    seek = record["seek"]
    if seek is None:
        return ""
    return f"{seek['entries']:,} x 2^{seek['log2_block']} {seek['counts']}, {share}"


_FRAME_COLUMNS: list[Column[dict[str, Any]]] = [
    Column("frame", lambda row: row.get("frame", "total"), left=True),
    Column("codec", lambda row: row["codec"], left=True, rank=1, in_total=False),
    Column("dtype", lambda row: row["dtype"], left=True, rank=7, in_total=False),
    Column("shape", lambda row: text.shape(row["shape"]), left=True, rank=5, in_total=False),
    Column("values", lambda row: f"{row['values']:,}", rank=2),
    Column("bytes", lambda row: f"{row['bytes']:,}"),
    Column("bits/v", lambda row: text.fixed(row["bits_per_value"])),
    Column("ratio", lambda row: text.fixed(row["ratio"])),
    Column("header", lambda row: f"{row['header_bytes']:,}", rank=4),
    Column("payload", lambda row: f"{row['payload_bytes']:,}", rank=3),
    Column("checksums", lambda row: f"{row['checksum_bytes']:,}", rank=6),
]
_SEEK_COLUMN: Column[dict[str, Any]] = Column("seek table", _seek_text, rank=8)
