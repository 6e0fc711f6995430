"""One rank of `bench.ddp`: trains a network with each hook, writes seconds and bytes as JSON."""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.torch

WARM = 4  # steps: buckets are rebuilt, hooks begin with two plain ones
WIDTH, BATCH = 1024, 128


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for a, b in ((784, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH)):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10))


def trained(hook: str) -> DistributedDataParallel:
    """Return the network under DDP with a hook."""
    # The callbacks of torch's PowerSGD start collectives: with gloo that goes well in one bucket.
    model = DistributedDataParallel(network(), bucket_cap_mb=1000 if hook == "PowerSGD" else 4)
    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook != "none":
        model.register_comm_hook(*gcodec.torch.ddp_hook(hook, model=model))
    return model


class Timed:
    """A network whose steps are timed."""

    def __init__(self, model: Any, seed: int, *, alone: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(BATCH, 784, generator=generator)
        self.y = torch.randint(10, (BATCH,), generator=generator)
        self.model, self.alone = model, alone
        self.seconds: list[float] = []
        self.nbytes: list[int] = []

    def step(self, sent: Path) -> None:
        before = int(sent.read_text())
        dist.barrier()
        start = time.perf_counter()
        self.model.zero_grad()
        with self.model.no_sync() if self.alone else nullcontext():
            torch.nn.functional.cross_entropy(self.model(self.x), self.y).backward()
        self.seconds.append(time.perf_counter() - start)
        dist.barrier()
        self.nbytes.append(int(sent.read_text()) - before)

    def found(self) -> dict[str, float]:
        """Return the time of the fastest step, of the slower rank, and the bytes of one."""
        slower = torch.tensor(self.seconds[WARM:])
        dist.all_reduce(slower, dist.ReduceOp.MAX)
        return {"seconds": slower.min().item(), "bytes": int(np.median(self.nbytes[WARM:]))}


def coding(spec: str, model: Any) -> dict[str, float]:
    """Return the bits per value of a step's frames, and values encoded and decoded a second.

    The gradients of the model must be those of a rank alone: means of decoded ones are no longer
    like what is encoded in training.
    """
    gradients = {n: p.grad.numpy().copy() for n, p in model.named_parameters() if p.ndim > 1}
    feedback = gcodec.Feedback(spec)
    values = sum(gradient.size for gradient in gradients.values())
    best = [np.inf, np.inf]
    for _ in range(4):
        start = time.perf_counter()
        frames = {name: feedback.compress(name, g) for name, g in gradients.items()}
        middle = time.perf_counter()
        for name, frame in frames.items():
            gcodec.decode_add(frame, gradients[name], 0.0)
        best = np.minimum(best, [middle - start, time.perf_counter() - middle])
    nbytes = sum(map(len, frames.values()))
    return {"bits": 8 * nbytes / values, "encode": values / best[0], "decode": values / best[1]}


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
    every = {hook: Timed(trained(hook), rank) for hook in sys.argv[5:]}
    every["alone"] = Timed(every["none"].model, rank, alone=True)
    for _ in range(WARM + count):  # in turns, so that a host whose speed drifts does so for all
        for timed in every.values():
            timed.step(sent)
    results: dict[str, Any] = {hook: timed.found() for hook, timed in every.items()}
    if device == "lo":  # which counts what both ranks send
        for found in results.values():
            found["bytes"] //= 2
    for hook in every:
        if hook not in ("none", "alone", "fp16", "PowerSGD"):
            results[hook] |= coding(hook, every["alone"].model)
    results["values"] = sum(p.numel() for p in every["none"].model.parameters())
    dist.barrier()
    if rank == 0:
        (folder / "result.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
