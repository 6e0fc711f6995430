"""``gcodec verify``: check that .gcf files are undamaged."""

from __future__ import annotations

from typing import Any

import click

from gcodec.cli import options
from gcodec.cli.outcome import Outcome


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
@options.key
@options.outcome
def command(files: tuple[str, ...], key: bytes | None, outcome: Outcome) -> int:
    """Check that .gcf files are undamaged.

    For each frame, gcodec checks the structure and both checksums, unpacks the payload, and
    compares the seek table with the payload. It decodes no tensor. If the file contains a tree,
    gcodec compares the names of the tensors with the tree. With --key-file, gcodec also checks
    that each frame bears a tag of the key. FILE can be a directory or a glob; - is stdin. The exit
    code is 1 if a file is damaged or bears another tag.
    """
    from gcodec.cli.files import contents, inputs, is_frames
    from gcodec.cli.render import text
    from gcodec.frame import Frame
    from gcodec.tensorfiles.frame_file import TensorNames, read_structure
    from gcodec.tensorfiles.frame_list import StoredFrame, read_frames, with_members
    from gcodec.tensorfiles.structure import STRUCTURE_NAME

    checked: list[dict[str, object]] = []
    for path in inputs(files, ".gcf file", is_frames, stdin=True):
        totals = dict.fromkeys(("frames", "values", "bytes", "seek_tables", "seek_bytes"), 0)
        result: dict[str, Any] = {"file": str(path), "ok": False, **totals}
        checked.append(result)
        payload_nbytes = 0

        def check(stored: StoredFrame, result: dict[str, Any] = result) -> Frame:
            nonlocal payload_nbytes
            frame = stored.frame
            with stored.locate_errors():
                frame.codec.unpack(frame.payload, frame.shape)
            result["frames"] += 1
            result["values"] += frame.size
            result["bytes"] = stored.end
            result["seek_tables"] += frame.seek is not None
            result["seek_bytes"] += 0 if frame.seek is None else frame.seek.nbytes
            payload_nbytes += frame.payload.data.size
            return frame

        with outcome.of(path, in_frames=True):
            data = contents(path)
            structure, names = None, list[str]()
            stored_frames = read_frames(data, outcome.limits, key)
            for stored, members in with_members(stored_frames, check):
                frame = check(stored)
                if stored.number == 0 and frame.name == STRUCTURE_NAME:
                    structure, tensor_names = frame, TensorNames()
                elif structure is not None:
                    own = [frame.name] if members is None else [name for name, _ in members]
                    names += map(tensor_names.add, own)
            if structure is not None:
                read_structure(structure, names)
            result["ok"] = True
            facts = [text.count(result["frames"], "frame"), text.count(result["values"], "value")]
            facts.append(text.size(result["bytes"]))
            if result["seek_tables"]:
                share = text.payload_share(result["seek_bytes"], payload_nbytes)
                facts.append(f"{text.count(result['seek_tables'], 'seek table')}, {share}")
            outcome.line(f"{path}: ok", *facts)
    return outcome.finish({"files": checked})
