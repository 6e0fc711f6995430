"""Train on many simulated workers with the exchanges of the DDP hook, and count bytes per link.

All workers are threads of this process; see `gcodec.training.Simulator`. They run the code of the
hook itself, `gcodec.torch.exchange`, with a communicator that the simulator counts. The gradients
are those of a small network that predicts bytes of Python's standard library.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import gcodec
from examples.convergence.tasks import GPT_BYTES, error
from gcodec import advisor
from gcodec.torch import TorchCommunicator
from gcodec.torch.exchange import Exchange, Gathered, InsideFirst, Traffic, TwoPhase, shares_of
from gcodec.torch.factors import Factors
from gcodec.torch.messages import BucketCoder, Key, Part
from gcodec.torch.selection import joined_policy
from gcodec.training import Simulator

VALUES = 147_456
_SETTINGS = (
    *(
        (64, codec, collective, steps)
        for codec, steps in (("sign", 6), ("topk:ratio=0.01", 6), ("ecsq:bits=1", 3))
        for collective in ("gather", "two-phase", "hierarchical")
    ),
    (64, "powersgd:rank=4", "factors", 6),
    *((256, "sign", collective, 2) for collective in ("gather", "hierarchical")),
    (256, "powersgd:rank=4", "factors", 2),
    (1024, "sign", "hierarchical", 2),
    (1024, "powersgd:rank=4", "factors", 2),
)
INSIDE = 8  # workers of a node
_CONTEXT, _RATE = 4, 0.5  # bytes that predict the next one, and learning rate


class Setting(NamedTuple):
    """A row: number of workers, codec, collective, and number of steps."""

    size: int
    codec: str
    collective: str
    steps: int


SETTINGS = [Setting(*setting) for setting in _SETTINGS]


class Outcome(NamedTuple):
    """Results of a setting.

    Attributes
    ----------
    inside, between : float
        Bytes of a step on the link of a worker to its node, and of a node to the others.
    bits : float
        Bits per value of one gradient with the codec, encoded as a whole.
    residuals : list of float
        Norm of the residuals as a multiple of that of the gradient, after each step; the mean over
        some workers.
    equal : bool
        Whether all workers had the same bits after every step.
    losses : list of float
        Loss of rank 0 at the beginning of each step.
    seconds : float
        Seconds of a step of the simulation.
    """

    inside: float
    between: float
    bits: float
    residuals: list[float]
    equal: bool
    losses: list[float]
    seconds: float


class _Bytes(nn.Module):
    """A perceptron that predicts a byte from the preceding ones."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.hidden = nn.Linear(_CONTEXT * width, hidden, bias=False)
        self.out = nn.Linear(hidden, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the byte after each window of `_CONTEXT` bytes."""
        return self.out(
            torch.relu(self.hidden(self.token(tokens.unfold(1, _CONTEXT, 1)).flatten(2)))
        )


class _Group(TorchCommunicator):
    """A group of simulated workers with the methods that exchanges call."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.rank, self.size = communicator.rank, communicator.size
        self.ranks = list(communicator.ranks)

    def all_gather(
        self, message: bytes, head_nbytes: int = 0, *, slot: str | None = None
    ) -> list[bytes]:
        return list(self._communicator.all_gather(message))

    def all_to_all(
        self, messages: Sequence[bytes], head_nbytes: int = 0, *, slot: str | None = None
    ) -> list[bytes]:
        return list(self._communicator.all_to_all(messages))

    def all_reduce(self, values: np.ndarray) -> None:
        self._communicator.all_reduce(values)

    def swap_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return self._rows(self.all_to_all([row.numpy().tobytes() for row in rows]), rows[0])

    def gather_rows(self, row: torch.Tensor) -> torch.Tensor:
        return self._rows(self.all_gather(row.numpy().tobytes()), row)

    def knows(self, slot: str) -> bool:
        return True

    def _rows(self, messages: Sequence[bytes], like: torch.Tensor) -> torch.Tensor:
        rows = np.frombuffer(bytearray(b"".join(messages)), np.float32)
        return torch.from_numpy(rows.reshape(len(messages), *like.shape))


def simulate(setting: Setting, width: int = 64, hidden: int = 256) -> Outcome:
    """Train for some steps; return what the links have carried."""
    size, codec, collective, steps = setting
    inside = INSIDE if collective == "hierarchical" else 1
    torch.manual_seed(0)
    model = _Bytes(width, hidden)
    parameters = dict(model.named_parameters())
    watched = range(0, size, max(size // 16, 1))
    digests: list[set[bytes]] = [set() for _ in range(steps)]
    residuals = np.zeros(steps)
    losses: list[float] = []
    bits: list[float] = []

    def worker(communicator: Any) -> None:
        world = _Group(communicator)
        exchange, coders = _exchange(world, communicator, codec, collective, inside)
        batches = GPT_BYTES.batches(0, world.rank, size)
        parsed = gcodec.parse(codec)
        for step in range(steps):
            loss, parts = _gradient(model, next(batches), parsed)
            norm = _norm([part.values for part in parts])
            if step == world.rank == 0:
                nbytes = [len(gcodec.encode(part.values, codec)) for part in parts]
                bits.append(8 * sum(nbytes) / sum(part.values.size for part in parts))
            exchange.average(parts, step, Traffic())
            for coder in coders:
                coder.commit()
            means = b"".join(part.values.tobytes() for part in parts)
            digests[step].add(hashlib.sha256(means).digest())
            if world.rank in watched:
                state = coders[0].state_dict()
                left = [x for key, x in state.items() if "residual:" in key]
                residuals[step] += _norm(left) / norm / len(watched)
            world.all_gather(b"")  # all have computed their gradients
            if world.rank == 0:
                losses.append(loss.item())
                with torch.no_grad():
                    for parameter, part in zip(parameters.values(), parts, strict=True):
                        parameter -= _RATE * torch.from_numpy(part.values)
            world.all_gather(b"")

    simulator = Simulator(size, inside=inside if inside > 1 else INSIDE)
    start = time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        simulator.run(worker)
    finally:
        torch.set_num_threads(threads)
    took = time.perf_counter() - start
    between = simulator.levels["between"]
    return Outcome(
        max(simulator.levels["inside"]) / steps,
        max(sum(between[node : node + INSIDE]) for node in range(0, size, INSIDE)) / steps,
        bits[0],
        residuals.tolist(),
        all(len(digest) == 1 for digest in digests),
        losses,
        took / steps,
    )


def _gradient(model: nn.Module, batch: Any, codec: gcodec.Codec) -> tuple[Any, list[Part]]:
    """Return the loss of a batch and its gradient."""
    x, y = batch
    parameters = dict(model.named_parameters())
    loss = error(model, x, y[:, _CONTEXT - 1 :].contiguous())
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    pairs = zip(parameters, gradients, strict=True)
    return loss, [Part(name, gradient.numpy(), codec) for name, gradient in pairs]


def share_bits(setting: Setting, width: int = 64, hidden: int = 256) -> float:
    """Return the bits per value of the shares that rank 0 sends to others in the first step.

    Small shares take more bits than a whole gradient, because each has headers of its own.
    """
    torch.manual_seed(0)
    batch = next(GPT_BYTES.batches(0, 0, setting.size))
    _, parts = _gradient(_Bytes(width, hidden), batch, gcodec.parse(setting.codec))
    policy = joined_policy(None, setting.codec)
    count = setting.size
    if setting.collective == "hierarchical":
        count //= INSIDE
        parts = shares_of(parts, INSIDE, policy)[0]
    coder = BucketCoder(gcodec.Feedback(setting.codec), seed=0, rank=0, key=Key(None))
    messages = coder.encode_shares(shares_of(parts, count, policy, prefixed=True), 0)
    return 8 * sum(map(len, messages)) / sum(part.values.size for part in parts)


def run(settings: Sequence[Setting], file: Path) -> dict[Setting, Outcome]:
    """Return the outcomes of all settings; those in a JSON file are not simulated again."""
    known: dict[Setting, Outcome] = {}
    if file.exists():
        for setting, outcome in json.loads(file.read_text("utf-8")):
            known[Setting(*setting)] = Outcome(*outcome)
    for setting in settings:
        if setting not in known:
            known[setting] = simulate(setting)
            file.write_text(json.dumps(list(known.items())), "utf-8")
    return {setting: known[setting] for setting in settings}


def expected(setting: Setting, bits: float, values: int) -> tuple[float, float]:
    """Return the bytes inside and between nodes that `gcodec.advisor` predicts for a step.

    The time on links of one byte per second without latency is a number of bytes.
    """
    size, codec, collective, _ = setting
    unit, scheme = advisor.Link(1.0), advisor.Scheme(codec, bits)
    work = advisor.Work(values, 0)
    if collective == "hierarchical":
        cluster = advisor.Cluster(size // INSIDE, INSIDE, unit, unit)
        [ring] = advisor.ways(cluster, work, "inside", [])
        return ring.time, advisor.ways(cluster, work, "between", [scheme])[2].time
    flat = advisor.Cluster(size, between=unit)
    ring, gather, two_phase = advisor.ways(flat, work, "between", [scheme])
    if collective == "gather":  # one member of each node passes messages on
        return gather.time, gather.time
    if collective == "factors":
        nbytes = advisor.ring_all_reduce(bits * values / 8, size, unit)
        return nbytes, nbytes
    # Of the shares of a rank, those for other nodes leave the node; means travel in a ring.
    half = two_phase.time / 2
    shares = half / (size - 1)
    return half + (INSIDE - 1) * shares, half + INSIDE * (size - INSIDE) * shares


def _exchange(
    world: _Group, communicator: Any, codec: str, collective: str, inside: int
) -> tuple[Exchange, list[BucketCoder | Factors]]:
    """Make the exchange of a worker, as the hook does, and its encoders."""
    rank, size = world.rank, world.size
    if collective == "factors":
        factors = Factors(world, 0)
        return factors, [factors]
    policy = joined_policy(None, codec)
    make = functools.partial(BucketCoder, seed=0, rank=rank, key=Key(None))
    coders = [make(gcodec.Feedback(policy, rank=rank)) for _ in range(2)]
    group = world
    if inside > 1:
        group = _Group(communicator.group(range(rank % inside, size, inside)))
    if collective == "gather":
        return Gathered(group, coders[0]), list(coders[:1])
    exchange = TwoPhase(group, *coders, policy, policy)
    if inside == 1:
        return exchange, list(coders)
    first = rank // inside * inside
    own = _Group(communicator.group(range(first, first + inside)))
    return InsideFirst(own, exchange, policy), list(coders)


def _norm(arrays: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(x, dtype=np.float64).sum() for x in arrays)))
