"""One rank of the tests of FSDP2's collectives: it runs scenarios, and writes results as JSON.

    python tests/fsdp_ranks.py RANK SIZE DIRECTORY SCENARIO...

All ranks run the same scenarios in one process group, because starting a process takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from ddp_ranks import loss_of, refusal_of, same
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import layer_norm

import gcodec
import gcodec.torch
from examples.fsdp2 import train
from gcodec.errors import GcodecError

SPEC = "topk:ratio=0.05"
MATRICES = ("first.weight", "second.weight")


class Net(torch.nn.Module):
    """Network with sizes that no number of ranks divides, and a nested module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Linear(16, 47)
        self.norm = torch.nn.LayerNorm(47)
        self.second = torch.nn.Linear(47, 33)
        self.unused = torch.nn.Linear(8, 8)
        self.unused.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.norm(self.first(x))))


def batch(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank)
    return torch.randn(8, 16, generator=generator)


class Training:
    """A sharded model with compressed collectives, one inner module by itself."""

    def __init__(
        self, spec: Any = SPEC, mesh: DeviceMesh | None = None, dtype: Any = None, **options: Any
    ) -> None:
        self.net = Net()
        if mesh is None:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(reduce_dtype=dtype)
        for module in (self.net.second, self.net):
            fully_shard(module, mesh=mesh, mp_policy=policy)
            if mesh.ndim > 1 or "replicas" in options or spec is None:  # gloo has no mean
                module.set_force_sum_reduction_for_comms(True)
        self.comm = gcodec.torch.fsdp_comm(spec, **{"min_numel": 64, "seed": 5, **options})
        if spec is not None or "parameters" in options:
            self.comm.register(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.backward(step)
        self.optimizer.step()

    def backward(self, step: int) -> None:
        loss_of(self.net, batch(step, dist.get_rank())).backward()

    def whole(self) -> dict[str, torch.Tensor]:
        return {name: p.full_tensor() for name, p in self.net.state_dict().items()}

    def local_gradients(self, step: int, rank: int) -> dict[str, np.ndarray]:
        own = Net()
        own.load_state_dict(self.whole())
        loss_of(own, batch(step, rank)).backward()
        pairs = own.named_parameters()
        return {name: p.grad.numpy() for name, p in pairs if p.grad is not None}

    def shards(self) -> dict[str, np.ndarray]:
        pairs = self.net.named_parameters()
        return {n: p.grad.to_local().numpy() for n, p in pairs if p.grad is not None}

    def digest(self) -> str:
        values = [p.detach().reshape(-1) for p in self.whole().values()]
        return hashlib.sha256(torch.cat(values).numpy().tobytes()).hexdigest()


def exact(spec: str = SPEC) -> dict[str, Any]:
    """Compare the shards bit for bit with the mean of `gcodec.Feedback` over all ranks."""
    training = Training(spec, decay=0.75)
    size, own = dist.get_world_size(), dist.get_rank()
    memories = [gcodec.Feedback(spec, decay=0.75, seed=5, rank=rank) for rank in range(size)]
    scale, wrong = np.float32(1 / size), []
    for step in range(4):
        local = [training.local_gradients(step, rank) for rank in range(size)]
        training.step(step)
        for name, shard in training.shards().items():
            rows = -(-len(local[0][name]) // size)
            total = np.zeros((rows, *local[0][name].shape[1:]), np.float32)
            for memory, gradients in zip(memories, local, strict=True):
                padded = np.zeros((size * rows, *total.shape[1:]), np.float32)
                padded[: len(gradients[name])] = gradients[name]
                for rank, piece in enumerate(padded.reshape(size, *total.shape)):
                    frame = gcodec.encode(piece, "raw")
                    if name in MATRICES:
                        frame = memory.compress(f"{rank}/{name}", piece)
                    if rank == own:
                        gcodec.decode_add(frame, total, scale)
            if not np.array_equal(shard, total[: len(shard)]):
                wrong.append((step, name))
    kept = [
        np.array_equal(
            training.comm.residual(f"{rank}/{name}"), memories[own].residual(f"{rank}/{name}")
        )
        for name in MATRICES
        for rank in range(size)
    ]
    return {
        "wrong": wrong,
        "kept": all(kept),
        "digest": training.digest(),
        "step": training.comm.step,
        "text": repr(training.comm),
    }


def exact_at_random() -> dict[str, Any]:
    """Run `exact` with stochastic rounding, whose seeds depend on rank, step and name."""
    return exact("qsgd:s=7,bucket=64")


def counted() -> dict[str, Any]:
    """Compare the counted bytes with those of the tensors that reach torch.distributed."""
    training, seen = Training(parameters="minmax:bucket=64"), []
    real_to_all, real_gather = dist.all_to_all_single, dist.all_gather

    def to_all(out: Any, sent: Any, *splits: Any, group: Any) -> None:
        if splits:
            seen.append(sent.numel() - splits[1][dist.get_rank()])
        real_to_all(out, sent, *splits, group=group)

    def gather(rows: Any, row: Any, group: Any) -> None:
        seen.append((len(rows) - 1) * row.numel())
        real_gather(rows, row, group=group)

    dist.all_to_all_single, dist.all_gather = to_all, gather
    training.step(0)
    first, seen[:] = training.comm.sent_nbytes, []
    training.step(1)
    dist.all_to_all_single, dist.all_gather = real_to_all, real_gather
    sent, dense = training.comm.sent_nbytes - first, training.comm.dense_nbytes // 2
    return {"sent": sent, "wire": sum(seen), "dense": dense}


def parameters() -> dict[str, Any]:
    """Expect the decoded parameters on every rank in the forward pass, and exact shards."""
    training = Training(None, parameters="minmax:bucket=64", exclude="second.*")
    shards = {n: p.to_local().clone() for n, p in training.net.named_parameters()}
    seen: dict[str, torch.Tensor] = {}

    def look(module: Any, arguments: Any) -> None:
        seen.update({n: p.detach().clone() for n, p in module.named_parameters(recurse=False)})

    training.net.first.register_forward_pre_hook(look)
    size = dist.get_world_size()
    loss_of(training.net, batch(0, 0)).backward()
    weight = Net().first.weight.detach()
    rows = -(-len(weight) // size)
    padded = torch.zeros(size * rows, weight.shape[1])
    padded[: len(weight)] = weight
    expected = torch.cat(
        [gcodec.torch.decode(gcodec.encode(x, "minmax:bucket=64")) for x in padded.split(rows)]
    )[: len(weight)]
    same = all(torch.equal(p.to_local(), shards[n]) for n, p in training.net.named_parameters())
    return {
        "decoded": torch.equal(seen["weight"], expected) and not torch.equal(weight, expected),
        "dense": torch.equal(seen["bias"], Net().first.bias),
        "same": same,
    }


def resume() -> dict[str, Any]:
    """Save and load a run, and expect the same bits as without interruption."""
    spec = "qsgd:s=3,bucket=128"
    whole, half = Training(spec), Training(spec)
    for step in range(4):
        whole.step(step)
    for step in range(2):
        half.step(step)
    path = Path(sys.argv[3]) / f"state{dist.get_rank()}.pt"
    torch.save(half.comm.state_dict(), path)
    loaded = torch.load(path, weights_only=True)
    again = Training(spec)
    again.comm.load_state_dict(loaded)
    again.net.load_state_dict(half.net.state_dict())
    again.optimizer.load_state_dict(half.optimizer.state_dict())
    for step in range(2, 4):
        again.step(step)
    digests, steps = [whole.digest(), again.digest(), half.digest()], [again.comm.step]
    again.comm.load_state_dict(loaded)
    again.comm.rollback()  # of no pass
    steps.append(again.comm.step)
    refusals = [
        refusal_of(again.comm.load_state_dict, state)
        for state in (
            *(None, {}, {**loaded, "rank": torch.tensor(7)}, {**loaded, "x:y": 1}),
            *({**loaded, "step": "4"}, {**loaded, 5: 1}),
            {**loaded, "worker:residual:0/first.weight": torch.ones(3, 5)},
            {**loaded, "worker:residual:0/x": torch.ones(3), "worker:step:0/x": loaded["step"]},
        )
    ]
    # A state that is loaded before `register`, which compares it with the model.
    early, wrong = gcodec.torch.fsdp_comm(spec), gcodec.torch.fsdp_comm(spec)
    early.load_state_dict(loaded)
    early.register(again.net)
    wrong.load_state_dict({**loaded, "worker:residual:0/first.weight": torch.ones(3, 5)})
    refusals.append(refusal_of(wrong.register, again.net))
    wrong.load_state_dict(loaded)
    wrong.register(again.net)
    counters = {name: loaded[name] for name in ("step", "rank", "size")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Training(spec).comm.load_state_dict(counters)
        # These have no residuals.
        gcodec.torch.fsdp_comm("raw").load_state_dict(counters)
        Training(spec, min_numel=1 << 20).comm.load_state_dict(counters)
    return {
        "warned": [str(warning.message)[:45] for warning in caught],
        "digests": digests,
        "steps": steps,
        "refused": [str(text).partition(":")[0].partition("[")[0] for text in refusals],
    }


def spoiled(training: Training, step: int, rank: int, run: Any = None) -> str:
    """Let the gradients below the norm contain NaN on one rank; return the error of `run`.

    The gradient of the inner module, which is reduced before, is finite.
    """

    def spoil(module: Any, inputs: Any, output: torch.Tensor) -> None:
        if dist.get_rank() == rank:
            output.register_hook(lambda gradient: gradient * float("nan"))

    handle = training.net.norm.register_forward_hook(spoil)
    try:
        (run or training.step)(step)
    except GcodecError as error:
        return str(error)
    finally:
        handle.remove()
    return "no error"


def nonfinite() -> dict[str, Any]:
    """Expect an error on all ranks that names the rank, and the residuals of the step before."""
    training = Training()
    for step in range(2):
        training.step(step)
    before = training.comm.state_dict()
    error = spoiled(training, 2, 1)
    after = training.comm.state_dict()
    training.net.reset_iter_state()
    twin = Training()
    for each, steps in ((training, (2,)), (twin, (0, 1, 2))):
        for step in steps:
            each.step(step)
    return {
        "error": error,
        "same": same(before, after),
        "continues": training.digest() == twin.digest(),
    }


class Offset(torch.nn.Module):
    """Model whose root has a parameter of its own, which FSDP2 reduces before the inner module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.inner = torch.nn.Linear(16, 16)
        self.scale = torch.nn.Parameter(torch.ones(16, 16))

    def forward(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return self.inner(x).square().mean() + factor * self.scale.mean()


def left_over() -> list[bool]:
    """Go on after an error: gradients of the inner module, not yet reduced, must not remain."""
    equal = []
    for has_half in (False, True):  # FSDP2 accumulates gradients of bfloat16 elsewhere
        digests = []
        for fails in (True, False):
            net = Offset()
            halves = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            options = {"mp_policy": halves} if has_half else {}
            for module in (net.inner, net):
                fully_shard(
                    module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), **options
                )
            comm = gcodec.torch.fsdp_comm(SPEC, min_numel=16)
            comm.register(net)
            x = batch(0, dist.get_rank())
            if fails:
                is_last = dist.get_rank() == dist.get_world_size() - 1
                net.set_requires_gradient_sync(False)
                net(x, 1.0).backward()
                net.set_requires_gradient_sync(True)
                try:
                    net(x, float("nan") if is_last else 1.0).backward()
                except GcodecError:
                    net.reset_iter_state()
                    net.zero_grad()
            net(x, 1.0).backward()
            gradients = [p.grad.full_tensor().reshape(-1) for p in net.parameters()]
            digests.append(torch.cat(gradients))
        equal.append(torch.equal(*digests))
    return equal


def damaged() -> dict[str, Any]:
    """Flip a bit of the message that rank 1 receives for the last module of a step."""
    training = Training()
    training.step(0)
    before, calls = training.comm.state_dict(), []
    real = gcodec.torch.TorchCommunicator.all_to_all

    def flipped(communicator: Any, messages: Any, *head: Any, **slot: Any) -> list[bytes]:
        received = real(communicator, messages, *head, **slot)
        calls.append(1)
        if len(calls) == 2 and dist.get_rank() == 1:
            last = received[0][-1] ^ 1
            received[0] = received[0][:-1] + bytes([last])
        return received

    gcodec.torch.TorchCommunicator.all_to_all = flipped  # type: ignore[method-assign]
    error = ""
    try:
        training.step(1)
    except GcodecError as caught:
        error = str(caught)
        training.net.reset_iter_state()
    gcodec.torch.TorchCommunicator.all_to_all = real  # type: ignore[method-assign]
    return {"error": error, "same": same(before, training.comm.state_dict())}


def killed() -> dict[str, Any]:
    """Kill one rank; the other ranks must fail soon."""
    training = Training()
    training.step(0)
    if dist.get_rank() == 1:
        os._exit(0)
    start, error = time.monotonic(), ""
    try:
        training.step(1)
    except RuntimeError as caught:
        error = str(caught)
    return {"error": error, "seconds": time.monotonic() - start}


def mismatch() -> dict[str, Any]:
    """Give the ranks different arguments."""
    try:
        Training("sign", seed=dist.get_rank()).step(0)
    except GcodecError as error:
        return {"error": str(error)}
    return {}


class Experts(torch.nn.Module):
    """Model that uses one of its two experts in a pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first = torch.nn.Linear(16, 16)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        return self.experts[expert](self.first(x))


def experts() -> dict[str, Any]:
    """Roll back passes that begin with a module of which the pass before made no use."""
    net, mesh = Experts(), init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (net.first, *net.experts, net):
        fully_shard(module, mesh=mesh)
    comm = gcodec.torch.fsdp_comm(SPEC, min_numel=0)
    comm.register(net)
    kept = []
    for step, expert in enumerate((0, 1, 0)):
        before = comm.state_dict()
        for _ in range(2):
            net(batch(step, dist.get_rank()), expert).sum().backward()
            comm.rollback()
            kept.append(same(before, comm.state_dict()))
        net(batch(step, dist.get_rank()), expert).sum().backward()
    return {"kept": kept, "step": comm.step}


def unused() -> dict[str, Any]:
    """Leave out a parameter in one pass: the buffer has another size then."""
    training = Training("raw:dtype=bfloat16")
    training.step(0)
    norm = training.net.norm
    with mock.patch.object(norm, "forward", lambda x: layer_norm(x, [47], None, norm.bias)):
        training.step(1)
    training.step(2)
    state = training.comm.state_dict()
    training.comm.load_state_dict(state)  # which has residuals that belong to no parameter
    return {"digest": training.digest(), "names": sorted(key for key in state if "values" in key)}


class Branches(torch.nn.Module):
    """Model of matrices, one of which takes part on request only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(16, 24, bias=False)
        self.branch = torch.nn.Linear(16, 24, bias=False)
        self.last = torch.nn.Linear(24, 16, bias=False)

    def forward(self, x: torch.Tensor, has_branch: bool) -> torch.Tensor:
        inner = self.first(x) + self.branch(x) if has_branch else self.first(x)
        return self.last(inner)


def excluded() -> dict[str, Any]:
    """Exclude a parameter whose module is one piece: a branch is unused, or two are in a group."""
    results = {}
    for name in ("first", "last"):
        for is_grouped in (False, True):
            net, plain = Branches(), Branches()
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for modules in [[net.last, net.first]] * is_grouped + [net]:
                fully_shard(modules, mesh=mesh)
            comm = gcodec.torch.fsdp_comm(SPEC, exclude=f"{name}.*", min_numel=16)
            comm.register(net)
            seen: list[Any] = []
            for has_branch in (True, False):
                for model in (net, plain):
                    model.zero_grad()
                    model(batch(0, dist.get_rank()), has_branch).square().mean().backward()
                mean = getattr(plain, name).weight.grad
                dist.all_reduce(mean)
                own = getattr(net, name).weight.grad.full_tensor()
                other = (net.first if name == "last" else net.last).weight.grad.full_tensor()
                is_sparse = int(other.count_nonzero()) < other.numel()
                is_exact = torch.allclose(own, mean / dist.get_world_size(), atol=1e-6)
                seen.append((is_exact, is_sparse))
            results[f"{name}, {'grouped' if is_grouped else 'alone'}"] = seen
    return results


class Scaled(torch.nn.Module):
    """Model with a frozen parameter of another dtype."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.weight = torch.nn.Parameter(torch.randn(16, 16))
        self.scale = torch.nn.Parameter(torch.randn(16).bfloat16(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight) * self.scale.float()


def dtypes() -> dict[str, Any]:
    """Gather the bytes of parameters of several dtypes, which no codec compresses."""
    net, size = Scaled(), dist.get_world_size()
    expected = {name: p.detach().clone() for name, p in net.named_parameters()}
    fully_shard(net, mesh=init_device_mesh("cpu", (size,)))
    comm = gcodec.torch.fsdp_comm("sign", parameters="sign", min_numel=0)
    comm.register(net)
    seen: dict[str, torch.Tensor] = {}

    def look(module: Any, arguments: Any) -> None:
        seen.update({n: p.detach().clone() for n, p in module.named_parameters()})
        seen["sent"] = torch.tensor(comm.sent_nbytes)

    net.register_forward_pre_hook(look)
    net(torch.ones(1, 16)).sum().backward()
    return {
        "exact": all(torch.equal(seen[name], p) for name, p in expected.items()),
        "sent": int(seen["sent"]),
        "shard": sum(p.nbytes for p in expected.values()) // size,
        "residuals": sorted(key for key in comm.state_dict() if "residual" in key),
    }


def tensor_parallel() -> dict[str, Any]:
    """Cut two layers by tensor parallelism as well; pairs of ranks hold the same third layer."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(1)
    sizes = ((16, 46), (46, 33), (33, 12))
    net = torch.nn.Sequential(*[torch.nn.Linear(*size) for size in sizes])
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    parallelize_module(net, mesh["tensor"], plan)
    for module in (*net, net):
        fully_shard(module, mesh=mesh["data"])
    comm = gcodec.torch.fsdp_comm(
        "qsgd:s=3,bucket=64", parameters="qsgd:s=99,bucket=64", min_numel=64
    )
    comm.register(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with warnings.catch_warnings():
        # Torch warns of tensor parallelism under FSDP2.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")
        for step in range(3):
            optimizer.zero_grad()
            loss_of(net, batch(step, mesh.get_local_rank("data"))).backward()
            optimizer.step()
    residuals = {
        key.partition(":residual:")[2]: list(x.shape)
        for key, x in comm.state_dict().items()
        if ":residual:" in key
    }
    weight = net[2].weight.full_tensor().detach()
    return {"residuals": residuals, "digest": weight.double().square().sum().item()}


def frozen(training: Training | None = None) -> dict[str, Any]:
    """Freeze a parameter for one step: the others keep their pieces and residuals."""
    training = training or Training()
    for step, requires_grad in enumerate((True, False, True)):
        training.net.norm.weight.requires_grad_(requires_grad)
        training.net.first.bias.requires_grad_(not requires_grad)
        training.step(step)
    state = training.comm.state_dict()
    names = [key for key in state if "values" in key]
    return {"names": names, "steps": int(state["worker:step:0/first.weight"])}


def replaced() -> dict[str, Any]:
    """Replace all parameters, and register them again."""
    training = Training()
    state = {name: value.clone() for name, value in training.net.state_dict().items()}
    training.net.load_state_dict(state, assign=True)
    training.comm.register(training.net)
    return frozen(training)


def halves() -> dict[str, Any]:
    """Reduce in bfloat16, and in float16 with FSDP2's own division; compare with dense."""
    close = []
    for dtype in (torch.bfloat16, torch.float16):
        seen = []
        for spec in (None, "topk:ratio=1"):
            training = Training(spec, dtype=dtype)
            training.step(0)
            seen.append(training.shards())
        close += [np.allclose(seen[0][n], seen[1][n], rtol=0.02, atol=1e-3) for n in seen[0]]
    return {"close": all(close)}


def arguments() -> dict[str, Any]:
    """Pass invalid arguments, which must be refused by name."""
    cases: list[dict[str, Any]] = [
        {"feedback": "no"},
        {"min_numel": -1},
        {"decay": 2},
        {"seed": -1},
        {"exclude": 5},
        {"replicas": 5},
    ]
    wrong = [
        c
        for c in cases
        if not str(refusal_of(gcodec.torch.fsdp_comm, "sign", **c)).startswith(next(iter(c)))
    ]
    comm = gcodec.torch.fsdp_comm("sign", exclude="nothing.*")
    plain = refusal_of(comm.register, Net())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net = fully_shard(Net(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        comm.register(net)
    second = refusal_of(comm.register, fully_shard(Net()))
    sharded = refusal_of(gcodec.torch.DGC, net, 0.1)
    state = {"step": 0, "rank": dist.get_rank(), "size": dist.get_world_size()}
    residual = {"worker:residual:x": torch.ones(3), "worker:step:x": torch.tensor(1)}
    bad = {"server:residual:x": torch.ones(3).double(), "server:step:x": torch.tensor(1)}
    load = comm.load_state_dict
    refused = [refusal_of(load, {**state, "step": -1}), refusal_of(load, state | residual | bad)]
    return {
        "wrong": wrong,
        "plain": plain,
        "second": second,
        "sharded": sharded,
        "warned": [str(w.message) for w in caught],
        "refused": [str(text) for text in refused],
        "kept": [key for key in comm.state_dict() if ":" in key],
        "wide": [wide(None), wide("sign")],
        "divided": [divided(False), divided(True)],
        "devices": devices_of(comm),
    }


def divided(is_sum: bool) -> str | None:
    """Return the error of a step whose reduction has a factor."""
    net = torch.nn.Sequential(torch.nn.Linear(16, 16))
    for module in (net[0], net):
        fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        module.set_gradient_divide_factor(3.0)
        module.set_force_sum_reduction_for_comms(is_sum)
    gcodec.torch.fsdp_comm("sign").register(net)
    return refusal_of(lambda: net(torch.ones(1, 16)).sum().backward())


def devices_of(comm: gcodec.torch.FsdpComm) -> list[str]:
    """Return the devices of a state that is made under another default device."""
    with torch.device("meta"):
        return sorted({str(value.device) for value in comm.state_dict().values()})


def wide(parameters: str | None) -> str | None:
    """Return the error of a step with float64."""
    net = torch.nn.Sequential(torch.nn.Linear(16, 16).double())
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    net.set_force_sum_reduction_for_comms(True)
    gcodec.torch.fsdp_comm("sign", parameters=parameters).register(net)
    return refusal_of(lambda: net(torch.ones(1, 16, dtype=torch.float64)).sum().backward())


def meshes() -> Iterator[tuple[DeviceMesh, Any]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "rank"))
    yield mesh, None
    yield mesh["rank"], mesh.get_group("node")


def replicas() -> dict[str, Any]:
    """Train on two nodes of two ranks: dense inside and compressed between, and HSDP's way."""
    results: dict[str, Any] = {"digests": [], "errors": [], "same": [], "dense": [], "places": []}
    for mesh, group in meshes():
        options = {} if group is None else {"replicas": group}
        training = Training("ecsq:bits=2", mesh, **options)
        for step in range(3):
            training.step(step)
        results["digests"].append(training.digest())
        results["dense"].append(training.comm.dense_nbytes)
        results["places"].append(training.comm._gradients._rank)
        before = training.comm.state_dict()
        training.comm.load_state_dict(before)
        results["errors"].append(spoiled(training, 3, 3))
        results["same"].append(same(before, training.comm.state_dict()))
    dense = Training(None)
    for step in range(3):
        dense.step(step)
    results["far"] = max(
        float((a - b).norm() / b.norm())
        for a, b in zip(training.whole().values(), dense.whole().values(), strict=True)
    )
    (mesh, _), (_, group) = meshes()
    results["refused"] = [
        refusal_of(gcodec.torch.fsdp_comm, None, replicas=group),
        refusal_of(Training, "sign", mesh, replicas=group),
    ]
    return results


def accumulated() -> dict[str, Any]:
    """Let HSDP sum two passes before its all-reduce, the first of them with NaN on one rank."""
    mesh, _ = next(iter(meshes()))
    training = Training(SPEC, mesh)

    def step(number: int, first: Any) -> str:
        training.optimizer.zero_grad()
        training.net.set_requires_all_reduce(False)
        error = first(number)
        training.net.set_requires_all_reduce(True)
        try:
            training.backward(number + 1)
        except GcodecError as caught:
            return str(caught)
        training.optimizer.step()
        return str(error)

    for number in range(0, 4, 2):
        step(number, training.backward)
    before = training.comm.state_dict()
    error = step(4, lambda number: spoiled(training, number, 3, training.backward))
    return {"error": error, "same": same(before, training.comm.state_dict())}


def gpt() -> dict[str, Any]:
    """Train the small GPT of the example, with dense and with compressed collectives."""
    steps = 8 if dist.get_world_size() == 2 else 4
    dense, _ = train(None, None, steps)
    loss, text = train("ecsq:bits=2", None, steps)
    return {"dense": dense, "loss": loss, "text": text}


def main() -> None:
    rank, size, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory / 'store'}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    results = {}
    for name in sys.argv[4:]:
        results[name] = globals()[name]()
        (directory / f"rank{rank}.json").write_text(json.dumps(results))
    if "killed" in results:
        os._exit(0)  # threads of gloo may still wait for the rank
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
