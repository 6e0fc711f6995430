"""Exit codes, and the one place where an exception becomes a message and a code."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import click

from gcodec.cli.text import printable
from gcodec.errors import (
    CompilerDisabled,
    FormatError,
    GcodecError,
    LimitExceeded,
    ParameterError,
    Unsafe,
)

FINE, FAILED, USAGE, UNREADABLE, LIMIT, UNSAFE = range(6)
INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143  # 128 and the signal, as in shells

_IN_PYTHON = re.compile(r"pass limits=gcodec\.Limits\(max_(elem|byte)[a-z]*=(\d+)\)")


class CheckFailed(GcodecError):
    """A file is damaged, or its values are not what was asked for.

    Parameters
    ----------
    message : str
    offset : int, optional
        Where in the file, in bytes.
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message if offset is None else f"{message} (at byte {offset})")
        self.offset = offset


class StdoutError(OSError):
    """Standard output cannot be written to, whatever file is being read."""


EXPECTED = (GcodecError, OSError, MemoryError)
"""What may go wrong without being a bug."""


def code_of(error: BaseException) -> int:
    """Return the exit code for an error."""
    match error:
        case CheckFailed():
            return FAILED
        case ParameterError() | CompilerDisabled():  # arguments, or the environment
            return USAGE
        case LimitExceeded() | MemoryError():
            return LIMIT
        case Unsafe():
            return UNSAFE
        case _:
            return UNREADABLE


def message_of(error: BaseException) -> str:
    """Return what to tell about an error, in the words of the command line."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if isinstance(error, OSError) and error.strerror:
        # The message begins with the file already.
        return error.strerror
    return _IN_PYTHON.sub(r"pass --max-\1s \2", str(error))


def blamed(
    error: BaseException, path: str | os.PathLike[str] | None = None
) -> str | os.PathLike[str] | None:
    """Return the file that an error is about: its own, or the one that was worked on."""
    if isinstance(error, OSError) and isinstance(error.filename, str):
        return error.filename
    return path


def complain(error: BaseException, path: str | os.PathLike[str] | None = None) -> None:
    """Print ``gcodec: FILE: what`` to stderr."""
    path = blamed(error, path)
    parts = ["gcodec", *([] if path is None else [os.fspath(path)]), message_of(error)]
    click.echo(printable(": ".join(parts), err=True), err=True)


class Outcome:
    """How the work on several files went.

    Attributes
    ----------
    code : int
        The worst exit code so far.
    errors : list of dict
        For the JSON document.
    """

    def __init__(self) -> None:
        self.code = FINE
        self.errors: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def of(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Note and report what goes wrong with one file, and go on with the next."""
        try:
            yield
        except (BrokenPipeError, StdoutError):
            raise
        except EXPECTED as error:
            complain(error, path)
            code = code_of(error)
            self.code = max(self.code, code)
            self.errors.append(
                {
                    "file": os.fspath(blamed(error, path) or path),
                    "message": message_of(error),
                    "offset": error.offset
                    if isinstance(error, (FormatError, CheckFailed))
                    else None,
                    "exit_code": code,
                }
            )
