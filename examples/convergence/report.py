"""Report on the outcomes of all runs: a table for each task, and a plot."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from examples.convergence.methods import methods
from examples.convergence.runs import WORKERS, Outcome
from examples.convergence.tasks import Task

POINT, SHARE = 1.0, 0.02
"""Tolerance around dense gradients: percentage points of accuracy, fraction of a loss."""

Outcomes = dict[str, list[Outcome]]


def by_method(outcomes: Iterable[Outcome], key: str) -> Outcomes:
    """Return the outcomes of a task by method, in the order of the methods."""
    groups: Outcomes = {}
    for outcome in outcomes:
        if outcome.task == key:
            groups.setdefault(outcome.method, []).append(outcome)
    return groups


def worse(task: Task, score: float, dense: float) -> float:
    """Return by how many tolerances a score is worse than that of dense gradients."""
    if task.metric == "accuracy":
        return (dense - score) / POINT
    return (score / dense - 1) / SHARE


def from_dense(task: Task, score: float, dense: float) -> str:
    """Return the difference of a score to that of dense gradients, as text."""
    if task.metric == "accuracy":
        return f"{score - dense:+.1f}"
    return f"{100 * (score / dense - 1):+.1f} %"


def baseline(name: str, outcomes: Outcomes) -> str:
    """Return the dense method with which another method is compared."""
    return "dense Adam" if name == "1-bit Adam" and "dense Adam" in outcomes else "dense"


def mean(outcomes: list[Outcome]) -> float:
    """Return the mean score."""
    return statistics.fmean(outcome.score for outcome in outcomes)


def spread(outcomes: list[Outcome], seeds: int, digits: int) -> str:
    """Return the standard deviation of scores as text, and the seeds if they are not all."""
    size = len(outcomes)
    deviation = f" ± {statistics.pstdev(outcome.score for outcome in outcomes):.{digits}f}"
    if size == seeds:
        return deviation
    return f"{deviation} ({size} seeds)" if size > 1 else " (1 seed)"


def dense_score(name: str, outcomes: Outcomes) -> float:
    """Return the mean score of the dense method over the seeds of another method."""
    seeds = {outcome.seed for outcome in outcomes[name]}
    group = outcomes[baseline(name, outcomes)]
    return mean([outcome for outcome in group if outcome.seed in seeds])


def table(key: str, task: Task, outcomes: Iterable[Outcome]) -> list[str]:
    """Return the lines of a task's table."""
    groups = by_method(outcomes, key)
    unit = "accuracy, %" if task.metric == "accuracy" else "loss, nats per byte"
    lines = [
        f"| method | frames | feedback | {unit} | from dense | bits sent | ratio |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    dense_bits = groups["dense"][0].bits
    for name, method in methods(task.momentum).items():
        if name not in groups:
            continue
        group = groups[name]
        failed = [outcome for outcome in group if math.isnan(outcome.score)]
        bits = statistics.fmean(outcome.bits for outcome in group)
        shown = name.removesuffix(", none")
        if failed:
            cells = [f"{len(failed)} of {len(group)} runs failed", "–", "–", "–"]
        else:
            digits = 1 if task.metric == "accuracy" else 3
            dense = dense_score(name, groups)
            mark = "**" if method.feedback and worse(task, mean(group), dense) > 1 else ""
            cells = [
                f"{mean(group):.{digits}f}{spread(group, len(groups['dense']), digits)}",
                f"{mark}{from_dense(task, mean(group), dense)}{mark}",
                f"{bits:.2f}",
                f"{dense_bits / bits:.1f}",
            ]
        head = f"| {shown} | `{method.spec}` | {method.feedback or '–'} | "
        lines.append(head + " | ".join(cells) + " |")
    return lines


def outside_tolerance(tasks: dict[str, Task], outcomes: list[Outcome]) -> list[tuple[str, str]]:
    """Return tasks and methods with feedback whose scores are outside the tolerance."""
    rows = []
    for key, task in tasks.items():
        of_task = by_method(outcomes, key)
        for name, method in methods(task.momentum).items():
            if name not in of_task or method.feedback != "yes":
                continue
            score, dense = mean(of_task[name]), dense_score(name, of_task)
            if not worse(task, score, dense) <= 1:  # NaN fails as well
                rows.append((key, name))
    return rows


def lines(tasks: dict[str, Task], outcomes: list[Outcome]) -> Iterator[str]:
    """Return the tables of all tasks, each with its training settings."""
    for key, task in tasks.items():
        seeds = {outcome.seed for outcome in outcomes if outcome.task == key}
        values = sum(p.numel() for p in task.model().parameters())
        yield f"### {task.title}\n"
        yield (
            f"{values:,} values; {task.steps} steps of {WORKERS} batches of {task.batch}, at a"
            f" rate of {task.rate:g} with momentum {task.momentum:g}, Adam at {task.adam_rate:g};"
            f" {len(seeds)} seeds.\n"
        )
        yield from table(key, task, outcomes)
        yield ""
    worst = [f"{name} ({tasks[key].title})" for key, name in outside_tolerance(tasks, outcomes)]
    yield f"Methods with feedback that are not near dense: {', '.join(worst) or 'none'}."


def draw(tasks: dict[str, Task], outcomes: list[Outcome], path: Path) -> None:
    """Draw the score of each method: filled with feedback, hollow without."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(tasks), figsize=(4.6 * len(tasks), 4.4), squeeze=False)
    for axis, (key, task) in zip(axes[0], tasks.items(), strict=True):
        groups = by_method(outcomes, key)
        dense = mean(groups["dense"])
        near = POINT if task.metric == "accuracy" else SHARE * dense
        axis.axvspan(dense - near, dense + near, color="#e8e8e8", linewidth=0)
        names = [name for name in methods(task.momentum) if name in groups]
        rows = [name for name in names if not name.endswith(", none")]
        for row, name in enumerate(rows):
            for group, plain in ((groups[name], False), (groups.get(f"{name}, none", []), True)):
                if not group or math.isnan(mean(group)):
                    continue
                axis.errorbar(
                    mean(group),
                    row,
                    xerr=statistics.pstdev(outcome.score for outcome in group),
                    fmt="o",
                    color="#b0413e" if plain else "#2b5c8a",
                    markerfacecolor="white" if plain else "#2b5c8a",
                    markersize=6,
                    zorder=2 if plain else 3,
                )
        bits = [statistics.fmean(outcome.bits for outcome in groups[name]) for name in rows]
        labels = [f"{name}  {b:.1f}" for name, b in zip(rows, bits, strict=True)]
        axis.set_yticks(range(len(rows)), labels)
        axis.invert_yaxis()
        axis.set_xlabel("accuracy, %" if task.metric == "accuracy" else "loss, nats per byte")
        axis.set_title(task.title, fontsize=10)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    legend = "filled: with feedback; hollow: without; gray: near dense; numbers: bits sent"
    figure.suptitle(legend, fontsize=9)
    figure.tight_layout()
    with matplotlib.rc_context({"svg.hashsalt": "gcodec", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
