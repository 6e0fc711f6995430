"""Print how many bytes each collective of the DDP hook sends, on 2, 4 and 8 ranks of this machine.

The table is part of docs/ddp.md. The ranks communicate by gloo over the loopback device. As root
on Linux, they have one of their own, so that its counters contain nothing else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gcodec.torch
from bench import links
from bench.ddp_worker import network
from examples.ranks import start

CODECS = ("sign", "topk:ratio=0.01", "ecsq:bits=1")
COLLECTIVES = ("gather", "two-phase", "hierarchical")
_OWN = "GCODEC_BENCH_OWN_LOOPBACK"
_WARM = 4  # steps until DDP has rebuilt its buckets and lengths are known
_BATCH = 32


def measure(codec: str | None, collective: str, steps: int) -> tuple[float, float]:
    """Return the bytes of a step and rank on the wire, and those of messages between nodes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(_BATCH, 784, generator=generator)
    y = torch.randint(10, (_BATCH,), generator=generator)
    model = DistributedDataParallel(network())
    state: Any = None
    if codec is not None:
        state, hook = gcodec.torch.ddp_hook(codec, model=model, collective=collective, inside=2)
        model.register_comm_hook(state, hook)
    wire, messages = [], []
    for step in range(_WARM + steps):
        dist.barrier()
        before, known = sent_nbytes(), state.received_nbytes if state else 0
        dist.barrier()
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        dist.barrier()
        if step >= _WARM:
            wire.append((sent_nbytes() - before) / size)
            messages.append(state.received_nbytes - known if state else 0)
        dist.barrier()
    return median(wire), median(messages)


def sent_nbytes() -> int:
    """Return the bytes that the loopback device of this network namespace has sent."""
    return links.sent_nbytes("lo")


def run(steps: int, folder: str) -> None:
    """Measure all rows on one number of ranks, and write them to a file."""
    rows = [("plain all-reduce", *measure(None, "", steps))]
    for codec in CODECS:
        collectives = COLLECTIVES if dist.get_world_size() > 2 else COLLECTIVES[:-1]
        rows += [(f"`{codec}`, {each}", *measure(codec, each, steps)) for each in collectives]
    if dist.get_rank() == 0:
        lines = [f"{title}|{wire}|{message}" for title, wire, message in rows]
        Path(folder, str(dist.get_world_size())).write_text("\n".join(lines))


def table(sizes: Sequence[int], folder: Path) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"| hook | {' | '.join(f'{size} ranks' for size in sizes)} |"
    yield f"|---{'|---:' * len(sizes)}|"
    cells: dict[str, list[str]] = {}
    # The last number of ranks has all rows.
    for index, size in reversed([*enumerate(sizes)]):
        for line in (folder / str(size)).read_text().splitlines():
            title, wire, message = line.split("|")
            row = cells.setdefault(title, ["–"] * len(sizes))
            row[index] = f"{float(wire) / 1e6:.3g}"
            if title.endswith("hierarchical"):
                row[index] += f", {float(message) / 1e6:.3g} between nodes"
    for title, row in cells.items():
        yield f"| {title} | {' | '.join(row)} |"


def main() -> None:
    """Parse arguments, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.collectives", description=__doc__)
    parser.add_argument("--steps", type=int, default=3, help="measured steps of each row")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--folder", type=Path, help="folder for results of each number of ranks")
    options = parser.parse_args()
    if not os.geteuid() and shutil.which("unshare") and _OWN not in os.environ:
        words = [sys.executable, "-m", "bench.collectives", *sys.argv[1:]]
        command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *words]
        raise SystemExit(subprocess.run(command, env={**os.environ, _OWN: "1"}).returncode)
    os.environ["GLOO_SOCKET_IFNAME"], os.environ["GCODEC_NUM_THREADS"] = "lo", "1"
    folder = options.folder or Path(os.environ.get("TMPDIR", "/tmp"), "gcodec-collectives")
    folder.mkdir(exist_ok=True)
    for size in options.ranks:
        start(run, size, options.steps, str(folder))
    print("\n".join(table(options.ranks, folder)))


if __name__ == "__main__":
    main()
