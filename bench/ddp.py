"""Print how long a DDP step takes with each hook, on links of several speeds.

Two ranks on this machine, each with one computing and one coding thread, communicate by gloo over
a pair of virtual network devices, whose queues limit the bits per second. This needs root on Linux
and the commands ``ip`` and ``tc``; without them, only the loopback is measured, which has no such
limit.

The table is part of docs/ddp.md. The fastest of all steps counts, because other processes
may use the machine as well. Break-even is the link speed at which a step with the hook takes as
long as a step with plain all-reduce. It is stated as measured, between the two links where one
overtakes the other, and as `gcodec.advisor` predicts it from the bits that the hook sent, the
processor seconds that it took, and the part of a plain all-reduce that overlaps computation.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from scipy import optimize

from gcodec import advisor

HOOKS = (
    *("none", "fp16", "PowerSGD"),
    *("topk:ratio=0.01", "qsgd:bucket=512", "mxnet-2bit:threshold=auto", "sign", "ecsq:bits=1"),
)
_TITLES = {"none": "plain all-reduce", "fp16": "torch's fp16", "PowerSGD": "torch's PowerSGD"}
LINKS = {"no queue": None, "1 Gbit/s": 10**9, "100 Mbit/s": 10**8}
# Link speeds in Gbit/s near the break-even of the hooks.
BETWEEN = (12.0, 8.0, 6.0, 4.5, 3.4, 2.5, 1.8, 1.3)
Results = dict[int | None, dict[str, Any]]  # by link speed in bits per second
_ENDLESS = 1e15  # bits per second, for a link without a queue
_DEVICE = "gcwire"
_PREFIX = "gcodec-bench-"
_SPACES = tuple(f"{_PREFIX}{os.getpid()}-{number}" for number in range(2))


@contextlib.contextmanager
def wires() -> Iterator[bool]:
    """Create two network namespaces with one device each; yield whether this succeeded."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        yield False
        return
    _remove_stale()
    try:
        for space in _SPACES:
            _call(f"ip netns add {space}")
        first, second = _SPACES
        _call(f"ip -n {first} link add {_DEVICE} type veth peer name {_DEVICE} netns {second}")
        for number, space in enumerate(_SPACES, 1):
            _call(f"ip -n {space} addr add 10.201.77.{number}/30 dev {_DEVICE}")
            for device in ("lo", _DEVICE):
                _call(f"ip -n {space} link set {device} up")
        yield True
    finally:
        for space in _SPACES:
            _remove(space)


def _remove_stale() -> None:
    """Remove the namespaces of runs that were killed: those whose process is gone."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        space = line.split()[0]
        if space.startswith(_PREFIX):
            process = space.removeprefix(_PREFIX).partition("-")[0]
            if not Path("/proc", process).exists():
                _remove(space)


def _remove(space: str) -> None:
    subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL, check=False)


def measure(speed: int | None, count: int, hooks: Sequence[str], queued: bool) -> dict[str, Any]:
    """Run both ranks on a link of the given speed."""
    if speed is not None:
        for space in _SPACES:
            # The queue holds half a second of data, and the token bucket a millisecond.
            rule = f"tbf rate {speed} burst {max(speed // 8000, 65536)} latency 500ms"
            _call(f"ip netns exec {space} tc qdisc replace dev {_DEVICE} root {rule}")
    device = _DEVICE if queued else "lo"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": device, "GCODEC_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank, space in enumerate(_SPACES):
            inside = ["ip", "netns", "exec", space] if queued else []
            words = [sys.executable, "-m", "bench.ddp_worker", str(rank), folder, device]
            ranks.append(subprocess.Popen([*inside, *words, str(count), *hooks], env=environment))
        if any([rank.wait() for rank in ranks]):
            raise SystemExit("a rank failed")
        results: dict[str, Any] = json.loads(Path(folder, "result.json").read_text("utf-8"))
    return results


def measured_break_even(results: Results, hook: str) -> float:
    """Return the link speed in bits per second at which both steps take equally long."""
    return _crossing(
        {speed: each["none"]["seconds"] - each[hook]["seconds"] for speed, each in results.items()}
    )


def expected_break_even(results: Results, hook: str) -> float:
    """Return the link speed in bits per second at which `gcodec.advisor` predicts equal steps.

    The prediction for each link uses the measurements on that link, because the speed of the
    machine may change meanwhile.
    """
    share, won = hidden(results), {}
    for speed, each in results.items():
        values, compute = each["values"], each["alone"]["seconds"]
        # Processor time covers the messages of both ranks; a wall clock would count other threads.
        coding = each[hook]["processor"] - each["alone"]["processor"]
        overlap = min(max(share / compute, 0.0), 1.0)
        work = advisor.Work(values, compute, encode=values / coding, overlap=overlap)
        scheme = advisor.Scheme(hook, each[hook]["bits"])
        link = advisor.Link((speed or _ENDLESS) / 8)
        cluster = advisor.Cluster(nodes=2, between=link)
        ring, gathered, _ = advisor.ways(cluster, work, "between", [scheme])
        won[speed] = advisor.plan(work, [ring]).hidden - advisor.plan(work, [gathered]).hidden
    return _crossing(won)


def hidden(results: Results) -> float:
    """Return the seconds of a plain all-reduce that do not lengthen a step.

    The result is the median over links on which the transfer takes longer than the computation,
    but not so long that protocol overhead matters.
    """
    saved = []
    for speed, each in results.items():
        compute = each["alone"]["seconds"]
        sending = 8 * each["none"]["bytes"] / speed if speed else 0.0
        if compute < sending < 5 * compute:
            saved.append(compute + sending - each["none"]["seconds"])
    return median(saved)


def _crossing(won: dict[int | None, float]) -> float:
    """Return the interpolated link speed at which a hook neither gains nor loses time.

    The gain of a hook does not decrease as links become slower; measured values that decrease,
    because other work on the machine comes and goes, are averaged.
    """
    speeds = sorted(won, key=lambda speed: -(speed or _ENDLESS))
    slowness = [0.0 if speed is None else 1 / speed for speed in speeds]  # seconds per bit
    rising = optimize.isotonic_regression([won[speed] for speed in speeds]).x.tolist()
    for k, (before, behind) in enumerate(itertools.pairwise(rising)):
        if before >= 0:
            return math.inf
        if behind > 0:
            share = before / (before - behind)
            return 1 / (slowness[k] + share * (slowness[k + 1] - slowness[k]))
    return 0.0


def rows(results: Results) -> Iterator[str]:
    """Return the table."""
    names = [name for name, speed in LINKS.items() if speed in results]
    swept = len(results) > 1
    links = [f"step, {name}" for name in names]
    columns = ["hook", "MB a step", *links, "break-even, measured", "by `gcodec.advisor`"]
    yield f"| {' | '.join(columns)} |"
    yield f"|---{'|---:' * (len(columns) - 1)}|"
    first = results[None]
    for hook in HOOKS:
        if hook not in first:
            continue
        cells = [_TITLES.get(hook, f"`{hook}`")]
        cells += [f"{first[hook]['bytes'] / 1e6:.3g}"]
        cells += [f"{results[LINKS[name]][hook]['seconds'] * 1e3:,.0f} ms" for name in names]
        compared = swept and hook != "none"
        cells += [_speed(measured_break_even(results, hook)) if compared else "–"]
        known = compared and "bits" in first[hook]
        cells += [_speed(expected_break_even(results, hook)) if known else "–"]
        yield f"| {' | '.join(cells)} |"
    alone = median(each["alone"]["seconds"] for each in results.values())
    yield f"\nwithout an exchange: {alone * 1e3:,.0f} ms"
    if swept:
        yield f"of a plain all-reduce beside the computation: {hidden(results) * 1e3:.1f} ms"


def _speed(bits: float) -> str:
    return "any" if bits == math.inf else f"{bits / 1e9:.2g} Gbit/s"


def _call(command: str) -> None:
    subprocess.run(command.split(), check=True)


def main() -> None:
    """Parse arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.ddp", description=__doc__)
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each row")
    parser.add_argument("--hook", action="append", choices=HOOKS, help="default: all")
    options = parser.parse_args()
    hooks = ["none", *(h for h in options.hook or HOOKS if h != "none")]
    with wires() as queued:
        speeds = [None, *(round(1e9 * speed) for speed in BETWEEN), *list(LINKS.values())[1:]]
        results = {
            speed: measure(speed, options.steps, hooks, queued)
            for speed in (speeds if queued else [None])
        }
    print("\n".join(rows(results)))


if __name__ == "__main__":
    main()
