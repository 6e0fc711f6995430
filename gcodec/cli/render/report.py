"""``gcodec inspect --report``: measure what the diagrams show, and write the page."""

from __future__ import annotations

import hashlib
import math
import platform
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import gcodec
from gcodec.analysis import stats
from gcodec.analysis.candidates import all_settings, pareto
from gcodec.analysis.dissect import Dissection
from gcodec.analysis.trials import Trial, attempt
from gcodec.cli import text
from gcodec.cli.host import processor, version_of
from gcodec.cli.measure import Task
from gcodec.cli.progress import progress
from gcodec.cli.render.dump_report import DumpReport
from gcodec.cli.render.table import Column
from gcodec.cli.report import figures
from gcodec.cli.report.report_page import Layer, Section, Table, page
from gcodec.cli.rows import Row, together
from gcodec.cli.timing import Bench, Tensor
from gcodec.feedback import derive_seed
from gcodec.limits import Limits
from gcodec.runtime.pool import thread_count
from gcodec.tensorfiles.atomic import atomic_write
from gcodec.tensorfiles.dumps import open_dump
from gcodec.tensorfiles.entries import Array, Dump, Entry
from gcodec.wire import primitives

_MOST_TENSORS, _MOST_VALUES = 8, 1 << 15  # of rates and distortions, and of each of them
_MOST_ROWS = 40  # of a diagram, and of layers with diagrams
_MOST_LINKS, _ROUNDS, _TIMED = 12, 5, 1 << 20  # codecs that are timed, how often, on how much
_KINDS = ("header", "seek table", "table", "index", "sign", "level", "value", "norm", "scale")
_LAST = ("pad", "undecoded")
_OWN = Limits(1 << 62, 1 << 62)


def write_report(path: str, reports: list[DumpReport], files: tuple[str, ...]) -> None:
    """Write the page on some dumps.

    Parameters
    ----------
    path : str
    reports : list of DumpReport
        Of which pictures were kept.
    files : tuple of str
        What the command was asked to look at.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    FormatError, OSError
        If a dump cannot be read any more, or the page not be written.
    """
    sections = [_section(report) for report in reports]
    document = page(sections, list(_reproduction(path, reports, files)))
    with atomic_write(path) as file:
        file.write(document.encode())


def _section(report: DumpReport) -> Section:
    task = report.task
    columns, rows, total, marked = report.grid(None)
    with open_dump(report.path, limits=task.limits) as dump:
        points, about_points = _rates(dump, report)
        split = _split(dump, report)
        links, about_links = _links(dump, report, points)
    shapes = _shapes(report)
    drawn = [
        (
            "Rate and distortion",
            figures.rate_distortion(points, shapes),
            f"Measured: {about_points}. The broad line is the Pareto front. The bound is that of "
            "Shannon for independent values of the fitted distributions: codes that know more, "
            "such as scales of rows or buckets, may be below.",
        ),
        (
            "Where it pays off",
            figures.link_speeds(links),
            f"Speed of a link below which it is quicker to encode, send and decode than to send "
            f"float32, if nothing else goes on meanwhile. Settings on the front, {about_links}.",
        ),
        (
            "Bits per tensor",
            figures.stacked_bits(*split),
            f"What the bits of the best codec within {task.budget} are for, checksums with the "
            f"header.{_only(len(report.rows), len(split[0]))}",
        ),
    ]
    kept = [i for i, column in enumerate(columns) if _tells(report, column)]
    cells = [[line[i] for i in kept] for line in (*rows, total or [])]
    table = Table([(columns[i].header, columns[i].left) for i in kept], cells, marked)
    notes = [report.about_samples()] if report.about_samples() else []
    if suggestion := report.suggestion():
        notes.append(f"next: {suggestion}")
    alarms = [report.about_nonfinite()] if report.about_nonfinite() else []
    shown = sorted(_largest(report, _MOST_ROWS), key=lambda row: -row.values)
    layers = [layer for row in shown for layer in _layers(row)]
    return Section(
        report.path.name, " · ".join(report.facts()), table, alarms, notes, drawn, layers
    )


def _tells(report: DumpReport, column: Column) -> bool:
    """Tell whether a column says what the headline does not."""
    dtypes = {tensor.entry.dtype for tensor in report.contents.tensors}
    plain = {"dtype": len(dtypes) < 2, "NaN/Inf": not any(row.nonfinite for row in report.rows)}
    return not plain.get(column.header)


def _only(rows: int, shown: int) -> str:
    return "" if shown == rows else f" The {shown} largest of {rows} rows."


def _largest(report: DumpReport, most: int) -> list[Row]:
    order = sorted((row for row in report.rows if row.gradient_values), key=lambda r: -r.values)
    chosen = {id(row) for row in order[:most]}
    return [row for row in report.rows if id(row) in chosen]


def _rates(dump: Dump, report: DumpReport) -> tuple[list[figures.Point], str]:
    """Try all settings on the largest tensors; return what they make of them, and of how much."""
    tensors = [m for row in report.rows for m in row.gradients if m.size]
    tensors = sorted(tensors, key=lambda m: -m.size)[:_MOST_TENSORS]
    total = sum(row.gradient_values for row in report.rows)
    settings = all_settings()
    found: list[list[tuple[int, Trial]]] = [[] for _ in settings]
    measured = 0
    steps = len(tensors) * len(settings)
    with progress("rates and distortions", steps, quiet=report.task.quiet) as advance:
        for tensor in tensors:
            values, seed = _values(dump, tensor.entry, report.task, _MOST_VALUES)
            measured += values.size
            for place, codec in enumerate(settings):
                trial = attempt(values, codec, seed, tensor.entry.name)
                if not isinstance(trial, str):
                    found[place].append((tensor.size, trial))
                advance(1)
    points = []
    for codec, trials in zip(settings, found, strict=True):
        cost = together(trials)
        if cost is not None and len(trials) == len(tensors) and math.isfinite(cost.error):
            points.append(figures.Point(codec.name, str(codec), cost.bits, cost.error))
    held = sum(tensor.size for tensor in tensors)
    about = (
        f"{text.count(len(points), 'setting')} of all registered codecs on "
        f"{text.count(measured, 'value')} of {text.count(len(tensors), 'tensor')}, which hold "
        f"{text.percent(held, total)} % of all values"
    )
    return points, about


def _split(dump: Dump, report: DumpReport) -> tuple[list[tuple[str, dict[str, float]]], list[str]]:
    """Return what the bits of the best codec of each row are for, and all such kinds."""
    budget = report.task.budget
    rows = []
    for row in _largest(report, _MOST_ROWS):
        pairs = row.best(budget) if budget is not None else []
        if not pairs:
            continue
        entry = row.gradients[0].entry
        values, seed = _values(dump, entry, report.task, report.task.most)
        frame = gcodec.encode(values, pairs[0][1].codec, seed=seed, name=entry.name)
        dissection = Dissection(frame, most=0, limits=_OWN)
        for _ in dissection:
            pass
        bits = {kind: n / values.size for kind, n in dissection.totals.items() if n}
        rows.append((_row_name(row), bits))
    seen = {kind for _, bits in rows for kind in bits}
    order = [*_KINDS, *sorted(seen - {*_KINDS, *_LAST}), *_LAST]
    return rows, [kind for kind in order if kind in seen]


def _links(
    dump: Dump, report: DumpReport, points: list[figures.Point]
) -> tuple[list[tuple[str, float]], str]:
    """Time settings on the front, on the largest tensor."""
    useful = [p for p in points if p.error < 1]
    front = [useful[i] for i in pareto([(p.bits, p.error) for p in useful])]
    step = -(-len(front) // _MOST_LINKS) or 1
    tensors = [m for row in report.rows for m in row.gradients if m.size]
    if not tensors or not front:
        return [], "of nothing"
    tensor = max(tensors, key=lambda m: m.size)
    values, _ = _values(dump, tensor.entry, report.task, _TIMED)
    wide = np.ascontiguousarray(values, np.float32)
    taken, out = [Tensor(tensor.entry.name, wide)], [wide.copy()]
    links = []
    with progress("speeds", len(front[::step]), quiet=report.task.quiet) as advance:
        for point in front[::step]:
            bench = Bench(gcodec.parse(point.spec), taken, out, report.task.seed)
            for _ in range(_ROUNDS):
                bench.round()
            links.append((point.spec, bench.timed().pays_below / 1e9))
            advance(1)
    about = (
        f"timed on {text.count(values.size, 'value')} of {tensor.entry.name} with "
        f"{text.count(thread_count(), 'thread')}, medians of {_ROUNDS}"
    )
    return links, about


def _values(dump: Dump, entry: Entry, task: Task, most: int | None) -> tuple[Array, int]:
    """Return a sample of finite values of a tensor, and the seed that the tensor has."""
    seed = derive_seed(task.seed, name=entry.name)
    values = dump.load(entry)
    values = values if most is None else stats.sample(values, most, seed)
    return np.where(np.isfinite(values), values, np.zeros((), values.dtype)), seed


def _shapes(report: DumpReport) -> list[tuple[float, float]]:
    """Return shapes of fitted distributions, and of what share of all values they are."""
    total = sum(row.gradient_values for row in report.rows)
    found = []
    for row in report.rows:
        for member in row.gradients:
            if member.sampled is None or member.summary is None or not member.size:
                continue
            fit = next((f for f in member.sampled.shapes if f.name == "gennorm"), None)
            if fit is not None:
                found.append(((member.size - member.summary.zeros) / total, fit.shape.beta))
    return found


def _layers(row: Row) -> Iterator[Layer]:
    for member in row.gradients[:1]:
        sampled = member.sampled
        if sampled is None or sampled.picture is None:
            return
        picture, fits = sampled.picture, sampled.shapes
        nearest = fits[0]
        facts = (
            f"{text.shape(member.entry.shape)} {member.entry.dtype}, rms {picture.rms:.2g}, "
            f"{text.percent(picture.zeros, picture.zeros + picture.values)} % zeros; nearest: "
            f"{nearest.name} with beta {nearest.shape.beta:.2f}, KS {nearest.ks:.3f}"
        )
        beyond = f", {picture.beyond:,} of them farther out" if picture.beyond else ""
        yield Layer(
            member.entry.name if len(row.members) == 1 else f"{member.entry.name} of {row.name}",
            facts,
            [
                (
                    figures.histogram(picture, fits),
                    f"Density of {picture.values:,} values on a logarithmic scale{beyond}; lines: "
                    "what was fitted",
                ),
                (
                    figures.quantile_plot(picture, fits),
                    "Quantiles of the values over those of each fit; the straight line: equal",
                ),
            ],
        )


def _row_name(row: Row) -> str:
    count = f" x{len(row.members)}" if len(row.members) > 1 else ""
    name = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in row.name)
    return text.shorten(name, 26) + count


def _reproduction(
    path: str, reports: list[DumpReport], files: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    task = reports[0].task if reports else None
    if task is not None:
        yield "command", shlex.join(_command(path, task, files))
        yield "seed", str(task.seed)
        yield "sample", "all values" if task.most is None else f"{task.most:,} values of a tensor"
    for report in reports:
        yield f"SHA-256 of {report.path.name}", _digest(report.path)
    yield "gcodec", gcodec.__version__
    yield "frame version", str(primitives.VERSION)
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    for name in ("numpy", "numba", "scipy", "matplotlib"):
        yield name, str(version_of((name,)))
    yield "processor", processor()


def _command(path: str, task: Task, files: tuple[str, ...]) -> list[str]:
    words = ["gcodec", "inspect", *files]
    if task.budget is not None:
        for option, bound in zip(("--max-err", "--max-bits"), task.budget, strict=True):
            words += [] if bound is None else [option, f"{bound:g}"]
    for codec in task.codecs:
        words += ["-c", str(codec)]
    for glob in task.layers:
        words += ["-L", glob]
    words += ["--full"] if task.most is None else ["--sample", str(task.most)]
    return [*words, "--seed", str(task.seed), "--report", path]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
