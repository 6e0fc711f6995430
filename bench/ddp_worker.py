"""One rank of `bench.ddp`: train a network with each hook, write seconds and bytes as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

import gcodec.torch

WARM = 4  # steps in which DDP rebuilds buckets and hooks start with two plain ones
WIDTH, BATCH = 1024, 128


class Step(NamedTuple):
    """Start, seconds and processor seconds of a step, and bytes on the wire and of messages.

    The start is a time of the monotonic clock, which all ranks on this machine share.
    """

    start: float
    seconds: float
    processor: float
    nbytes: int
    message: int


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for a, b in ((784, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH)):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10))


class Timed:
    """A network under DDP whose steps are timed.

    Parameters
    ----------
    hook : str
        A codec, "none", "fp16", "PowerSGD", or "alone", which copies to and from buckets without
        sending.
    seed : int
        Seed of this rank's examples.
    batch : int
        Number of examples of a step.
    bucket : float
        Megabytes of a bucket.
    collective : str
        Collective of a codec; see `gcodec.torch.ddp_hook`.
    inside : int, optional
        Number of ranks of a node, for a codec.
    """

    def __init__(
        self,
        hook: str,
        seed: int,
        *,
        batch: int = BATCH,
        bucket: float = 4,
        collective: str = "gather",
        inside: int | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(batch, 784, generator=generator)
        self.y = torch.randint(10, (batch,), generator=generator)
        # The callbacks of torch's PowerSGD start collectives, so gloo needs a single bucket.
        bucket = 1000 if hook == "PowerSGD" else bucket
        self.model = DistributedDataParallel(network(), bucket_cap_mb=bucket)
        self.state: gcodec.torch.DdpState | None = None
        self.steps: list[Step] = []
        if hook == "alone":
            self.model.register_comm_hook(None, debugging_hooks.noop_hook)
        elif hook == "fp16":
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif hook == "PowerSGD":
            state = powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=2)
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif hook != "none":
            self.state, call = gcodec.torch.ddp_hook(
                hook,
                model=self.model,
                collective=collective,  # type: ignore[arg-type]
                inside=inside,
            )
            self.model.register_comm_hook(self.state, call)

    def step(self, sent: Callable[[], int]) -> None:
        """Time a step, and count the bytes that have been sent meanwhile."""
        before, known = sent(), self._sent()
        dist.barrier()
        start, busy = time.monotonic(), time.process_time()
        self.model.zero_grad()
        torch.nn.functional.cross_entropy(self.model(self.x), self.y).backward()
        seconds, processor = time.monotonic() - start, time.process_time() - busy
        dist.barrier()
        nbytes = sent() - before
        self.steps.append(Step(start, seconds, processor, nbytes, self._sent() - known))

    def results(self) -> dict[str, float]:
        """Return the fastest step, timed by the slower rank: seconds, bytes, bits per value."""
        steps = self.steps[WARM:]
        slower = torch.tensor([(step.seconds, step.processor) for step in steps])
        dist.all_reduce(slower, dist.ReduceOp.MAX)
        seconds, processor = slower[int(slower[:, 0].argmin())].tolist()
        result: dict[str, float] = {"seconds": seconds, "processor": processor}
        result["bytes"] = int(median(step.nbytes for step in steps))
        if self.state is not None:
            values = sum(p.numel() for p in self.model.parameters())
            result["bits"] = 8 * median(step.message for step in steps) / values
        return result

    def _sent(self) -> int:
        return 0 if self.state is None else self.state.sent_nbytes


def main() -> None:
    rank, folder, device, count = (
        int(sys.argv[1]),
        Path(sys.argv[2]),
        sys.argv[3],
        int(sys.argv[4]),
    )
    torch.set_num_threads(1)
    init = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=2)
    sent = Path("/sys/class/net", device, "statistics/tx_bytes")
    hooks = {hook: Timed(hook, rank) for hook in [*sys.argv[5:], "alone"]}
    # Hooks take turns, so that a change in the speed of the host affects all of them.
    for _ in range(WARM + count):
        for timed in hooks.values():
            timed.step(lambda: int(sent.read_text()))
    results: dict[str, Any] = {hook: timed.results() for hook, timed in hooks.items()}
    if device == "lo":  # the loopback counts the bytes of both ranks
        for result in results.values():
            result["bytes"] //= 2
    results["values"] = sum(p.numel() for p in network().parameters())
    dist.barrier()
    if rank == 0:
        (folder / "result.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
