"""The page of ``gcodec inspect --report``: HTML without scripts and foreign content."""

from __future__ import annotations

import hashlib
import html
import platform
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import gcodec
from gcodec.analysis.diagrams import (
    ROUNDS,
    fitted_shapes,
    measure_links,
    measure_rates,
    measure_split,
)
from gcodec.analysis.host import processor, version_of
from gcodec.analysis.measure import TensorGroup
from gcodec.analysis.settings import Settings
from gcodec.cli.render import figures, text
from gcodec.cli.render.inspect import DumpRow, DumpView
from gcodec.cli.render.output import Column
from gcodec.runtime.pool import thread_count
from gcodec.tensorfiles.atomic import atomic_write
from gcodec.tensorfiles.dumps import open_dump
from gcodec.wire import primitives

_MAX_ROWS = 40  # of a diagram, and tensors with diagrams of their own
_KINDS = ("header", "seek table", "table", "index", "sign", "level", "value", "norm", "scale")
_LAST_KINDS = ("pad", "undecoded")


def write_report(
    path: str, views: Sequence[DumpView], files: tuple[str, ...], arrangement: Sequence[str]
) -> None:
    """Write the page about dumps.

    Parameters
    ----------
    path : str
        File to write.
    views : sequence of DumpView
        The dumps, whose measurements include pictures.
    files : tuple of str
        File arguments of the command.
    arrangement : sequence of str
        Options of the command that arrange the rows.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    FormatError, OSError
        If a dump cannot be read again, or the page cannot be written.
    """
    title = f"gcodec report: {', '.join(view.title for view in views)}"
    parts = [part for view in views for part in _section(view)]
    parts.append("<h2>How to reproduce this page</h2>\n<dl>")
    for key, value in _reproduction(path, views, files, arrangement):
        parts.append(f"<dt>{escaped(key)}</dt><dd>{escaped(value)}</dd>")
    parts.append("</dl>")
    body, classes = _with_classes("\n".join(parts))
    style = Path(__file__).with_name("report.css").read_text("utf-8") + classes
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escaped(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{body}\n</body>\n</html>\n"
    )
    with atomic_write(path) as file:
        file.write(page.encode())


def escaped(content: str) -> str:
    """Return a text as HTML; escape characters that are not printable as in a Python string."""
    return html.escape(text.escape(content))


def _section(view: DumpView) -> Iterator[str]:
    """Yield the HTML of one dump."""
    diagrams = _diagrams(view)
    yield f"<h1>{escaped(view.title)}</h1>"
    yield f'<p class="facts">{escaped(" · ".join(view.facts()))}</p>'
    if warning := view.warning():
        yield f'<p class="alarm">{escaped(warning)}</p>'
    region = 'class="scroll" tabindex="0" role="region" aria-label="Tensors"'
    yield f"<div {region}>\n{_table(view)}\n</div>"
    suggestion = view.suggestion()
    notes = [*view.sample_notes(), *view.overhead_notes(), *view.omitted_codecs()]
    for note in (*notes, *([f"next: {suggestion}"] if suggestion else [])):
        yield f'<p class="note">{escaped(note)}</p>'
    yield '<div class="pair">'
    for title, svg, caption in diagrams:
        yield _figure("large", f"<h2>{escaped(title)}</h2>\n{svg}", caption)
    yield "</div>"
    largest = sorted(_largest(view.groups), key=lambda group: -group.values)
    details = [detail for group in largest if (detail := _details(group))]
    if details:
        yield "<h2>Distributions</h2>"
    for place, detail in enumerate(details):
        yield f"<details{'' if place else ' open'}>{detail}</details>"


def _figure(size: str, content: str, caption: str) -> str:
    caption = f"<figcaption>{escaped(caption)}</figcaption>"
    return f'<figure class="{size}">{content}\n{caption}</figure>'


def _diagrams(view: DumpView) -> list[tuple[str, str, str]]:
    """Measure and draw the diagrams of a dump; return their titles, SVG elements and captions."""
    settings, groups = view.settings, view.groups
    largest = _largest(groups)
    with open_dump(view.path, limits=settings.limits) as dump:
        points, samples = measure_rates(dump, groups, settings)
        split = measure_split(dump, largest, settings)
    timings, timed_samples = measure_links(view.path, points, settings)
    total = sum(group.gradient_values for group in groups)
    share = text.percent(sum(sample.size for sample in samples), total)
    measured = (
        f"{text.count(len(points), 'setting')} of codecs on "
        f"{text.count(sum(sample.values.size for sample in samples), 'value')} of "
        f"{text.count(len(samples), 'tensor')}, which contain {share} % of all values"
    )
    timed = "of nothing"
    if timed_samples:
        timed = (
            f"timed on {text.count(sum(sample.values.size for sample in timed_samples), 'value')} "
            f"of {text.count(len(timed_samples), 'tensor')} with "
            f"{text.count(thread_count(), 'thread')}, medians of {ROUNDS}"
        )
    rows = [(_row_name(group), bits) for group, bits in split]
    kinds = {kind for _, bits in rows for kind in bits}
    order = [*_KINDS, *sorted(kinds - {*_KINDS, *_LAST_KINDS}), *_LAST_KINDS]
    stacked = figures.stacked_bits(rows, [kind for kind in order if kind in kinds])
    count = sum(group.gradient_values > 0 for group in groups)
    shown = "" if len(largest) == count else f" The {len(largest)} largest of {count} rows."
    return [
        (
            "Rate and distortion",
            figures.rate_distortion(points, fitted_shapes(groups)),
            f"Measured: {measured}. The broad line is the Pareto front. The bound is Shannon's "
            "for independent values of the fitted distributions: codes that use more "
            "information, such as scales of rows or buckets, can be below it.",
        ),
        (
            "Link speeds for which codecs pay",
            figures.link_speeds([(str(t.codec), t.pays_below / 1e9) for t in timings]),
            "Link speed below which two workers gain that encode their tensors, exchange the "
            "messages and decode both, if nothing overlaps; gcodec bench and gcodec advise show "
            f"the same. Settings on the Pareto front, {timed}.",
        ),
        (
            "Bits per tensor",
            stacked,
            f"Bits of the best codec within {settings.budget} by kind; headers include checksums."
            f"{shown}",
        ),
    ]


def _largest(groups: Sequence[TensorGroup]) -> list[TensorGroup]:
    """Return the largest groups of gradients, in the order of the rows."""
    order = sorted((g for g in groups if g.gradient_values), key=lambda group: -group.values)
    largest = {id(group) for group in order[:_MAX_ROWS]}
    return [group for group in groups if id(group) in largest]


def _table(view: DumpView) -> str:
    table = view.table()
    dtypes = {tensor.entry.dtype for tensor in view.dump.tensors}
    redundant = set() if len(dtypes) > 1 else {"dtype"}
    marked = table.marked()
    if not marked:
        redundant.add("NaN/Inf")
    columns = [(i, c) for i, c in enumerate(table.columns) if c.header not in redundant]
    lines = ["<table>", "<tr>"]
    for _, column in columns:
        header = "<br>".join(map(escaped, column.header.split("\n")))
        lines.append(f"<th{_class_attribute(column, False)}>{header}</th>")
    lines.append("</tr>")
    body = table.body()
    for place, cells in enumerate((*body, *table.footer())):
        kind = "total" if place == len(body) else "marked"
        lines.append(f'<tr class="{kind}">' if kind == "total" or place in marked else "<tr>")
        for i, column in columns:
            lines.append(f"<td{_class_attribute(column, True)}>{escaped(cells[i])}</td>")
        lines.append("</tr>")
    return "\n".join([*lines, "</table>"])


def _class_attribute(column: Column[DumpRow], is_cell: bool) -> str:
    names = ["left"] * column.left + ["bars"] * (is_cell and column.header == "distribution")
    return f' class="{" ".join(names)}"' if names else ""


def _details(group: TensorGroup) -> str:
    """Return the HTML with the diagrams of the first tensor of a group, if it has a picture."""
    first = group.gradients[0]
    entry, picture, fits = first.entry, first.picture, first.fits
    if picture is None:
        return ""
    nearest, name = fits[0], entry.name
    if len(group.members) > 1:
        name = f"{name} of {group.name}"
    facts = (
        f"{text.shape(entry.shape)} {entry.dtype}, rms {picture.rms:.2g}, "
        f"{text.percent(picture.zeros, picture.zeros + picture.values)} % zeros; nearest: "
        f"{nearest.name} with beta {nearest.shape.beta:.2f}, KS {nearest.ks:.3f}"
    )
    outside = f", {picture.outside:,} of them outside" if picture.outside else ""
    density = f"Density of {picture.values:,} values on a logarithmic scale{outside}; lines: fits"
    quantiles = "Quantiles of the values over those of each fit; the straight line: equality"
    return (
        f"<summary>{escaped(name)} <span>{escaped(facts)}</span></summary>\n"
        '<div class="pair">\n'
        f"{_figure('small', figures.histogram(picture, fits), density)}\n"
        f"{_figure('small', figures.quantile_plot(picture, fits), quantiles)}\n"
        "</div>"
    )


def _row_name(group: TensorGroup) -> str:
    count = f" x{len(group.members)}" if len(group.members) > 1 else ""
    return text.shorten(text.escape(group.name), 26) + count


def _with_classes(body: str) -> tuple[str, str]:
    """Replace style attributes by classes; return the body and the styles of the classes."""
    names: dict[str, str] = {}

    def class_attribute(match: re.Match[str]) -> str:
        return f' class="{names.setdefault(match[1], f"c{len(names)}")}"'

    def rewritten(tag: re.Match[str]) -> str:
        return re.sub(r' style="([^"]*)"', class_attribute, tag[0])

    # Only tags are rewritten: texts of diagrams can contain quotation marks.
    body = re.sub(r"<[^>]*>", rewritten, body)
    return body, "".join(f".{name} {{ {style} }}\n" for style, name in names.items())


def _reproduction(
    path: str, views: Sequence[DumpView], files: tuple[str, ...], arrangement: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the facts that reproduce the page."""
    settings = views[0].settings
    size = settings.max_values
    yield "command", text.command([*_command(settings, files), *arrangement, "--report", path])
    yield "seed", str(settings.seed)
    yield "sample", "all values" if size is None else f"{size:,} values of a tensor"
    sources = [source for view in views for source in view.dump.files]
    for source, title in zip(sources, text.titles(sources), strict=True):
        with source.open("rb") as file:
            digest = hashlib.sha256()
            while part := file.read(1 << 20):
                digest.update(part)
        yield f"SHA-256 of {title}", digest.hexdigest()
    yield "gcodec", gcodec.__version__
    yield "frame version", str(primitives.VERSION)
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for name in ("numpy", "numba", "scipy", "matplotlib"):
        yield name, str(version_of((name,)))
    yield "processor", processor()


def _command(settings: Settings, files: tuple[str, ...]) -> list[str]:
    words = ["gcodec", "inspect", *map(text.argument, files)]
    if settings.budget is not None:
        for option, bound in zip(("--max-nmse", "--max-bits"), settings.budget, strict=True):
            words += [] if bound is None else [option, str(bound)]
    for codec in settings.codecs:
        words += ["-c", str(codec)]
    for glob in settings.layers:
        words += ["-L", glob]
    words += ["--full"] if settings.max_values is None else ["--sample", str(settings.max_values)]
    return [*words, "--seed", str(settings.seed)]
