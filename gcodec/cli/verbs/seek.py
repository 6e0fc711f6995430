"""``gcodec seek``: seek tables into the frames of .gcf files, or out of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gcodec.cli.completion import FILE
from gcodec.cli.options import force_option, json_option, limit_options, quiet_option
from gcodec.cli.verb import Verb

if TYPE_CHECKING:
    from pathlib import Path

    from gcodec.limits import Limits


@click.command(
    cls=Verb,
    name="seek",
    examples=[
        ("Add tables, to decode by many threads.", "gcodec seek grads.gcf -o indexed.gcf"),
        ("Tables of smaller blocks, in place.", "gcodec seek --log2-block 10 --force grads.gcf"),
        ("Take the tables out of all files of a directory.", "gcodec seek --strip -f encoded/"),
    ],
)
@click.argument("files", nargs=-1, required=True, metavar="FILE.gcf...", type=FILE)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=FILE,
    help="A file for one FILE, or a directory; default: FILE itself, which needs --force.",
)
@click.option(
    "--log2-block",
    type=click.IntRange(0, 62),
    metavar="N",
    help="Blocks of 2^N elements, or sent values where a codec sends only some; of the symbols of "
    "rANS: 5 to 18. Default: the blocks that encode chooses, 12, or with rANS 16 or 18.",
)
@click.option("--strip", is_flag=True, help="Take the tables out instead.")
@force_option
@limit_options
@quiet_option
@json_option
def command(
    files: tuple[str, ...],
    output: str | None,
    log2_block: int | None,
    strip: bool,
    force: bool,
    max_elems: int,
    max_bytes: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Add seek tables to the frames of .gcf files.

    A table says where blocks of a payload begin, so that they can be decoded side by side. It
    goes into every frame whose codec has words of many lengths; one of other blocks is replaced.
    Payloads stay as they are. FILE can be a directory or a glob.
    """
    from gcodec.cli import inputs, outputs, text
    from gcodec.cli.document import print_document
    from gcodec.cli.outcome import Outcome
    from gcodec.limits import Limits

    if strip and log2_block is not None:
        raise click.UsageError("--strip takes tables out: --log2-block has no place there.")
    sources = inputs.files(files, ".gcf file", inputs.is_frames)
    targets = sources if output is None else outputs.plan(sources, output, ".gcf")
    outputs.refuse_existing(targets, force)
    limits = Limits(max_elems, max_bytes)
    outcome = Outcome()
    written: list[dict[str, Any]] = []
    for source, target in zip(sources, targets, strict=True):
        with outcome.of(source):
            done = _write(source, target, strip, log2_block, limits)
            written.append(done)
            if not as_json and not quiet:
                line = f"{source} -> {target}   {text.count(done['frames'], 'frame')}"
                line += f"   {text.count(done['seek_tables'], 'seek table')}"
                if done["seek_tables"]:
                    line += f", {text.beside(done['seek_bytes'], done['payload_bytes'])}"
                click.echo(text.printable(line))
    if as_json:
        body = {"log2_block": log2_block, "strip": strip, "files": written}
        print_document("seek", body, outcome)
    return outcome.code


def _write(
    source: Path, target: Path, strip: bool, log2_block: int | None, limits: Limits
) -> dict[str, Any]:
    """Write one file and say what is in it."""
    from gcodec.cli.frames import in_payload, read_file
    from gcodec.tensorfiles.atomic import atomic_write

    frames = tables = nbytes = seek_nbytes = payload_nbytes = 0
    read = read_file(source, limits)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as file:
        for placed in read:
            if strip:
                frame = placed.frame.without_seek()
            else:
                with in_payload(placed):
                    frame = placed.frame.with_seek(log2_block)
            for part in frame.parts():
                nbytes += file.write(part)
            frames += 1
            payload_nbytes += placed.payload_nbytes
            if frame.seek is not None:
                tables += 1
                seek_nbytes += frame.seek.nbytes
    return {
        "input": str(source),
        "output": str(target),
        "frames": frames,
        "bytes": nbytes,
        "payload_bytes": payload_nbytes,
        "seek_tables": tables,
        "seek_bytes": seek_nbytes,
    }
