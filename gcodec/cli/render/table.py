"""Tables that fit a terminal, and are never cut in a pipe."""

from __future__ import annotations

import csv
import html
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gcodec.cli.text import printable, shorten

_UNBOUNDED = 10_000  # columns of a pipe
_WIDEST_NAME, _NARROWEST_NAME = 60, 24
_GAP = "  "


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


class Grid(NamedTuple):
    """What `print_table` prints."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    total: Sequence[str] | None = None
    marked: frozenset[int] = frozenset()


class _Stdout(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the process here; `gcodec.cli.main` decides what that means.
        raise


def stdout(width: int | None = None, *, colour: bool = True) -> Console:
    """Return a console on stdout that takes text as it is: no markup, no guessed colours.

    Parameters
    ----------
    width : int, optional
        Columns; default: those of the terminal, and in a pipe as many as it takes.
    colour : bool
        Whether there may be colour, in a terminal.
    """
    console = _Stdout(
        file=sys.stdout,
        markup=False,
        highlight=False,
        emoji=False,
        no_color=None if colour else True,
    )
    if width is not None:
        console.width = width
    elif not console.is_terminal:
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
    names = [printable(cells[0]) for cells in rows]
    below = [*rows] if total is None else [*rows, total]
    widths = [
        max(cell_len(text) for text in (*column.header.split("\n"), *(c[i] for c in below)))
        for i, column in enumerate(columns)
    ]
    least = max(map(cell_len, (*columns[0].header.split("\n"), *([total[0]] if total else []))))
    longest = min(max([least, *map(cell_len, names)]), max(_WIDEST_NAME, least))
    narrowest = max(min(longest, _NARROWEST_NAME), least)
    shown = list(range(len(columns)))
    while True:
        room = console.width - sum(widths[i] + len(_GAP) for i in shown[1:])
        rank, last = max((columns[i].rank, i) for i in shown)
        if room >= narrowest or not rank:
            break
        shown.remove(last)
    widths[0] = max(narrowest, min(longest, room))
    styled = [(line, "bold") for line in _header(columns, shown, widths)]
    for number, (name, row) in enumerate(zip(names, rows, strict=True)):
        cells = [shorten(name, widths[0]), *row[1:]]
        style = "red" if number in marked else ""
        styled.append((_line(columns, shown, widths, cells), style))
    if total is not None:
        styled.append((_line(columns, shown, widths, total), "bold"))
    text = Text()
    for style, lines in itertools.groupby(styled, key=lambda pair: pair[1]):
        text.append("".join(f"{line}\n" for line, _ in lines), style)
    console.print(text, soft_wrap=True, end="")
    return [c.header.replace("\n", " ") for i, c in enumerate(columns) if i not in shown]


def print_csv(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print comma-separated values as in RFC 4180, text of strangers made harmless."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_inert(header) for header in headers)
    for row in rows:
        writer.writerow(_inert(cell) if isinstance(cell, str) else cell for cell in row)


def print_markdown(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table with all columns."""
    lines = [
        [unmarked(column.header.replace("\n", " ")) for column in columns],
        [":--" if column.left else "--:" for column in columns],
        *([unmarked(cell) for cell in cells] for cells in rows),
    ]
    for cells in lines:
        print("| " + " | ".join(cells) + " |")


def _inert(text: str) -> str:
    """Keep a spreadsheet from computing what a stranger wrote."""
    safe = printable(text)
    return f"'{safe}" if safe.startswith(("=", "+", "-", "@")) else safe


def unmarked(text: str) -> str:
    """Write a text so that neither Markdown nor the HTML in it sees more than the text."""
    safe = re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", printable(text))
    return html.escape(safe, quote=False)


def _header(columns: Sequence[Column], shown: Sequence[int], widths: Sequence[int]) -> list[str]:
    """Return the lines of the header, those of each column at the bottom."""
    parts = [column.header.split("\n") for column in columns]
    height = max(len(part) for i, part in enumerate(parts) if i in shown)
    filled = [[""] * (height - len(part)) + part for part in parts]
    return [_line(columns, shown, widths, [f[k] for f in filled]) for k in range(height)]


def _line(
    columns: Sequence[Column], shown: Sequence[int], widths: Sequence[int], cells: Sequence[str]
) -> str:
    parts = []
    for i in shown:
        blank = " " * (widths[i] - cell_len(cells[i]))
        parts.append(cells[i] + blank if columns[i].left else blank + cells[i])
    return _GAP.join(parts).rstrip()
