"""``gcodec decode``: convert a .gcf file to a file of tensors."""

from __future__ import annotations

from pathlib import Path

import click

from gcodec.cli import options
from gcodec.cli.outcome import Outcome
from gcodec.errors import ParameterError


@options.verb(
    "decode",
    ("Decode a file to back.npz.", "gcodec decode grads.gcf -o back.npz"),
    ("Decode to grads.safetensors, and replace that file.", "gcodec decode --force grads.gcf"),
    ("Decode the biases alone.", "gcodec decode grads.gcf -L '*.bias' -o biases.npz"),
    (
        "Refuse tensors of more than ten million values, for an untrusted file.",
        "gcodec decode --max-elems 10000000 grads.gcf -o checked.safetensors",
    ),
)
@click.argument("source", metavar="IN.gcf", type=options.FILE)
@options.output(
    "A .safetensors or .npz file; default: IN with the suffix .safetensors; - is stdout, as "
    ".safetensors."
)
@options.layers
@options.force
@options.key
@options.outcome
def command(
    source: str,
    output: str | None,
    layers: tuple[str, ...],
    force: bool,
    key: bytes | None,
    outcome: Outcome,
) -> int:
    """Decode a .gcf file to a file of tensors.

    The tensors have the same names, shapes and dtypes as the encoded ones. Frames without a name
    become tensor0, tensor1 and so on. If IN contains a tree, OUT contains its tensors, named by
    their paths in the tree, but not its numbers and texts. IN can be - for stdin.

    A file that gcodec encode wrote with --codec lossless from a .safetensors file becomes that
    file again, byte for byte. For a model in shards, OUT is a directory. With --layers, OUT is a
    new file of the selected tensors.
    """
    from gcodec.cli import coding, files
    from gcodec.tensorfiles.exact_file import original_name

    files.check_streams((source,), output, outcome.as_json)
    path, data = files.frames_file(source)
    is_npz = output is not None and output.lower().endswith(".npz") and not Path(output).is_dir()
    original = None
    if not is_npz and not layers:  # such files contain no metadata of the original
        with outcome.of(path, in_frames=True):
            original = original_name(data)
        if outcome.errors:
            return outcome.finish({"input": source, "output": output})
    target, is_folder = coding.target_of(path, output, original, force)
    is_named = is_folder or target == files.STREAM
    if not is_named and not target.name.lower().endswith((".safetensors", ".npz")):
        raise ParameterError(f"{target}: OUT must be a file named .safetensors or .npz")
    document: dict[str, object] = {"input": source, "output": str(target)}
    with outcome.of(path, in_frames=True):
        if original is None:
            document |= coding.write_tensors(data, target, layers, outcome.limits, key)
        else:
            document |= coding.restore(data, target, is_folder, force, outcome, key)
        outcome.line(*files.summary(str(path), target, document), err=target == files.STREAM)
    return outcome.finish(document)
