"""One worker of the tests of DiLoCo over gloo: it runs scenarios, and writes results as JSON.

python tests/diloco_ranks.py RANK SIZE DIRECTORY SCENARIO...
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import gcodec.torch
from gcodec.errors import GcodecError

_ARGUMENTS = sys.argv[1:4] if __name__ == "__main__" else ["0", "1", "."]
RANK, SIZE, DIRECTORY = int(_ARGUMENTS[0]), int(_ARGUMENTS[1]), Path(_ARGUMENTS[2])


def join(store: str, rank: int, size: int) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{DIRECTORY / store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )


class Worker:
    """A replica with an inner optimizer, an outer one, and data of its own."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(RANK)
        sizes = (24, 40, 30, 9)
        layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        self.model = torch.nn.Sequential(*layers)
        self.inner = torch.optim.Adam(self.model.parameters(), lr=0.01)
        outer = torch.optim.SGD(self.model.parameters(), lr=0.7, momentum=0.5, nesterov=True)
        settings = {"every": 4, "min_numel": 64, "timeout": 30, **options}
        self.diloco = gcodec.torch.DiLoCo(self.model, outer, "ecsq:bits=2", **settings)

    def local_step(self, step: int) -> None:
        generator = torch.Generator().manual_seed(100 * step + RANK)
        x = torch.randn(16, 24, generator=generator)
        self.inner.zero_grad()
        (self.model(x) - x[:, :9]).square().mean().backward()
        self.inner.step()

    def train(self, first: int, end: int) -> None:
        for step in range(first, end):
            self.local_step(step)
            self.diloco.step()

    def values(self) -> dict[str, torch.Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def outer(self) -> dict[str, torch.Tensor]:
        return self.diloco.state_dict()["outer"]


def digest(values: dict[str, torch.Tensor]) -> str:
    flat = torch.cat([value.reshape(-1) for value in values.values()])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def overlap() -> dict[str, Any]:
    """Exchange two fragments while training goes on, save in between, and resume."""
    join("store", RANK, SIZE)
    worker = Worker(fragments=np.int64(2), overlap=1, mixing=0.25)
    outers, wrong = [], []
    for step in range(10):
        worker.local_step(step)
        local, before = worker.values(), worker.outer()
        worker.diloco.step()
        after, outer = worker.values(), worker.outer()
        for name, values in local.items():
            expected = values
            if not torch.equal(outer[name], before[name]):
                expected = torch.lerp(outer[name], values, 0.25)
            if not torch.equal(after[name], expected):
                wrong.append((step, name))
        outers.append(digest(outer))
        if step == 5:  # the second exchange of the first fragment is under way
            parts = {
                "diloco": worker.diloco.state_dict(),
                "model": worker.model.state_dict(),
                "inner": worker.inner.state_dict(),
            }
            torch.save(parts, DIRECTORY / f"state{RANK}.pt")
    loaded = torch.load(DIRECTORY / f"state{RANK}.pt", weights_only=True)
    again = Worker(fragments=2, overlap=1, mixing=0.25)
    again.diloco.load_state_dict(loaded["diloco"])
    again.model.load_state_dict(loaded["model"])
    again.inner.load_state_dict(loaded["inner"])
    again.train(6, 10)
    same = digest(again.values()) == digest(worker.values())
    late = Worker(fragments=2, overlap=3)  # two exchanges are under way at once
    state = late.diloco.state_dict()
    late.train(0, 6)
    if RANK == 0:  # alone
        late.diloco.load_state_dict(late.diloco.state_dict())
    else:
        late.diloco.load_state_dict(state)
    error = ""
    try:
        late.train(6, 12)
    except GcodecError as caught:
        error = str(caught)
    late.diloco.load_state_dict(state)
    late.train(0, 12)
    recovered = digest(late.outer())
    dist.destroy_process_group()
    return {
        "outers": outers,
        "wrong": wrong,
        "in_flight": len(loaded["diloco"]["in_flight"]),
        "same": same,
        "outer_steps": worker.diloco.outer_step,
        "error": error.partition("exchange: ")[2],
        "recovered": recovered,
    }


def elastic() -> dict[str, Any]:
    """Train with workers 0 to 2; worker 2 dies, and worker 3 takes its place."""
    if RANK < 3:
        join("first", RANK, 3)
        worker = Worker()
        worker.train(0, 5)
        if RANK == 2:
            (DIRECTORY / "rank2.json").write_text(json.dumps({"elastic": {}}))
            os._exit(0)
        start, error = time.monotonic(), ""
        try:
            worker.train(5, 8)
        except GcodecError as caught:
            error = str(caught)
        seconds = time.monotonic() - start
        dist.destroy_process_group()
        join("second", RANK, 3)
        worker.diloco.regroup(gcodec.torch.TorchCommunicator.apart(timeout=30))
        regrouped = worker.diloco.outer_step
    else:
        join("second", 2, 3)
        worker = Worker()
        error, seconds, regrouped = "", 0.0, worker.diloco.outer_step
    first = digest(worker.values())
    worker.train(8, 12)
    results = {
        "error": error,
        "seconds": seconds,
        "regrouped": regrouped,
        "digests": [first, digest(worker.values())],
        "steps": [worker.diloco.inner_step, worker.diloco.outer_step],
    }
    dist.destroy_process_group()
    return results


def main() -> None:
    torch.set_num_threads(1)
    results = {name: globals()[name]() for name in sys.argv[4:]}
    (DIRECTORY / f"rank{RANK}.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)  # threads of a group that lost a member may still wait


if __name__ == "__main__":
    main()
