"""The class of all verbs, their shared options, completion, and numbers with units.

This module imports heavy packages only in the functions that need them, so that help appears at
once. `gcodec.cli.shells` contains the scripts that call the completion.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click

from gcodec.analysis.settings import Settings
from gcodec.cli.kernel_counts import expected
from gcodec.cli.outcome import EXIT_CODES, Outcome
from gcodec.cli.render.text import either
from gcodec.errors import GcodecError, ParameterError, brief
from gcodec.limits import Limits
from gcodec.runtime import compilation_watchers

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from gcodec.codec import Codec

Function = TypeVar("Function", bound=Callable[..., int])


class File(click.Path):
    """The name of a file or a directory, which the verb itself checks; it is not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or fail for that of an unset variable of a shell."""
        if not value:
            self.fail("a name of a file must not be empty", param, ctx)
        return super().convert(value, param, ctx)


FILE = File(readable=False)
"""Type of an argument for a file or a directory."""


class _Output(File):
    """The name of an output; - also for the devices that are standard output.

    So the summary goes to stderr, and does not follow the bytes of the file.
    """

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Return the name, or fail."""
        name = super().convert(value, param, ctx)
        return "-" if name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1") else name


_MAX_NAMES = 500  # in a completion
_BAR = 20  # characters
_ERASE = "\r\x1b[2K"  # the line of a terminal


class Verb(click.Command):
    """A command of ``gcodec``, whose help ends with examples and exit codes; see `verb`."""

    examples: tuple[tuple[str, str], ...]
    exits: Mapping[int, str]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; it announces on stderr that it compiles kernels, before the first one."""
        if self.name != "doctor":  # which reports invalid variables
            _check_variables()
        announce = _Announcement(expected(self.name, ctx.params))
        if not ctx.params.get("quiet") and self.name != "warmup":  # which has a progress bar
            compilation_watchers.append(announce)
        try:
            return super().invoke(ctx)
        finally:
            if announce in compilation_watchers:
                compilation_watchers.remove(announce)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the purpose of the verb; narrow terminals wrap it, in place of cutting it."""
        return (self.help or "").partition("\n")[0]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections after the options."""
        write_examples(formatter, "Examples", self.examples)
        with formatter.section("Exit status"):
            formatter.write_dl([(str(code), meaning) for code, meaning in self.exits.items()])


def verb(
    name: str, *examples: tuple[str, str], exits: Mapping[int, str] = EXIT_CODES
) -> Callable[[Callable[..., int]], Verb]:
    """Turn a function into a command of ``gcodec``.

    Parameters
    ----------
    name : str
        Name of the command.
    *examples : (str, str)
        Purpose and command of each example; a command is a line of a shell without pipes. The
        test suite runs all of them on the files of `tests/example_files.py`.
    exits : mapping of int to str
        Meaning of the exit codes other than 0 and 2, for verbs that read no files; default:
        `EXIT_CODES`.
    """

    def decorate(function: Callable[..., int]) -> Verb:
        command = click.command(name, cls=Verb)(function)
        command.examples = examples
        command.exits = dict(sorted({0: EXIT_CODES[0], 2: EXIT_CODES[2], **exits}.items()))
        return command

    return decorate


class _Announcement:
    """A watcher of compilations: a line in a pipe, and a bar or a running count in a terminal.

    Parameters
    ----------
    expected : (int, str) or None
        Number of kernels that the command needs, and what needs them; see `kernel_counts`.
    """

    def __init__(self, expected: tuple[int, str] | None) -> None:
        self._count, self._expected = 0, expected

    @contextlib.contextmanager
    def __call__(self, kernel: str) -> Iterator[None]:
        """Announce that a kernel is compiled, and erase the line of a terminal at the end."""
        self._count += 1
        if self._count == 1:
            self._announce_first()
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console

        # A terminal can erase one line, but not one that it has wrapped.
        line = self._position()[: Console(stderr=True).width - 1]
        click.echo(f"{_ERASE}{line}", err=True, nl=False)
        try:
            yield
        finally:
            click.echo(_ERASE, err=True, nl=False)

    def _announce_first(self) -> None:
        """Print one line in a pipe; in a terminal, only if the kernels cannot be stored."""
        from gcodec.runtime import kernel_cache

        needs = ""
        if self._expected is not None:
            number, what = self._expected
            needs = f" ({what} needs about {number})"
        if fault := kernel_cache.fault():
            click.echo(
                f"gcodec: compiling kernels{needs}, in each run, because they cannot be stored: "
                f"{fault} Set GCODEC_CACHE_DIR to a directory of your own.",
                err=True,
            )
        elif not sys.stderr.isatty():
            click.echo(
                f"gcodec: compiling kernels, once{needs}; later runs load them "
                "(gcodec warmup compiles all of them in advance)",
                err=True,
            )

    def _position(self) -> str:
        """Return the position of the kernel among all that the command needs, cached or not."""
        from gcodec.runtime import kernel_cache

        if self._expected is None:
            return f"compiling kernels, once: {self._count} " + either("…", "...", err=True)
        number, (total, what) = len(kernel_cache.loaded()) + 1, self._expected
        total = max(total, number)
        filled = _BAR * number // total
        bar = either("━", "#", err=True) * filled + either("╌", "-", err=True) * (_BAR - filled)
        return f"compiling kernel {number} of about {total} for {what}, once {bar}"


def _check_variables() -> None:
    """Refuse invalid environment variables, before a verb blames its codecs for them."""
    if "GCODEC_NUM_THREADS" in os.environ:
        from gcodec.runtime.pool import thread_count

        thread_count()
    if "GCODEC_KEPT_MIB" in os.environ:
        from gcodec.runtime.reuse import kept_nbytes

        kept_nbytes()
    if "GCODEC_TARGET" in os.environ:
        from gcodec.runtime import processor

        processor.target()


def write_examples(
    formatter: click.HelpFormatter, title: str, examples: Sequence[tuple[str, str]]
) -> None:
    """Write a section of purposes and commands; commands are never wrapped."""
    with formatter.section(title):
        for i, (purpose, command) in enumerate(examples):
            if i:
                formatter.write_paragraph()
            formatter.write_text(purpose)
            formatter.write(f"{'':>{formatter.current_indent}}  $ {command}\n")


# --- completion


def complete_spec(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete the name of a codec, of a parameter, or the value of a parameter."""
    from click.shell_completion import CompletionItem

    from gcodec.codec import registered

    importlib.import_module("gcodec.codecs")  # which registers them
    classes = registered()
    name, colon, text = incomplete.partition(":")
    if colon:
        return list(_parameters(classes[name], text)) if name in classes else []
    items = []
    for cls in classes.values():
        if cls.name.startswith(name):
            summary = (cls.__doc__ or "").partition("\n")[0]
            items.append(CompletionItem(cls.name, help=summary))
            if cls.declared():
                items.append(CompletionItem(f"{cls.name}:", help="with parameters"))
    return items


def complete_encoder(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete what `complete_spec` does, and the specs that choose a codec."""
    from click.shell_completion import CompletionItem

    chosen = [
        CompletionItem("auto:nmse=", help="the fewest bits for this nmse"),
        CompletionItem("auto:bits=", help="the least nmse for these bits per value"),
    ]
    items = [item for item in chosen if item.value.startswith(incomplete)]
    return items + complete_spec(ctx, param, incomplete)


def _parameters(cls: type[Codec], text: str) -> Iterator[CompletionItem[str]]:
    """Complete the part of a spec after the colon."""
    from click.shell_completion import CompletionItem

    *complete, last = text.split(",")
    prefix = f"{cls.name}:" + "".join(f"{part}," for part in complete)
    used = {part.partition("=")[0] for part in complete}
    key, equals, value = last.partition("=")
    for declared in cls.declared():
        if not equals:
            if declared.name.startswith(key) and declared.name not in used:
                yield CompletionItem(f"{prefix}{declared.name}=", help=declared.doc)
        elif declared.name == key:
            words = getattr(declared.kind, "words", ())
            for word in dict.fromkeys((declared.kind.text(declared.default), *words)):
                if word.startswith(value):
                    yield CompletionItem(f"{prefix}{key}={word}")


def complete_peer(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete the name of a method or format of another system."""
    from click.shell_completion import CompletionItem

    from gcodec.codec.registry import peers

    importlib.import_module("gcodec.codecs")  # which registers them
    return [
        CompletionItem(name, help=spec)
        for name, spec in peers().items()
        if name.startswith(incomplete)
    ]


def complete_machine(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete the name of a machine with known coding speeds, or of a file."""
    from click.shell_completion import CompletionItem

    from gcodec.advisor.machines import machines

    names = [name for name in ("this", *machines()) if name.startswith(incomplete)]
    return [*map(CompletionItem, names), CompletionItem(incomplete, type="file")]


def complete_layer(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    """Complete names of tensors in the files of the command line, also after ``!``."""
    from click.shell_completion import CompletionItem

    mark = "!" if incomplete.startswith("!") else ""
    items: dict[str, None] = {}
    for name in itertools.chain.from_iterable(map(_tensor_names, _files(ctx))):
        escaped = mark + glob.escape(name)
        if escaped.startswith(incomplete) and name.isprintable():
            items[escaped] = None
        if len(items) == _MAX_NAMES:
            break
    return [CompletionItem(name) for name in items]


def _files(ctx: click.Context) -> list[Path]:
    """Return the existing files and folders among the arguments."""
    # If the option to complete has no value yet, click leaves all arguments in `args`.
    texts = list(ctx.args)
    for param in ctx.command.params:
        if isinstance(param, click.Argument):
            value = ctx.params.get(param.name or "") or ()
            texts += (value,) if isinstance(value, str) else value
    return [Path(text) for text in texts if os.path.exists(text)]


def _tensor_names(path: Path) -> Iterator[str]:
    """Yield the names of the tensors in a file, up to the first error."""
    from gcodec.cli.files import is_frames
    from gcodec.tensorfiles.dumps import open_dump
    from gcodec.tensorfiles.frame_list import mapped, outlines

    try:
        if is_frames(path):
            yield from (frame.name for frame in outlines(mapped(path)) if frame.name is not None)
        else:
            with open_dump(path) as dump:
                yield from (entry.name for entry in dump.entries)
    except (GcodecError, OSError, ValueError):
        return


# --- options


class Number(click.FloatRange):
    """A number in a range, which does not contain NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail."""
        with contextlib.suppress(click.BadParameter):
            number = super().convert(value, param, ctx)
            if not math.isnan(number):
                return number
        self.fail(f"{brief(repr(value))}: must be a number {_bounds(self)}", param, ctx)


class Integer(click.IntRange):
    """An integer in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the integer, or fail."""
        with contextlib.suppress(click.BadParameter):
            return super().convert(value, param, ctx)
        self.fail(f"{brief(repr(value))}: must be an integer {_bounds(self)}", param, ctx)


def _bounds(numbers: click.FloatRange | click.IntRange) -> str:
    """Return the bounds of numbers as text; all ranges have a minimum."""
    if numbers.max is None:
        return f"{'above' if numbers.min_open else 'of at least'} {numbers.min}"
    return f"from {numbers.min} to {numbers.max}"


class Order(click.Choice):  # type: ignore[type-arg]  # not generic in older releases
    """The name of an order of rows, with ``err`` as an alias of ``nmse``."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Return the name, or fail."""
        return super().convert("nmse" if value == "err" else value, param, ctx)


_FORMS = ("json", "jsonl", "csv", "markdown")
json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead of text."
)
jsonl = click.option(
    "--jsonl", "as_jsonl", is_flag=True, help="Print a JSON document for each tensor."
)
csv = click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
markdown = click.option("--markdown", "as_markdown", is_flag=True, help="Print a Markdown table.")
quiet = click.option(
    "-q", "--quiet", is_flag=True, help="Print no notes, no progress and no summary."
)
force = click.option("-f", "--force", is_flag=True, help="Replace existing files.")
seed = click.option(
    "--seed",
    type=Integer(0, 2**64 - 1),
    default=0,
    metavar="N",
    help="Seed of the run; each tensor derives its own seed from it and from its name.",
)
layers = click.option(
    "-L",
    "--layers",
    multiple=True,
    metavar="GLOB",
    shell_complete=complete_layer,
    help="Select the tensors whose names match, such as '*.weight'; '!GLOB' excludes those that "
    "match. Repeatable.",
)
top = click.option(
    "--top", type=Integer(1), metavar="N", help="Show only the first N rows of the table."
)


def codecs(text: str) -> Callable[[Function], Function]:
    """Return the repeatable option ``--codec`` with this help text."""
    return click.option(
        "-c",
        "--codec",
        "specs",
        multiple=True,
        metavar="SPEC",
        shell_complete=complete_spec,
        help=text,
    )


def sample(default: int, text: str) -> Callable[[Function], Function]:
    """Return the option ``--sample`` with this help text."""
    return click.option(
        "--sample", "max_values", type=Integer(1), default=default, metavar="N", help=text
    )


def _key(ctx: click.Context, param: click.Parameter, file: BinaryIO | None) -> bytes | None:
    from gcodec.frame import check_key

    if file is None:
        return None
    try:
        with file:
            return check_key(file.read(65))
    except ParameterError:
        raise ParameterError(f"{file.name}: must contain a key of 1 to 64 bytes") from None


def _key_file(text: str) -> Callable[[Function], Function]:
    return click.option(
        "--key-file", "key", type=click.File("rb"), callback=_key, metavar="KEY", help=text
    )


key = _key_file("A file that contains the key with which to check the tags of the frames.")
own_key = _key_file(
    "A file that contains a key of 1 to 64 bytes. Each frame then ends with an authentication "
    "tag, which gcodec verify checks with the same key."
)


def output(text: str) -> Callable[[Function], Function]:
    """Return the option ``--output`` with this help text."""
    return click.option("-o", "--output", metavar="OUT", type=_Output(readable=False), help=text)


def form(function: Callable[..., int]) -> Callable[..., int]:
    """Pass the form of the output to the function, as one `form`; refuse two forms."""

    @functools.wraps(function)
    def command(**arguments: object) -> int:
        forms = [name for name in _FORMS if arguments.pop(f"as_{name}", False)]
        if len(forms) > 1:
            raise click.UsageError(
                f"--{forms[0]} and --{forms[1]} exclude each other: pass one of them."
            )
        return function(form=forms[0] if forms else None, **arguments)

    return command


def limits(function: Callable[..., int]) -> Callable[..., int]:
    """Add ``--max-elems`` and ``--max-bytes``, which the function receives as `limits`."""

    @functools.wraps(function)
    def command(*, max_elems: int, max_bytes: int, **arguments: object) -> int:
        return function(limits=Limits(max_elems, max_bytes), **arguments)

    defaults = Limits()
    for name, default, noun in (
        ("--max-bytes", defaults.max_bytes, "bytes of one decoded tensor"),
        ("--max-elems", defaults.max_elements, "elements of one tensor"),
    ):
        command = click.option(
            name,
            type=Integer(1),
            default=default,
            metavar="N",
            help=f"Largest number of {noun}; gcodec refuses more before it allocates memory.",
        )(command)
    return command


def settings(function: Callable[..., int]) -> Callable[..., int]:
    """Pass the values of the options of measurements to the function, as one `settings`."""

    @functools.wraps(function)
    def command(
        *,
        layers: tuple[str, ...],
        max_values: int,
        full: bool = False,
        seed: int,
        limits: Limits,
        **arguments: object,
    ) -> int:
        number = None if full else max_values
        settings = Settings(layers=layers, max_values=number, seed=seed, limits=limits)
        return function(settings=settings, **arguments)

    return command


def outcome(function: Callable[..., int]) -> Callable[..., int]:
    """Add `limits`, `quiet` and `json`, which the function receives as one `outcome`."""

    @functools.wraps(function)
    def command(*, limits: Limits, quiet: bool, as_json: bool, **arguments: object) -> int:
        verb = click.get_current_context().info_name or ""
        outcome = Outcome(verb, limits, quiet=quiet, as_json=as_json)
        return function(outcome=outcome, **arguments)

    return limits(quiet(json(command)))


# --- numbers with units

# Commas only between groups of thousands: 12,5 is not 125.
_NUMBER = (
    r"\s*([+-]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*|(?=\.\d))(?:\.[\d_]*)?(?:[eE][+-]?\d{1,4})?)\s*"
)
_SPEED = re.compile(_NUMBER + r"([kKmMgGtT]?)(i?)(bit|b|B)(?:/s|ps)\s*", re.ASCII)
_TIME = re.compile(_NUMBER + r"(ns|us|µs|μs|ms|s|min|h)\s*", re.ASCII)
_COUNT = re.compile(_NUMBER + r"([kKmMbBgGtT]?)\s*", re.ASCII)
_PREFIXES = ("", "k", "m", "g", "t")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_POWERS = {"": 0, "k": 3, "m": 6, "b": 9, "g": 9, "t": 12}


class Parsed(click.ParamType):  # type: ignore[type-arg]  # not generic in older releases
    """A type whose values a function returns; it returns None for any text that is not allowed."""

    def __init__(self, name: str, parse: Callable[[str], object], allowed: str) -> None:
        self.name, self._parse, self._allowed = name, parse, allowed

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value, or fail."""
        parsed = self._parse(value)
        if parsed is None:
            self.fail(f"{brief(repr(value))}: must be {self._allowed}", param, ctx)
        return parsed


def _speed(text: str) -> float | None:
    if not (match := _SPEED.fullmatch(text)):
        return None
    number, prefix, binary, unit = match.groups()
    factor = float(1024 if binary else 1000) ** _PREFIXES.index(prefix.lower())
    bandwidth = _float(number) * factor / (1 if unit == "B" else 8)
    return bandwidth if 0 < bandwidth < math.inf else None


def _coding_speed(text: str) -> float | None:
    bandwidth = _speed(text)
    return None if bandwidth is None or bandwidth < 4 else bandwidth / 4


def _duration(text: str) -> float | None:
    if not (match := _TIME.fullmatch(text)):
        return None
    seconds = _float(match[1]) * _SECONDS[match[2].replace("µ", "u").replace("μ", "u")]
    return seconds if 0 <= seconds < math.inf else None


def _count(text: str) -> int | None:
    from decimal import Decimal

    if not (match := _COUNT.fullmatch(text)):
        return None
    number = Decimal(_digits(match[1])).scaleb(_POWERS[match[2].lower()])
    is_allowed = 1 <= number < 2**63 and number == number.to_integral_value()
    return int(number) if is_allowed else None


def _named_bits(text: str) -> tuple[str, float] | None:
    name, _, digits = text.rpartition("=")
    match = re.fullmatch(_NUMBER, digits, re.ASCII)
    bits = _float(match[1]) if match else math.nan
    return (name.strip(), bits) if name.strip() and 0 <= bits <= 1e6 else None


def _digits(text: str) -> str:
    return text.replace("_", "").replace(",", "")


def _float(text: str) -> float:
    return float(_digits(text))


SPEED = Parsed("speed", _speed, "a speed above 0 with its unit, such as 100Gbit/s or 12.5GB/s")
"""A speed such as ``100Gbit/s`` or ``12.5GB/s``, in bytes per second."""

CODING_SPEED = Parsed(
    "speed", _coding_speed, "a speed of at least 4B/s with its unit, such as 50GB/s"
)
"""A speed of coding float32, in values per second."""

DURATION = Parsed("time", _duration, "a time of at least 0s with its unit, such as 100ms or 20us")
"""A duration such as ``100ms`` or ``20us``, in seconds."""

COUNT = Parsed("n", _count, "a whole number from 1 to 2^63 - 1, such as 1e9, 7B or 125M")
"""An integer such as ``1e9``, ``7B`` or ``125M``."""

NAMED_BITS = Parsed(
    "name=bits", _named_bits, "a name and bits per value from 0 to 1e6, such as powersgd=0.25"
)
"""A name and a number of bits per value, such as ``powersgd=0.25``."""
