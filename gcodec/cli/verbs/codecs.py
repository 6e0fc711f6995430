"""``gcodec codecs``: list the codecs and their parameters."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import click

from gcodec.cli import options

if TYPE_CHECKING:
    from gcodec.codec import Codec

_LARGE = 1 << 20  # elements of a tensor for which the padding of a payload is negligible


@click.command(
    cls=options.Verb,
    name="codecs",
    examples=[
        ("List all codecs with their parameters.", "gcodec codecs"),
        ("Show the parameters, format and sources of one codec.", "gcodec codecs qsgd"),
        ("Print the list for a program.", "gcodec codecs --json"),
    ],
    exits={},
)
@click.argument("name", required=False, shell_complete=options.complete_spec)
@options.json
def command(name: str | None, as_json: bool) -> int:
    """List the codecs, or describe the codec NAME."""
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
    from gcodec.cli.render.output import Column, Table, stdout

    columns: list[Column[type[Codec]]] = [
        Column("codec", lambda cls: cls.name, left=True),
        Column("id", lambda cls: str(cls.id)),
        Column("bits/value", lambda cls: f"{_max_bits(cls):g}"),
        Column(
            "parameters and their defaults",
            lambda cls: ",".join(_defaults(cls)) or "none",
            left=True,
            rank=1,
        ),
    ]
    Table(columns, classes).show(stdout())
    click.echo(
        "\nbits/value: maximum for large tensors and default parameters."
        "\nDescription of a codec: gcodec codecs NAME"
    )


def _print_one(cls: type[Codec]) -> None:
    from gcodec.cli.render.output import print_line, stdout

    console = stdout()
    bits = f"at most {_max_bits(cls):g} bits/value by default"
    print_line(console, f"{cls.name}   id {cls.id}   {bits}", "bold")
    print_line(console, _summary(cls))
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
