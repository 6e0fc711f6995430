"""``gcodec dissect``: show the bits of frames, field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gcodec.cli import options
from gcodec.cli.outcome import Outcome

if TYPE_CHECKING:
    from gcodec.analysis.dissect import Dissection


def _offset(text: str) -> int | None:
    """Return an offset in bits, given as a byte, or as a byte and a bit."""
    byte, dot, bit = text.partition(".")
    try:
        first, within = int(byte, 0), int(bit) if dot else 0
    except ValueError:
        return None
    return 8 * first + within if first >= 0 and 0 <= within < 8 else None


_OFFSET = options.Parsed(
    "offset", _offset, "a byte such as 24 or 0x18, or byte and bit such as 0x18.3"
)


@options.verb(
    "dissect",
    ("Show one of several tensors.", "gcodec dissect grads.gcf -L fc.weight"),
    ("Start at an offset.", "gcodec dissect grads.gcf -L fc.weight --at 0x18.3"),
    ("Show all fields with their bits.", "gcodec dissect grads.gcf -L fc.bias --full --json"),
)
@click.argument("file", metavar="FRAME", type=options.FILE)
@options.layers
@click.option(
    "--limit",
    "max_symbols",
    type=options.Integer(0),
    default=64,
    metavar="N",
    help="Show N symbols of each string and N entries of each table, and the number of bits of "
    "the others.",
)
@click.option("--full", is_flag=True, help="Show all symbols and entries.")
@click.option(
    "--at",
    "first",
    type=_OFFSET,
    default="0",
    metavar="OFFSET",
    help="Start with the field at this byte of the file, or byte.bit, such as 0x18.3.",
)
@click.option("--bits", "digits", flag_value="bits", help="Show all raw data in bits.")
@click.option(
    "--hex",
    "digits",
    flag_value="hex",
    help="Show all raw data in hexadecimal; default: only whole bytes.",
)
@options.key
@options.outcome
def command(
    file: str,
    layers: tuple[str, ...],
    max_symbols: int,
    full: bool,
    first: int,
    digits: str | None,
    key: bytes | None,
    outcome: Outcome,
) -> int:
    """Show the bits of frames, field by field.

    FRAME is a .gcf file, or any file of frames; - is stdin. gcodec shows each field of the header,
    the parameters, the tables and the codewords of the payload, with its byte.bit offset, its bits
    and their meaning. Symbols of rANS have no bits of their own; they precede the words that the
    decoder reads after them. "?? undecoded" marks bits that a codec does not describe. At the
    first wrong field the output ends, with exit code 1. The last line of a frame counts its bits
    by kind.
    """
    from gcodec.analysis.dissect import Dissection
    from gcodec.cli.files import frames_file
    from gcodec.cli.render import dissect as view
    from gcodec.cli.render.output import stdout
    from gcodec.tensorfiles.frame_list import relocated

    most = None if full else max_symbols
    dissect = partial(Dissection, first=first, most=most, limits=outcome.limits, key=key)
    path, data = frames_file(file)
    dissections: list[Dissection] = []
    document: dict[str, Any] = {"file": file, "bytes": len(data), "frames": []}
    printer = None if outcome.as_json else view.Printer(stdout(), path.name, data, digits)
    with outcome.of(path, in_frames=True):
        for number, dissection in _frames(data, layers, first, dissect):
            if printer is None:
                document["frames"].append(view.document(dissection, number, data, first))
            else:
                printer.show(dissection, number, first)
            dissections.append(dissection)
            if dissection.error is not None:
                title = view.title(dissection, number)
                raise relocated(dissection.error, title, dissection.bad // 8)
    if printer is not None and not outcome.quiet:
        printer.show_end(dissections)
    return outcome.finish({**document, **view.totals(dissections)})


def _frames(
    data: Any, layers: tuple[str, ...], first: int, dissect: Callable[[object, int], Dissection]
) -> Iterator[tuple[int, Dissection]]:
    """Yield the numbers and dissections of the selected frames; of others read only headers."""
    from gcodec.analysis.groups import selects
    from gcodec.errors import Corrupt, FormatError, ParameterError
    from gcodec.tensorfiles.frame_list import outline

    if not len(data):
        raise Corrupt("the file is empty: it contains no frame")
    if first >= 8 * len(data):
        raise ParameterError(f"--at: the file has {len(data)} bytes")
    at = number = selected = 0
    while at < len(data):
        try:
            name, *_, end = outline(data, at)
            is_selected = first < 8 * end and selects(layers, name or "")
        except FormatError:  # which the dissection will report
            end, is_selected = len(data), True
        if is_selected:
            yield number, dissect(data, at)
        at, number, selected = end, number + 1, selected + is_selected
    if not selected:
        raise ParameterError(f"no frame matches --layers {' '.join(layers)}")
