"""``gcodec apply``: turn an old .safetensors file into a new one."""

from __future__ import annotations

from pathlib import Path

import click

from gcodec.cli import options
from gcodec.cli.outcome import Outcome
from gcodec.errors import ParameterError


@options.verb(
    "apply",
    (
        "Turn a checkpoint into the next one.",
        "gcodec apply step.gcf grads.safetensors -o new.safetensors",
    ),
    (
        "Print the sizes for a program.",
        "gcodec apply --json step.gcf grads.safetensors -o new.safetensors",
    ),
)
@click.argument("source", metavar="STEP.gcf", type=options.FILE)
@click.argument("base", metavar="BASE.safetensors", type=options.FILE)
@options.output(
    "A .safetensors file, or a directory for a model in shards; default: STEP with the suffix "
    ".safetensors; - is stdout."
)
@options.force
@options.key
@options.outcome
def command(
    source: str, base: str, output: str | None, force: bool, key: bytes | None, outcome: Outcome
) -> int:
    """Turn an old .safetensors file into the new one.

    STEP is a file that gcodec diff wrote, and BASE its old file. OUT is the new file, byte for
    byte. If a tensor that STEP patches differs in BASE, or STEP is damaged, no file is written or
    replaced. For a model in shards, BASE is the index or its folder. STEP can be - for stdin.
    """
    from gcodec.cli import coding, files
    from gcodec.patch.files import BaseFile
    from gcodec.tensorfiles.exact_file import original_name

    files.check_streams((source,), output, outcome.as_json)
    path, data = files.frames_file(source)
    with outcome.of(path, in_frames=True):
        original = original_name(data)
    if outcome.errors:
        return outcome.finish({"input": source, "base": base, "output": output})
    if original is None:
        advice = f"; it comes after {base}" if files.is_frames(Path(base)) else ""
        raise ParameterError(f"{path}: is no file that gcodec diff wrote{advice}")
    base_path = files.original(base)
    target, is_folder = coding.target_of(path, output, original, force)
    if not is_folder and target != files.STREAM and target.suffix.lower() != ".safetensors":
        raise ParameterError(f"{target}: OUT must be a file named .safetensors")
    document: dict[str, object] = {"input": source, "base": base, "output": str(target)}
    with outcome.of(base_path):
        tensors = BaseFile(base_path, outcome.limits)
    if outcome.code:
        return outcome.finish(document)
    with outcome.of(path, in_frames=True):
        document |= coding.restore(data, target, is_folder, force, outcome, key, tensors.decode)
        outcome.line(
            *files.summary(f"{path}, {base}", target, document), err=target == files.STREAM
        )
    return outcome.finish(document)
