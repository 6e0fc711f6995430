"""Measure the collectives of the DDP hook on links of several rates and delays, and predict them.

Up to 16 ranks on this machine, each in a network namespace of its own or two in one, train a
perceptron with DDP, uncompressed, with two hooks of PyTorch, and with codecs. Links have the given
rates and delays, which the program measures too; see `bench.links`. The program prints the bytes
that the network devices count, the time of a step beside the prediction of `gcodec.advisor`, and
the processor time. It also trains on up to 1,024 simulated workers; see `bench.scale_simulated`.

The tables are part of docs/scale.md. The measurements on links need root on Linux and the command
``ip``. Results stay in a folder, and are not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import multiprocessing.connection
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import links, page
from bench.scale_simulated import SETTINGS, VALUES, Outcome, Setting, expected, share_bits
from bench.scale_simulated import run as simulate_all
from bench.scale_worker import Hook, Measured, Speed, is_two_phase, run
from gcodec import advisor

SPEEDS = (Speed(1e8, 1e-3), Speed(1e8, 20e-3), Speed(1e9, 1e-3), Speed(0, 0))
CODECS = ("sign", "topk:ratio=0.01", "ecsq:bits=1")
FACTORS = "powersgd:rank=4"
PLAIN = {"none": "plain all-reduce", "fp16": "torch's fp16", "PowerSGD": "torch's PowerSGD"}
_NEAR = 0.25  # difference of a prediction from a step, at most
_BUSY = 0.5  # share of a step from which on the processors decide about its time
_HEAD = 9 / 8  # length of a recurring message with its padding, as a multiple of that of the frame
_MAX_FAST = 8  # largest number of ranks on the fast links, see `speeds`
_BITS = {"none": 32, "fp16": 16}
_FORK = multiprocessing.get_context("fork")  # ranks share what this process has imported


class Layout(NamedTuple):
    """Number of nodes, and number of ranks of each node."""

    nodes: int
    inside: int

    def __str__(self) -> str:
        return f"{self.nodes} × {self.inside}" if self.inside > 1 else f"{self.nodes}"


LAYOUTS = (Layout(2, 1), Layout(4, 1), Layout(8, 1), Layout(16, 1), Layout(4, 2), Layout(8, 2))
Result = dict[str, Any]  # what `run` writes
Outcomes = Mapping[Setting, Outcome]


def hooks(layout: Layout) -> list[Hook]:
    """Return the rows of a layout."""
    if layout.inside > 1:
        return [*map(Hook, ("none", "fp16")), *(Hook(codec, "hierarchical") for codec in CODECS)]
    flat = [Hook(codec, collective) for codec in CODECS for collective in ("gather", "two-phase")]
    return [*map(Hook, PLAIN), *flat, Hook(FACTORS, "factors")]


def speeds(layout: Layout) -> Sequence[Speed]:
    """Return the links of a layout: those that a small machine can have at the same time."""
    return SPEEDS if layout.nodes * layout.inside <= _MAX_FAST else SPEEDS[:2]


def measure(
    layout: Layout,
    rows: Sequence[Hook],
    speeds: Sequence[Speed],
    steps: int,
    file: Path,
    *,
    has_links: bool = True,
) -> None:
    """Measure all rows on one layout, and write them to a file.

    Without links, the ranks communicate over the loopback device, whatever the speeds.
    """
    size = layout.nodes * layout.inside
    network = links.connected(layout.nodes) if has_links else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, network as nodes:
        arguments = size, layout.inside, nodes, rows, speeds, steps, Path(folder, "store"), file
        ranks = [_FORK.Process(target=run, args=(rank, *arguments)) for rank in range(size)]
        try:
            for rank in ranks:
                rank.start()
            waiting = {rank.sentinel: rank for rank in ranks}
            while waiting:
                for sentinel in multiprocessing.connection.wait(list(waiting)):
                    if waiting.pop(sentinel).exitcode:
                        raise SystemExit("a rank failed")
        finally:
            for rank in ranks:
                if rank.pid is not None:
                    rank.kill()
                    rank.join()


def predicted(result: Result, hook: Hook, speed: Speed) -> float | None:
    """Return the seconds of a step that `gcodec.advisor` predicts, or None if it cannot.

    The prediction takes the measured latency and rate, the processor time of coding, the time of a
    step without an exchange, and the bits of the messages.
    """
    size, inside, values = result["size"], result["inside"], result["values"]
    [measured] = [Measured(*one[2:]) for one in result["links"] if one[:2] == [*speed]]
    link = advisor.Link(measured.all / 8, measured.latency)
    [alone] = [row["seconds"] for name, *_, row in result["rows"] if name == "alone"]
    row = row_of(result, hook, speed)
    assert row is not None
    flat = advisor.Cluster(size, between=link)
    if hook.name in _BITS:
        return advisor.dense_plan(flat, advisor.Work(values, alone, bits=_BITS[hook.name])).step
    if not hook.collective:
        return None
    # Ranks that code at the same time share the processors.
    sharing = max(1.0, size / result["processors"])
    own = result["coding"][f"{hook.name}, {hook.collective}"]
    coding = {name: sharing * seconds for name, seconds in own.items()}
    nbytes = row["bits"] * values / 8
    if hook.collective == "factors":  # a call that finds refusals, and one for each factor
        sums = 2 * advisor.ring_all_reduce(nbytes / 2, size, link)
        return alone + coding["encode"] + sums + advisor.ring_all_gather(0, size, link)
    work = advisor.Work(values, alone)
    # A message travels with an eighth more than the last one had; a node has those of its ranks.
    scheme = advisor.Scheme(
        hook.name,
        _HEAD * row["bits"] * inside,
        encode=values / coding["encode"],
        decode=values / coding["decode"],
    )
    chosen = []
    if hook.collective == "hierarchical":
        inner = Measured(*result["inside_link"])
        flat = advisor.Cluster(
            size // inside, inside, link, advisor.Link(inner.all / 8, inner.latency)
        )
        chosen = advisor.ways(flat, work, "inside", [])
    index = 2 if is_two_phase(hook, size, inside) else 1
    chosen = [*chosen, advisor.ways(flat, work, "between", [scheme])[index]]
    return advisor.plan(work, chosen).step


def row_of(result: Result, hook: Hook, speed: Speed) -> dict[str, Any] | None:
    """Return the measurements of a row, or None if there are none."""
    for *key, row in result["rows"]:
        if key == [*hook, *speed]:
            return dict(row)
    return None


def tables(results: Sequence[Result], outcomes: Outcomes) -> Iterator[str]:
    """Yield the lines of all tables."""
    if results:
        yield from _links(results)
        yield from _wire(results)
        for speed in _speeds(results):
            yield from _steps(results, speed)
        yield from _processor(results)
    yield from _simulated(outcomes)


def _speeds(results: Sequence[Result]) -> list[Speed]:
    return list(dict.fromkeys(Speed(*link[:2]) for result in results for link in result["links"]))


def _layout(result: Result) -> str:
    return str(Layout(result["size"] // result["inside"], result["inside"]))


def _links(results: Sequence[Result]) -> Iterator[str]:
    yield "### Links\n"
    yield "The table compares the rate and the delay of the links with measurements.\n"
    yield "| nodes | nominal | a message | a step of a ring | two nodes | all nodes at once |"
    yield "|---|---|---:|---:|---:|---:|"
    for result in results:
        for *speed, ping, one, everyone, latency in result["links"]:
            cells = [_layout(result), _name(Speed(*speed)), _ms(ping), _ms(latency)]
            cells += [f"{number / 1e6:,.4g} Mbit/s" for number in (one, everyone)]
            yield f"| {' | '.join(cells)} |"
    yield ""


def _wire(results: Sequence[Result]) -> Iterator[str]:
    yield "### Megabytes on the link of a node\n"
    yield "These are the bytes of a step, as the device of the node counts them.\n"

    def cell(result: Result, hook: Hook) -> str:
        rows = [row_of(result, hook, speed) for speed in _speeds([result])]
        counted = [row["wire"] for row in rows if row]
        return f"{median(counted) / 1e6:.3g}" if counted else "–"

    yield from _grid(results, cell)


def _steps(results: Sequence[Result], speed: Speed) -> Iterator[str]:
    yield f"### A step in ms, {_name(speed)}\n"
    yield "Each cell contains the measured time, the predicted time and the difference.\n"
    is_near: dict[bool, list[bool]] = {False: [], True: []}  # by whether the processors were busy

    def cell(result: Result, hook: Hook) -> str:
        row = row_of(result, hook, speed)
        if row is None:
            return "–"
        text = f"{1e3 * row['seconds']:,.0f}"
        seconds = predicted(result, hook, speed)
        if seconds is None:
            return text
        working = (row["processor"] + row["relay"]) / result["processors"]
        is_busy = working > _BUSY * row["seconds"]
        is_near[is_busy].append(abs(seconds / row["seconds"] - 1) <= _NEAR)
        difference = _difference(seconds, row["seconds"])
        return f"{text}, {1e3 * seconds:,.0f}, {difference}{' †' * is_busy}"

    yield from _grid(results, cell)
    idle, busy = (f"{sum(is_near[key])} of {len(is_near[key])}" for key in (False, True))
    yield (
        f"Within {100 * _NEAR:.0f} %: {idle} steps without †, and {busy} with it. "
        "In steps with †, the processors were busy for more than half of the time.\n"
    )


def _processor(results: Sequence[Result]) -> Iterator[str]:
    yield "### Processor time of a step in ms\n"
    yield "The first number is the time of all ranks together, the second that of the relay.\n"
    speed = _speeds(results)[0]

    def cell(result: Result, hook: Hook) -> str:
        row = row_of(result, hook, speed)
        if row is None:
            return "–"
        return f"{1e3 * row['processor']:,.0f} + {1e3 * row['relay']:,.0f}"

    yield from _grid(results, cell)


def _grid(results: Sequence[Result], cell: Callable[[Result, Hook], str]) -> Iterator[str]:
    """Yield a table of hooks by layouts."""
    rows = dict.fromkeys(Hook(*row[:2]) for result in results for row in result["rows"])
    rows.pop(Hook("alone"), None)
    yield f"| hook | {' | '.join(map(_layout, results))} |"
    yield f"|---{'|---:' * len(results)}|"
    for hook in rows:
        title = PLAIN.get(hook.name, f"`{hook.name}`, {hook.collective}")
        cells = [title, *(cell(result, hook) for result in results)]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _simulated(outcomes: Outcomes) -> Iterator[str]:
    yield "### Simulated workers\n"
    yield "Each node has 8 workers. Kilobytes of a step are counted, predicted, and compared.\n"
    columns = "workers | codec | collective | a worker to its node | a node to others | residual"
    yield f"| {columns} | replicas |"
    yield "|---:|---|---|---:|---:|---|---|"
    for setting, outcome in outcomes.items():
        counted = outcome.inside, outcome.between
        has_shares = setting.collective in ("two-phase", "hierarchical")
        bits = share_bits(setting) if has_shares else outcome.bits
        by_advisor = expected(setting, bits, VALUES)
        cells = [f"{setting.size:,}", f"`{setting.codec}`", setting.collective]
        for actual, number in zip(counted, by_advisor, strict=True):
            difference = _difference(number, actual)
            cells.append(f"{actual / 1e3:,.4g}, {number / 1e3:,.4g}, {difference}")
        cells.append(" → ".join(f"{ratio:.2g}" for ratio in outcome.residuals))
        cells.append("equal" if outcome.equal else "DIFFERENT")
        yield f"| {' | '.join(cells)} |"


def _difference(number: float, actual: float) -> str:
    return f"{round(100 * (number / actual - 1)):+d} %"


def _name(speed: Speed) -> str:
    if not speed.rate:
        return "no limit"
    rate = f"{speed.rate / 1e9:g} Gbit/s" if speed.rate >= 1e9 else f"{speed.rate / 1e6:g} Mbit/s"
    return f"{rate}, {1e3 * speed.delay:g} ms"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def main() -> None:
    """Parse arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--steps", type=int, default=4, help="measured steps of each row")
    parser.add_argument("--folder", type=Path, help="folder for results")
    parser.add_argument("--nodes", type=int, help="measure layouts of this many nodes only")
    parser.add_argument("--workers", type=int, default=1024, help="simulate at most so many")
    parser.add_argument("--page", type=Path, help="page whose tables to replace")
    options = parser.parse_args()
    os.environ |= {"GCODEC_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    folder = options.folder or Path(os.environ.get("TMPDIR", "/tmp"), "gcodec-scale")
    folder.mkdir(exist_ok=True)
    reason, results = links.missing(), []
    if reason:
        print(f"No steps on links are measured, because {reason}.\n")
    for layout in [] if reason else LAYOUTS:
        if options.nodes in (None, layout.nodes):
            file = folder / f"{layout.nodes}-{layout.inside}.json"
            if not file.exists():
                measure(layout, hooks(layout), speeds(layout), options.steps, file)
            results.append(json.loads(file.read_text("utf-8")))
    settings = [setting for setting in SETTINGS if setting.size <= options.workers]
    outcomes = simulate_all(settings, folder / "simulated.json")
    text = "\n".join(tables(results, outcomes))
    print(text)
    if options.page is not None:
        page.put(options.page, text)


if __name__ == "__main__":
    main()
