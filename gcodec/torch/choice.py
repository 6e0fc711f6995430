"""Choice of the collective of a hook, by the advisor and from measured speeds."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gcodec import advisor
from gcodec.advisor.plans import least_error
from gcodec.api import encode
from gcodec.frame import Frame
from gcodec.limits import NO_LIMITS
from gcodec.runtime.device import host
from gcodec.torch.communicator import TorchCommunicator
from gcodec.torch.messages import Part
from gcodec.torch.nodes import Nodes

_PROBE_NBYTES = 1 << 20  # message that measures a bandwidth
_REPEATS = 3
_LOGGER = logging.getLogger("gcodec.torch")


class Choice(NamedTuple):
    """A collective, and why.

    Attributes
    ----------
    inside_first, two_phase : bool
        Whether the nodes average inside first, and whether the messages are sent in two phases.
    reason : str
        Times of a step for all choices.
    """

    inside_first: bool
    two_phase: bool
    reason: str


class Coding(NamedTuple):
    """Costs of coding one value, as one rank measures them.

    Attributes
    ----------
    bits : float
    encode, decode : float
        Seconds.
    error : float
        Share of the squared norm that is lost.
    """

    bits: float
    encode: float
    decode: float
    error: float


def measure_coding(parts: Sequence[Part]) -> Coding:
    """Encode and decode the compressed parts of a bucket twice; the second time counts."""
    size = nbytes = 0
    encode_seconds = decode_seconds = lost = whole = 0.0
    for name, values, codec in parts:
        if codec is None or not values.size:
            continue
        x = np.nan_to_num(host(values), posinf=0, neginf=0)
        for _ in range(2):
            start = time.perf_counter()
            data = encode(x, codec, name=name)
            encoded = time.perf_counter()
            decoded = Frame.from_bytes(data, limits=NO_LIMITS).decode()
            ended = time.perf_counter()
        encode_seconds += encoded - start
        decode_seconds += ended - encoded
        nbytes += len(data)
        size += x.size
        whole += float(np.square(x, dtype=np.float64).sum())
        lost += float(np.square(x - decoded, dtype=np.float64).sum())
    size = max(size, 1)
    bits, error = 8 * nbytes / size, min(lost / whole, 1e9) if whole else 0.0
    return Coding(bits, encode_seconds / size, decode_seconds / size, error)


def measure_link(communicator: TorchCommunicator) -> advisor.Link:
    """Time all-gathers of an empty and of a long message, while all groups do the same."""

    def fastest(message: bytes) -> float:
        seconds = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            communicator.all_gather(message, len(message))
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    members, empty = communicator.size, fastest(b"")
    longer = max(fastest(bytes(_PROBE_NBYTES)) - empty, 1e-9)
    # The advisor's time of an all-gather is linear in latency and in 1/bandwidth.
    unit = advisor.Link(bandwidth=1.0)
    transfer = advisor.ring_all_gather(_PROBE_NBYTES, members, unit)
    steps = advisor.ring_all_gather(0, members, advisor.Link(1.0, latency=1.0))
    return advisor.Link(max(transfer / longer, 1.0), empty / steps if steps else 0.0)


def choose_collective(
    coding: Coding,
    values: int,
    world: TorchCommunicator,
    nodes: Nodes | None,
) -> Choice:
    """Return the collective with the shortest step; all ranks return the same.

    Parameters
    ----------
    coding : Coding
    values : int
        Number of values that a step exchanges.
    world : TorchCommunicator
        Group of all ranks.
    nodes : Nodes, optional
        Groups of this rank; None if the nodes are unknown. They do not count if there is one node,
        or one rank in each.
    """
    if world.size == 1:
        return Choice(inside_first=False, two_phase=False, reason="gather: there is one rank")
    if nodes is not None and 1 in (nodes.inside.size, nodes.between.size):
        nodes = None
    links = [measure_link(group) for group in (world, *(nodes or ()))]
    own = [*coding, *(number for link in links for number in (link.bandwidth, link.latency))]
    everyone = np.array(
        [json.loads(text) for text in world.all_gather(json.dumps(own).encode())], np.float64
    )
    # The slowest rank and link determine the time of a step.
    costs, measured = np.split(everyone, [len(coding)], axis=1)
    bits, encode_time, decode_time, error = costs.max(0).tolist()
    slowest = [
        advisor.Link(float(link[:, 0].min()), float(link[:, 1].max()))
        for link in np.split(measured, len(links), axis=1)
    ]
    world_link, *node_links = slowest
    scheme = advisor.Scheme("of the codec", bits, error=error)
    work = advisor.Work(values, compute=0, encode=_rate(encode_time), decode=_rate(decode_time))
    flat = advisor.Cluster(nodes=world.size, between=world_link)
    dense, gather, two_phase = (
        advisor.plan(work, [way]) for way in advisor.ways(flat, work, "between", [scheme])
    )
    plans = {"gather": (False, False, gather), "two-phase": (False, True, two_phase)}
    if nodes is not None:
        (inside, between), (inside_link, link) = nodes, node_links
        # All ranks of a node have used its link at the same time.
        link = advisor.Link(link.bandwidth * inside.size, link.latency)
        cluster = advisor.Cluster(between.size, inside.size, link, inside_link)
        ring = advisor.ways(cluster, work, "inside", [])[0]
        options = advisor.ways(cluster, work, "between", [scheme])[1:]
        for way, is_two_phase in zip(options, (False, True), strict=True):
            name = f"hierarchical, {way.collective} between nodes"
            plans[name] = (True, is_two_phase, advisor.plan(work, [ring, way]))
    best = least_error([candidate for _, _, candidate in plans.values()])
    chosen = next(name for name, (_, _, candidate) in plans.items() if candidate is best)
    inside_first, is_two_phase, _ = plans[chosen]
    times = ", ".join(f"{name} {_ms(each.step)}" for name, (_, _, each) in plans.items())
    reason = (
        f"{chosen}: a step of {values:,} values takes {times}, a dense all-reduce "
        f"{_ms(dense.step)} (measured: {bits:.3g} bits per value, coding {_millions(encode_time)} "
        f"and {_millions(decode_time)} million values per second, links of "
        f"{', '.join(f'{link.bandwidth / 1e6:,.4g} MB/s' for link in slowest)})"
    )
    if dense.step < best.step:
        reason += "; a dense all-reduce would be faster"
    return Choice(inside_first, is_two_phase, reason)


def announce(rank: int, caller: str, choice: Choice) -> None:
    """Log a choice on rank 0, at the level INFO."""
    if rank == 0:
        _LOGGER.info("%s: collective %s", caller, choice.reason)


def _rate(seconds: float) -> float:
    return max(1 / seconds, 1.0) if seconds else float("inf")


def _millions(seconds: float) -> str:
    """Return how many million values are coded per second, as text."""
    return f"{1e-6 / seconds:,.3g}" if seconds else "∞"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3g} ms"
