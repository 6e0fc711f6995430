"""``gcodec codecs``: list the codecs, their typical bits and their parameters."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from gcodec.analysis.typical import EXAMPLE, TYPICAL
from gcodec.cli import options

if TYPE_CHECKING:
    from gcodec.codec import Codec

_LARGE = 1 << 20  # elements of a tensor for which the padding of a payload is negligible


@options.verb(
    "codecs",
    ("List all codecs with their typical bits per value.", "gcodec codecs"),
    ("Show the costs, parameters, format and sources of one codec.", "gcodec codecs qsgd"),
    ("Find the spec for a format of another system.", "gcodec codecs --like nvfp4"),
    ("Print the list for a program.", "gcodec codecs --json"),
    exits={},
)
@click.argument("name", required=False, shell_complete=options.complete_spec)
@click.option(
    "--like",
    "peer",
    metavar="PEER",
    shell_complete=options.complete_peer,
    help="Find the specs of methods and formats of other systems, such as mxfp4 or powersgd.",
)
@options.json
def command(name: str | None, peer: str | None, as_json: bool) -> int:
    """List the codecs, or describe the codec NAME.

    Typical bits per value and nmse ||x - decoded||^2 / ||x||^2 are those of the default parameters
    on the example gradient of the repository, frame headers included.
    """
    from gcodec.cli.render.output import print_document
    from gcodec.codec import registered
    from gcodec.codecs import parse

    codecs = registered(with_base=True)
    classes = list(codecs.values()) if name is None else [type(parse(name))]
    if peer is not None:
        peers = {key: spec for cls in classes for key, spec in cls.peers.items()}
        _print_peers(_peers_like(peer, peers), as_json)
    elif as_json:
        print_document("codecs", {"codecs": [_document(cls) for cls in classes]})
    elif name is None:
        _print_all(classes)
    else:
        _print_one(classes[0])
    return 0


def _peers_like(peer: str, peers: Mapping[str, str]) -> dict[str, str]:
    """Return the peers whose names contain a name; that of this very name alone, if it exists."""
    from gcodec.errors import suggestion

    wanted = _letters(peer)
    same = {key: spec for key, spec in peers.items() if _letters(key) == wanted}
    like = {key: spec for key, spec in peers.items() if wanted and wanted in _letters(key)}
    if not like:
        raise click.UsageError(
            f"no codec is like {peer!r}: the names are {', '.join(peers) or 'none'}"
            + suggestion(peer, peers)
        )
    return same or like


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _print_peers(peers: Mapping[str, str], as_json: bool) -> None:
    from gcodec.cli.render.output import print_document, print_line, stdout

    if as_json:
        print_document("codecs", {"like": [{"name": k, "spec": v} for k, v in peers.items()]})
        return
    width = max(map(len, peers))
    for key, spec in peers.items():
        print_line(stdout(), f"{key:<{width}}  {spec}")


def _document(cls: type[Codec]) -> dict[str, object]:
    return {
        "name": cls.name,
        "id": cls.id,
        "summary": _summary(cls),
        "typical": None
        if (typical := TYPICAL.get(cls.name)) is None
        else {"bits_per_value": typical.bits, "nmse": typical.nmse},
        "max_bits_per_value": _max_bits(cls),
        "unbiased": cls().unbiased,
        "peers": dict(cls.peers),
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
    """Return the parameters with their defaults, or as "not set" if no spec can write these."""
    from gcodec.wire.kinds import Float32

    return [
        f"{d.name} (not set)"
        if isinstance(d.kind, Float32) and d.default == d.kind.unset
        else f"{d.name}={d.kind.text(d.default)}"
        for d in cls.declared()
    ]


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
        measured = f"{typical.bits:.2f} bits/value of whole frames, nmse {typical.nmse:.2g}"
        print_line(console, f"  typical   {measured}: {EXAMPLE}")
    limit = f"{_max_bits(cls):g} bits/value of the payload of a large tensor"
    print_line(console, f"  at most   {limit}, with default parameters")
    print_line(console, f"  unbiased  {'yes' if cls().unbiased else 'no'} by default")
    call = f"inspect FILE -c {cls()}"
    if cls.needs_base:
        call = "diff OLD.safetensors NEW.safetensors"
    print_line(console, f"  try it    gcodec {call}")
    if cls.peers:
        print_line(console, f"  like      {', '.join(cls.peers)}")
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
