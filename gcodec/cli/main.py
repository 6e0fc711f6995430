"""``gcodec``: the group of verbs, each loaded only when it is called."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
from typing import Any, NoReturn

import click

import gcodec
from gcodec.cli import outcome
from gcodec.cli.verb import EXIT_CODES, write_examples

_VERBS = (
    *("inspect", "dissect", "compare", "bench", "advise"),
    *("encode", "decode", "verify", "seek"),
    *("codecs", "doctor", "warmup"),
)


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command: click.Command = importlib.import_module(f"gcodec.cli.verbs.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> NoReturn:
        # Every verb returns its exit code; what it raises becomes one here.
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_stdout()
            code = outcome.BROKEN_PIPE
        except KeyboardInterrupt:
            code = outcome.INTERRUPTED
        except outcome.EXPECTED as error:
            code = _failed(error)
        ctx.exit(code)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            write_examples(formatter, EXAMPLES)
        with formatter.section("Exit status"):
            formatter.write_dl([(str(code), what) for code, what in EXIT_CODES.items()])
        with formatter.section("Environment"):
            formatter.write_dl(list(_VARIABLES.items()))
        with formatter.section("Completion by the shell"):
            write_examples(formatter, _COMPLETION)


def _failed(error: BaseException) -> int:
    """Report an error, and return the exit code for it."""
    if isinstance(error, outcome.StdoutError):
        _drop_stdout()
    outcome.complain(error)
    return outcome.code_of(error)


def _drop_stdout() -> None:
    # Nobody reads any more; the interpreter's own last flush must not complain about that.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


EXAMPLES = (
    (
        "See what is in a dump of gradients, and what codecs would make of it.",
        "gcodec inspect grads.safetensors",
    ),
    (
        "Encode it, and look at the result.",
        "gcodec encode grads.safetensors -c minifloat -o small.gcf",
    ),
    ("All about a verb, with more examples.", "gcodec bench --help"),
)
_VARIABLES = {
    "GCODEC_NUM_THREADS": "threads for tensors of more than a million elements",
    "GCODEC_CACHE_DIR": "where compiled kernels are kept",
    "GCODEC_CHECKED": "1 compiles kernels with bounds checks",
    "NO_COLOR": "print no colours",
}
_COMPLETION = (
    ("bash: put this into ~/.bashrc.", 'eval "$(_GCODEC_COMPLETE=bash_source gcodec)"'),
    ("zsh: put this into ~/.zshrc.", 'eval "$(_GCODEC_COMPLETE=zsh_source gcodec)"'),
    (
        "fish: call this once.",
        "_GCODEC_COMPLETE=fish_source gcodec > ~/.config/fish/completions/gcodec.fish",
    ),
)


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(gcodec.__version__, "-V", "--version", prog_name="gcodec")
def cli() -> None:
    """Exact, documented bit formats for compressed gradients.

    Start with: gcodec inspect FILE
    """


def main(args: list[str] | None = None, *, standalone_mode: bool = True) -> Any:
    """Run the command line.

    Parameters
    ----------
    args : list of str, optional
        Instead of those of the process.
    standalone_mode : bool
        Whether to end the process, as a program does, rather than return the exit code.
    """
    _open_streams()
    if "_GCODEC_COMPLETE" in os.environ:
        importlib.import_module("gcodec.cli.shells")
    # As an exception, so that half-written files are removed on the way out.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        return cli.main(args, prog_name="gcodec", standalone_mode=standalone_mode)
    except outcome.StdoutError as error:  # of a help text, which no verb prints
        code = _failed(error)
        if standalone_mode:
            sys.exit(code)
        return code


class _Stdout(io.FileIO):
    """Standard output, whose errors cannot be taken for those of a file that is being read."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            raise
        except OSError as error:
            number, text = error.errno, error.strerror
            raise outcome.StdoutError(number, text, "standard output") from None


def _open_streams() -> None:
    """Open streams that were closed before the start, so that no file takes their numbers.

    Standard output becomes one that names itself in errors; see `_Stdout`.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 until the end
            setattr(sys, name, stream)
    given = sys.stdout
    if given is not sys.__stdout__ or not isinstance(given, io.TextIOWrapper):
        return  # another one, which is closed when nobody refers to it any more
    raw = getattr(given.buffer, "raw", given.buffer)
    if type(raw) is not io.FileIO or raw.fileno() != 1:  # such as a console of Windows
        return
    given.flush()
    made: Any = _Stdout(1, "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        made if given.buffer is raw else io.BufferedWriter(made),  # unbuffered by python -u
        encoding=given.encoding,
        errors=given.errors,
        line_buffering=given.line_buffering,
        write_through=given.write_through,
    )


def _terminate(*_: Any) -> NoReturn:
    sys.exit(outcome.TERMINATED)
