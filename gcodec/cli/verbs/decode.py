"""``gcodec decode``: a .gcf file back to a file of tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gcodec.cli.completion import FILE
from gcodec.cli.options import force_option, json_option, limit_options, quiet_option
from gcodec.cli.verb import Verb

if TYPE_CHECKING:
    from gcodec.cli.frames import Placed
    from gcodec.tensorfiles.entries import Array


@click.command(
    cls=Verb,
    name="decode",
    examples=[
        ("Decode to grads.safetensors, if there is none.", "gcodec decode grads.gcf -o back.npz"),
        ("Replace what was decoded before.", "gcodec decode --force grads.gcf"),
        (
            "Refuse tensors of more than ten million values, of a file from a stranger.",
            "gcodec decode --max-elems 10000000 grads.gcf -o checked.safetensors",
        ),
    ],
)
@click.argument("source", metavar="IN.gcf", type=FILE)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=FILE,
    help="A .safetensors or .npz file; default: IN with the suffix .safetensors.",
)
@force_option
@limit_options
@quiet_option
@json_option
def command(
    source: str,
    output: str | None,
    force: bool,
    max_elems: int,
    max_bytes: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Decode a .gcf file to a file of tensors.

    Names, shapes and dtypes are those of the tensors that were encoded; frames without a name
    become tensor0, tensor1 and so on. IN may be - for stdin.
    """
    from pathlib import Path

    from gcodec.cli import outputs, text
    from gcodec.cli.document import print_document
    from gcodec.cli.frames import read_frames
    from gcodec.cli.outcome import Outcome
    from gcodec.errors import ParameterError, Unsupported
    from gcodec.limits import Limits
    from gcodec.tensorfiles.dumps import write_dump

    if source == "-":
        if output is None:
            raise click.UsageError("stdin has no name to make OUT from: pass -o OUT")
        path = Path("stdin")
    else:
        path = Path(source)
        if not path.is_file():
            raise ParameterError(f"{source}: no such file")
    (target,) = outputs.plan([path], output, ".safetensors")
    if not target.name.lower().endswith((".safetensors", ".npz")):
        raise ParameterError(f"{target}: OUT must be a file named .safetensors or .npz")
    outputs.refuse_existing([target], force)
    outcome = Outcome()
    done: list[Placed] = []
    document: dict[str, Any] = {"input": source, "output": str(target)}
    with outcome.of(path):
        data = sys.stdin.buffer.read() if source == "-" else path.read_bytes()
        frames = read_frames(data, Limits(max_elems, max_bytes))
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_dump(target, _decoded(frames, done))
        except ParameterError as error:
            # The suffix is good; what is left is a name that the format has no place for.
            raise Unsupported(str(error)) from None
        values = sum(placed.frame.size for placed in done)
        document |= {"tensors": len(done), "values": values, "bytes": target.stat().st_size}
        if not as_json and not quiet:
            tensors = text.count(len(done), "tensor")
            line = f"{path} -> {target}   {tensors}   {text.count(values, 'value')}"
            click.echo(text.printable(f"{line}   {text.size(document['bytes'])}"))
    if as_json:
        print_document("decode", document, outcome)
    return outcome.code


def _decoded(frames: Iterator[Placed], done: list[Placed]) -> Iterator[tuple[str, Array]]:
    """Decode frames, noting which; those without a name are numbered."""
    from gcodec.cli.frames import in_payload
    from gcodec.errors import Unsupported

    names = set[str]()
    nameless = 0
    for placed in frames:
        name = placed.frame.name
        if name is None:
            name, nameless = f"tensor{nameless}", nameless + 1
        if name in names:
            raise Unsupported(
                f"two frames are named {name!r}: a file of tensors can hold only one"
            )
        names.add(name)
        with in_payload(placed):
            array = placed.frame.decode()
        done.append(placed)
        yield name, array
