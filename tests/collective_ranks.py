"""One rank of the tests of the DDP hook's collectives: it runs scenarios, and writes results.

    python tests/collective_ranks.py RANK SIZE DIRECTORY SCENARIO...

All ranks run the same scenarios, each in a process group of its own.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from ddp_ranks import COMPRESSED, KEY, Training, error_of, infinite, refusal_of, same
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.torch
from gcodec.errors import ParameterError
from gcodec.feedback import Transaction
from gcodec.torch import choice
from gcodec.torch.choice import Choice
from gcodec.training.collectives import share_of

Communicator = gcodec.torch.TorchCommunicator
STATE = "state{}.pt"


class Reference:
    """The hook's arithmetic, without processes: all ranks, their feedback, and its means."""

    def __init__(self, spec: str, second: str, inside: int, two_phase: bool) -> None:
        ranks = range(dist.get_world_size())
        self.workers = [gcodec.Feedback(spec, seed=5, rank=rank) for rank in ranks]
        self.servers = [gcodec.Feedback(second, seed=5, rank=rank) for rank in ranks]
        self.inside, self.nodes, self.two_phase = inside, len(ranks) // inside, two_phase

    def mean(self, name: str, gradients: list[np.ndarray]) -> np.ndarray:
        whole = np.empty_like(gradients[0])
        is_coded = name in COMPRESSED
        for local in range(self.inside):
            shares = []
            for node in range(self.nodes):
                first = node * self.inside
                members = gradients[first : first + self.inside]
                own = [share_of(gradient, local, self.inside) for gradient in members]
                total = own[0].copy()
                for other in own[1:]:
                    total += other
                shares.append(total * np.float32(1 / self.inside))
            target = share_of(whole, local, self.inside)
            if not self.two_phase:
                target[...] = self._sum(name, local, shares, is_coded)
                continue
            for node in range(self.nodes):
                parts = [share_of(share, node, self.nodes) for share in shares]
                total = self._sum(f"{node}/{name}", local, parts, is_coded)
                if is_coded and total.any():
                    server = self.servers[node * self.inside + local]
                    total = gcodec.decode(server.compress(name, total))
                share_of(target, node, self.nodes)[...] = total
        return whole

    def _sum(self, name: str, local: int, parts: list[np.ndarray], is_coded: bool) -> np.ndarray:
        total = np.zeros(parts[0].shape, np.float32)
        for node, part in enumerate(parts):
            if is_coded and part.any():
                frame = self.workers[node * self.inside + local].compress(name, part)
            else:
                frame = gcodec.encode(part, "raw")
            gcodec.decode_add(frame, total, np.float32(1 / self.nodes))
        return total


def compare(
    spec: str, shared: int, two_phase: bool, second: str | None = None, **options: Any
) -> dict[str, Any]:
    """Compare gradients and residuals bit for bit with `Reference`."""
    training = Training(spec, second=second, **options)
    reference = Reference(spec, second or spec, shared, two_phase)
    wrong = []
    for step in range(4):
        local = [training.local_gradients(step, rank) for rank in range(dist.get_world_size())]
        training.step(step)
        for name, gradient in training.gradients().items() if step else ():
            expected = reference.mean(name, [gradients[name] for gradients in local])
            if not np.array_equal(gradient, expected):
                wrong.append((step, name))
    state, rank = training.state.state_dict(), dist.get_rank()
    kept = {key: np.asarray(x) for key, x in state.items() if "residual:" in key}
    expected = {
        prefix + key: x
        for prefix, memory in (("", reference.workers[rank]), ("server:", reference.servers[rank]))
        for key, x in memory.state_dict().items()
        if "residual:" in key
    }
    return {
        "wrong": wrong,
        "kept": kept.keys() == expected.keys()
        and all(np.array_equal(kept[key], expected[key]) for key in kept),
        "digest": training.digest(),
        "collective": training.state.collective,
        "pays_below": training.state.pays_below >= 0,
        "shape": list(training.state.residual("second.weight").shape),
    }


def two_phase() -> dict[str, Any]:
    return compare("topk:ratio=0.05", 1, True, collective="two-phase")


def other_codec() -> dict[str, Any]:
    """Round at random, and send the means with another codec."""
    options: dict[str, Any] = {"collective": "two-phase", "key": b"a key"}
    return compare("qsgd:s=7,bucket=64", 1, True, "minmax:bits=4", **options)


def sizes() -> dict[str, Any]:
    """Compress a first step by rules that see sizes of shares, with and without feedback."""
    rules = [{"max_bytes": 4096, "codec": "sign"}, {"codec": "minmax"}]
    digests = []
    for feedback in (True, False):
        options: dict[str, Any] = {"feedback": feedback, "start_iter": 0}
        training = Training(gcodec.Policy(rules), collective="two-phase", **options)
        training.step(0)
        digests.append(training.digest())
    return {"digests": digests}


def hierarchical() -> dict[str, Any]:
    return compare("sign", 2, False, collective="hierarchical", inside=2)


def after_other_groups() -> dict[str, Any]:
    """Make groups of nodes, which the caller has too, on ranks with unequally many groups."""
    dist.new_group([0, 1])
    nodes = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    inside = nodes[dist.get_rank() // 2]
    return compare("sign", 2, False, collective="hierarchical", inside=inside)


def some_then_all() -> dict[str, Any]:
    """Make groups of some ranks and of all, whose names contain the number of calls."""
    world = distributed_c10d._world

    def name_of(ranks: Sequence[int], use_hashed_name: bool) -> str:
        """Name a group as PyTorch 2.14 does."""
        salted = "_".join(map(str, [*ranks, world.group_count]))
        hashed = hashlib.sha1(salted.encode()).hexdigest()
        world.group_count += 1
        return hashed if use_hashed_name else str(world.group_count)

    rank, met = dist.get_rank(), []
    with mock.patch.object(distributed_c10d, "_process_group_name", name_of):
        for ranks in ([0, 1], [0, 1], None, [1, 2], [2, 3], [3, 1], None, [0, 1]):
            if ranks is None or rank in ranks:
                own = Communicator.apart(ranks)
                met.append([message[0] for message in own.all_gather(bytes([rank]))])
        whole = dist.new_group()
        met.append(dist.get_process_group_ranks(whole))
        dist.barrier(whole)
    return {"met": met}


def inside_then_two_phase() -> dict[str, Any]:
    """Let the advisor choose what a hierarchy of more nodes does."""
    choice = Choice(True, True, "")
    mesh = init_device_mesh("cpu", (2, 2))
    with mock.patch("gcodec.torch.ddp.choose_collective", lambda *arguments: choice):
        return compare("topk:ratio=0.05", 2, True, collective="auto", inside=mesh)


def from_torchrun() -> dict[str, Any]:
    with mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": "2"}):
        return compare("sign", 2, False, collective="hierarchical")


def dense_bits() -> dict[str, Any]:
    """Train without loss: two phases and gathering have the same bits."""
    digests = []
    for collective in ("gather", "two-phase"):
        training = Training("raw", collective=collective)
        for step in range(3):
            training.step(step)
        digests.append(training.digest())
    return {"digests": digests}


def automatic() -> dict[str, Any]:
    """Let the advisor choose, and keep its choice in the state."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("gcodec.torch")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    options: dict[str, Any] = {"collective": "auto", "is_frozen": True}
    training = Training("sign", inside=dist.get_world_size(), **options)
    before = training.state.collective, training.state.state_dict()
    for step in range(3):
        training.step(step)
    announced = [*messages]
    again = Training("sign", **options)
    again.state.load_state_dict(training.state.state_dict())
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    own = groups[dist.get_rank()]
    alone = Training("sign", collective="auto", process_group=own, start_iter=0)
    arrays = {"residual:x": torch.ones(3), "step:x": torch.tensor(1)}
    strange = alone.state.state_dict() | arrays | {"place": torch.tensor([0, 2, 0, 1, 0])}
    refused = [refusal_of(alone.state.load_state_dict, strange)]
    wide = alone.state.state_dict() | arrays | {"residual:x": torch.ones(3).double()}
    refused += [refusal_of(alone.state.load_state_dict, wide), alone.state.collective]
    alone.step(0)  # chooses a collective all the same
    logger.removeHandler(handler)
    return {
        "alone": [alone.state.collective, *messages[len(announced) :]],
        "refused": refused,
        "messages": announced,
        "collectives": [before[0], training.state.collective, again.state.collective],
        "keys": sorted(before[1]),
        "digest": training.digest(),
        "text": repr(training.state),
    }


def resume(spec: str = "qsgd:s=3,bucket=128", **options: Any) -> dict[str, Any]:
    """Save and load a run, and expect the same bits as without interruption."""
    options = options or {"collective": "two-phase", "second": "minmax:bits=4"}
    whole, half = Training(spec, **options), Training(spec, **options)
    for step in range(5):
        whole.step(step)
    for step in range(3):
        half.step(step)
    path = Path(sys.argv[3]) / STATE.format(dist.get_rank())
    torch.save(half.state.state_dict(), path)
    loaded = torch.load(path, weights_only=True)
    again = Training(spec, **options)
    again.state.load_state_dict(loaded)
    again.net.load_state_dict(half.net.state_dict())
    again.optimizer.load_state_dict(half.optimizer.state_dict())
    for step in range(3, 5):
        again.step(step)
    refused = ""
    try:
        Training("sign").state.load_state_dict(loaded)
    except ParameterError as error:
        refused = str(error)
    return {"digests": [whole.digest(), again.digest()], "refused": refused}


def resume_hierarchical() -> dict[str, Any]:
    return resume(collective="hierarchical", inside=2)


def owed(states: list[dict[str, torch.Tensor]]) -> dict[str, np.ndarray]:
    """Return what the ranks of a run without nodes still owe to the mean, by parameter."""
    sums: dict[str, Any] = {}
    for state in states:
        rank, size = int(state["rank"]), int(state["size"])
        for name, shape in SHAPES.items():
            total = sums.setdefault(name, np.zeros(shape))
            for rank_of_factors in ("", "0:", "2:"):  # 0 until the first step
                key = f"{rank_of_factors}residual:{name}"
                if key in state:
                    total += state[key].numpy() / size
            for share in range(size):
                if f"residual:{share}/{name}" in state:
                    own = state[f"residual:{share}/{name}"].numpy()
                    share_of(total, share, size)[...] += own / size
            if f"server:residual:{name}" in state:
                share_of(total, rank, size)[...] += state[f"server:residual:{name}"].numpy()
    return sums


SPEC_OF = {False: "topk:ratio=0.05", True: "powersgd:rank=2"}
SHAPES = {"first.weight": (48, 16), "second.weight": (40, 48), "last.weight": (3, 40)}


def restart() -> dict[str, Any]:
    """Go on with two of four ranks, and with other collectives; what they owe is kept."""
    path, pair, results = Path(sys.argv[3]) / STATE, dist.new_group([0, 1]), []
    for former, collective in (
        *(("two-phase", other) for other in ("gather", "two-phase", "auto", "factors")),
        ("factors", "factors"),
        ("factors", "gather"),
    ):
        whole = Training(SPEC_OF[former == "factors"], collective=former)
        for step in range(3):
            whole.step(step)
        torch.save(whole.state.state_dict(), str(path).format(dist.get_rank()))
        dist.barrier()
        states = [torch.load(str(path).format(rank), weights_only=True) for rank in range(4)]
        expected = owed(states)
        dist.barrier()
        if dist.get_rank() > 1:
            continue
        spec = SPEC_OF[collective == "factors"]
        again = Training(spec, collective=collective, process_group=pair)
        strange = [{**state, "residual:x": torch.ones(3)} for state in states]
        refused = refusal_of(again.state.load_state_dicts, strange)
        again.state.load_state_dicts(states)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            again.state.load_state_dicts(states[:3])
        again.state.load_state_dicts(states)
        torch.save(again.state.state_dict(), str(path).format(f"again{dist.get_rank()}"))
        dist.barrier(pair)
        now = owed(
            [torch.load(str(path).format(f"again{r}"), weights_only=True) for r in range(2)]
        )
        again.net.load_state_dict(whole.net.state_dict())
        for step in range(3, 5):
            again.step(step)
        results.append(
            {
                "kept": all(np.allclose(now[n], expected[n], 1e-5, 1e-7) for n in expected),
                "refused": refused,
                "some": all(x.any() for x in expected.values()),
                "warned": [str(w.message) for w in caught],
                "digest": again.digest(),
                "iteration": again.state.iteration,
            }
        )
    dist.barrier()
    return {"results": results}


def counted() -> dict[str, Any]:
    """Compare the counted bytes with those that reach torch.distributed, and count calls."""
    training = Training("sign", collective="two-phase", start_iter=0)
    seen: list[tuple[str, int]] = []
    real_to_all, real_gather = dist.all_to_all_single, dist.all_gather

    def to_all(out: torch.Tensor, sent: torch.Tensor, *splits: Any, group: Any) -> None:
        own = splits[1][dist.get_rank()] if splits else len(sent[0])
        seen.append(("all-to-all", sent.numel() - own))
        real_to_all(out, sent, *splits, group=group)

    def gather(rows: Any, row: torch.Tensor, group: Any) -> None:
        seen.append(("all-gather", (len(rows) - 1) * row.numel()))
        real_gather(rows, row, group=group)

    training.step(0)  # agrees on the arguments
    training = Training("sign", collective="two-phase", start_iter=1)
    training.step(0)
    training.state._agreed = True
    buckets = [0]
    real_average = training.state._average

    def average(*arguments: Any) -> None:
        buckets[0] += 1
        real_average(*arguments)

    training.state._average = average  # type: ignore[method-assign]
    with mock.patch.multiple(dist, all_to_all_single=to_all, all_gather=gather):
        training.step(1)
    traffic = training.state._traffic
    return {
        "calls": {name: sum(n == name for n, _ in seen) for name in ("all-to-all", "all-gather")},
        "buckets": buckets[0],
        "wire": sum(nbytes for _, nbytes in seen),
        "sent": traffic.sent_nbytes,
        "received": training.state.received_nbytes,
    }


def peers() -> dict[str, Any]:
    """Train two groups with the same data, as ranks of tensor parallelism do."""
    rank, digests = dist.get_rank(), []
    groups = [dist.new_group([first, first + 2]) for first in (0, 1)]
    for feedback in (True, False):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(48, 32), process_group=groups[rank % 2])
        state, hook = gcodec.torch.ddp_hook(
            "qsgd:s=3", model=model, start_iter=0, feedback=feedback, key=KEY
        )
        model.register_comm_hook(state, hook)
        for step in range(2):
            x = torch.randn(8, 48, generator=torch.Generator().manual_seed(2 * step + rank // 2))
            model.zero_grad()
            model(x).tanh().sum().backward()
        digests.append(model.module.weight.grad.double().square().sum().item())
    return {"digests": digests}


# PowerSGD


def matrix_step(model: Any, step: int) -> None:
    """Compute gradients that differ from rank to rank, and take a step."""
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    x = torch.randn(16, 48, generator=generator)
    model.zero_grad()
    model(x).tanh().sub(x[:, :32]).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= parameter.grad


def factors() -> dict[str, Any]:
    """Compare with PowerSGD of torch, whose first factor is copied."""
    models = []
    for hook in ("torch", "gcodec"):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(48, 32))
        if hook == "torch":
            powersgd = powerSGD_hook.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=2,
                start_powerSGD_iter=2,
                min_compression_rate=1,
            )
            seed = copy.deepcopy(powersgd.rng).randint(1_000_000_000)
            model.register_comm_hook(powersgd, powerSGD_hook.powerSGD_hook)
        else:
            state, own = gcodec.torch.ddp_hook(
                "powersgd:rank=2", collective="factors", model=model, min_numel=0
            )
            model.register_comm_hook(state, own)
        models.append(model)
    torch.manual_seed(seed)
    first = torch.randn(1, 48, 2)[0].T.double().numpy()
    plain, ours = models
    far = []
    with mock.patch("gcodec.kernels.numeric.low_rank.start", lambda *arguments: first.copy()):
        for step in range(8):
            matrix_step(plain, step)
            matrix_step(ours, step)
            weights = [model.module.weight.detach() for model in models]
            far.append(float((weights[0] - weights[1]).norm() / weights[0].norm()))
        saved, sent = state.state_dict(), state.sent_nbytes
        ours.register_forward_hook(lambda module, x, y: y * float("nan"))
        ours(torch.ones(1, 48)).sum().backward()
    return {
        "far": max(far),
        "keys": sorted(saved),
        "same": same(saved, state.state_dict()),
        "nan": bool(ours.module.weight.grad.isnan().any()),
        "digest": ours.module.weight.detach().double().sum().item(),
        "residual": list(state.residual("weight").shape),
        "sent": sent,
    }


def unused_factors() -> dict[str, Any]:
    """Train two branches in turn; DDP drops the mean of a parameter that no rank has used."""
    torch.manual_seed(0)
    branches = DistributedDataParallel(Branches(), find_unused_parameters=True)
    state, hook = gcodec.torch.ddp_hook(
        "powersgd:rank=1", collective="factors", model=branches, start_iter=0
    )
    branches.register_comm_hook(state, hook)
    owed, kept = {}, []
    for step in range(8):
        # In the third step, one rank alone uses the second branch.
        index = step // 2 % 2 if step != 2 else dist.get_rank()
        x = inputs(step)
        weight = branches.module.layers[index].weight
        name = f"layers.{index}.weight"
        loss = branches.module(x, index).tanh().sum()
        owed[name] = owed.get(name, 0) + torch.autograd.grad(loss, weight)[0].double()
        branches.zero_grad()
        other = f"layers.{1 - index}.weight"
        before = state.residual(other).clone() if other in owed else None
        branches(x, index).tanh().sum().backward()
        for each, parameter in branches.module.named_parameters():
            if parameter.grad is not None:
                owed[each] = owed.get(each, 0) - parameter.grad.double()
        if before is not None:
            kept.append(torch.equal(before, state.residual(other)))
    far = []
    for name, value in owed.items():
        rest = value - state.residual(name).double()
        dist.all_reduce(rest)
        far.append(float(rest.norm()))
    return {"far": max(far), "kept": all(kept)}


class Branches(torch.nn.Module):
    """Two layers, of which each step uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(48, 32, False) for _ in range(2)])

    def forward(self, x: torch.Tensor, index: int) -> torch.Tensor:
        return self.layers[index](x)


def resume_factors() -> dict[str, Any]:
    return resume("powersgd", collective="factors")


# Faults


class Fault:
    """Something that happens to one rank in one call of a method of its communicators."""

    def __init__(self, rank: int, method: str, number: int, action: Any) -> None:
        self.rank, self.method, self.number, self.action = rank, method, number, action
        self.count = 0

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        if dist.get_rank() != self.rank:
            yield
            return
        real = getattr(Communicator, self.method)

        def call(communicator: Any, *arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count != self.number:
                return real(communicator, *arguments, **options)
            return self.action(lambda: real(communicator, *arguments, **options), communicator)

        with mock.patch.object(Communicator, self.method, call):
            yield


def vanish(proceed: Any, communicator: Any) -> Any:
    """Close the connections, as the end of a process does, and tell nobody."""
    communicator.close()
    raise ConnectionError("this rank is gone")


def flip(proceed: Any, communicator: Any) -> Any:
    received = proceed()
    received[0] = received[0][:-1] + bytes([received[0][-1] ^ 1])
    return received


def doze(proceed: Any, communicator: Any) -> Any:
    time.sleep(8)
    return proceed()


def fault(
    method: str, action: Any, number: int = 1, timeout: float = 30, **options: Any
) -> dict[str, Any]:
    """Return the error of each rank, the time until it, and whether the residuals are kept."""
    training = Training("topk:ratio=0.05", timeout=timeout, **options)
    for step in range(2):
        training.step(step)
    before, start = training.state.state_dict(), time.monotonic()
    silent = mock.patch("gcodec.torch.ddp.report_failure", lambda *arguments: None)
    is_gone = action is vanish and dist.get_rank() == 1
    with silent if is_gone else contextlib.nullcontext():
        with Fault(1, method, number, action).armed():
            error = error_of(training, 2)
        seconds = time.monotonic() - start
        after = training.state.state_dict()
        following = error_of(training, 3) if error is None else None
    return {
        "error": (error or "").partition("GcodecError: ")[2].partition("\n")[0],
        "following": (following or "").partition("GcodecError: ")[2].partition("\n")[0],
        "seconds": seconds,
        "same": same(before, after),
    }


TWO_PHASE: dict[str, Any] = {"collective": "two-phase"}
HIERARCHICAL: dict[str, Any] = {"collective": "hierarchical", "inside": 2}


def gone_in_shares() -> dict[str, Any]:
    return fault("all_to_all", vanish, **TWO_PHASE)


def gone_in_means() -> dict[str, Any]:
    return fault("all_gather", vanish, **TWO_PHASE)


def gone_inside() -> dict[str, Any]:
    return fault("swap_rows", vanish, **HIERARCHICAL)


def gone_between() -> dict[str, Any]:
    return fault("all_gather", vanish, **HIERARCHICAL)


def gone_at_last() -> dict[str, Any]:
    """Vanish before the means return to the node; the gather between nodes calls it as well."""
    return fault("gather_rows", vanish, number=2, **HIERARCHICAL)


def gone_in_choice() -> dict[str, Any]:
    """Vanish while the group of the node measures its links, after those of all ranks."""
    options = {"collective": "auto", "inside": 2, "start_iter": 2}
    return fault("all_gather", vanish, number=2 * choice._REPEATS + 2, **options)


def flipped_share() -> dict[str, Any]:
    return fault("all_to_all", flip, **TWO_PHASE)


def flipped_mean() -> dict[str, Any]:
    return fault("all_gather", flip, **TWO_PHASE)


def flipped_between() -> dict[str, Any]:
    return fault("all_gather", flip, **HIERARCHICAL)


def slow() -> dict[str, Any]:
    return fault("all_gather", doze, timeout=5, **TWO_PHASE)


_COMPRESS = Transaction.compress_known


def compress(steps: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """Refuse a gradient on rank 1."""
    if dist.get_rank() == 1 and name.endswith("second.weight"):
        raise ParameterError("x: cannot be encoded")
    return _COMPRESS(steps, name, *arguments, **options)


def refused() -> dict[str, Any]:
    """Let the codec refuse a gradient on one rank."""
    results = []
    for options in ({"collective": "gather"}, TWO_PHASE, HIERARCHICAL):
        training = Training("topk:ratio=0.05", timeout=30, **options)
        for step in range(2):
            training.step(step)
        before = training.state.state_dict()
        with mock.patch.object(Transaction, "compress_known", compress):
            error = error_of(training, 2)
        text = (error or "").partition("GcodecError: ")[2].partition("\n")[0]
        results.append((text, same(before, training.state.state_dict())))
    return {"results": results}


def nonfinite() -> dict[str, Any]:
    """Expect Inf of one rank on all ranks, and the residuals of the step before."""
    results = []
    for options in (TWO_PHASE, HIERARCHICAL):
        training = Training("topk:ratio=0.05", **options)
        for step in range(3):
            training.step(step)
        before = training.state.state_dict()
        with infinite(training, "second.weight", 1):
            training.optimizer.zero_grad()
            error = error_of(training, 3)
        bad = sorted(n for n, g in training.gradients().items() if not np.isfinite(g).all())
        results.append((error, bad, same(before, training.state.state_dict())))
    return {"results": results}


def mismatch() -> dict[str, Any]:
    """Give the ranks other arguments."""
    rank = dist.get_rank()
    cases: list[dict[str, Any]] = [
        {"collective": ("two-phase", "gather")[rank > 0]},
        {"collective": "two-phase", "second": ("sign", "minmax")[rank > 0]},
    ]
    errors = [error_of(Training("sign", start_iter=0, **case), 0) for case in cases]
    meshes = [init_device_mesh("cpu", (2, 1)), init_device_mesh("cpu", (1, 2))]
    choices: list[dict[str, Any]] = [
        {"collective": ("hierarchical", "gather")[rank]},
        {"inside": 1 + rank},
        {"inside": meshes[rank]},
    ]
    errors += [early_error_of({**HIERARCHICAL, **options}) for options in choices]
    return {"errors": errors}


def inputs(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
    return torch.randn(8, 48, generator=generator)


def loaded_late() -> dict[str, Any]:
    """Load states after the first step: on all ranks, on one, and of different steps."""
    rank, errors = dist.get_rank(), []
    for collective in ("gather", "two-phase", "hierarchical", "auto"):
        model = DistributedDataParallel(torch.nn.Linear(48, 32, False))
        options: dict[str, Any] = {"start_iter": 0, "collective": collective, "inside": 1}
        for case in ("same", "lone", "other"):
            state, hook = gcodec.torch.ddp_hook("sign", model=model, **options)
            model = DistributedDataParallel(model.module)
            model.register_comm_hook(state, hook)
            saved = []
            for step in range(2):
                model(inputs(step)).square().mean().backward()
                saved.append(state.state_dict())
            if case != "lone" or rank:
                state.load_state_dict(saved[rank if case == "other" else 0])
            try:
                for step in range(2, 4):
                    model(inputs(step)).square().mean().backward()
                errors.append(f"{case} {state.iteration}")
            except RuntimeError as error:
                errors.append(str(error).partition("must load ")[2].partition("\n")[0])
    # A hook with a chosen collective, and one without, would wait for each other.
    state, hook = gcodec.torch.ddp_hook("sign", model=model, **options)
    model = DistributedDataParallel(model.module)
    model.register_comm_hook(state, hook)
    counters = {name: saved[0][name] for name in ("iteration", "rank", "size")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of missing residuals
        state.load_state_dict(saved[0] if rank else {**counters, "iteration": torch.tensor(1)})
    try:
        model(inputs(0)).sum().backward()
    except ParameterError as error:
        errors.append(str(error))
    return {"errors": errors}


def early_error_of(options: dict[str, Any]) -> str | None:
    """Return the error of making a hook, or of its first step."""
    try:
        return error_of(Training("sign", start_iter=0, **options), 0)
    except ParameterError as error:
        return str(error)


def arguments() -> dict[str, Any]:
    """Pass invalid arguments."""
    wrong: list[dict[str, Any]] = [
        {"collective": "ring"},
        {"inside": 0, "collective": "hierarchical"},
        {"inside": "2", "collective": "hierarchical"},
        {"inside": None, "collective": "hierarchical"},
        {"second": gcodec.Policy({"name.*": "sign"})},
    ]
    hook, (state, _) = gcodec.torch.ddp_hook, gcodec.torch.ddp_hook("sign")
    refusals = [refusal_of(hook, "sign", **case) for case in wrong]
    refusals += [refusal_of(state.load_state_dicts, x) for x in ([], [state.state_dict()])]
    return {"refusals": [str(text).partition(":")[0].partition("=")[0] for text in refusals]}


def killed() -> dict[str, Any]:
    """Kill one rank between both phases."""
    return fault("all_gather", lambda proceed, communicator: os._exit(0), **TWO_PHASE)


def main() -> None:
    rank, size, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    results = {}
    for name in sys.argv[4:]:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{directory / f'store {name}'}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=60),
        )
        results[name] = globals()[name]()
        (directory / f"rank{rank}.json").write_text(json.dumps(results))
        if name == "killed":
            os._exit(0)  # threads of gloo may still wait for the rank
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
