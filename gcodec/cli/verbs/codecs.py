"""``gcodec codecs``: list the codecs, their typical bits and their parameters."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import click

from gcodec.analysis.typical import EXAMPLE, TYPICAL
from gcodec.cli import options

if TYPE_CHECKING:
    from gcodec.codec import Codec

_LARGE = 1 << 20  # elements of a tensor for which the padding of a payload is negligible


@click.command(
    cls=options.Verb,
    name="codecs",
    examples=[
        ("List all codecs with their typical bits per value.", "gcodec codecs"),
        ("Show the costs, parameters, format and sources of one codec.", "gcodec codecs qsgd"),
        ("Print the list for a program.", "gcodec codecs --json"),
    ],
    exits={},
)
@click.argument("name", required=False, shell_complete=options.complete_spec)
@options.json
def command(name: str | None, as_json: bool) -> int:
    """List the codecs, or describe the codec NAME.

    Typical bits per value and nmse ||x - decoded||^2 / ||x||^2 are those of the default parameters
    on the example gradient of the repository, frame headers included.
    """
    from gcodec.cli.render.output import print_document
    from gcodec.codec import registered
    from gcodec.codecs import parse

    classes = list(registered().values()) if name is None else [type(parse(name))]
    if as_json:
        print_document("codecs", {"codecs": [_document(cls) for cls in classes]})
    elif name is None:
        _print_all(classes)
    else:
        _print_one(classes[0])
    return 0


def _document(cls: type[Codec]) -> dict[str, Any]:
    return {
        "name": cls.name,
        "id": cls.id,
        "summary": _summary(cls),
        "typical": None
        if (typical := TYPICAL.get(cls.name)) is None
        else {"bits_per_value": typical.bits, "nmse": typical.nmse},
        "max_bits_per_value": _max_bits(cls),
        "unbiased": cls().unbiased,
        "parameters": [
            {
                "name": declared.name,
                "default": declared.kind.text(declared.default),
                "allowed": declared.kind.allowed,
                "meaning": declared.doc,
                "in_message": declared.in_message,
            }
            for declared in cls.declared()
        ],
    }


def _max_bits(cls: type[Codec]) -> float:
    """Return the largest number of bits per value of a large tensor, with default parameters."""
    return round(cls().max_payload_nbits(_LARGE) / _LARGE, 3)


def _summary(cls: type[Codec]) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def _defaults(cls: type[Codec]) -> list[str]:
    return [f"{d.name}={d.kind.text(d.default)}" for d in cls.declared()]


def _print_all(classes: list[type[Codec]]) -> None:
    from gcodec.cli.render.output import Column, Table, note_hidden, stdout
    from gcodec.cli.render.text import printable, small

    def bits(cls: type[Codec]) -> str:
        return f"{TYPICAL[cls.name].bits:.2f}" if cls.name in TYPICAL else "-"

    def nmse(cls: type[Codec]) -> str:
        return small(TYPICAL[cls.name].nmse) if cls.name in TYPICAL else "-"

    columns: list[Column[type[Codec]]] = [
        Column("codec", lambda cls: cls.name, left=True),
        Column("id", lambda cls: str(cls.id), rank=2),
        Column("bits/v", bits),
        Column("nmse", nmse),
        Column("purpose", lambda cls: printable(_summary(cls)), left=True, rank=1),
        Column(
            "parameters and their defaults",
            lambda cls: ",".join(_defaults(cls)) or "none",
            left=True,
            rank=3,
        ),
    ]
    console = stdout()
    hidden = Table(columns, classes).show(console)
    click.echo(
        f"\nbits/v, nmse: whole frames of {EXAMPLE}, default parameters"
        "\none codec with all its parameters: gcodec codecs NAME"
    )
    note_hidden(console, hidden)


def _print_one(cls: type[Codec]) -> None:
    from gcodec.cli.render.output import print_line, stdout

    console = stdout()
    print_line(console, f"{cls.name}   id {cls.id}", "bold")
    print_line(console, _summary(cls))
    click.echo()
    if typical := TYPICAL.get(cls.name):
        measured = f"{typical.bits:.2f} bits/value, nmse {typical.nmse:.2g}: {EXAMPLE}"
        print_line(console, f"  typical   {measured}")
    print_line(console, f"  at most   {_max_bits(cls):g} bits/value with default parameters")
    print_line(console, f"  unbiased  {'yes' if cls().unbiased else 'no'} by default")
    print_line(console, f"  try it    gcodec inspect FILE -c {cls()}")
    if cls.declared():
        click.echo()
        for declared, default in zip(cls.declared(), _defaults(cls), strict=True):
            print_line(console, f"  {default}", "bold")
            print_line(console, f"      {declared.doc}")
            print_line(console, f"      {declared.kind.allowed}")
    if description := inspect.getdoc(sys.modules[cls.__module__]):
        click.echo()
        for line in description.splitlines():
            print_line(console, line)
