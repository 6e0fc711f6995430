"""A single run: workers train replicas of a model; the result is an outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from examples.convergence.methods import Method, methods
from examples.convergence.tasks import Changes, Task, chosen, error, share_of_rate
from gcodec.training import Communicator, OneBitAdam, Simulator

WORKERS = 4
WARM = 0.3
"""Fraction of the steps in which 1-bit Adam sends dense gradients."""


class Outcome(NamedTuple):
    """The outcome of a run.

    Attributes
    ----------
    task, method : str
        Names of the task and the method.
    seed : int
        Seed of the run.
    score : float
        The metric of the task; NaN if the run failed.
    bits : float
        Bits that a worker sends in a step, per value: 48 for a dense ring of four workers.
    seconds : float
        Duration of the run.
    failure : str
        Message of the error that ended the run, or an empty string.
    """

    task: str
    method: str
    seed: int
    score: float
    bits: float
    seconds: float
    failure: str = ""


def run(key: str, name: str, seed: int, changes: Changes) -> Outcome:
    """Train one task with one method."""
    task = chosen(() if changes.folder is not None else (key,), changes)[key]
    torch.set_num_threads(1)
    method, simulator, start = methods(task.momentum)[name], Simulator(WORKERS), time.monotonic()
    train = train_adam if method.start is None else train_means
    try:
        model = trained(
            task, simulator, seed, lambda model, one: train(task, method, model, one, seed)
        )
    except (ValueError, FloatingPointError) as failure:
        return Outcome(key, name, seed, float("nan"), 0.0, time.monotonic() - start, str(failure))
    bits = 8 * simulator.total / (WORKERS * values_of(model) * task.steps)
    return Outcome(key, name, seed, task.score(model), bits, time.monotonic() - start)


def trained(
    task: Task,
    simulator: Simulator,
    seed: int,
    train: Callable[[nn.Module, Communicator], Iterator[int]],
) -> nn.Module:
    """Train a replica of a task's model on each worker; return one, after comparing all."""
    torch.manual_seed(seed)
    state = task.model().state_dict()

    def replica(communicator: Communicator) -> nn.Module:
        model = task.model()
        model.load_state_dict(state)
        for _ in train(model, communicator):
            pass
        return model

    first, *others = simulator.run(replica)
    for other in others:
        for one, another in zip(first.parameters(), other.parameters(), strict=True):
            assert torch.equal(one, another), "replicas differ"
    return first


def values_of(model: nn.Module) -> int:
    """Return the number of values of a model."""
    return sum(p.numel() for p in model.parameters())


def gradients_of(model: nn.Module, task: Task, batch: Any) -> dict[str, np.ndarray]:
    """Return the gradients of a batch as arrays."""
    loss = error(model, *batch)
    if not torch.isfinite(loss):
        raise FloatingPointError("the loss is not finite")
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    return {name: x.contiguous().numpy() for name, x in zip(names, gradients, strict=True)}


def train_means(
    task: Task, method: Method, model: nn.Module, communicator: Communicator, seed: int
) -> Iterator[int]:
    """Train with averaged gradients; yield the number of steps after each."""
    assert method.start is not None
    average = method.start(communicator)
    momentum = 0.0 if method.momentum_inside else task.momentum
    optimizer: torch.optim.Optimizer
    if method.adam:
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=task.weight_decay)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=momentum)
    largest = task.adam_rate if method.adam else task.rate
    batches = task.batches(seed, communicator.rank, communicator.size)
    for step in range(task.steps):
        means = average(step, gradients_of(model, task, next(batches)))
        for parameter, mean in zip(model.parameters(), means.values(), strict=True):
            parameter.grad = torch.from_numpy(np.ascontiguousarray(mean))
        for group in optimizer.param_groups:
            group["lr"] = largest * share_of_rate(task, step)
        optimizer.step()
        yield step + 1


def train_adam(
    task: Task, method: Method, model: nn.Module, communicator: Communicator, seed: int
) -> Iterator[int]:
    """Train with 1-bit Adam; yield the number of steps after each."""
    adam = OneBitAdam(communicator, warmup=max(1, round(WARM * task.steps)))
    own = {name: p.detach().numpy() for name, p in model.named_parameters()}
    batches = task.batches(seed, communicator.rank, communicator.size)
    for step in range(task.steps):
        gradients = gradients_of(model, task, next(batches))
        adam.step(own, gradients, rate=task.adam_rate * share_of_rate(task, step))
        yield step + 1
