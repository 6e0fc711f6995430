"""``gcodec seek``: add seek tables to the frames of .gcf files, or remove them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gcodec.cli import options
from gcodec.cli.outcome import Outcome
from gcodec.limits import Limits

if TYPE_CHECKING:
    from pathlib import Path


@options.verb(
    "seek",
    ("Add tables, for decoding with several threads.", "gcodec seek grads.gcf -o indexed.gcf"),
    ("Use smaller blocks, in place.", "gcodec seek --log2-block 10 --force grads.gcf"),
    ("Remove the tables from all files of a directory.", "gcodec seek --strip -f encoded/"),
)
@click.argument("paths", nargs=-1, required=True, metavar="FILE.gcf...", type=options.FILE)
@options.output(
    "A file for one FILE, or a directory; default: FILE itself, which needs --force; - is stdout."
)
@click.option(
    "--log2-block",
    type=options.Integer(0, 62),
    metavar="N",
    help="Blocks of 2^N elements, or of 2^N sent values for sparse codecs; 5 to 18 with rANS. "
    "Default: as encode chooses, 12, or with rANS 16 or 18.",
)
@click.option("--strip", is_flag=True, help="Remove the tables instead.")
@options.force
@options.key
@options.outcome
def command(
    paths: tuple[str, ...],
    output: str | None,
    log2_block: int | None,
    strip: bool,
    force: bool,
    key: bytes | None,
    outcome: Outcome,
) -> int:
    """Add seek tables to the frames of .gcf files.

    A table contains the offsets of the blocks of a payload, so that several threads can decode it.
    Each frame whose codec has words of variable length gets a table, which replaces a table of
    other blocks. Payloads do not change. With --key-file, gcodec checks the tags of the
    frames, and writes new ones. FILE can be a directory or a glob; - is stdin.
    """
    from gcodec.cli import files
    from gcodec.cli.render import text

    if strip and log2_block is not None:
        raise click.UsageError("--strip removes tables, so --log2-block has no effect.")
    files.check_streams(paths, output, outcome.as_json)
    targets = sources = files.inputs(paths, ".gcf file", files.is_frames, stdin=True)
    if output is None:
        files.check_replaceable(targets, force)
    else:
        targets = files.outputs(sources, output, ".gcf", force)
    written: list[dict[str, object]] = []
    for source, target in zip(sources, targets, strict=True):
        with outcome.of(source, in_frames=True):
            with files.written_file(target, ".gcf") as file:
                result = _write(source, file, strip, log2_block, outcome.limits, key)
            written.append({"input": str(source), "output": str(target), **result})
            tables = text.count(result["seek_tables"], "seek table")
            if result["seek_tables"]:
                sizes = result["seek_bytes"], result["payload_bytes"]
                tables += f", {text.payload_share(*sizes)}"
            names = files.arrow(str(source), target)
            facts = names, text.count(result["frames"], "frame"), tables
            outcome.line(*facts, err=target == files.STREAM)
    return outcome.finish({"log2_block": log2_block, "strip": strip, "files": written})


def _write(
    source: Path,
    target: Path,
    strip: bool,
    log2_block: int | None,
    limits: Limits,
    key: bytes | None,
) -> dict[str, Any]:
    """Write one file, and return the numbers of its part of the JSON document."""
    from gcodec.cli.files import contents
    from gcodec.tensorfiles.atomic import atomic_write
    from gcodec.tensorfiles.frame_list import read_frames

    numbers = ("frames", "bytes", "payload_bytes", "seek_tables", "seek_bytes")
    result = dict.fromkeys(numbers, 0)
    data = contents(source)
    with atomic_write(target) as file:
        for stored in read_frames(data, limits, key):
            if strip:
                frame = stored.frame.without_seek()
            else:
                with stored.locate_errors():
                    frame = stored.frame.with_seek(log2_block)
            for part in frame.parts():
                result["bytes"] += file.write(part)
            result["frames"] += 1
            result["payload_bytes"] += frame.payload.data.size
            if frame.seek is not None:
                result["seek_tables"] += 1
                result["seek_bytes"] += frame.seek.nbytes
    return result
