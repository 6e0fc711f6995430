"""One rank of `bench.ddp`: trains a network with each hook, writes seconds and bytes as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
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


def step_of(model: Any, seed: int) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, 784, generator=generator)
    y = torch.randint(10, (BATCH,), generator=generator)

    def step() -> None:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()

    return step


def times(step: Callable[[], None], count: int) -> list[float]:
    """Return the seconds of each step, of the slower rank."""
    found = []
    for _ in range(count):
        dist.barrier()
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    slower = torch.tensor(found)
    dist.all_reduce(slower, dist.ReduceOp.MAX)
    return slower.tolist()


def coding(spec: str, model: Any) -> dict[str, float]:
    """Return the bits per value of a step's frames, and values encoded and decoded a second."""
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
    results: dict[str, Any] = {}
    for hook in sys.argv[5:]:
        model = trained(hook)
        step = step_of(model, rank)
        times(step, WARM)
        before = int(sent.read_text())
        seconds = times(step, count)
        nbytes = (int(sent.read_text()) - before) / count
        results[hook] = {"seconds": seconds, "bytes": nbytes / (2 if device == "lo" else 1)}
        if hook == "none":
            with model.no_sync():
                results["compute"] = times(step, count)
            results["values"] = sum(p.numel() for p in model.parameters())
        elif hook not in ("fp16", "PowerSGD"):
            results[hook] |= coding(hook, model)
    dist.barrier()
    if rank == 0:
        (folder / "result.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
