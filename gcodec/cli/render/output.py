"""Output of all verbs: tables, lines and notes in a terminal, JSON, CSV, Markdown, progress.

A `Table` is the one model of rows and columns. A terminal shows the columns that fit, and a pipe,
Markdown and the HTML report show all of them.
"""

from __future__ import annotations

import contextlib
import csv
import html
import itertools
import json
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import click
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.text import Text

from gcodec.cli.outcome import Outcome
from gcodec.cli.render.text import gathered, listed, printable, shorten
from gcodec.runtime import compilation_watchers

_PIPE_WIDTH = 10_000
_MAX_NAME, _MIN_NAME = 60, 24  # widths of the first column
_GAP = "  "
_PROGRESS_DELAY = 1.0  # seconds before a progress bar appears

R = TypeVar("R")


def _width_of(text: str) -> int:
    """Return the columns of a terminal that a printable text takes."""
    return len(text) if text.isascii() else cell_len(text)


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column of a table.

    Attributes
    ----------
    header : str
        Header, of one or more lines. An empty first line continues the title of the columns before
        this one, which it inherits if they are omitted.
    cell : callable
        Function that formats the cell of a row.
    left : bool
        Whether the column is aligned to the left.
    rank : int
        Narrow terminals omit the columns of the highest rank first; they never omit rank 0.
    in_total : bool
        Whether the column has a cell in the row of the total.
    """

    header: str
    cell: Callable[[R], str]
    left: bool = False
    rank: int = 0
    in_total: bool = True


@dataclass(frozen=True)
class Table(Generic[R]):
    """A table whose first column contains names.

    Attributes
    ----------
    columns : sequence of Column
        The columns.
    rows : sequence
        The rows.
    total : optional
        Row of the total, below the others.
    is_marked : callable
        Predicate for rows to be printed in red.
    top : int, optional
        Number of rows to print; default: all.
    """

    columns: Sequence[Column[R]]
    rows: Sequence[R]
    total: R | None = None
    is_marked: Callable[[R], bool] = lambda row: False
    top: int | None = None

    def body(self) -> list[list[str]]:
        """Return the cells of the rows, and the number of the rows left out."""
        lines = [[column.cell(row) for column in self.columns] for row in self.rows[: self.top]]
        if hidden := len(self.rows) - len(lines):
            lines.append([f"({hidden} more)", *[""] * (len(self.columns) - 1)])
        return lines

    def footer(self) -> list[list[str]]:
        """Return the cells of the total, if the table has one."""
        total = self.total
        if total is None:
            return []
        cells = [column.cell(total) if column.in_total else "" for column in self.columns]
        return [["total", *cells[1:]]]

    def marked(self) -> set[int]:
        """Return the indices of the rows that are marked."""
        return {i for i, row in enumerate(self.rows[: self.top]) if self.is_marked(row)}

    def show(self, console: Console) -> list[str]:
        """Print the table; return the headers of the columns that did not fit."""
        columns, footer = self.columns, self.footer()
        # Names and dtypes come from files, which can contain control characters.
        body = [list(map(printable, cells)) for cells in self.body()]
        names = [cells[0] for cells in body]
        headers = [column.header.split("\n") for column in columns]
        widths = [
            max(_width_of(text) for text in (*header, *(line[i] for line in (*body, *footer))))
            for i, header in enumerate(headers)
        ]
        least = max(map(_width_of, (*headers[0], *(line[0] for line in footer))))
        longest = min(max([least, *map(_width_of, names)]), max(_MAX_NAME, least))
        narrowest = max(min(longest, _MIN_NAME), least)
        shown, room = _fitted(columns, headers, widths, narrowest, console.width)
        widths[0] = max(narrowest, min(longest, room))

        def line(cells: Sequence[str]) -> str:
            parts = []
            for i in shown:
                blank = " " * (widths[i] - _width_of(cells[i]))
                parts.append(cells[i] + blank if columns[i].left else blank + cells[i])
            return _GAP.join(parts).rstrip()

        height = max(len(headers[i]) for i in shown)
        padded = [[""] * (height - len(header)) + header for header in headers]
        styled = [(line([header[k] for header in padded]), "bold") for k in range(height)]
        marked = self.marked()
        for i, (name, cells) in enumerate(zip(names, body, strict=True)):
            text = line([shorten(name, widths[0]), *cells[1:]])
            styled.append((text, "red" if i in marked else ""))
        styled += [(line(cells), "bold") for cells in footer]
        output = Text()
        for style, lines in itertools.groupby(styled, key=lambda pair: pair[1]):
            output.append("".join(f"{text}\n" for text, _ in lines), style)
        console.print(output, soft_wrap=True, end="")
        return [c.header.replace("\n", " ") for i, c in enumerate(columns) if i not in shown]

    def print_markdown(self) -> None:
        """Print a Markdown table with all columns."""
        lines = [
            [escape_markdown(column.header.replace("\n", " ").strip()) for column in self.columns],
            [":--" if column.left else "--:" for column in self.columns],
            *([escape_markdown(cell) for cell in line] for line in (*self.body(), *self.footer())),
        ]
        for cells in lines:
            click.echo("| " + " | ".join(cells) + " |")


def _fitted(
    columns: Sequence[Column[R]],
    headers: list[list[str]],
    widths: list[int],
    narrowest: int,
    width: int,
) -> tuple[list[int], int]:
    """Omit columns of a table until the others fit; see `Column.rank`.

    Parameters
    ----------
    columns : sequence of Column
    headers, widths : list
        Lines of the header, and width, of each column. Those of a column that inherits the title
        of an omitted one change.
    narrowest : int
        Least width of the first column.
    width : int
        Width of the table.

    Returns
    -------
    shown : list of int
        Indices of the columns that are not omitted.
    room : int
        Width that is left for the first column.
    """
    shown = list(range(len(columns)))
    while True:
        room = width - sum(widths[i] + len(_GAP) for i in shown[1:])
        rank, last = max((columns[i].rank, i) for i in shown)
        if room >= narrowest or not rank:
            return shown, room
        shown.remove(last)
        after = next((i for i in shown if i > last), last)
        if not headers[after][0]:
            headers[after][0] = headers[last][0]
            widths[after] = max(widths[after], _width_of(headers[last][0]))


class View(Generic[R]):
    """The view of a result: a table below a headline, in a terminal and in other forms.

    Attributes
    ----------
    rows : list
        Rows of the table.
    orders : mapping of str to callable
        Sort keys of the rows by the names of the orders.
    all_columns : str
        Options of the verb that show all columns.
    """

    rows: list[R]
    orders: Mapping[str, Callable[[R], Any]] = {}
    all_columns = "--json"

    def sort(self, order: str | None) -> None:
        """Order the rows; None, and an order that they do not have, leave them as they are."""
        if order is not None and order in self.orders:
            self.rows.sort(key=self.orders[order])

    def headline(self) -> str:
        """Return the line above the table."""
        raise NotImplementedError

    def table(self, top: int | None = None) -> Table[R]:
        """Return the table, with the first rows or all of them."""
        raise NotImplementedError

    def lines(self) -> list[dict[str, Any]]:
        """Return the documents that ``--jsonl`` prints; by default those of ``--csv``."""
        return self.records()

    def records(self) -> list[dict[str, Any]]:
        """Return the flat records that ``--csv`` prints."""
        raise NotImplementedError

    def warnings(self) -> list[tuple[str, str]]:
        """Return lines below the table, and their styles."""
        return []

    def notes(self) -> list[str]:
        """Return lines for stderr."""
        return []

    def show(self, console: Console, top: int | None, quiet: bool) -> None:
        """Print the table; notes go to stderr unless `quiet`."""
        print_line(console, self.headline(), "bold")
        hidden = self.table(top).show(console)
        for line, style in self.warnings():
            print_line(console, line, style)
        if not quiet:
            note_hidden(console, hidden, self.all_columns)
            for line in self.notes():
                note(line)


class _Stdout(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the process here; `gcodec.cli.main` returns the exit code.
        raise


def stdout(width: int | None = None, *, color: bool = True) -> Console:
    """Return a console on stdout that prints text as it is, without markup and highlighting.

    Parameters
    ----------
    width : int, optional
        Number of columns; default: those of the terminal, and in a pipe as many as necessary.
    color : bool
        Whether a terminal may show colors.
    """
    console = _Stdout(
        file=sys.stdout,
        markup=False,
        highlight=False,
        emoji=False,
        no_color=None if color else True,
    )
    if width is not None:
        console.width = width
    elif not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print one line without wrapping it."""
    console.print(Text(printable(text), style), soft_wrap=True)


def note(message: str) -> None:
    """Print a line to stderr, apart from the data on stdout."""
    click.echo(printable(message, err=True), err=True)


def note_hidden(console: Console, headers: Sequence[str], options: str = "--json") -> None:
    """Name the columns that did not fit into the terminal.

    Parameters
    ----------
    console : rich.console.Console
        Console of the table.
    headers : sequence of str
        Headers of these columns.
    options : str
        Options of the verb that show all columns.
    """
    if headers:
        names = ", ".join(dict.fromkeys(" ".join(header.split()) for header in headers))
        note(f"not shown at {console.width} columns: {names}; use {options}")


def omission_notes(omitted: Mapping[str, str]) -> list[str]:
    """Name the tensors that a reader passes over, and the reasons."""
    names = gathered((reason, name) for name, reason in omitted.items())
    return [f"passed over {listed(same)}: {reason}" for reason, same in names.items()]


@contextlib.contextmanager
def progress(title: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr once the work has taken a second.

    A verb prints its lines after the bar has closed, because both would share lines.

    Parameters
    ----------
    title : str
        Text before the bar.
    total : int or None
        Total amount of work, in any unit; None if it is unknown.
    quiet : bool
        Whether to show no bar.

    Yields
    ------
    callable
        Function to be called with each amount of work that is done.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda amount: None
        return
    # Rich must not redirect the verb's own stdout.
    bar = Progress(
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = bar.add_task(escape(printable(title, err=True)), total=total)
    shown = _AloneInLine(bar)
    # A thread opens the bar, because the first piece of work may take long.
    opening = threading.Timer(_PROGRESS_DELAY, shown.open)
    opening.daemon = True
    opening.start()
    with contextlib.ExitStack() as stack:
        if compilation_watchers:  # the verb announces compilations
            compilation_watchers.insert(0, shown.hidden)
            stack.callback(compilation_watchers.remove, shown.hidden)
        try:
            yield partial(bar.advance, task)
        finally:
            opening.cancel()
            opening.join()
            if bar.live.is_started:
                bar.stop()


class _AloneInLine:
    """A progress bar that leaves its line to the announcement of a compilation."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._lock = bar, threading.Lock()
        self._is_due, self._compilations = False, 0

    def open(self) -> None:
        """Show the bar, as soon as no kernel is compiled."""
        with self._lock:
            self._is_due = True
            if not self._compilations:
                self._bar.start()

    @contextlib.contextmanager
    def hidden(self, kernel: str) -> Iterator[None]:
        """Hide the bar while a kernel is compiled."""
        with self._lock:
            self._compilations += 1
            if self._bar.live.is_started:
                self._bar.stop()
        try:
            yield
        finally:
            with self._lock:
                self._compilations -= 1
                if self._is_due and not self._compilations:
                    self._bar.start()


def _json_value(value: object) -> object:
    """Convert the numbers of a document for JSON: NaN to null, infinity to text."""
    if isinstance(value, Mapping):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def print_document(verb: str, body: dict[str, object], outcome: Outcome | None = None) -> None:
    """Print the JSON document of a run.

    Parameters
    ----------
    verb : str
        Verb, which names the schema ``gcodec.VERB/1``.
    body : dict
        Content of the document. NaN becomes null, and infinity becomes text.
    outcome : Outcome, optional
        Errors and exit code to append.
    """
    document = {"schema": f"gcodec.{verb}/1", **body}
    if outcome is not None:
        document |= {"errors": outcome.errors, "exit_code": outcome.code}
    click.echo(json.dumps(_json_value(document), allow_nan=False, indent=2))


def print_json_lines(verb: str, bodies: Sequence[dict[str, object]]) -> None:
    """Print one JSON document per line, with the schema ``gcodec.VERB.line/1``."""
    for body in bodies:
        document = {"schema": f"gcodec.{verb}.line/1", **body}
        click.echo(json.dumps(_json_value(document), allow_nan=False))


def print_csv(records: Sequence[dict[str, Any]]) -> None:
    """Print records as comma-separated values (RFC 4180) with a column for each key."""
    if not records:
        return  # there are no names of columns
    names = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(_escape_formula, names))
    for record in records:
        writer.writerow(_escape_formula(_json_value(record.get(name))) for name in names)


def _escape_formula(cell: object) -> object:
    """Prevent a spreadsheet from evaluating text of an untrusted file."""
    if not isinstance(cell, str):
        return cell
    safe = printable(cell)
    return f"'{safe}" if safe.startswith(("=", "+", "-", "@")) else safe


def escape_markdown(text: str) -> str:
    """Escape the syntax of Markdown and HTML."""
    safe = re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", printable(text))
    return html.escape(safe, quote=False)


def print_views(
    form: str,
    schema: str,
    document: dict[str, Any],
    views: Sequence[View[Any]],
    top: int | None,
    outcome: Outcome,
) -> None:
    """Print views in a form: "json", "jsonl", "csv" or "markdown".

    Parameters
    ----------
    form : str
        The form.
    schema : str
        Name in the schema of the documents.
    document : dict
        JSON document of all views.
    views : sequence of View
        The views.
    top : int or None
        Number of rows of a Markdown table; None prints all.
    outcome : Outcome
        Errors and exit code.
    """
    if form == "json":
        print_document(schema, document, outcome)
    elif form == "jsonl":
        print_json_lines(schema, [line for view in views for line in view.lines()])
    elif form == "csv":
        print_csv([record for view in views for record in view.records()])
    else:
        for i, view in enumerate(views):
            click.echo("\n" * bool(i) + escape_markdown(view.headline()) + "\n")
            view.table(top).print_markdown()
