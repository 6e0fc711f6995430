"""What a verb found as a table, Markdown, CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from gcodec.cli.table import Column
from gcodec.cli.text import printable

# What Markdown, and the HTML in it, would obey.
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&$])")
# What a spreadsheet would compute.
_FORMULA = ("=", "+", "-", "@")


class Grid(NamedTuple):
    """A table; see `gcodec.cli.table.print_table`.

    Attributes
    ----------
    columns : sequence of Column
    rows : sequence of sequence of str
    total : sequence of str or None
    marked : frozenset of int
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    total: Sequence[str] | None = None
    marked: frozenset[int] = frozenset()


def print_markdown(title: str, grid: Grid) -> None:
    """Print a title and a Markdown table with all columns."""
    lines = [f"**{_markdown(title)}**", ""]
    lines.append(_row([_markdown(c.header.replace("\n", " ")) for c in grid.columns]))
    lines.append(_row([":--" if column.left else "--:" for column in grid.columns]))
    rows = [*grid.rows, *([] if grid.total is None else [grid.total])]
    lines += [_row([_markdown(cell) for cell in cells]) for cells in rows]
    click.echo("\n".join(lines))


def print_csv(records: Sequence[dict[str, Any]]) -> None:
    """Print records as comma-separated values (RFC 4180), below the names of all fields."""
    names = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for record in records:
        writer.writerow(_value(record.get(name)) for name in names)


def print_lines(documents: Sequence[dict[str, Any]]) -> None:
    """Print JSON documents, one a line."""
    for document in documents:
        click.echo(json.dumps(document, allow_nan=False))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(text: str) -> str:
    return _MARKUP.sub(r"\\\1", printable(text)).replace("\\<", "&lt;").replace("\\&", "&amp;")


def _value(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    safe = printable(value)
    return f"'{safe}" if safe.startswith(_FORMULA) else safe
