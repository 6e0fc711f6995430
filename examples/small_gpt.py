"""The small GPT that the examples of torch train, and its training loop."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from examples.convergence.tasks import error, large_gpt

TASK = large_gpt(width=64, layers=2, length=32, windows=128)


def loss_after(
    steps: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    after_step: Callable[[], None] = lambda: None,
) -> float:
    """Train on this rank's batches; return the loss of the last quarter, averaged over ranks."""
    batches = TASK.batches(0, dist.get_rank(), dist.get_world_size())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = error(model, *next(batches))
        loss.backward()
        optimizer.step()
        after_step()
        losses.append(loss.detach())
    last = torch.stack(losses[-steps // 4 :]).mean()
    dist.all_reduce(last)
    return float(last) / dist.get_world_size()
