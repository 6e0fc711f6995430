"""Notes to the reader, on stderr and so out of the way of the data."""

from __future__ import annotations

import click

from gcodec.cli.text import printable


def note(message: str) -> None:
    """Print one line to stderr."""
    click.echo(printable(message, err=True), err=True)
