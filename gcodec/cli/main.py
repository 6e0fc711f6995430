"""``gcodec``: the group of verbs, each of which is imported on its first use."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn, cast

import click

import gcodec
from gcodec.cli import outcome
from gcodec.cli.options import write_examples
from gcodec.cli.render.text import printable
from gcodec.errors import suggestion
from gcodec.tensorfiles.atomic import NamedWriter

_VERBS = (
    *("inspect", "dissect", "compare", "bench", "advise"),
    *("encode", "decode", "diff", "apply", "verify", "seek"),
    *("codecs", "doctor", "warmup"),
)
_AGAIN = 0.05  # seconds until a signal is sent again


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"gcodec.cli.verbs.{cmd_name}")
        return cast(click.Command, module.command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_word = not args[0].startswith("-")
        if is_word and args[0] not in _VERBS and not ctx.resilient_parsing:
            hint = suggestion(args[0], (*_VERBS, "--help")) or "."
            ctx.fail(f"No such command {args[0]!r}{hint}")
        resolved = super().resolve_command(ctx, args)  # imports the verb
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # of `gcodec.__main__`
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return resolved

    def invoke(self, ctx: click.Context) -> NoReturn:
        # Verbs return their exit codes; this converts exceptions to exit codes.
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_stdout()
            code = outcome.BROKEN_PIPE
        except KeyboardInterrupt:
            code = outcome.INTERRUPTED
        except click.UsageError as error:
            message = printable(error.format_message(), err=True)  # it can contain any argument
            raise click.UsageError(message, error.ctx) from None
        except outcome.EXPECTED as error:
            code = _report(error)
        except RuntimeError as error:
            if not isinstance(error.__cause__, KeyboardInterrupt):  # of __set_name__ until 3.11
                raise
            code = outcome.INTERRUPTED
        ctx.exit(code)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, "Examples", EXAMPLES)
        with formatter.section("Exit status"):
            codes = outcome.EXIT_CODES.items()
            formatter.write_dl([(str(code), meaning) for code, meaning in codes])
        with formatter.section("Environment"):
            formatter.write_dl(list(_VARIABLES.items()))
        write_examples(formatter, "Shell completion", _COMPLETION)


def _report(error: BaseException) -> int:
    """Print an error, and return its exit code."""
    if isinstance(error, outcome.StdoutError):
        _drop_stdout()
    outcome.complain(error)
    return outcome.exit_code(error)


def _drop_stdout() -> None:
    # Nobody reads the output, and the interpreter must not report a failure of its last flush.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


EXAMPLES = (
    (
        "Show the contents of a dump of gradients, and the effect of codecs on it.",
        "gcodec inspect grads.safetensors",
    ),
    ("Encode the dump.", "gcodec encode grads.safetensors -c ecsq:nmse=0.01 -o small.gcf"),
    ("Show the help of a verb, with more examples.", "gcodec bench --help"),
)
_VARIABLES = {
    "GCODEC_NUM_THREADS": "number of threads for tensors of more than two million elements",
    "GCODEC_KEPT_MIB": "MiB of memory that gcodec keeps from dropped results, for later results",
    "GCODEC_CACHE_DIR": "directory of compiled kernels",
    "GCODEC_CHECKED": "1 compiles kernels with bounds checks",
    "GCODEC_TARGET": "processor to compile kernels for: native, or a level such as x86-64-v3",
    "NO_COLOR": "print no colors",
}
_COMPLETION = (
    ("bash: add this line to ~/.bashrc.", 'eval "$(_GCODEC_COMPLETE=bash_source gcodec)"'),
    ("zsh: add this line to ~/.zshrc.", 'eval "$(_GCODEC_COMPLETE=zsh_source gcodec)"'),
    (
        "fish: run this command once.",
        "_GCODEC_COMPLETE=fish_source gcodec > ~/.config/fish/completions/gcodec.fish",
    ),
)


@click.group(
    cls=_Verbs,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
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
        Arguments; default: those of the process.
    standalone_mode : bool
        Whether to end the process, as a program does, rather than return the exit code.
    """
    _open_streams()
    if "_GCODEC_COMPLETE" in os.environ:
        importlib.import_module("gcodec.cli.shells")
    _exit_on_signals()
    try:
        return cli.main(args, prog_name="gcodec", standalone_mode=standalone_mode)
    except outcome.StdoutError as error:  # while click printed a help text
        code = _report(error)
        if standalone_mode:
            sys.exit(code)
        return code


def _exit_on_signals() -> None:
    """Exit by an exception on SIGHUP and SIGTERM: context managers then remove unfinished files.

    Python drops an exception that is raised while it frees an object, such as the lock of a module
    that it has imported. The signal is then sent again.
    """
    codes = set[int]()  # exit codes of the signals
    for name in ("SIGHUP", "SIGTERM"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP, and nohup ignores it.
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            codes.add(128 + number)
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    report = sys.unraisablehook

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        error = dropped.exc_value
        code = error.code if isinstance(error, SystemExit) else None
        if isinstance(error, KeyboardInterrupt):
            number = int(signal.SIGINT)
        elif isinstance(code, int) and code in codes:
            number = code - 128
        else:
            report(dropped)
            return
        # A signal within this function would be dropped, too, and starting a thread may take long.
        ends = threading.Event()
        threading.Thread(target=_send_after, args=(ends, number)).start()
        ends.set()

    sys.unraisablehook = send_again


def _send_after(event: threading.Event, number: int) -> None:
    """Send a signal to this process soon after an event."""
    event.wait()
    time.sleep(_AGAIN)
    _send(number)


def _send(number: int) -> None:
    """Send a signal to this process; on POSIX to its main thread, which may wait for input."""
    if os.name == "posix":
        os.kill(os.getpid(), number)
    else:
        signal.raise_signal(number)  # os.kill of Windows ends the process at once


class _Stdout(NamedWriter):
    """Standard output, whose errors differ from those of files."""

    def refuse(self, error: OSError) -> NoReturn:
        if isinstance(error, BrokenPipeError):
            raise error
        raise outcome.StdoutError(error.errno, error.strerror, self.named) from None


def _open_streams() -> None:
    """Open streams that the parent process has closed, so that no file takes their descriptors.

    Replace standard output by a stream that names itself in errors; see `_Stdout`.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 open until the end
            setattr(sys, name, stream)
    old = sys.stdout
    if old is not sys.__stdout__ or not isinstance(old, io.TextIOWrapper):
        return  # replacing another stream could close it
    raw = getattr(old.buffer, "raw", old.buffer)
    if type(raw) is not io.FileIO or raw.fileno() != 1:  # such as a console of Windows
        return
    old.flush()
    new: object = _Stdout(1, "wb", "standard output")
    sys.stdout = io.TextIOWrapper(
        new if old.buffer is raw else io.BufferedWriter(new),  # unbuffered by python -u
        encoding=old.encoding,
        errors=old.errors,
        line_buffering=old.line_buffering,
        write_through=old.write_through,
    )
