"""Tables that fit a terminal, and are never cut in a pipe."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gcodec.cli.text import printable, shorten

_UNBOUNDED = 10_000  # columns of a pipe
_WIDEST_NAME, _NARROWEST_NAME = 60, 16


class Column(NamedTuple):
    """A column of a table.

    Attributes
    ----------
    header : str
    left : bool
        Whether to align to the left.
    rank : int
        Columns of the highest rank are the first to be left out of a narrow terminal; those of
        rank 0 stay.
    """

    header: str
    left: bool = False
    rank: int = 0


class _Stdout(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the process here; `gcodec.cli.main` decides what that means.
        raise


def stdout() -> Console:
    """Return a console on stdout that takes text as it is: no markup, no guessed colours."""
    console = _Stdout(file=sys.stdout, markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    return console


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print one line, however long."""
    console.print(Text(printable(text), style), soft_wrap=True)


def print_table(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    total: Sequence[str] | None = None,
    marked: frozenset[int] = frozenset(),
) -> list[str]:
    """Print a table whose first column holds names.

    Parameters
    ----------
    console : Console
    columns : sequence of Column
    rows : sequence of sequence of str
    total : sequence of str, optional
        The last row.
    marked : frozenset of int
        Rows to point out.

    Returns
    -------
    list of str
        The headers of the columns that found no room.
    """
    shown = list(range(len(columns)))
    left_out: list[int] = []
    width = _WIDEST_NAME
    unbounded = console.options.update(width=_UNBOUNDED)
    while True:
        table = _table(columns, rows, total, marked, shown, width)
        excess = console.measure(table, options=unbounded).maximum - console.width
        rank, last = max((columns[i].rank, i) for i in shown)
        if excess <= 0 or (width == _NARROWEST_NAME and not rank):
            break
        if width == _WIDEST_NAME:
            names = [row[0] for row in rows]
            longest = max((len(printable(name)) for name in names), default=0)
            if min(longest, width) - excess >= _NARROWEST_NAME:
                width = min(longest, width) - excess
                continue
        if rank:
            shown.remove(last)
            left_out.append(last)
        else:
            width = _NARROWEST_NAME
    console.print(table, crop=False)
    return [columns[i].header.replace("\n", " ") for i in sorted(left_out)]


def print_csv(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print comma-separated values as in RFC 4180, text of strangers made harmless."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(headers)
    for row in rows:
        writer.writerow(printable(cell) if isinstance(cell, str) else cell for cell in row)


def print_markdown(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table with all columns."""
    lines = [
        [column.header.replace("\n", " ") for column in columns],
        [":--" if column.left else "--:" for column in columns],
        *rows,
    ]
    for cells in lines:
        safe = (printable(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in cells)
        print("| " + " | ".join(safe) + " |")


def _table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    total: Sequence[str] | None,
    marked: frozenset[int],
    shown: Sequence[int],
    name_width: int,
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i in shown:
        column = columns[i]
        table.add_column(
            Text(column.header, "bold"),
            justify="left" if column.left else "right",
            vertical="bottom",
            no_wrap=True,
            overflow="crop",
        )
    for number, row in enumerate(rows):
        cells = [shorten(printable(row[0]), name_width), *row[1:]]
        table.add_row(*(Text(cells[i], "red" if number in marked else "") for i in shown))
    if total is not None:
        table.add_row(*(Text(total[i], "bold") for i in shown))
    return table
