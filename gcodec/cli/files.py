"""Input files and output files that the arguments of a verb name; - is a standard stream."""

from __future__ import annotations

import contextlib
import glob
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from gcodec.cli.render import text
from gcodec.errors import ParameterError, Unsupported, suggestion
from gcodec.tensorfiles.atomic import NamedWriter
from gcodec.tensorfiles.dumps import SUFFIXES, find, matching, recognized_suffix
from gcodec.tensorfiles.frame_file import OTHER_SUFFIXES
from gcodec.tensorfiles.frame_list import located, mapped, read_chunk, read_stream
from gcodec.tensorfiles.safetensors_file import INDEX_SUFFIX, read_index

STREAM = Path("-")
"""Name of standard input and of standard output."""

_ENCODED = "contains frames already: gcodec decode turns them into tensors"
_MOST_NAMES = 1000  # of a folder, among which a similar name is sought


@contextlib.contextmanager
def local_file(path: Path) -> Iterator[Path]:
    """Provide a file that readers can seek: the input itself, or a copy of standard input.

    The copy is a temporary file, whose suffix follows from its first bytes.

    Raises
    ------
    OSError
        If the copy cannot be written. Its `filename` is that of the copy. Or if standard input
        does not wait for bytes.
    Unsupported
        If standard input contains no file of tensors.
    """
    if path != STREAM:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="gcodec-") as folder:
        copy = Path(folder, "stdin")
        with io.BufferedWriter(NamedWriter(copy, "wb", os.fspath(copy))) as file:
            while chunk := read_chunk(sys.stdin.buffer, 1 << 20):
                file.write(chunk)
                if file.tell() == len(chunk):  # refuse other bytes before they fill the disk
                    file.flush()
                    recognized_suffix(copy)
        yield copy.rename(copy.with_suffix(recognized_suffix(copy)))


@contextlib.contextmanager
def written_file(target: Path, suffix: str) -> Iterator[Path]:
    """Provide the file to write for an output: itself, or a temporary one for standard output.

    If the block ends without an exception, the temporary file is copied to standard output. So
    nothing follows from an input that cannot be read.
    """
    if target != STREAM:
        with contextlib.suppress(FileExistsError):  # a file, with which opening the target fails
            target.parent.mkdir(parents=True, exist_ok=True)
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="gcodec-") as folder:
        path = Path(folder, f"stdout{suffix}")
        yield path
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
        sys.stdout.buffer.flush()


def check_streams(sources: Sequence[str], output: str | None, as_json: bool) -> None:
    """Raise `click.UsageError` if an output has no name, or cannot go to standard output."""
    if output is None and list(sources) == [str(STREAM)]:
        raise click.UsageError("stdin has no name from which to derive OUT: pass -o OUT")
    if output != str(STREAM):
        return
    if as_json:
        raise click.UsageError("--json and -o - exclude each other: both use standard output.")
    if sys.stdout.isatty():
        raise click.UsageError("Standard output is a terminal: redirect it, or pass -o FILE.")


def arrow(sources: str, target: Path) -> str:
    """Return the names of inputs and output, such as ``a.gcf -> stdout``."""
    source = "stdin" if sources == str(STREAM) else sources
    return f"{source} -> {'stdout' if target == STREAM else target}"


def summary(sources: str, target: Path, result: Mapping[str, Any]) -> list[str]:
    """Return the facts about an output: its inputs, and "tensors", "values" and "bytes"."""
    return [
        arrow(sources, target),
        text.count(result["tensors"], "tensor"),
        text.count(result["values"], "value"),
        text.size(result["bytes"]),
    ]


def is_frames(path: Path) -> bool:
    """Return whether a file contains frames: by its name, or its first bytes if the name is open.

    `gcodec encode` writes frames under any name except those of `OTHER_SUFFIXES`.
    """
    if path.name.lower().endswith((".gcf", *OTHER_SUFFIXES)):
        return path.name.lower().endswith(".gcf")
    try:
        return path.is_file() and recognized_suffix(path) == ".gcf"  # pipes are not read
    except (Unsupported, OSError):
        return False


def is_dump(path: Path) -> bool:
    """Return whether a file is a dump rather than a file of frames; see `is_frames`."""
    return not is_frames(path)


def tensors_file(path: Path) -> Path:
    """Return the path of a file to encode; raise `ParameterError` for a file of frames."""
    if is_frames(path):
        raise ParameterError(_ENCODED)
    return path


def original(name: str) -> Path:
    """Return the path of an existing file whose bytes are preserved.

    A folder stands for the index of the model, or for the file, that it contains.

    Raises
    ------
    FormatError
        If the folder contains an index that cannot be read.
    ParameterError
        If there is no file of this name, or the name is that of another format.
    """
    inside = inputs([name], ".safetensors file", _is_original) if Path(name).is_dir() else []
    if len(inside) > 1:
        _check_indices(inside)
        raise ParameterError(f"{name}: contains {len(inside)} .safetensors files: pass one")
    allowed = "must be a .safetensors file, or the index of a model"
    if name == str(STREAM) and not Path(name).exists():
        raise ParameterError(f"{name}: {allowed}, not stdin")
    path = inside[0] if inside else existing(name)
    other = next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")
    if path.is_dir() or other not in ("", INDEX_SUFFIX, ".safetensors"):
        raise ParameterError(f"{name}: {allowed}")
    return path


def _is_original(path: Path) -> bool:
    return path.name.lower().endswith((".safetensors", INDEX_SUFFIX))


def existing(name: str) -> Path:
    """Return the path of a file.

    Raises
    ------
    ParameterError
        If there is no file of this name.
    """
    path = Path(name)
    if path.is_dir():
        raise ParameterError(f"{name}: is a directory")
    if not path.exists():
        raise _missing(name)
    return path


def _missing(name: str) -> ParameterError:
    """Return the error for a file that does not exist; it states a similar name in its folder."""
    path, names = Path(name), list[str]()
    if path.is_symlink():
        return ParameterError(f"{name}: is a link that leads to no file")
    with contextlib.suppress(OSError):  # there may be no folder
        names += islice(os.listdir(path.parent), _MOST_NAMES)
    is_glob = glob.has_magic(name)
    return ParameterError(f"{name}: no such file{'' if is_glob else suggestion(path.name, names)}")


def frames_file(name: str) -> tuple[Path, Any]:
    """Return the path and the bytes of a file of frames; standard input has the path stdin.

    Raises
    ------
    ParameterError
        If there is no file of this name.
    """
    if name == str(STREAM):
        return Path("stdin"), contents(STREAM)
    path = existing(name)
    return path, contents(path)


def contents(path: Path) -> Any:
    """Return the bytes of a file of frames, or of standard input."""
    return read_stream(sys.stdin.buffer) if path == STREAM else mapped(path)


def inputs(
    patterns: Sequence[str],
    kind: str = "dump or .gcf file",
    accept: Callable[[Path], bool] = lambda path: True,
    *,
    stdin: bool = False,
) -> list[Path]:
    """List the files that match patterns.

    Parameters
    ----------
    patterns : sequence of str
        See `gcodec.tensorfiles.dumps.find`.
    kind : str
        Kind of the files, for error messages.
    accept : callable
        Predicate for the files of directories and globs. Files that are named always match.
    stdin : bool
        Whether - is standard input, as which `STREAM` is returned.

    Raises
    ------
    ParameterError
        If a pattern matches no file, or - is one of several patterns.
    """
    if stdin and str(STREAM) in patterns:
        if len(patterns) > 1:
            raise ParameterError("-: stdin must be the only input")
        return [STREAM]
    for pattern in patterns:
        if not matching(pattern):
            if Path(pattern).is_dir():
                raise ParameterError(f"{pattern}: no {kind} here")
            raise _missing(pattern)
    named = {Path(pattern) for pattern in patterns}
    paths = [_file(path) for path in find(patterns) if path in named or accept(path)]
    if not paths:
        raise ParameterError(f"{' '.join(patterns)}: there is no {kind} here")
    return paths


def one_input(
    pattern: str,
    allowed: str,
    kind: str = "dump or .gcf file",
    accept: Callable[[Path], bool] = lambda path: True,
    *,
    stdin: bool = False,
) -> Path:
    """Return the only file that a pattern matches.

    Parameters
    ----------
    pattern, kind, accept, stdin
        See `inputs`. The predicate also applies to a file that is named.
    allowed : str
        Description of the allowed patterns, for the error message.

    Raises
    ------
    ParameterError
        If the pattern matches several files, or none, or another kind of file.
    """
    paths = inputs([pattern], kind, accept, stdin=stdin)
    if len(paths) > 1 or not accept(paths[0]):
        raise ParameterError(f"{pattern}: must be {allowed}")
    return paths[0]


def one_dump(source: str) -> Path:
    """Return the only dump that a pattern matches; see `one_input`."""
    allowed = "one file of tensors, or synthetic:shape=ROWSxCOLUMNS"
    return one_input(source, allowed, "dump", is_dump)


def outputs(sources: Sequence[Path], output: str | None, suffix: str, force: bool) -> list[Path]:
    """Choose an output for each input.

    Parameters
    ----------
    sources : sequence of pathlib.Path
        The inputs.
    output : str or None
        A file for a single input, or a directory; None writes next to the inputs.
    suffix : str
        Suffix of the outputs.
    force : bool
        Whether existing files may be replaced.

    Raises
    ------
    FormatError
        If several inputs would be written to one file, and one of them is an index that cannot be
        read.
    ParameterError
        If several inputs would be written to one file, or an output has the suffix of another
        format, or it exists and `force` is false.
    """
    if output == str(STREAM):
        if len(sources) > 1:
            raise ParameterError(f"-o -: must be the output of one file, not of {len(sources)}")
        return [STREAM]
    is_directory = output is not None and (output.endswith("/") or Path(output).is_dir())
    if output is not None and len(sources) > 1 and not is_directory and output.endswith(suffix):
        _check_indices(sources)
        raise ParameterError(f"{output}: OUT must be a directory for {len(sources)} files")
    if output is not None and len(sources) == 1 and not is_directory:
        targets = [_file(Path(output))]
    else:
        named = [Path("stdin") if path == STREAM else path for path in sources]
        targets = [_with_suffix(path, suffix) for path in named]
        if output is not None:
            targets = [Path(output) / target.name for target in targets]
    sources_by_file: dict[str, Path] = {}
    for source, target in zip(sources, targets, strict=True):
        if suffix == ".gcf" and target.name.lower().endswith(OTHER_SUFFIXES):
            raise ParameterError(f"{target}: OUT must be a file named .gcf: it contains frames")
        if output is None and not force and target == source:
            needed = "must be a file of frames, and named .gcf unless you pass -o OUT"
            raise ParameterError(f"{source}: {_ENCODED if suffix == '.gcf' else needed}")
        file = os.path.realpath(target)  # one file may have several paths
        if file in sources_by_file:
            raise ParameterError(
                f"{target}: both {sources_by_file[file]} and {source} would be written to it; "
                "pass them one at a time, with -o"
            )
        sources_by_file[file] = source
    check_replaceable(targets, force)
    return targets


def _check_indices(paths: Sequence[Path]) -> None:
    """Raise the error of an unreadable index, beside which its shards are listed as inputs."""
    for path in paths:
        if path.name.lower().endswith(INDEX_SUFFIX):
            with located(os.fspath(path), default=None):
                read_index(path)


def check_replaceable(targets: Sequence[Path], force: bool) -> None:
    """Raise `ParameterError` if an output exists and `force` is false."""
    for target in targets:
        # Devices and pipes, such as /dev/null, are written to without asking.
        if not force and (target.is_file() or target.is_dir()):
            raise ParameterError(f"{target}: exists already; pass --force to replace it")


def _file(path: Path) -> Path:
    """Return the path of a file with its own name, such as ./- or a folder that is named by .."""
    return Path(os.path.abspath(path)) if path.name in ("", "..") or path == STREAM else path


def _with_suffix(path: Path, suffix: str) -> Path:
    """Return the path with its suffix replaced, or appended to an unknown one."""
    for old in SUFFIXES:
        if path.name.lower().endswith(old) and len(path.name) > len(old):
            return path.with_name(path.name[: -len(old)] + suffix)
    return path.with_name(path.name + suffix)
