"""``gcodec``: the group of verbs, each loaded only when it is called."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from typing import Any, NoReturn

import click

import gcodec
from gcodec.cli import outcome

_VERBS = ("inspect", "encode", "decode", "verify", "seek", "codecs", "advise")


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command: click.Command = importlib.import_module(f"gcodec.cli.{cmd_name}").command
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
            outcome.complain(error)
            code = outcome.code_of(error)
        ctx.exit(code)


def _drop_stdout() -> None:
    # Nobody reads any more; the interpreter's own last flush must not complain about that.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
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
    # As an exception, so that half-written files are removed on the way out.
    signal.signal(signal.SIGTERM, _terminate)
    return cli.main(args, prog_name="gcodec", standalone_mode=standalone_mode)


def _terminate(*_: Any) -> NoReturn:
    sys.exit(outcome.TERMINATED)
