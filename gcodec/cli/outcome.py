"""Exit codes, and the conversion of exceptions to messages and exit codes."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator

import click

from gcodec.cli.render.text import printable
from gcodec.errors import (
    CompilerDisabled,
    Corrupt,
    FormatError,
    GcodecError,
    LimitExceeded,
    ParameterError,
    Truncated,
    Unsafe,
)
from gcodec.limits import Limits

FINE, FAILED, USAGE, UNREADABLE, LIMIT, UNSAFE = range(6)
INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 and the signal, as in shells
EXIT_CODES = {
    FINE: "success",
    FAILED: "a check failed: frames are damaged, or an error exceeds its bound",
    USAGE: "wrong usage, or a name that does not exist",
    UNREADABLE: "a file cannot be read or written, a dump is damaged, or gcodec is too old",
    LIMIT: "a limit was exceeded: --max-elems, --max-bytes, or the memory",
    UNSAFE: "a file was refused because reading it would run code",
}
"""Meaning of the exit codes of all verbs."""

_VERBS = {
    "gcodec.apply_patch": "gcodec apply",
    "gcodec.encode_patch(new, base=old)": "gcodec diff OLD NEW",
}
_NEEDS_KEY = "pass its key as key="
_PATH = re.compile(r"^path=.*?: (?=must be )", re.DOTALL)  # `complain` prints the path
_LIMITS_HINT = re.compile(r"pass limits=gcodec\.Limits\(max_(elem|byte)[a-z]*=(\d+)\)")


class CheckFailed(GcodecError):
    """A check that the user requested has failed."""


class StdoutError(OSError):
    """Writing to standard output failed."""


EXPECTED = (GcodecError, OSError, MemoryError)
"""Exceptions that are no bugs."""


def exit_code(error: BaseException, *, in_frames: bool = False) -> int:
    """Return the exit code for an error; damage in a file of frames is a failed check."""
    match error:
        case CheckFailed():
            return FAILED
        case Corrupt() | Truncated() if in_frames:
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
    """Return the message of an error in the terms of the command line."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror  # without the file name, which `complain` prints
    message = _LIMITS_HINT.sub(r"pass --max-\1s \2", _PATH.sub("", str(error)))
    for function, verb in _VERBS.items():
        message = message.replace(function, verb)
    return message.replace(_NEEDS_KEY, "pass a file with its key as --key-file")


def _file_of(
    error: BaseException, path: str | os.PathLike[str] | None
) -> str | os.PathLike[str] | None:
    """Return the file that an error names, or else the file that was processed."""
    if isinstance(error, OSError) and isinstance(error.filename, (str, os.PathLike)):
        return error.filename
    return path


def complain(error: BaseException, path: str | os.PathLike[str] | None = None) -> None:
    """Print ``gcodec: FILE: message`` to stderr."""
    path = _file_of(error, path)
    parts = ["gcodec", *([] if path is None else [os.fspath(path)]), message_of(error)]
    click.echo(printable(": ".join(parts), err=True), err=True)


class Outcome:
    """The errors, the exit code and the JSON document of the work on several files.

    Parameters
    ----------
    verb : str
        Name of the verb.
    limits : Limits
        Bounds on each tensor of the files.
    quiet : bool
        Whether the verb prints no notes, no progress and no summary.
    as_json : bool
        Whether the verb prints a JSON document instead.

    Attributes
    ----------
    limits, quiet, as_json
        The parameters; `as_json` implies `quiet`.
    code : int
        Largest exit code so far.
    errors : list of dict
        Errors for the JSON document.
    """

    def __init__(
        self, verb: str, limits: Limits, *, quiet: bool = False, as_json: bool = False
    ) -> None:
        self._verb, self.limits = verb, limits
        self.quiet, self.as_json = quiet or as_json, as_json
        self.code = FINE
        self.errors: list[dict[str, object]] = []

    def line(self, *parts: str, err: bool = False) -> None:
        """Print facts in one line, to stdout or to stderr, unless the verb is quiet."""
        if not self.quiet:
            click.echo(printable("   ".join(parts), err=err), err=err)

    def notes(self, lines: Iterable[str]) -> None:
        """Print lines to stderr, unless the verb is quiet."""
        for line in lines:
            self.line(line, err=True)

    def finish(self, document: dict[str, object]) -> int:
        """Print the JSON document if it is requested, and return the exit code."""
        if self.as_json:
            from gcodec.cli.render.output import print_document

            print_document(self._verb, document, self)
        return self.code

    @contextlib.contextmanager
    def of(self, path: str | os.PathLike[str], *, in_frames: bool = False) -> Iterator[None]:
        """Record and report an error of the work on one file, so that the next file follows.

        Parameters
        ----------
        path : str or os.PathLike
            The file.
        in_frames : bool
            Whether the file contains frames, so that damage is a failed check.
        """
        try:
            yield
        except (BrokenPipeError, StdoutError):
            raise
        except EXPECTED as error:
            complain(error, path)
            code = exit_code(error, in_frames=in_frames)
            self.code = max(self.code, code)
            self.errors.append(
                {
                    "file": os.fspath(_file_of(error, path) or path),
                    "message": message_of(error),
                    "offset": error.offset if isinstance(error, FormatError) else None,
                    "exit_code": code,
                }
            )
