"""``gcodec verify``: whether .gcf files are whole."""

from __future__ import annotations

from typing import Any

import click

from gcodec.cli.completion import FILE
from gcodec.cli.options import json_option, limit_options, quiet_option
from gcodec.cli.verb import Verb


@click.command(
    cls=Verb,
    name="verify",
    examples=[
        ("Check a file.", "gcodec verify grads.gcf"),
        (
            "All files of a directory, in silence; the exit code tells.",
            "gcodec verify -q encoded/",
        ),
        ("What is wrong, and where, for a program.", "gcodec verify --json grads.gcf"),
    ],
)
@click.argument("files", nargs=-1, required=True, metavar="FILE.gcf...", type=FILE)
@limit_options
@quiet_option
@json_option
def command(
    files: tuple[str, ...], max_elems: int, max_bytes: int, quiet: bool, as_json: bool
) -> int:
    """Check that .gcf files are whole.

    Checks the structure of every frame, both of its checksums, that its payload can be unpacked
    and that its seek table fits it; no tensor is made. FILE can be a directory or a glob. The exit
    code is 1 if a file is damaged.
    """
    from gcodec.cli import inputs, text
    from gcodec.cli.document import print_document
    from gcodec.cli.frames import in_payload, read_file
    from gcodec.cli.outcome import Outcome
    from gcodec.limits import Limits

    limits = Limits(max_elems, max_bytes)
    outcome = Outcome()
    checked: list[dict[str, Any]] = []
    for path in inputs.files(files, ".gcf file", inputs.is_frames):
        found: dict[str, Any] = {
            "file": str(path),
            "ok": False,
            "frames": 0,
            "values": 0,
            "bytes": 0,
            "seek_tables": 0,
            "seek_bytes": 0,
        }
        checked.append(found)
        payload_nbytes = 0
        with outcome.of(path):
            for placed in read_file(path, limits):
                frame = placed.frame
                with in_payload(placed):
                    frame.codec.unpack(frame.payload, frame.shape)
                found["frames"] += 1
                found["values"] += frame.size
                found["bytes"] = placed.end
                found["seek_tables"] += frame.seek is not None
                found["seek_bytes"] += placed.seek_nbytes
                payload_nbytes += placed.payload_nbytes
            found["ok"] = True
            if not as_json and not quiet:
                frames = text.count(found["frames"], "frame")
                values = text.count(found["values"], "value")
                line = f"{path}: ok   {frames}   {values}   {text.size(found['bytes'])}"
                if found["seek_tables"]:
                    tables = text.count(found["seek_tables"], "seek table")
                    line += f"   {tables}, {text.beside(found['seek_bytes'], payload_nbytes)}"
                click.echo(text.printable(line))
    if as_json:
        print_document("verify", {"files": checked}, outcome)
    return outcome.code
