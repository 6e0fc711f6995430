"""Which files the arguments of a verb mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gcodec.errors import ParameterError
from gcodec.tensorfiles.dumps import find


def is_frames(path: Path) -> bool:
    """Tell whether a file is one of frames, by its name."""
    return path.name.lower().endswith(".gcf")


def files(
    patterns: Sequence[str], kind: str = "dump or .gcf file", wanted: Callable[[Path], bool] = bool
) -> list[Path]:
    """List the files that patterns stand for.

    Parameters
    ----------
    patterns : sequence of str
        See `gcodec.tensorfiles.dumps.find`.
    kind : str
        What is wanted, for the message.
    wanted : callable
        Which files of a directory or glob to take. A file that is named is always taken.

    Raises
    ------
    ParameterError
        If a pattern stands for no file.
    """
    found = _found(patterns, kind)
    named = {Path(pattern) for pattern in patterns}
    taken = [path for path in found if path in named or wanted(path)]
    if not taken:
        raise ParameterError(f"{' '.join(patterns)}: there is no {kind} here")
    return taken


def _found(patterns: Sequence[str], kind: str) -> list[Path]:
    try:
        return find(patterns)
    except ParameterError:
        lost = next(pattern for pattern in patterns if not _stands_for_files(pattern))
        what = f"no {kind} here" if Path(lost).is_dir() else "no such file"
        raise ParameterError(f"{lost}: {what}") from None


def _stands_for_files(pattern: str) -> bool:
    try:
        return bool(find([pattern]))
    except ParameterError:
        return False
