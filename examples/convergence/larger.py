"""Train a larger GPT with AdamW: validation loss against the bytes that a worker sends.

    python -m examples.convergence.larger

Two workers exchange gradients after each step, or, as in DiLoCo, the sums of several steps. Curves
in the results file are not repeated, so an interrupted series can continue. Needs torch and
matplotlib.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from bench.page import parts, put
from examples.convergence.methods import SMALL, Method, dense, framed, power_sgd
from examples.convergence.runs import gradients_of, train_means, trained, values_of
from examples.convergence.tasks import Task, large_gpt, share_of_rate
from gcodec.training import Communicator, Simulator

WORKERS = 2
INNER = 8
"""Steps that a worker takes alone before the workers exchange what they have learned."""
SCORED = 24
"""Steps from one validation to the next, a multiple of INNER."""
TOPIC = "larger"
"""Name of the tables on their page."""

Train = Callable[[Task, Method, nn.Module, Communicator, int], Iterator[int]]


class Curve(NamedTuple):
    """The outcome of a run.

    Attributes
    ----------
    exchange, method : str
        When the workers exchange messages, and by which method.
    seed : int
        Seed of the run.
    points : list of list
        Number of steps, bytes that a worker has sent and loss on held-out data.
    seconds : float
        Duration of the run.
    """

    exchange: str
    method: str
    seed: int
    points: list[list[float]]
    seconds: float

    @property
    def sent(self) -> float:
        """Bytes that a worker sends in the whole run."""
        return self.points[-1][1]

    @property
    def score(self) -> float:
        """Loss after the last step."""
        return self.points[-1][2]


def _with_feedback(spec: str) -> Method:
    return Method(framed(spec, 1.0), spec, "yes", adam=True)


def _power_sgd(rank: int) -> Method:
    return Method(lambda c: power_sgd(c, rank), f"rank {rank}", "yes", adam=True)


METHODS = {
    "dense": Method(dense, "all-reduce", adam=True),
    "ecsq 0.1": _with_feedback("ecsq:nmse=0.1"),
    "lowrank 0.1": _with_feedback("lowrank:nmse=0.1"),
    "lowrank 0.3": _with_feedback("lowrank:nmse=0.3"),
    "PowerSGD, rank 1": _power_sgd(1),
    "PowerSGD, rank 2": _power_sgd(2),
    "top-1 %": _with_feedback("topk:ratio=0.01"),
}


def train_rounds(
    task: Task, method: Method, model: nn.Module, communicator: Communicator, seed: int
) -> Iterator[int]:
    """Train as DiLoCo does; yield the number of steps after each round.

    In a round, each worker takes `INNER` steps of AdamW alone. An outer optimizer, descent with
    Nesterov momentum, then takes a step along the mean of how far the workers went.
    """
    assert method.start is not None
    average = method.start(communicator)
    own = dict(model.named_parameters())
    inner = torch.optim.AdamW(own.values(), weight_decay=task.weight_decay)
    momentum = {"momentum": task.momentum, "nesterov": True} if task.momentum else {}
    outer = torch.optim.SGD(own.values(), lr=task.rate, **momentum)
    batches = task.batches(seed, communicator.rank, communicator.size)
    for first in range(0, task.steps, INNER):
        start = {name: p.detach().clone() for name, p in own.items()}
        for step in range(first, first + INNER):
            for name, x in gradients_of(model, task, next(batches)).items():
                own[name].grad = torch.from_numpy(x)
            for group in inner.param_groups:
                group["lr"] = task.adam_rate * share_of_rate(task, step)
            inner.step()
        ways = {name: (start[name] - p.detach()).numpy() for name, p in own.items()}
        for name, mean in average(first // INNER, ways).items():
            own[name].data.copy_(start[name])
            own[name].grad = torch.from_numpy(np.ascontiguousarray(mean))
        outer.step()
        yield first + INNER


EXCHANGES: dict[str, tuple[Train, tuple[str, ...]]] = {
    "gradients": (train_means, tuple(METHODS)),
    "rounds": (train_rounds, ("dense", "ecsq 0.1", "lowrank 0.1", "lowrank 0.3")),
}
TITLES = {
    "gradients": "Gradients in every step",
    "rounds": f"Pseudo-gradients of {INNER} steps, as in DiLoCo",
}


def run(task: Task, exchange: str, name: str, seed: int, weights: Path | None = None) -> Curve:
    """Train with one method, and validate every `SCORED` steps.

    `weights` is a folder for the weights at each validation, in a folder of the run.
    """
    torch.set_num_threads(1)
    train, simulator, start = EXCHANGES[exchange][0], Simulator(WORKERS), time.monotonic()
    points: list[list[float]] = []

    def steps(model: nn.Module, communicator: Communicator) -> Iterator[int]:
        for step in train(task, METHODS[name], model, communicator, seed):
            if communicator.rank == 0 and (step % SCORED == 0 or step == task.steps):
                sent = sum(by_rank[0] for by_rank in simulator.sent.values())
                points.append([step, sent, task.score(model)])
                if weights is not None:
                    folder = weights / f"{exchange}-{name}-{seed}"
                    folder.mkdir(parents=True, exist_ok=True)
                    tensors = {key: p.detach() for key, p in model.named_parameters()}
                    save_file(tensors, folder / f"step{step:04}.safetensors")
                model.train()
            yield step

    trained(task, simulator, seed, steps)
    return Curve(exchange, name, seed, points, time.monotonic() - start)


def read_curves(path: Path) -> list[Curve]:
    """Return the curves in a results file."""
    if not path.exists():
        return []
    return [Curve(*json.loads(line)) for line in path.read_text("utf-8").splitlines()]


# --- report -------------------------------------------------------------------------------------


def by_method(curves: list[Curve], exchange: str) -> dict[str, list[Curve]]:
    """Return the curves of an exchange by method, in the order of the methods."""
    groups = {
        name: [curve for curve in curves if curve[:2] == (exchange, name)] for name in METHODS
    }
    return {name: group for name, group in groups.items() if group}


def lines(task: Task, curves: list[Curve]) -> Iterator[str]:
    """Return a table of each exchange, with the training settings."""
    model = task.model()
    values = values_of(model)
    small = sum(p.numel() for p in model.parameters() if p.numel() < SMALL)
    seeds = sorted(
        {len(group) for name in EXCHANGES for group in by_method(curves, name).values()}
    )
    yield (
        f"{values:,} values, {100 * small / values:.2f} % of them in tensors below {SMALL} values;"
        f" {task.steps} steps of {WORKERS} batches of {task.batch}; AdamW at {task.adam_rate:g}"
        f" with weight decay {task.weight_decay:g}; seeds: {' to '.join(map(str, seeds))}."
    )
    for exchange, title in TITLES.items():
        groups = by_method(curves, exchange)
        if "dense" not in groups:
            continue
        exchanges = task.steps // (1 if exchange == "gradients" else INNER)
        loss, sent = (
            {
                name: statistics.fmean(getattr(curve, of) for curve in group)
                for name, group in groups.items()
            }
            for of in ("score", "sent")
        )
        yield f"\n### {title}\n"
        if exchange == "rounds":
            yield f"Outer rate {task.rate:g}, outer Nesterov momentum {task.momentum:g}.\n"
        yield "| method | frames | loss, nats per byte | from dense | MB sent | bits | ratio |"
        yield "|---|---|---:|---:|---:|---:|---:|"
        for name in groups:
            bits = 8 * sent[name] / (values * exchanges)
            yield (
                f"| {name} | `{METHODS[name].spec}` | {loss[name]:.3f}"
                f" | {100 * (loss[name] / loss['dense'] - 1):+.1f} % | {sent[name] / 1e6:.2f}"
                f" | {bits:.3f} | {sent['dense'] / sent[name]:.0f} |"
            )


COLORS = {
    "dense": "#222222",
    "ecsq 0.1": "#2b5c8a",
    "lowrank 0.1": "#b0413e",
    "lowrank 0.3": "#e08e45",
    "PowerSGD, rank 1": "#5b8c5a",
    "PowerSGD, rank 2": "#9bbf85",
    "top-1 %": "#7d5ba6",
}


def draw(curves: list[Curve], path: Path) -> None:
    """Draw the loss against the bytes sent so far, a panel for each exchange."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(TITLES), figsize=(9.2, 4.2), sharey=True)
    for axis, (exchange, title) in zip(axes, TITLES.items(), strict=True):
        for name, group in by_method(curves, exchange).items():
            for curve in group:
                axis.plot(
                    [sent / 1e6 for _, sent, _ in curve.points],
                    [loss for _, _, loss in curve.points],
                    marker="o",
                    markersize=3.5,
                    linewidth=1.4,
                    color=COLORS[name],
                    label=name if curve is group[0] else None,
                )
        axis.set_xscale("log")
        axis.set_xlabel("megabytes that a worker has sent")
        axis.set_title(title, fontsize=10)
        axis.legend(fontsize=8, frameon=False)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0].set_ylabel("validation loss, nats per byte")
    figure.tight_layout()
    with matplotlib.rc_context({"svg.hashsalt": "gcodec", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


@click.command()
@click.option("--exchange", "exchanges", multiple=True, type=click.Choice(list(EXCHANGES)))
@click.option("--method", "chosen", multiple=True, type=click.Choice(list(METHODS)))
@click.option("--seeds", default=1, show_default=True, help="Runs of each method.")
@click.option("--steps", default=large_gpt().steps, show_default=True, help="Steps per run.")
@click.option("--results", type=click.Path(path_type=Path), default=Path("larger.jsonl"))
@click.option("--page", type=click.Path(path_type=Path), help="Page for the tables.")
@click.option("--plot", type=click.Path(path_type=Path), help="File for the plot, as SVG.")
@click.option("--weights", type=click.Path(path_type=Path), help="Folder for the weights.")
def main(
    exchanges: tuple[str, ...],
    chosen: tuple[str, ...],
    seeds: int,
    steps: int,
    results: Path,
    page: Path | None,
    plot: Path | None,
    weights: Path | None,
) -> None:
    """Train a larger GPT with compressed messages, and plot its loss against the bytes sent."""
    if steps % INNER:
        raise click.BadParameter(f"not a multiple of {INNER}", param_hint="--steps")
    if page is not None:
        parts(page, TOPIC)  # refuses a page without marks for tables before training starts
    task = large_gpt()._replace(steps=steps)
    curves = read_curves(results)
    done = {curve[:3] for curve in curves}
    with results.open("a", encoding="utf-8") as file:
        for seed in range(seeds):
            for exchange in exchanges or EXCHANGES:
                for name in EXCHANGES[exchange][1]:
                    if (chosen and name not in chosen) or (exchange, name, seed) in done:
                        continue
                    curves.append(run(task, exchange, name, seed, weights))
                    file.write(json.dumps(curves[-1]) + "\n")
                    file.flush()
                    click.echo(f"{exchange}, {name}, seed {seed}: loss {curves[-1].score:.3f}")
    if plot is not None:
        draw(curves, plot)
    if page is not None:
        put(page, "\n".join(lines(task, curves)), TOPIC)


if __name__ == "__main__":
    main()
