"""``gcodec verify``: check that .gcf files are undamaged."""

from __future__ import annotations

import sys
from typing import Any

import click

from gcodec.cli import options
from gcodec.limits import Limits


@options.verb(
    "verify",
    ("Check a file.", "gcodec verify grads.gcf"),
    (
        "Check all files of a directory, and report the result by the exit code alone.",
        "gcodec verify -q encoded/",
    ),
    ("Print errors and their offsets for a program.", "gcodec verify --json grads.gcf"),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE.gcf...", type=options.FILE)
@options.limits
@options.quiet
@options.json
def command(files: tuple[str, ...], limits: Limits, quiet: bool, as_json: bool) -> int:
    """Check that .gcf files are undamaged.

    For each frame, gcodec checks the structure and both checksums, unpacks the payload, and
    compares the seek table with it. It decodes no tensor. If the file contains a tree, gcodec
    compares the names of the tensors with it. FILE can be a directory or a glob; - is stdin. The
    exit code is 1 if a file is damaged.
    """
    from gcodec.cli.files import STREAM, inputs, is_frames
    from gcodec.cli.outcome import Outcome
    from gcodec.cli.render import text
    from gcodec.cli.render.output import print_document
    from gcodec.tensorfiles.frame_file import TensorNames, read_frames, read_structure
    from gcodec.tensorfiles.structure import STRUCTURE_NAME

    outcome = Outcome()
    checked: list[dict[str, Any]] = []
    from_stdin = files == (str(STREAM),)
    for path in [STREAM] if from_stdin else inputs(files, ".gcf file", is_frames):
        totals = dict.fromkeys(("frames", "values", "bytes", "seek_tables", "seek_bytes"), 0)
        result: dict[str, Any] = {"file": str(path), "ok": False, **totals}
        checked.append(result)
        payload_nbytes = 0
        with outcome.of(path, in_frames=True):
            data = sys.stdin.buffer.read() if from_stdin else path.read_bytes()
            structure, names = None, []
            for stored in read_frames(data, limits):
                frame = stored.frame
                if stored.number == 0 and frame.name == STRUCTURE_NAME:
                    structure, tensor_names = frame, TensorNames()
                elif structure is not None:
                    names.append(tensor_names.add(frame.name))
                with stored.locate_errors():
                    frame.codec.unpack(frame.payload, frame.shape)
                result["frames"] += 1
                result["values"] += frame.size
                result["bytes"] = stored.end
                result["seek_tables"] += frame.seek is not None
                result["seek_bytes"] += 0 if frame.seek is None else frame.seek.nbytes
                payload_nbytes += frame.payload.data.size
            if structure is not None:
                read_structure(structure, names)
            result["ok"] = True
            if not as_json and not quiet:
                frames = text.count(result["frames"], "frame")
                values = text.count(result["values"], "value")
                line = f"{path}: ok   {frames}   {values}   {text.size(result['bytes'])}"
                if result["seek_tables"]:
                    tables = text.count(result["seek_tables"], "seek table")
                    line += f"   {tables}, "
                    line += text.payload_share(result["seek_bytes"], payload_nbytes)
                click.echo(text.printable(line))
    if as_json:
        print_document("verify", {"files": checked}, outcome)
    return outcome.code
