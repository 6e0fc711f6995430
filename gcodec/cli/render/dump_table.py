"""The table of a dump: its columns, and the cells of a row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gcodec.cli import text
from gcodec.cli.measure import Task
from gcodec.cli.render.table import Column
from gcodec.cli.rows import Cost, Row, together

if TYPE_CHECKING:
    from gcodec.codec import Codec


def columns(task: Task, *, has_nonfinite: bool) -> list[Column]:
    """Return the columns of what a task measures."""
    found = [
        Column("tensor", left=True),
        Column("shape", left=True, rank=102),
        Column("dtype", left=True, rank=103),
        Column("values", rank=41),
        Column("rms"),
        Column("max |x|", rank=101),
        Column("zero %", rank=42),
        Column("NaN/Inf", rank=0 if has_nonfinite else 104),
        Column("distribution", left=True, rank=40),
        Column("best fit beta    W2", left=True, rank=39),
        Column(f"entropy\nat {task.error:g}", rank=38),
    ]
    for place, codec in enumerate(task.codecs):
        # The first stays whatever happens, the second longer than most, the others not.
        rank = (0, 10)[place] if place < 2 else 48 + min(place, 50)
        found.append(Column(_codec_header(codec), rank=rank))
    if task.budget is not None:
        found += [
            Column(f"best codec\n{text.plain(str(task.budget))}", left=True),
            Column("bits/v"),
            Column("nmse", rank=20),
            Column("ratio", rank=43),
        ]
    return found


def cells(row: Row, task: Task) -> list[str]:
    """Return the cells of a row."""
    entry = row.members[0].entry
    count = len(row.members)
    name = row.name if count == 1 else f"{row.name} {text.times()}{count}"
    start = [name, text.shape(entry.shape), entry.dtype, f"{row.values:,}"]
    missing = len(columns(task, has_nonfinite=False)) - len(start)
    if not row.gradients:
        return [*start, *["-"] * 4, f"not a gradient: {entry.dtype}", *["-"] * (missing - 5)]
    shape = row.shape
    return [
        *start,
        text.small(row.rms),
        text.small(row.max_abs),
        text.percent(row.zeros, row.gradient_values),
        str(row.nonfinite),
        text.sparkline(row.histogram),
        "-" if shape is None else f"{shape.name:7} {shape.beta:4.2f}  {shape.w2:5.3f}",
        _entropy(row),
        *(_cell(together(row.trials(place))) for place in range(len(task.codecs))),
        *_best(row, task, together(row.best(task.budget)) if task.budget else None),
    ]


def total_cells(rows: list[Row], task: Task) -> list[str]:
    """Return the cells of the total of rows."""
    everything = Row([member for row in rows for member in row.members])
    best = None
    if task.budget is not None:
        best = together(pair for row in rows for pair in row.best(task.budget))
    return [
        "total",
        "",
        "",
        f"{everything.values:,}",
        text.small(everything.rms),
        text.small(everything.max_abs),
        text.percent(everything.zeros, everything.gradient_values),
        str(everything.nonfinite),
        "",
        "",
        _entropy(everything),
        *(_cell(together(everything.trials(place))) for place in range(len(task.codecs))),
        *_best(everything, task, best),
    ]


def _entropy(row: Row) -> str:
    return "-" if math.isnan(row.entropy) else f"{row.entropy:.2f}"


def _best(row: Row, task: Task, cost: Cost | None) -> list[str]:
    if task.budget is None:
        return []
    if cost is None:
        return ["-"] * 4
    ratio = text.ratio(row.raw_bits, cost.bits)
    return [
        cost.codec,
        f"{cost.bits:.2f}",
        text.small(cost.error),
        "-" if ratio is None else f"{ratio:.1f}x",
    ]


def _cell(cost: Cost | None) -> str:
    return "-" if cost is None else f"{cost.bits:.2f} {text.small(cost.error):>7}"


def _codec_header(codec: Codec) -> str:
    name, _, parameters = str(codec).partition(":")
    lines = [name]
    for part in filter(None, parameters.split(",")):
        if len(lines) > 1 and len(lines[-1]) + len(part) < 18:
            lines[-1] += f",{part}"
        else:
            lines.append(part)
    return "\n".join([*lines, "bits/v    nmse"])
