"""``gcodec diff``: write the exact difference of two .safetensors files."""

from __future__ import annotations

import click

from gcodec.cli import options
from gcodec.cli.outcome import Outcome


@options.verb(
    "diff",
    (
        "Write what turns one checkpoint into the next.",
        "gcodec diff run/step1.safetensors run/step2.safetensors -o step2.gcf",
    ),
    (
        "Print the sizes for a program.",
        "gcodec diff --json grads.safetensors next.safetensors -o step.gcf --force",
    ),
)
@click.argument("old", metavar="OLD.safetensors", type=options.FILE)
@click.argument("new", metavar="NEW.safetensors", type=options.FILE)
@options.output("A .gcf file; default: NEW with the suffix .gcf; - is stdout.")
@options.force
@options.own_key
@options.outcome
def command(
    old: str, new: str, output: str | None, force: bool, key: bytes | None, outcome: Outcome
) -> int:
    """Write the exact difference of two .safetensors files.

    From OUT and OLD, gcodec apply restores NEW byte for byte, metadata and order included. A
    tensor that OLD also has, with the same dtype and shape, becomes a patch. Other tensors, and
    tensors too small for a patch, are encoded with lossless. For models in shards, OLD and NEW are
    the indices or their folders.
    """
    from gcodec.cli import files
    from gcodec.cli.render import text
    from gcodec.cli.render.output import progress
    from gcodec.patch.files import BaseFile, write_difference
    from gcodec.tensorfiles.atomic import atomic_write

    files.check_streams((), output, outcome.as_json)
    old_path, new_path = files.original(old), files.original(new)
    (target,) = files.outputs([new_path], output, ".gcf", force)
    document: dict[str, object] = {"old": old, "new": new, "output": str(target)}
    with outcome.of(old_path):
        tensors = BaseFile(old_path, outcome.limits)
    if outcome.code:
        return outcome.finish(document)
    with outcome.of(new_path), files.written_file(target, ".gcf") as written:
        with (
            progress(target.name, new_path.stat().st_size, quiet=outcome.quiet) as advance,
            atomic_write(written) as file,
        ):
            result = write_difference(tensors, new_path, file, outcome.limits, advance, key)
        document |= result._asdict()
        ratio = text.ratio(result.raw_nbytes, result.nbytes)
        parts = [files.arrow(f"{old}, {new}", target), text.count(result.tensors, "tensor")]
        if result.whole:
            parts.append(f"{result.whole:,} of them whole")
        parts += [text.count(result.values, "value"), text.size(result.nbytes)]
        if ratio is not None:
            parts.append(f"{ratio:.1f}x")
        outcome.line(*parts, err=target == files.STREAM)
    return outcome.finish(document)
