"""The JSON documents that ``--json`` prints."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from gcodec.cli.outcome import Outcome


def number(value: float | None) -> float | str | None:
    """Return a number as JSON can hold it: null for NaN, text for an infinite one."""
    if value is None or math.isnan(value):
        return None
    return str(value) if math.isinf(value) else value


def print_lines(verb: str, bodies: list[dict[str, Any]]) -> None:
    """Print a document a line, of the schema ``gcodec.VERB.line/1``."""
    for body in bodies:
        click.echo(json.dumps({"schema": f"gcodec.{verb}.line/1", **body}, allow_nan=False))


def print_document(verb: str, body: dict[str, Any], outcome: Outcome | None = None) -> None:
    """Print the one document of a run.

    Parameters
    ----------
    verb : str
        Names the schema, ``gcodec.VERB/1``.
    body : dict
    outcome : Outcome, optional
        Its errors and exit code are part of the document.
    """
    document = {"schema": f"gcodec.{verb}/1", **body}
    if outcome is not None:
        document |= {"errors": outcome.errors, "exit_code": outcome.code}
    click.echo(json.dumps(document, allow_nan=False, indent=2))
