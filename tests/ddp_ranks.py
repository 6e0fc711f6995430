"""One rank of the tests of the DDP hook: it runs scenarios, and writes their results as JSON.

    python tests/ddp_ranks.py RANK SIZE DIRECTORY SCENARIO...

All ranks run the same scenarios in one process group, because starting a process takes seconds.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import itertools
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.torch
from gcodec import advisor
from gcodec.errors import ParameterError
from gcodec.feedback import derive_seed
from gcodec.training.communicator import Communicator

SPEC = "topk:ratio=0.05"
COMPRESSED = ("first.weight", "second.weight", "last.weight")
KEY = b"not to be found again"
EARLY: Any = None  # a network, and a hook that was made before the process group


class Net(torch.nn.Module):
    """Network with one- and two-dimensional tensors, and a layer that the loss does not use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Linear(16, 48)
        self.norm = torch.nn.LayerNorm(48)
        self.second = torch.nn.Linear(48, 40)
        self.unused = torch.nn.Linear(30, 20)
        self.last = torch.nn.Linear(40, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.norm(self.first(x))))))


def batch(step: int, rank: int, part: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + part)
    return torch.randn(8 + 4 * rank, 16, generator=generator)


def loss_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    return (model(x).float() ** 2).mean()


class Training:
    """A model under DDP with the hook, and plain copies for the gradients of all ranks."""

    def __init__(self, spec: Any = SPEC, *, named: bool = True, **options: Any) -> None:
        self.net = Net().to(options.pop("dtype", torch.float32))
        self.net.unused.requires_grad_(not options.pop("is_frozen", False))
        self.ddp = DistributedDataParallel(
            self.net,
            bucket_cap_mb=0.005,
            find_unused_parameters=True,
            process_group=options.get("process_group"),
        )
        options = {"start_iter": 1, "min_numel": 64, "seed": 5, **options}
        names = {"model": self.ddp} if named else {}
        self.state, hook = gcodec.torch.ddp_hook(spec, **names, **options)
        self.ddp.register_comm_hook(self.state, hook)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        loss_of(self.ddp, batch(step, dist.get_rank())).backward()
        self.optimizer.step()

    def local_gradients(self, step: int, rank: int) -> dict[str, np.ndarray]:
        own = Net()
        own.load_state_dict(self.net.state_dict())
        loss_of(own, batch(step, rank)).backward()
        return {
            name: np.zeros(tuple(p.shape), np.float32) if p.grad is None else p.grad.numpy()
            for name, p in own.named_parameters()
        }

    def gradients(self) -> dict[str, np.ndarray]:
        pairs = self.net.named_parameters()
        return {name: p.grad.float().numpy() for name, p in pairs if p.grad is not None}

    def digest(self) -> str:
        values = [p.detach().reshape(-1).double() for p in self.net.parameters()]
        return hashlib.sha256(torch.cat(values).numpy().tobytes()).hexdigest()


def exact(spec: str = SPEC) -> dict[str, Any]:
    """Compare the gradients bit for bit with the mean of `gcodec.Feedback` over all ranks."""
    training = Training(spec, decay=0.75)
    ranks = range(dist.get_world_size())
    memories = [gcodec.Feedback(spec, decay=0.75, seed=5, rank=rank) for rank in ranks]
    scale = np.float32(1 / len(memories))
    wrong = []
    coded = []  # totals after each compressed step
    for step in range(6):
        local = [training.local_gradients(step, rank) for rank in range(len(memories))]
        training.step(step)
        coded += [totals_of(training.state)] * (step > 0)
        for name, gradient_mean in training.gradients().items():
            expected = np.zeros_like(gradient_mean)
            for memory, gradients in zip(memories, local, strict=True):
                gradient = gradients[name]
                if step == 0:  # a plain all-reduce
                    expected += gradient * scale
                elif gradient.ndim < 2 or gradient.size < 64:
                    gcodec.decode_add(gcodec.encode(gradient, "raw"), expected, scale)
                elif gradient.any():
                    gcodec.decode_add(memory.compress(name, gradient), expected, scale)
            is_equal = np.array_equal(gradient_mean, expected)
            if step == 0:  # the all-reduce may add in another order
                is_equal = np.allclose(gradient_mean, expected, 1e-4)
            if not is_equal:
                wrong.append((step, name))
    own = memories[dist.get_rank()]
    kept = {
        name: np.array_equal(training.state.residual(name).numpy(), own.residual(name))
        for name in ("first.weight", "second.weight", "last.weight")
    }
    state = training.state.state_dict()
    return {
        "wrong": wrong,
        "kept": kept,
        "digest": training.digest(),
        "keys": sorted(state),
        "sent": training.state.sent_nbytes,
        "received": training.state.received_nbytes,
        "coding": (training.state.encode_seconds, training.state.decode_seconds),
        "pays_below": training.state.pays_below,
        "break_even": break_even_of(coded[-1] - coded[0]),
        "gradient_nbytes": training.state.gradient_nbytes,
        "values": sum(p.numel() for p in training.net.parameters()),
    }


def totals_of(state: gcodec.torch.DdpState) -> np.ndarray:
    """Return the bytes of gradients and messages so far, and the seconds of both directions."""
    seconds = state.encode_seconds, state.decode_seconds
    return np.array([state.gradient_nbytes, state.sent_nbytes, *seconds])


def break_even_of(totals: np.ndarray) -> float:
    """Return the link speed in bits per second at which steps with these totals break even."""
    nbytes, sent, encode, decode = totals.tolist()
    size = dist.get_world_size()
    return 8 * advisor.break_even(nbytes, sent, encode, decode / size, size)


def first_step() -> dict[str, Any]:
    """Read the break-even link while there is only one compressed step, and after the second."""
    training = Training()
    seen, text = [], ""
    for step in range(3):
        training.step(step)
        text = text or repr(training.state)
        if step:
            seen.append((training.state.pays_below, totals_of(training.state)))
    (first, one), (second, two) = seen
    return {
        "first": first == break_even_of(one),
        "second": second == break_even_of(two - one),
        "text": text,
    }


def exact_at_random() -> dict[str, Any]:
    """Run `exact` with stochastic rounding, whose seeds depend on rank, step and name."""
    return exact("qsgd:s=7,bucket=64")


def exact_by_default() -> dict[str, Any]:
    """Run `exact` without asking for a codec: matrices then travel as lowrank."""
    defaults = inspect.signature(gcodec.torch.ddp_hook).parameters["codec"].default
    assert defaults == "lowrank"
    return exact(defaults)


def no_sync() -> dict[str, Any]:
    """Accumulate two half batches, the first under no_sync, and compare with one whole batch."""
    seen = []
    for parts in (1, 2):
        training = Training("raw:dtype=float16")
        for step in range(3):
            x = [batch(step, dist.get_rank(), part) for part in range(2)]
            training.optimizer.zero_grad()
            if parts == 1:
                (loss_of(training.ddp, torch.cat(x)) * 2).backward()
            else:
                with training.ddp.no_sync():
                    loss_of(training.ddp, x[0]).backward()
                loss_of(training.ddp, x[1]).backward()
            training.optimizer.step()
        seen.append(training)
    close = [
        torch.allclose(a, b, rtol=1e-3, atol=1e-4)
        for a, b in zip(seen[0].net.parameters(), seen[1].net.parameters(), strict=True)
    ]
    return {"close": all(close), "digest": seen[1].digest()}


def nonfinite() -> dict[str, Any]:
    """Expect Inf of one rank on all ranks, and unchanged residuals."""
    training = Training()
    for step in range(3):
        training.step(step)
    before = training.state.state_dict()
    digest = training.digest()
    with infinite(training, "second.weight", 1):
        training.optimizer.zero_grad()
        loss_of(training.ddp, batch(3, dist.get_rank())).backward()
    means = training.gradients()
    after = training.state.state_dict()
    training.step(4)
    return {
        "infinite": sorted(name for name, g in means.items() if not np.isfinite(g).all()),
        "same": same(before, after),
        "digest": training.digest(),
        "moved": training.digest() != digest,
        "finite": all(torch.isfinite(p).all().item() for p in training.net.parameters()),
    }


def same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    """Return whether two states are equal, bit for bit."""
    return before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)


@contextlib.contextmanager
def infinite(training: Training, name: str, rank: int) -> Iterator[None]:
    """Write Inf to one gradient of one rank."""
    parameter = dict(training.net.named_parameters())[name]

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.index_fill(0, torch.tensor([1]), float("inf"))

    handle = parameter.register_hook(spoil) if dist.get_rank() == rank else None
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


def mean_of(
    name: str, gradients: list[np.ndarray], spec: str, sources: list[int] | list[gcodec.Feedback]
) -> np.ndarray:
    """Return the mean of the decoded gradients of all ranks, given their feedback or seeds."""
    mean = np.zeros_like(gradients[0])
    for gradient, source in zip(gradients, sources, strict=True):
        if isinstance(source, int):
            frame = gcodec.encode(gradient, spec, seed=source, name=name)
        else:
            frame = source.compress(name, gradient)
        gcodec.decode_add(frame, mean, np.float32(1 / len(gradients)))
    return mean


def scaler() -> dict[str, Any]:
    """Expect the same results as without the steps that a loss scaler skips.

    Inf is in the first bucket or the last, in a compressed tensor or a dense one, and on either
    rank. After the first bucket, all other buckets are still exchanged.
    """
    results: dict[str, Any] = {"wrong": [], "changed": [], "skipped": []}
    size, own = dist.get_world_size(), dist.get_rank()
    places = (None, None, "first.weight", None, "last.bias", "last.weight", "norm.weight", None)
    for spec, options in ((SPEC, {}), ("powersgd", {}), ("qsgd:s=7", {"feedback": False})):
        training = Training(spec, **options)
        memories = [gcodec.Feedback(spec, seed=5, rank=rank) for rank in range(size)]
        scaling = torch.amp.GradScaler("cpu", init_scale=16.0)
        counted = 0
        for step, place in enumerate((*places, None)):
            local = [training.local_gradients(step, rank) for rank in range(size)]
            before, digest = training.state.state_dict(), training.digest()
            scale = scaling.get_scale()
            training.optimizer.zero_grad()
            with infinite(training, place, step % size) if place else contextlib.nullcontext():
                scaling.scale(loss_of(training.ddp, batch(step, own))).backward()
            means = {name: gradient.copy() for name, gradient in training.gradients().items()}
            scaling.step(training.optimizer)
            scaling.update()
            if place:
                skipped = training.digest() == digest and scaling.get_scale() == scale / 2
                results["skipped"].append(skipped)
                if not same(before, training.state.state_dict()):
                    results["changed"].append((spec, place))
                continue
            for name in COMPRESSED if step else ():
                scaled = [gradients[name] * np.float32(scale) for gradients in local]
                seeds = [
                    derive_seed(5, name=name, step=counted, rank=rank) for rank in range(size)
                ]
                expected = mean_of(name, scaled, spec, seeds if options else memories)
                if not np.array_equal(means[name], expected):
                    results["wrong"].append((spec, step, name))
            counted += 1
        if not options:
            for name in COMPRESSED:
                kept = training.state.residual(name).numpy()
                if not np.array_equal(kept, memories[own].residual(name)):
                    results["wrong"].append((spec, name))
        results[spec] = training.digest()
    return results


def scaler_of_half() -> dict[str, Any]:
    """Average finite gradients to a mean beyond float16's range; a scaler skips this step too."""
    training = Training("topk:ratio=0.05", dtype=torch.float16, start_iter=0)
    weight = training.net.second.weight
    values = [60000.0, 60000.0, 1.0]
    states, finite = [training.state.state_dict()], []
    for step, value in enumerate(values):
        handle = weight.register_hook(lambda gradient, value=value: gradient * 0 + value)
        training.optimizer.zero_grad()
        loss_of(training.ddp, batch(step, dist.get_rank()).half()).backward()
        handle.remove()
        finite.append(all(np.isfinite(g).all().item() for g in training.gradients().values()))
        states.append(training.state.state_dict())
    changed = [not same(a, b) for a, b in itertools.pairwise(states)]
    return {"finite": finite, "changed": changed}


def under_way() -> dict[str, Any]:
    """Save the state during a step, and after an interrupted step; expect the previous state."""
    training = Training()
    for step in range(3):
        training.step(step)
    before, seen = training.state.state_dict(), []

    def look(gradient: torch.Tensor) -> None:
        seen.append(training.state.state_dict())

    # This gradient comes last, while other buckets are being exchanged.
    handle = training.net.first.weight.register_hook(look)
    training.step(3)
    handle.remove()
    after = training.state.state_dict()

    def fail(gradient: torch.Tensor) -> None:
        raise ValueError("broken off")

    handle = training.net.first.weight.register_hook(fail)
    broken = error_of(training, 4, ValueError)
    handle.remove()
    left = training.state.state_dict()
    # A new wrapper of the same parameters continues with the same state.
    training.ddp = DistributedDataParallel(
        training.net, bucket_cap_mb=0.005, find_unused_parameters=True
    )
    training.ddp.register_comm_hook(training.state, gcodec.torch.ddp._hook)
    twin = Training()
    twin.state.load_state_dict(after)
    twin.net.load_state_dict(training.net.state_dict())
    for each in (training, twin):
        each.optimizer.zero_grad()
        loss_of(each.ddp, batch(5, dist.get_rank())).backward()
    return {
        "middle": same(before, seen[0]),
        "end": same(before, after),
        "broken": broken == "broken off" and same(after, left),
        "again": same(training.state.state_dict(), twin.state.state_dict()),
    }


def keys() -> dict[str, Any]:
    """Compare gradients with and without a key; ranks with different keys must fail."""
    plain, keyed = Training(), Training(key=KEY)
    for step in range(3):
        plain.step(step)
        keyed.step(step)
    shown = repr(keyed.state) + repr(vars(keyed.state)) + repr(vars(keyed.state._coder))
    rank = dist.get_rank()
    groups = [dist.new_group([member]) for member in range(dist.get_world_size())]
    alone = Training(key=KEY, start_iter=0, process_group=groups[rank])
    alone.step(0)
    dense = Training(key=KEY, start_iter=0, collective="auto", min_numel=1 << 20)
    tag, tags = gcodec.torch.messages._tag, list[set[bytes]]()

    def recorded(*args: Any) -> bytes:
        tags[-1].add(tag(*args))
        return tag(*args)

    with mock.patch.object(gcodec.torch.messages, "_tag", recorded):
        for _ in range(2):  # equal gradients
            tags.append(set())
            dense.net.load_state_dict(Net().state_dict())
            dense.step(0)
    return {
        "alone": alone.state.iteration,
        "replayed": len(tags[0] & tags[1]),
        "pays_below": str(dense.state.pays_below),  # before the advisor chooses
        "same": plain.digest() == keyed.digest(),
        "more": keyed.state.sent_nbytes > plain.state.sent_nbytes,
        "shown": KEY.decode() in shown,
        "wrong": error_of(Training(key=KEY[rank:], start_iter=0), 0),
        "missing": error_of(Training(key=None if rank else KEY, start_iter=0), 0),
        "refused": refusal_of(gcodec.torch.ddp_hook, "sign", key="text"),
    }


def resume() -> dict[str, Any]:
    """Save and load a training run, and expect the same bits as without interruption."""
    results = {}
    for named in (True, False):
        whole = Training("qsgd:s=3,bucket=128", named=named)
        for step in range(6):
            whole.step(step)
        half = Training("qsgd:s=3,bucket=128", named=named)
        for step in range(3):
            half.step(step)
        path = Path(sys.argv[3]) / f"state{dist.get_rank()}.pt"
        parts = {
            "hook": half.state.state_dict(),
            "net": half.net.state_dict(),
            "optimizer": half.optimizer.state_dict(),
        }
        torch.save(parts, path)
        loaded = torch.load(path, weights_only=True)
        again = Training("qsgd:s=3,bucket=128", named=named)
        again.state.load_state_dict(loaded["hook"])
        again.net.load_state_dict(loaded["net"])
        again.optimizer.load_state_dict(loaded["optimizer"])
        for step in range(3, 6):
            again.step(step)
        results[str(named)] = [whole.digest(), again.digest(), half.digest()]
    try:
        again.state.load_state_dict({**loaded["hook"], "rank": torch.tensor(7)})
    except ParameterError as error:
        results["refused"] = str(error)
    named = Training("qsgd:s=3,bucket=128")
    values = torch.zeros(2, 3)
    counters = {name: loaded["hook"][name] for name in ("iteration", "rank", "size")}
    results["foreign"] = [
        refusal_of(named.state.load_state_dict, {**counters, key: values, step: torch.tensor(1)})
        for key, step in (
            ("residual:other", "step:other"),
            ("residual:last.weight", "step:last.weight"),
        )
    ]
    factors = Training("powersgd:rank=2", collective="factors")
    residual = {"2:residual:last.weight": values, "2:start:last.weight": torch.zeros(2, 3)}
    results["foreign"].append(refusal_of(factors.state.load_state_dict, counters | residual))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        named.state.load_state_dict(counters)
        for parameter in named.net.parameters():
            parameter.requires_grad_(parameter.ndim < 2)
        named.state.load_state_dict(counters)  # no residual is missing
    results["warned"] = [str(warning.message) for warning in caught]
    results["forked"] = exit_code_of_a_child(lambda: same(half.state.state_dict(), parts["hook"]))
    return results


def exit_code_of_a_child(call: Callable[[], bool]) -> int:
    """Fork a child, which ends with code 0 if the call returns True in time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of newer releases of Python: this process has threads
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(20)
    code = 2
    with contextlib.suppress(BaseException):
        code = 0 if call() else 1
    os._exit(code)


def wrapped() -> dict[str, Any]:
    """Give the hook a compiled model in DDP with a group of its own; copy one with a hook."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    ddp = DistributedDataParallel(Net(), process_group=groups[dist.get_rank()])
    compiled = torch.compile(ddp, backend="eager")
    # A glob that matches no name would warn.
    state, _ = gcodec.torch.ddp_hook(SPEC, model=compiled, exclude="first.*")
    named = refusal_of(gcodec.torch.ddp_hook, SPEC, model=dict(ddp.named_parameters()))
    hooked = Training().ddp
    x = batch(0, 0)
    same = torch.equal(copy.deepcopy(hooked)(x), hooked(x))
    return {
        "size": int(state.state_dict()["size"]),
        "same": same,
        "refused": named,
        "steps": steps_of_a_compiled_function(),
    }


def steps_of_a_compiled_function() -> int:
    """Train in a function that `torch.compile` has received; return the steps of the hook."""
    model = DistributedDataParallel(torch.nn.Linear(40, 30))
    state, hook = gcodec.torch.ddp_hook("sign", model=model, start_iter=0)
    model.register_comm_hook(state, hook)

    @torch.compile(backend="eager")  # type: ignore[untyped-decorator]
    def step(x: torch.Tensor) -> None:
        model(x).square().mean().backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tracer
        for _ in range(3):
            step(torch.ones(2, 40))
    return state.iteration


def early() -> dict[str, Any]:
    """Train with a hook that was made before the process group, and with one made after it."""
    assert EARLY is not None
    net, state, hook = EARLY
    size = dist.get_world_size()
    states = {"size": int(state.state_dict()["size"]), "pays_below": str(state.pays_below)}
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.005, find_unused_parameters=True)
    ddp.register_comm_hook(state, hook)
    later = Training()
    later.optimizer = torch.optim.SGD(later.net.parameters(), lr=0.05)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(ddp, batch(step, dist.get_rank())).backward()
        optimizer.step()
        later.step(step)
    pairs = zip(net.parameters(), later.net.parameters(), strict=True)
    equal = all(torch.equal(a, b) for a, b in pairs)
    return {"equal": equal, "iteration": state.iteration, "ranks": size, **states}


def policies() -> dict[str, Any]:
    """Train with rules by name, dense tensors, no feedback, and a bfloat16 model."""
    rules = {"last.*": "raw", "second.*": "sign"}
    training = Training("topk:k=1", policy=rules, exclude="first.*")
    group = dist.new_group(range(dist.get_world_size()))
    options = {"feedback": False, "start_iter": 0, "process_group": group}
    plain = Training("mxnet-2bit:threshold=auto", **options)
    half = Training("qsgd", dtype=torch.bfloat16)
    for step in range(3):
        training.step(step)
        plain.step(step)
        half.optimizer.zero_grad()
        loss_of(half.ddp, batch(step, dist.get_rank()).bfloat16()).backward()
        half.optimizer.step()
    phases = Training(exclude="first.*", start_iter=0, collective="two-phase")
    phases.step(0)

    def refusal(state: Any) -> str | None:
        try:
            state.residual("first.weight")
        except gcodec.ParameterError as error:
            return str(error)
        return None

    return {
        "refused": [refusal(state) for state in (training.state, phases.state)],
        "owed": tuple(phases.state.residual("second.weight").shape),
        "residuals": sorted(k for k in training.state.state_dict() if k.startswith("residual")),
        "plain": sorted(plain.state.state_dict()),
        "digests": [t.digest() for t in (training, plain, half)],
    }


def layouts() -> dict[str, Any]:
    """Train with gradients in channels-last order that are views of the bucket."""
    torch.manual_seed(2)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(dist.get_rank()))
    seen = []
    for collective in (None, "gather", "two-phase"):  # plain DDP and a lossless codec
        model = DistributedDataParallel(
            copy.deepcopy(net).to(memory_format=torch.channels_last),
            gradient_as_bucket_view=True,
        )
        if collective is not None:
            options = {"collective": collective, "min_numel": 0, "start_iter": 0}
            hook = gcodec.torch.ddp_hook("topk:ratio=1", model=model, **options)
            model.register_comm_hook(*hook)
        for _ in range(3):
            model.zero_grad()
            model(x.to(memory_format=torch.channels_last)).square().sum().backward()
        seen.append([parameter.grad for parameter in model.parameters()])
    transposed = Transposed()
    plain, _ = second_step(transposed, x[0, 0], None)
    model, hook = second_step(transposed, x[0, 0], "topk:ratio=0.1")
    first, _ = second_step(transposed, x[0, 0], "topk:ratio=0.1", steps=1)
    owed = hook[0].residual("weight")
    dist.all_reduce(owed)
    sent = first.module.weight.grad + model.module.weight.grad
    wanted = 2 * plain.module.weight.grad
    return {
        "strided": not seen[1][0].is_contiguous(),
        "owed": torch.allclose(sent + owed / dist.get_world_size(), wanted, rtol=1e-4),
        "close": [
            torch.allclose(a, b, rtol=1e-4)
            for hooked in seen[1:]
            for a, b in zip(seen[0], hooked, strict=True)
        ],
    }


class Transposed(torch.nn.Module):  # type: ignore[misc]
    """A model whose parameter has the strides of a transposed matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(9, 6).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


def second_step(
    net: torch.nn.Module, x: torch.Tensor, spec: str | None, steps: int = 2
) -> tuple[Any, Any]:
    """Return a copy of a model with the gradients of its last step, and its hook for a spec."""
    model, hook = DistributedDataParallel(copy.deepcopy(net)), None
    if spec is not None:
        hook = gcodec.torch.ddp_hook(spec, model=model, min_numel=0, start_iter=0)
        model.register_comm_hook(*hook)
    for _ in range(steps):
        model.zero_grad()
        model(x).square().sum().backward()
    return model, hook


def sparse() -> dict[str, Any]:
    """Compare a sparse and a compressed gradient with those of plain DDP.

    Inf in the sparse gradient, which torch averages, also skips the step.
    """
    torch.manual_seed(3)
    embed = torch.nn.Embedding(50, 8, sparse=True)
    net = torch.nn.Sequential(embed, torch.nn.Linear(8, 6))
    words = torch.arange(4) + dist.get_rank()
    plain, _ = second_step(net, words, None)
    model, hook = second_step(net, words, "topk:ratio=1")
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    close = [torch.allclose(a.grad.to_dense(), b.grad.to_dense(), rtol=1e-4) for a, b in pairs]
    before = hook[0].state_dict()
    output = model(words)
    if dist.get_rank():
        output.register_hook(lambda gradient: gradient * float("inf"))
    (output.square().sum() + (model.module[0](words) * float("inf")).sum()).backward()
    return {"close": close, "same": same(before, hook[0].state_dict())}


class Complex(torch.nn.Module):  # type: ignore[misc]
    """A model with complex parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.randn(64, 48, dtype=torch.complex64))
        self.shift = torch.nn.Parameter(torch.randn(48, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x + 0j) @ self.factor + self.shift).abs()


def complex_parameters() -> dict[str, Any]:
    """Compare complex gradients with those of plain DDP."""
    torch.manual_seed(3)
    net, x = Complex(), torch.randn(8, 64) + dist.get_rank()
    models = [second_step(net, x, spec)[0].parameters() for spec in (None, "sign")]
    return {"equal": [torch.equal(a.grad, b.grad) for a, b in zip(*models, strict=True)]}


def arguments() -> dict[str, Any]:
    """Pass invalid arguments, which each rank must refuse by name before the first step."""
    weight, other = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    cases: list[dict[str, Any]] = [
        *({"model": wrong} for wrong in (5, [1, 2], [(1, weight)], [("a", 1)], ["text"])),
        {"model": [("a", weight), ("a", other)]},
        {"model": [("_orig_mod.a", weight), ("a", other)]},
        *({"model": [("a", weight)], "exclude": wrong} for wrong in (5, [5], b"a", None)),
        *({"feedback": wrong} for wrong in ("no", 0, None)),
        *({"process_group": wrong} for wrong in (5, "x")),
    ]
    make_hook = gcodec.torch.ddp_hook
    refusals = [(list(case)[-1], refusal_of(make_hook, "sign", **case)) for case in cases]
    state, _ = gcodec.torch.ddp_hook("sign")
    good = state.state_dict()
    states = (None, 5, [], {}, {**good, "rank": None}, {**good, "iteration": "a"})
    states = (*states, *({**good, "iteration": wrong} for wrong in (-1, 2**62 + 1)))
    refusals += [("state", refusal_of(state.load_state_dict, wrong)) for wrong in states]
    make = gcodec.torch.TorchCommunicator
    refusals += [("group", refusal_of(make, wrong)) for wrong in (5, "x", [0])]
    rank = dist.get_rank()
    groups: tuple[Any, ...] = (5, "x", [], [1 - rank], [rank, rank], [rank, 2], [rank, -1])
    refusals += [("group", refusal_of(make.apart, wrong)) for wrong in groups]
    return {
        "wrong": [pair for pair in refusals if not str(pair[1]).startswith(pair[0])],
        "ranks": make.apart([rank, 1 - rank]).ranks,  # the members may list them in any order
    }


def refusal_of(call: Any, *args: Any, **options: Any) -> str | None:
    try:
        call(*args, **options)
    except ParameterError as error:
        return str(error)
    return None


def mismatch() -> dict[str, Any]:
    """Start ranks with different seeds or steps; the first step must fail and name the value."""
    rank = dist.get_rank()
    loaded = Training("sign")
    loaded.state.load_state_dict(loaded.state.state_dict() | {"iteration": torch.tensor(rank)})
    return {
        "error": error_of(Training("sign", seed=rank + 3), 0),
        "loaded": error_of(loaded, 0),
    }


def communicator(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Call every method, with messages of different lengths, including 0."""
    members = gcodec.torch.TorchCommunicator(group)
    own, size = members.rank, members.size
    messages = [bytes([rank]) * (1000 * rank) for rank in range(size)]
    values = np.arange(6, dtype=np.float32).reshape(2, 3) / 3 + own
    members.all_reduce(values)
    to = [bytes([own, rank]) * (5 * rank + own) for rank in range(size)]
    partner = own ^ 1 if own ^ 1 < size else own
    return {
        "protocol": isinstance(members, Communicator),
        "gather": [members.all_gather(messages[own], r) == messages for r in (0, 10, 1500, 5000)],
        "empty": members.all_gather(b"") == [b""] * size,
        "to": members.all_to_all(to) == [bytes([r, own]) * (5 * own + r) for r in range(size)],
        "sum": values.tolist(),
        "exchange": members.exchange(partner, messages[own]) == messages[partner],
        "itself": members.exchange(own, b"x") == b"x",
        "broadcast": [members.broadcast(messages[own], r) == messages[r] for r in range(size)],
        "refused": [
            refusal_of(members.exchange, size, b""),
            refusal_of(members.broadcast, b"", size),
        ],
    }


def communicator_foreign() -> dict[str, Any]:
    """Run `communicator` with a group that torch.distributed did not make, as torchft's are."""
    store = dist.PrefixStore("foreign", dist.distributed_c10d._get_default_store())
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.ProcessGroup(store, rank, size)
    gloo = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(gloo)
    backend = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=60))
    group._register_backend(torch.device("cpu"), gloo, backend)
    seen = communicator(group)
    members = gcodec.torch.TorchCommunicator(SimpleNamespace(parent=group))
    seen["parent"] = [members.rank, members.size, members.ranks] == [rank, size, [*range(size)]]
    members.close()
    return seen


def communicator_nccl() -> dict[str, Any]:
    """Run `communicator` with NCCL, with one device per rank."""
    torch.cuda.set_device(dist.get_rank())
    return communicator(dist.new_group(backend="nccl"))


def stalled() -> dict[str, Any]:
    """Let one rank stop responding; the other rank must fail after the timeout."""
    training = Training(timeout=np.int64(6))
    training.step(0)
    done = Path(sys.argv[3]) / "done"
    if dist.get_rank() == 1:
        while not done.exists():
            time.sleep(0.05)
        return {}
    start = time.monotonic()
    error = error_of(training, 1)
    done.touch()
    return {"error": error, "seconds": time.monotonic() - start}


def killed() -> dict[str, Any]:
    """Kill one rank; the other ranks must fail soon."""
    training = Training(timeout=60)
    for step in range(2):
        training.step(step)
    if dist.get_rank() == 1:
        os._exit(0)
    start = time.monotonic()
    errors = [error_of(training, step) for step in (2, 3)]
    return {"errors": errors, "seconds": time.monotonic() - start}


def error_of(training: Training, step: int, kind: type[Exception] = RuntimeError) -> str | None:
    try:
        training.step(step)
    except (kind, gcodec.GcodecError) as error:
        return str(error)
    return None


def main() -> None:
    rank, size, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    if "early" in sys.argv:
        global EARLY
        net = Net()
        state, hook = gcodec.torch.ddp_hook(SPEC, model=net, start_iter=1, min_numel=64, seed=5)
        assert refusal_of(state.state_dict) == refusal_of(state.residual, "last.weight")
        assert "init_process_group" in str(refusal_of(state.state_dict))
        EARLY = net, state, hook
    dist.init_process_group(
        "gloo", init_method=f"file://{directory / 'store'}", rank=rank, world_size=size
    )
    results = {}
    for name in sys.argv[4:]:
        results[name] = globals()[name]()
        # Written after each scenario, because a scenario may end this process.
        (directory / f"rank{rank}.json").write_text(json.dumps(results))
    if {"stalled", "killed"} & set(results):  # they leave the group unusable
        os._exit(0)  # threads of gloo may still wait for other ranks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
