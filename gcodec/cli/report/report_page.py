"""A report as one page of HTML: no scripts, nothing that is fetched, every text escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_LEFT = ' class="left"'

Facts = Sequence[tuple[str, str]]


class Layer(NamedTuple):
    """A tensor with diagrams of its own.

    Attributes
    ----------
    name, facts : str
    figures : sequence of (str, str)
        Each an SVG element, and what it shows.
    """

    name: str
    facts: str
    figures: Sequence[tuple[str, str]]


class Table(NamedTuple):
    """The table of a dump.

    Attributes
    ----------
    headers : sequence of (str, bool)
        Each with whether its column is aligned to the left.
    rows : sequence of sequence of str
        The last of them is the total.
    marked : frozenset of int
        Rows to point out.
    """

    headers: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int]


class Section(NamedTuple):
    """What the page says of one dump.

    Attributes
    ----------
    title, facts : str
    table : Table
    alarms, notes : sequence of str
    figures : sequence of (str, str, str)
        Each a title, an SVG element, and what it shows.
    layers : sequence of Layer
    """

    title: str
    facts: str
    table: Table
    alarms: Sequence[str]
    notes: Sequence[str]
    figures: Sequence[tuple[str, str, str]]
    layers: Sequence[Layer]


def page(sections: Sequence[Section], reproduce: Facts) -> str:
    """Return the page.

    Parameters
    ----------
    sections : sequence of Section
    reproduce : sequence of (str, str)
        What it takes to make the page again.
    """
    title = f"gcodec report: {', '.join(section.title for section in sections)}"
    parts = [part for section in sections for part in _section(section)]
    parts.append("<h2>To reproduce this</h2>\n<dl>")
    parts += [f"<dt>{escaped(key)}</dt><dd>{escaped(value)}</dd>" for key, value in reproduce]
    parts.append("</dl>")
    body, classes = _classed("\n".join(parts))
    style = Path(__file__).with_name("report.css").read_text("utf-8") + classes
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escaped(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{body}\n</body>\n</html>\n"
    )


def escaped(text: str) -> str:
    """Return a text as HTML that shows it, what cannot be printed as in a Python string."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return html.escape(safe)


def _section(section: Section) -> Iterator[str]:
    yield f'<h1>{escaped(section.title)}</h1>\n<p class="facts">{escaped(section.facts)}</p>'
    yield from (f'<p class="alarm">{escaped(alarm)}</p>' for alarm in section.alarms)
    yield f'<div class="scroll">\n{_table(section.table)}\n</div>'
    yield from (f'<p class="note">{escaped(note)}</p>' for note in section.notes)
    yield '<div class="pair">'
    for title, svg, about in section.figures:
        caption = f"<figcaption>{escaped(about)}</figcaption>"
        yield f'<figure class="large"><h2>{escaped(title)}</h2>\n{svg}\n{caption}</figure>'
    yield "</div>"
    if section.layers:
        yield "<h2>Distributions</h2>"
    for place, layer in enumerate(section.layers):
        # One shows what there is to see.
        yield f"<details{'' if place else ' open'}><summary>{escaped(layer.name)} "
        yield f'<span>{escaped(layer.facts)}</span></summary>\n<div class="pair">'
        for svg, about in layer.figures:
            caption = f"<figcaption>{escaped(about)}</figcaption>"
            yield f'<figure class="small">{svg}\n{caption}</figure>'
        yield "</div></details>"


def _table(table: Table) -> str:
    lines = ["<table>", "<tr>"]
    for header, left in table.headers:
        text = escaped(header.replace("\n", "\0")).replace("\\x00", "<br>")
        lines.append(f"<th{_LEFT if left else ''}>{text}</th>")
    lines.append("</tr>")
    for place, row in enumerate(table.rows):
        kind = "total" if place == len(table.rows) - 1 else "marked"
        is_kind = kind == "total" or place in table.marked
        lines.append(f'<tr class="{kind}">' if is_kind else "<tr>")
        for (header, left), cell in zip(table.headers, row, strict=True):
            classes = ["left"] * left + ["bars"] * (header == "distribution")
            attribute = f' class="{" ".join(classes)}"' if classes else ""
            lines.append(f"<td{attribute}>{escaped(cell)}</td>")
        lines.append("</tr>")
    return "\n".join([*lines, "</table>"])


def _classed(body: str) -> tuple[str, str]:
    """Return a body without style attributes, and the style of classes in their place."""
    names: dict[str, str] = {}

    def named(match: re.Match[str]) -> str:
        return f' class="{names.setdefault(match[1], f"c{len(names)}")}"'

    # No text has a quotation mark in it: they are escaped, as those of attributes are.
    body = re.sub(r'(?<=[\w"]) style="([^"]*)"', named, body)
    return body, "".join(f".{name} {{ {style} }}\n" for style, name in names.items())
