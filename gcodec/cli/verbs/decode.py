"""``gcodec decode``: convert a .gcf file to a file of tensors."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from gcodec.cli import options
from gcodec.limits import Limits

if TYPE_CHECKING:
    from pathlib import Path

    from gcodec.frame import Frame
    from gcodec.tensorfiles.entries import Array
    from gcodec.tensorfiles.frame_file import StoredFrame


@options.verb(
    "decode",
    ("Decode a file to back.npz.", "gcodec decode grads.gcf -o back.npz"),
    ("Decode to grads.safetensors, and replace that file.", "gcodec decode --force grads.gcf"),
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

    A file that gcodec encode wrote with --codec lossless from a .safetensors file becomes that
    file again, byte for byte. For a model in shards, OUT is a directory.
    """
    from pathlib import Path

    from gcodec.cli import files
    from gcodec.cli.outcome import Outcome
    from gcodec.cli.render import text
    from gcodec.cli.render.output import print_document
    from gcodec.errors import ParameterError
    from gcodec.tensorfiles.exact_file import original_name
    from gcodec.tensorfiles.frame_file import mapped

    if source == "-" and output is None:
        raise click.UsageError("stdin has no name from which to derive OUT: pass -o OUT")
    files.check_stdout(output, as_json)
    path = Path("stdin") if source == "-" else files.existing(source)
    original = None if source == "-" else original_name(path)
    target, is_folder = target_of(path, output, original, force)
    is_named = is_folder or target == files.STREAM
    if not is_named and not target.name.lower().endswith((".safetensors", ".npz")):
        raise ParameterError(f"{target}: OUT must be a file named .safetensors or .npz")
    outcome = Outcome()
    document: dict[str, Any] = {"input": source, "output": str(target)}
    with outcome.of(path, in_frames=True):
        data = sys.stdin.buffer.read() if source == "-" else mapped(path)
        is_original = original is not None and not target.name.lower().endswith(".npz")
        if is_original:
            document |= restore(data, target, is_folder, force, limits, quiet or as_json)
        else:
            document |= _convert(data, target, limits)
        if not as_json and not quiet:
            tensors = text.count(document["tensors"], "tensor")
            line = f"{path} -> {target}   {tensors}   {text.count(document['values'], 'value')}"
            line = text.printable(f"{line}   {text.size(document['bytes'])}")
            click.echo(line, err=target == files.STREAM)
    if as_json:
        print_document("decode", document, outcome)
    return outcome.code


def target_of(
    path: Path, output: str | None, original: str | None, force: bool
) -> tuple[Path, bool]:
    """Return the output for a file of frames, and whether it is a folder.

    `original` is the name of the original file that the frames begin with, or None.
    """
    from pathlib import Path

    from gcodec.cli import files
    from gcodec.errors import ParameterError
    from gcodec.tensorfiles.exact_file import INDEX_SUFFIX

    if original is None or not original.lower().endswith(INDEX_SUFFIX):
        return files.outputs([path], output, ".safetensors", force)[0], False
    target = path.with_suffix("") if output is None else Path(output)
    if output == "-" or (target.exists() and not target.is_dir()):
        raise ParameterError(f"{target}: OUT must be a directory for a model in shards")
    return target, True


def _convert(data: Any, target: Path, limits: Limits) -> dict[str, Any]:
    """Write the tensors of frames to a file, and return a part of the JSON document."""
    from gcodec.cli import files
    from gcodec.errors import ParameterError, Unsupported
    from gcodec.tensorfiles.dumps import write_dump
    from gcodec.tensorfiles.frame_file import read_frames

    decoded: list[StoredFrame] = []
    with files.written_file(target, ".safetensors") as written:
        try:
            write_dump(written, _tensors(read_frames(data, limits), decoded))
        except ParameterError as error:
            # The suffix is allowed, so a tensor has a name that the format cannot store.
            raise Unsupported(str(error)) from None
        values = sum(stored.frame.size for stored in decoded)
        nbytes = written.stat().st_size
    return {"tensors": len(decoded), "values": values, "bytes": nbytes}


def restore(
    data: Any,
    target: Path,
    is_folder: bool,
    force: bool,
    limits: Limits,
    quiet: bool,
    decode: Callable[[Frame], Array] = lambda frame: frame.decode(),
) -> dict[str, Any]:
    """Write the original files of frames, a tensor at a time; see `_convert`.

    `decode` returns the tensor of a frame.
    """
    from gcodec.cli import files
    from gcodec.cli.render.output import progress
    from gcodec.tensorfiles.exact_file import Restorer, file_name
    from gcodec.tensorfiles.frame_file import read_frames

    tensors = values = 0
    with (
        contextlib.nullcontext(target)
        if is_folder
        else files.written_file(target, ".safetensors") as place
    ):

        def path_of(name: str) -> Path:
            if not is_folder:
                return place
            place.mkdir(parents=True, exist_ok=True)
            files.check_replaceable([place / name], force)
            return place / name

        with (
            progress(target.name, len(data), quiet=quiet) as advance,
            Restorer(path_of, decode) as out,
        ):
            for stored in read_frames(data, limits):
                with stored.locate_errors():
                    out.add(stored.frame)
                if file_name(stored.frame.name) is None:
                    tensors, values = tensors + 1, values + stored.frame.size
                advance(stored.frame.nbytes)
        nbytes = sum(path.stat().st_size for path in out.paths)
    return {"tensors": tensors, "values": values, "bytes": nbytes}


def _tensors(
    frames: Iterator[StoredFrame], decoded: list[StoredFrame]
) -> Iterator[tuple[str, Array]]:
    """Decode frames, and append them to a list; number the frames without a name."""
    from gcodec.tensorfiles.frame_file import TensorNames
    from gcodec.tensorfiles.structure import FILE_PREFIX, STRUCTURE_NAME

    names = TensorNames()
    for stored in frames:
        own = stored.frame.name
        if own is not None and (
            (stored.number == 0 and own == STRUCTURE_NAME) or own.startswith(FILE_PREFIX)
        ):
            continue
        name = names.add(stored.frame.name)
        with stored.locate_errors():
            array = stored.frame.decode()
        decoded.append(stored)
        yield name, array
