"""``gcodec codecs``: what codecs there are, and what their parameters are."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import click

from gcodec.cli.completion import complete_spec
from gcodec.cli.options import json_option
from gcodec.cli.verb import Verb

if TYPE_CHECKING:
    from gcodec.codec import Codec

_MANY = 1 << 20  # elements over which headers and padding of a payload no longer show


@click.command(
    cls=Verb,
    name="codecs",
    examples=[
        ("All codecs, with their parameters.", "gcodec codecs"),
        ("One of them: parameters, format, sources.", "gcodec codecs qsgd"),
        ("The same for a program.", "gcodec codecs --json"),
    ],
    exits={},
)
@click.argument("name", required=False, shell_complete=complete_spec)
@json_option
def command(name: str | None, as_json: bool) -> int:
    """List the codecs, or tell all about the one called NAME."""
    from gcodec.cli.document import print_document
    from gcodec.codec import registered
    from gcodec.codecs import parse

    known = registered()
    if name is not None:
        known = {name: type(parse(name))}
    if as_json:
        print_document("codecs", {"codecs": [_described(cls) for cls in known.values()]})
    elif name is None:
        _print_all(list(known.values()))
    else:
        _print_one(known[name])
    return 0


def _described(cls: type[Codec]) -> dict[str, Any]:
    return {
        "name": cls.name,
        "id": cls.id,
        "summary": _summary(cls),
        "max_bits_per_value": _bits(cls),
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


def _bits(cls: type[Codec]) -> float:
    """Return the most bits per value of a large tensor, with all parameters at their defaults."""
    return round(cls().max_payload_nbits(_MANY) / _MANY, 3)


def _summary(cls: type[Codec]) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def _print_all(known: list[type[Codec]]) -> None:
    from gcodec.cli.render.table import Column, print_table, stdout

    columns = [
        Column("codec", left=True),
        Column("id"),
        Column("bits/value"),
        Column("parameters and their defaults", left=True, rank=1),
    ]
    rows = []
    for cls in known:
        defaults = [f"{d.name}={d.kind.text(d.default)}" for d in cls.declared()]
        rows.append([cls.name, str(cls.id), f"{_bits(cls):g}", ",".join(defaults) or "none"])
    print_table(stdout(), columns, rows)
    click.echo(
        "\nbits/value: at most, for large tensors and default parameters."
        "\nAll about one of them: gcodec codecs NAME"
    )


def _print_one(cls: type[Codec]) -> None:
    from gcodec.cli.render.table import print_line, stdout

    console = stdout()
    bits = f"at most {_bits(cls):g} bits/value by default"
    print_line(console, f"{cls.name}   id {cls.id}   {bits}", "bold")
    print_line(console, _summary(cls))
    if cls.declared():
        click.echo()
        # Prose wraps; a table would cut it.
        for declared in cls.declared():
            default = declared.kind.text(declared.default)
            print_line(console, f"  {declared.name}={default}", "bold")
            print_line(console, f"      {declared.doc}")
            print_line(console, f"      {declared.kind.allowed}")
    about = inspect.getdoc(sys.modules[cls.__module__])
    if about:
        click.echo()
        for line in about.splitlines():
            print_line(console, line)
