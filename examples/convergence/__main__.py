"""Train all models with all methods, and print the outcomes.

    python -m examples.convergence

Runs with an outcome in the results file are not repeated, so an interrupted series can continue.
Needs torch, scikit-learn and matplotlib.
"""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from bench.page import parts, put
from examples.convergence import report
from examples.convergence.methods import methods
from examples.convergence.runs import Outcome, run
from examples.convergence.tasks import TASKS, Changes, Task
from examples.convergence.tasks import chosen as tasks_of


def read_outcomes(path: Path) -> list[Outcome]:
    """Return the outcomes in a results file."""
    if not path.exists():
        return []
    return [Outcome(*json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def show(tasks: dict[str, Task], outcomes: list[Outcome], console: Console) -> None:
    """Print a table for each task."""
    for key, task in tasks.items():
        head, _, *rows = report.table(key, task, outcomes)
        shown = Table(title=task.title, title_justify="left", box=None)
        for place, name in enumerate(head.strip("| ").split(" | ")):
            shown.add_column(name, justify="left" if place < 3 else "right")
        for row in rows:
            shown.add_row(*(cell.strip("*`") for cell in row.strip("| ").split(" | ")))
        console.print(shown)


@click.command()
@click.option(
    "--task", "names", multiple=True, type=click.Choice(list(TASKS)), help="Default: all."
)
@click.option(
    "--method",
    "chosen",
    multiple=True,
    type=click.Choice(list(methods(0.0))),
    help="Default: all. Dense gradients always run, for comparison.",
)
@click.option("--seeds", default=3, show_default=True, help="Runs of each method.")
@click.option("--steps", type=int, help="Steps per run. Default: the task's own number.")
@click.option("--rates", default=1.0, show_default=True, help="Factor for the learning rates.")
@click.option("--jobs", default=2, show_default=True, help="Concurrent runs, each in a process.")
@click.option("--results", type=click.Path(path_type=Path), default=Path("convergence.jsonl"))
@click.option("--page", type=click.Path(path_type=Path), help="Page for the tables.")
@click.option("--plot", type=click.Path(path_type=Path), help="File for the plot, as SVG.")
@click.option("--cifar", "folder", type=click.Path(exists=True, path_type=Path), help="CIFAR-10.")
def main(
    names: tuple[str, ...],
    chosen: tuple[str, ...],
    seeds: int,
    steps: int | None,
    rates: float,
    jobs: int,
    results: Path,
    page: Path | None,
    plot: Path | None,
    folder: Path | None,
) -> None:
    """Train small models with compressed gradients, and compare them with dense gradients."""
    changes = Changes(folder, steps, rates)
    tasks, console = tasks_of(names, changes), Console()
    if page is not None:
        parts(page)  # refuses a page without marks for tables before training starts
    outcomes = read_outcomes(results)
    done = {outcome[:3] for outcome in outcomes}
    wanted = [
        (key, task, name, seed)
        for seed in range(seeds)
        for key, task in tasks.items()
        for name in methods(task.momentum)
        if not chosen or name in chosen or name.startswith("dense")
    ]
    wanted = [one for one in wanted if (one[0], one[2], one[3]) not in done]
    context = multiprocessing.get_context("spawn")
    with (
        Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console) as bar,
        ProcessPoolExecutor(jobs, context) as pool,
        results.open("a", encoding="utf-8") as file,
    ):
        line = bar.add_task("runs", total=len(wanted))
        # The functions of a task cannot be pickled, so the processes get names.
        waiting = [pool.submit(run, key, name, seed, changes) for key, _, name, seed in wanted]
        for future in as_completed(waiting):
            outcome = future.result()
            outcomes.append(outcome)
            file.write(json.dumps(outcome) + "\n")
            file.flush()
            bar.advance(line)
    show(tasks, outcomes, console)
    if plot is not None:
        report.draw(tasks, outcomes, plot)
    if page is not None:
        put(page, "\n".join(report.lines(tasks, outcomes)))


if __name__ == "__main__":
    main()
