"""Where verbs write, and that they do not write over anything unasked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gcodec.errors import ParameterError

# The longest first: a sharded dump is named by its index.
_SUFFIXES = (
    *(".safetensors.index.json", ".safetensors"),
    *(".npz", ".npy", ".pth", ".pt", ".bin", ".gcf"),
)


def with_suffix(path: Path, suffix: str) -> Path:
    """Return the path with the suffix of its format replaced, or with one more."""
    for old in _SUFFIXES:
        if path.name.lower().endswith(old) and len(path.name) > len(old):
            return path.with_name(path.name[: -len(old)] + suffix)
    return path.with_name(path.name + suffix)


def plan(sources: Sequence[Path], output: str | None, suffix: str) -> list[Path]:
    """Choose an output for every input.

    Parameters
    ----------
    sources : sequence of pathlib.Path
    output : str or None
        A file for a single input, or a directory; None writes beside the inputs.
    suffix : str
        Of the outputs.

    Raises
    ------
    ParameterError
        If two inputs would be written to one file.
    """
    if output is not None and len(sources) == 1 and not _is_directory(output):
        return [Path(output)]
    targets = [with_suffix(path, suffix) for path in sources]
    if output is not None:
        targets = [Path(output) / target.name for target in targets]
    taken: dict[Path, Path] = {}
    for source, target in zip(sources, targets, strict=True):
        if target in taken:
            raise ParameterError(
                f"{target}: both {taken[target]} and {source} would be written to it; "
                "give one of them at a time, with -o"
            )
        taken[target] = source
    return targets


def refuse_existing(targets: Sequence[Path], force: bool) -> None:
    """Raise `ParameterError` if an output exists and may not be replaced."""
    for target in targets:
        # Devices and pipes, such as /dev/null, are there to be written to.
        if not force and (target.is_file() or target.is_dir()):
            raise ParameterError(f"{target}: exists already; pass --force to replace it")


def _is_directory(output: str) -> bool:
    return output.endswith("/") or Path(output).is_dir()
