"""One rank of `bench.scale`: measure links, coding and steps with each hook, on each link."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import gcodec
from bench import links
from bench.ddp_worker import WARM, Timed, network
from gcodec import training
from gcodec.codecs.powersgd import PowerSGD
from gcodec.torch import TorchCommunicator
from gcodec.torch.choice import measure_link
from gcodec.torch.exchange import shares_of
from gcodec.torch.messages import BucketCoder, Key, Part
from gcodec.torch.selection import joined_policy
from gcodec.training import Simulator

BATCH = 8  # small, because all ranks share the processors
MIN_NUMEL = 1024  # as in `gcodec.torch.ddp_hook`
_PROBE_NBYTES, _PINGS, _REPEATS = 1 << 22, 10, 5
_TIMEOUT = timedelta(seconds=300)


class Speed(NamedTuple):
    """Link as it is meant to be: bits per second, or 0 for no limit, and seconds of delay."""

    rate: float
    delay: float


class Hook(NamedTuple):
    """A row: what `Timed` calls the hook, and the collective of a codec."""

    name: str
    collective: str = ""


class Measured(NamedTuple):
    """Link as it is.

    Attributes
    ----------
    ping : float
        Seconds of a message of four bytes in one direction.
    one, all : float
        Bits per second that two nodes reach alone, and that each node reaches if all of them send
        to the next one at the same time.
    latency : float
        Seconds of a step of a ring without bytes, as ``collective="auto"`` measures it. A message
        of gloo waits until its receiver has said that it is ready.
    """

    ping: float
    one: float
    all: float
    latency: float


def run(
    rank: int,
    size: int,
    inside: int,
    nodes: links.Network | None,
    hooks: Sequence[Hook],
    speeds: Sequence[Speed],
    steps: int,
    store: Path,
    file: Path,
) -> None:
    """Measure all rows on one number of ranks, and write them to a file.

    Parameters
    ----------
    rank, size : int
    inside : int
        Number of ranks of a node.
    nodes : Network or None
        Network whose node this rank enters; None for the loopback device of this machine.
    hooks : sequence of Hook
    speeds : sequence of Speed
    steps : int
        Number of measured steps of each row.
    store : Path
        Path for the store of torch.distributed, which does not exist yet.
    file : Path
        File that rank 0 writes.
    """
    links.end_with_parent()
    torch.set_num_threads(1)
    device = "lo" if nodes is None else links.DEVICE
    if nodes is not None:
        nodes.enter(rank // inside)
    os.environ["GLOO_SOCKET_IFNAME"] = device
    init = f"file://{store}"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=size, timeout=_TIMEOUT)
    shape = _shaper(nodes)
    result: dict[str, Any] = {
        "processors": len(os.sched_getaffinity(0)),
        "size": size,
        "inside": inside,
        "values": sum(p.numel() for p in network().parameters()),
        "links": [],
        "coding": {},
        "rows": [],
    }
    for speed in speeds:
        shape(speed)
        result["links"].append([*speed, *measure_nodes(inside, size)])
    shape(Speed(0, 0))
    if inside > 1:
        result["inside_link"] = measure_nodes(1, inside)
    for hook in [Hook("alone"), *hooks]:
        if hook.collective:
            result["coding"][f"{hook.name}, {hook.collective}"] = coding(hook, rank, size, inside)
        timed = Timed(
            hook.name,
            rank,
            batch=BATCH,
            bucket=25,
            collective=hook.collective or "gather",
            inside=inside if hook.collective == "hierarchical" else None,
        )
        for _ in range(WARM):
            timed.step(lambda: 0)
        for speed in speeds if hook.name != "alone" else speeds[:1]:
            shape(speed)
            timed.step(lambda: 0)  # the windows of TCP adapt
            busy = 0.0 if nodes is None else nodes.relay_seconds
            wire, local = links.sent_nbytes(device), links.sent_nbytes("lo")
            timed.steps.clear()
            for _ in range(steps):
                timed.step(lambda: links.sent_nbytes(device))
            counted = (links.sent_nbytes(device) - wire, links.sent_nbytes("lo") - local)
            row = _row(timed, [number / steps for number in counted], size)
            if nodes is not None:
                row["relay"] = (nodes.relay_seconds - busy) / steps
            result["rows"].append([*hook, *speed, row])
        shape(Speed(0, 0))
        del timed
    dist.barrier()
    if rank == 0:
        file.write_text(json.dumps(result), "utf-8")
    dist.destroy_process_group()


def _shaper(nodes: links.Network | None) -> Callable[[Speed], None]:
    """Return a function that shapes all links, once all ranks have called it."""

    def shape(speed: Speed) -> None:
        dist.barrier()
        if dist.get_rank() == 0 and nodes is not None:
            nodes.shape(*speed)
        dist.barrier()

    return shape


def _row(timed: Timed, counted: list[float], size: int) -> dict[str, Any]:
    """Return the fastest step, and the means of the processor seconds and bytes of all ranks."""
    own = torch.tensor(
        [[s.start, s.start + s.seconds, s.processor] for s in timed.steps], dtype=torch.float64
    )
    own = torch.cat([own.reshape(-1), torch.tensor(counted, dtype=torch.float64)])
    gathered = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(gathered, own)
    everyone = torch.stack(gathered)
    steps = everyone[:, :-2].reshape(size, len(timed.steps), 3)
    # An exchange cannot end before the last rank has started.
    seconds = steps[:, :, 1].amax(0) - steps[:, :, 0].amax(0)
    row = {
        "seconds": float(seconds.min()),
        "processor": float(steps[:, :, 2].sum(0).mean()),
        "wire": float(everyone[:, -2].mean()),
        "local": float(everyone[:, -1].mean()),
    }
    if timed.state is not None:
        values = sum(p.numel() for p in timed.model.parameters())
        row["bits"] = 8 * sum(s.message for s in timed.steps) / len(timed.steps) / values
    return row


def measure_nodes(step: int, count: int) -> Measured:
    """Measure the links of groups of `count` ranks, whose members are `step` ranks apart.

    The other ranks take no part.
    """
    rank = dist.get_rank()
    first = rank // count * count
    # All ranks make groups, as all of them must, but only those of the first members measure.
    members = list(range(first + (rank - first) % step, first + count, step))
    group = TorchCommunicator.apart(members)
    takes_part = members[0] == first
    short, long = torch.zeros(1), torch.zeros(_PROBE_NBYTES // 4)

    def ping(tensor: torch.Tensor, back: torch.Tensor) -> float:
        """Return the seconds until a tensor has gone to the next member, and another one back."""
        dist.barrier()
        start = time.monotonic()
        if rank == 0:
            dist.send(tensor, step)
            dist.recv(back, step)
        elif rank == step:
            dist.recv(tensor, 0)
            dist.send(back, 0)
        return time.monotonic() - start

    def shift() -> float:
        """Return the seconds until each member has sent a tensor to the next one."""
        dist.barrier()
        start = time.monotonic()
        if takes_part:
            received = torch.empty_like(long)
            # As in a ring, the receiver is ready first; else one direction may wait for the other.
            incoming = dist.irecv(received, members[group.rank - 1])
            outgoing = dist.isend(long, members[(group.rank + 1) % group.size])
            incoming.wait()
            outgoing.wait()
        ended = torch.tensor([start, time.monotonic()], dtype=torch.float64) * takes_part
        dist.all_reduce(ended, dist.ReduceOp.MAX)
        return float(ended[1] - ended[0])

    delay = min(ping(short, short) for _ in range(_PINGS)) / 2
    whole = [
        min(ping(long, short) for _ in range(_REPEATS)),
        min(shift() for _ in range(_REPEATS)),
    ]
    # Half counts where delays are as long as the transfer, as without a limit.
    transfer, shifted = (max(seconds - 2 * delay, seconds / 2) for seconds in whole)
    latency = measure_link(group).latency if takes_part else 0.0
    numbers = torch.tensor([delay, transfer, shifted, latency], dtype=torch.float64)
    dist.broadcast(numbers, 0)
    delay, transfer, shifted, latency = numbers.tolist()
    nbits = 8 * _PROBE_NBYTES
    return Measured(delay, nbits / transfer, nbits / shifted, latency)


def coding(hook: Hook, rank: int, size: int, inside: int) -> dict[str, float]:
    """Return the processor seconds in which a rank encodes one gradient, and decodes one.

    The pieces are those of the collective. Each number is the least of several and the mean over
    ranks. For "factors", "encode" is all work of the method, and "decode" is 0.
    """
    timed = Timed("alone", rank, batch=BATCH)
    timed.model.zero_grad()
    torch.nn.functional.cross_entropy(timed.model(timed.x), timed.y).backward()
    codec = gcodec.parse(hook.name)
    gradients = {
        name: p.grad.numpy().copy()
        for name, p in timed.model.module.named_parameters()
        if p.grad is not None and p.ndim > 1 and p.numel() >= MIN_NUMEL
    }
    if isinstance(codec, PowerSGD):
        [alone] = Simulator(1).run(lambda communicator: communicator)
        method = training.PowerSGD(alone, codec.rank)
        return {"encode": _processor(lambda: method.average(gradients)), "decode": 0.0}
    parts = [Part(name, x.copy(), codec) for name, x in gradients.items()]
    policy, members = joined_policy(None, codec), size
    if hook.collective == "hierarchical":
        first = shares_of(parts, inside, policy)[0]
        parts = [part._replace(values=part.values.copy()) for part in first]
        gradients = {part.name: part.values.copy() for part in parts}
        members //= inside
    coder = BucketCoder(gcodec.Feedback(codec, rank=rank), 0, rank, Key(None))
    shares = [parts]
    if is_two_phase(hook, size, inside):
        shares = shares_of(parts, members, policy, prefixed=True)
    written: list[bytes] = []

    def encode() -> None:
        for name, values, _ in parts:
            values[...] = gradients[name]
        written[:] = coder.encode_shares(shares, 0)
        coder.commit()

    def add() -> None:
        coder.average(shares[0], written[:1] * members)

    def decode() -> None:
        for share, message in zip(shares, written, strict=True):
            coder.average(share, [message], [rank])

    seconds = {"encode": _processor(encode), "decode": _processor(add)}
    if len(shares) == 1:
        seconds["decode"] /= members
    else:  # a rank adds up shares as long as a gradient, and decodes means as long as one
        seconds["decode"] = (seconds["decode"] + _processor(decode)) / 2
    parts_of_node = inside if hook.collective == "hierarchical" else 1
    return {name: parts_of_node * number for name, number in seconds.items()}


def is_two_phase(hook: Hook, size: int, inside: int) -> bool:
    """Return whether messages between nodes travel in two phases."""
    hierarchical = hook.collective == "hierarchical" and size // inside > 2
    return hook.collective == "two-phase" or hierarchical


def _processor(call: Callable[[], object]) -> float:
    """Return the processor seconds of a call: the least of several, and the mean over ranks."""
    dist.barrier()
    times = []
    for _ in range(_REPEATS):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    least = torch.tensor(min(times), dtype=torch.float64)
    dist.all_reduce(least)
    return float(least) / dist.get_world_size()
