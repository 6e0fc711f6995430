"""``gcodec decode``: convert a .gcf file to a file of tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gcodec.cli import options
from gcodec.limits import Limits

if TYPE_CHECKING:
    from gcodec.tensorfiles.entries import Array
    from gcodec.tensorfiles.frame_file import StoredFrame


@click.command(
    cls=options.Verb,
    name="decode",
    examples=[
        ("Decode a file to back.npz.", "gcodec decode grads.gcf -o back.npz"),
        ("Decode to grads.safetensors, and replace that file.", "gcodec decode --force grads.gcf"),
        (
            "Refuse tensors of more than ten million values, for an untrusted file.",
            "gcodec decode --max-elems 10000000 grads.gcf -o checked.safetensors",
        ),
    ],
)
@click.argument("source", metavar="IN.gcf", type=options.FILE)
@options.output(
    "A .safetensors or .npz file; default: IN with the suffix .safetensors; - is stdout, as "
    ".safetensors."
)
@options.force
@options.limits
@options.quiet
@options.json
def command(
    source: str, output: str | None, force: bool, limits: Limits, quiet: bool, as_json: bool
) -> int:
    """Decode a .gcf file to a file of tensors.

    The tensors have the names, shapes and dtypes of those that were encoded. Frames without a name
    become tensor0, tensor1 and so on. Of a tree, OUT contains the tensors only, under the paths
    to them, and no numbers and texts. IN can be - for stdin.
    """
    from pathlib import Path

    from gcodec.cli import files
    from gcodec.cli.outcome import Outcome
    from gcodec.cli.render import text
    from gcodec.cli.render.output import print_document
    from gcodec.errors import ParameterError, Unsupported
    from gcodec.tensorfiles.dumps import write_dump
    from gcodec.tensorfiles.frame_file import read_frames

    if source == "-" and output is None:
        raise click.UsageError("stdin has no name from which to derive OUT: pass -o OUT")
    files.check_stdout(output, as_json)
    path = Path("stdin") if source == "-" else files.existing(source)
    (target,) = files.outputs([path], output, ".safetensors", force)
    if target != files.STREAM and not target.name.lower().endswith((".safetensors", ".npz")):
        raise ParameterError(f"{target}: OUT must be a file named .safetensors or .npz")
    outcome = Outcome()
    decoded: list[StoredFrame] = []
    document: dict[str, Any] = {"input": source, "output": str(target)}
    with outcome.of(path, in_frames=True):
        data = sys.stdin.buffer.read() if source == "-" else path.read_bytes()
        with files.written_file(target, ".safetensors") as written:
            try:
                write_dump(written, _tensors(read_frames(data, limits), decoded))
            except ParameterError as error:
                # The suffix is allowed, so a tensor has a name that the format cannot store.
                raise Unsupported(str(error)) from None
            values = sum(stored.frame.size for stored in decoded)
            document |= {"tensors": len(decoded), "values": values}
            document["bytes"] = written.stat().st_size
        if not as_json and not quiet:
            tensors = text.count(len(decoded), "tensor")
            line = f"{path} -> {target}   {tensors}   {text.count(values, 'value')}"
            line = text.printable(f"{line}   {text.size(document['bytes'])}")
            click.echo(line, err=target == files.STREAM)
    if as_json:
        print_document("decode", document, outcome)
    return outcome.code


def _tensors(
    frames: Iterator[StoredFrame], decoded: list[StoredFrame]
) -> Iterator[tuple[str, Array]]:
    """Decode frames, and append them to a list; number the frames without a name."""
    from gcodec.tensorfiles.frame_file import TensorNames
    from gcodec.tensorfiles.structure import STRUCTURE_NAME

    names = TensorNames()
    for stored in frames:
        if stored.number == 0 and stored.frame.name == STRUCTURE_NAME:
            continue
        name = names.add(stored.frame.name)
        with stored.locate_errors():
            array = stored.frame.decode()
        decoded.append(stored)
        yield name, array
