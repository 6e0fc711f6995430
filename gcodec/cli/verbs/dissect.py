"""``gcodec dissect``: frames to the bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from gcodec.cli.completion import FILE
from gcodec.cli.options import json_option, layers_option, limit_options, quiet_option
from gcodec.cli.verb import Verb

if TYPE_CHECKING:
    from pathlib import Path

    from gcodec.analysis.dissect import Dissection


class Offset(click.ParamType):  # type: ignore[type-arg]  # not generic in older ones
    """A place in a file: a byte, or a byte and a bit, in decimal or hexadecimal digits."""

    name = "offset"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Return the bit."""
        if isinstance(value, int):
            return value
        byte, dot, bit = str(value).partition(".")
        try:
            found = int(byte, 0), int(bit) if dot else 0
        except ValueError:
            found = -1, 0
        if found[0] < 0 or not 0 <= found[1] < 8:
            self.fail(f"{value!r} is no byte such as 24 or 0x18, or byte and bit such as 0x18.3")
        return 8 * found[0] + found[1]


@click.command(
    cls=Verb,
    name="dissect",
    examples=[
        ("One tensor of many.", "gcodec dissect grads.gcf -L fc.weight"),
        ("From a bit on.", "gcodec dissect grads.gcf -L fc.weight --at 0x18.3"),
        ("Everything, with bit ranges.", "gcodec dissect grads.gcf -L fc.bias --full --json"),
    ],
)
@click.argument("file", metavar="FRAME", type=FILE)
@layers_option
@click.option(
    "--limit",
    "most",
    type=click.IntRange(0),
    default=64,
    show_default=True,
    metavar="N",
    help="Show N symbols of each string, and N entries of each table; of the rest, the bits.",
)
@click.option("--full", is_flag=True, help="Show all of them, however many.")
@click.option(
    "--at",
    "first",
    type=Offset(),
    default="0",
    metavar="OFFSET",
    help="Begin with the field at this byte of the file, or byte.bit, such as 0x18.3.",
)
@click.option("--bits", "digits", flag_value="bits", help="Show all that is raw in bits.")
@click.option(
    "--hex", "digits", flag_value="hex", help="Show it in hexadecimal; default: whole bytes so."
)
@click.option(
    "--key-file",
    type=click.File("rb"),
    metavar="KEY",
    help="A file that holds the key of the frames' tags, to check these.",
)
@limit_options
@quiet_option
@json_option
def command(
    file: str,
    layers: tuple[str, ...],
    most: int,
    full: bool,
    first: int,
    digits: str | None,
    key_file: BinaryIO | None,
    max_elems: int,
    max_bytes: int,
    quiet: bool,
    as_json: bool,
) -> int:
    """Show what the bits of frames are.

    FRAME is a .gcf file, or any file of frames; - is stdin. Every field comes with its byte.bit
    offset, its bits, and what they mean: header, parameters, tables, and the codewords of the
    payload. Symbols of rANS have no bits of their own; they stand before the words that they make
    lanes take up. What a codec does not tell is marked "?? undecoded". The first field that is
    wrong ends it, with exit code 1. Last come the bits of each frame by kind.
    """
    from gcodec.cli.document import print_document
    from gcodec.cli.frames import refusal
    from gcodec.cli.outcome import Outcome
    from gcodec.cli.render import dissection_report as report
    from gcodec.cli.render.table import stdout
    from gcodec.frame import check_key
    from gcodec.limits import Limits

    key = check_key(key_file.read(65)) if key_file else None
    options = {"most": None if full else most, "limits": Limits(max_elems, max_bytes), "key": key}
    path, data = _open(file)
    outcome = Outcome()
    done: list[Dissection] = []
    document: dict[str, Any] = {"file": file, "bytes": len(data), "frames": []}
    printer = None if as_json else report.Printer(stdout(), path.name, data, digits)
    with outcome.of(path):
        for number, dissection in _frames(data, layers, first, options):
            if printer is None:
                document["frames"].append(report.document(dissection, number, data, first))
            else:
                printer.show(dissection, number, first)
            done.append(dissection)
            if dissection.error is not None:
                what = report.title(dissection, number)
                raise refusal(dissection.error, what, dissection.bad // 8)
    if printer is not None and not quiet:
        printer.show_totals(done)
    if as_json:
        print_document("dissect", {**document, **report.totals(done)}, outcome)
    return outcome.code


def _open(file: str) -> tuple[Path, Any]:
    """Return the path of a file, for messages, and its bytes: mapped, not read."""
    from pathlib import Path

    from gcodec.errors import ParameterError
    from gcodec.tensorfiles.frame_file import mapped

    data: Any
    path = Path(file)
    if file == "-":
        path, data = Path("stdin"), sys.stdin.buffer.read()
    elif not path.is_file():
        raise ParameterError(f"{file}: no such file")
    else:
        data = mapped(path)
    return path, data


def _frames(
    data: Any, layers: tuple[str, ...], first: int, options: dict[str, Any]
) -> Iterator[tuple[int, Dissection]]:
    """Return the frames that are asked for, and their numbers; of others only headers are read."""
    from gcodec.analysis.dissect import Dissection
    from gcodec.cli.options import selects
    from gcodec.cli.outcome import CheckFailed
    from gcodec.errors import FormatError, ParameterError
    from gcodec.tensorfiles.frame_file import outline

    if not len(data):
        raise CheckFailed("the file is empty: it holds no frame")
    if first >= 8 * len(data):
        raise ParameterError(f"--at: the file has {len(data)} bytes")
    at = number = found = 0
    while at < len(data):
        try:
            name, *_, end = outline(data, at)
            wanted = first < 8 * end and selects(layers, name or "")
        except FormatError:  # which will be told of
            end, wanted = len(data), True
        if wanted:
            yield number, Dissection(data, at, first=first, **options)
        at, number, found = end, number + 1, found + wanted
    if not found:
        raise ParameterError(f"no frame matches --layers {' '.join(layers)}")
