"""Simulated collectives: members exchange data, and clocks record when each member is done."""

from __future__ import annotations

import numpy as np


class Network:
    """Members that send and receive at the same time, one message each."""

    def __init__(self, members: int, bandwidth: float, latency: float) -> None:
        self.bandwidth, self.latency = bandwidth, latency
        self.clocks = [0.0] * members
        self.sent = [0.0] * members
        self.steps = [0] * members

    def step(self, sends: list[tuple[int, int, float]]) -> None:
        """Start all (from, to, bytes) transfers at the same time."""
        assert len({source for source, _, _ in sends}) == len(sends)
        assert len({target for _, target, _ in sends}) == len(sends)
        before = list(self.clocks)
        for source, target, nbytes in sends:
            done = max(before[source], before[target]) + self.latency + nbytes / self.bandwidth
            for member in (source, target):
                self.clocks[member] = max(self.clocks[member], done)
            self.sent[source] += nbytes
            self.steps[source] += 1

    def exchange(self, nbytes: float) -> None:
        """Start a message of each member to each other member at the same time."""
        others = len(self.clocks) - 1
        if others:
            done = max(self.clocks) + self.latency + others * nbytes / self.bandwidth
            self.clocks = [done] * len(self.clocks)
        self.sent = [sent + others * nbytes for sent in self.sent]
        self.steps = [steps + (others > 0) for steps in self.steps]

    @property
    def time(self) -> float:
        return max(self.clocks)


def reduce_scatter(net: Network, data: np.ndarray, nbytes: float) -> None:
    """Sum (member, share, …) data in a ring; member i ends with the whole sum of share i + 1."""
    members = len(data)
    for t in range(members - 1):
        shares = [(i - t) % members for i in range(members)]
        moving = [data[i, shares[i]].copy() for i in range(members)]
        net.step([(i, (i + 1) % members, nbytes / members) for i in range(members)])
        for i in range(members):
            data[(i + 1) % members, shares[i]] += moving[i]


def gather_shares(net: Network, data: np.ndarray, nbytes: float) -> None:
    """Forward the sums of `reduce_scatter` until every member has all of them."""
    members = len(data)
    for t in range(members - 1):
        shares = [(i + 1 - t) % members for i in range(members)]
        moving = [data[i, shares[i]].copy() for i in range(members)]
        net.step([(i, (i + 1) % members, nbytes / members) for i in range(members)])
        for i in range(members):
            data[(i + 1) % members, shares[i]] = moving[i]


def all_reduce(net: Network, data: np.ndarray, nbytes: float) -> None:
    reduce_scatter(net, data, nbytes)
    gather_shares(net, data, nbytes)


def all_gather(net: Network, data: np.ndarray, nbytes: float) -> None:
    """Forward whole messages in a ring, and let each member sum them."""
    members = len(data)
    messages = data.copy()
    for t in range(members - 1):
        net.step([(i, (i + 1) % members, nbytes) for i in range(members)])
        for i in range(members):
            data[(i + 1) % members] += messages[(i - t) % members]


def two_phase(net: Network, data: np.ndarray, nbytes: float) -> None:
    """Send each member its share of every message; let it sum; send the sums to all members."""
    members = len(data)
    messages = data.copy()
    net.exchange(nbytes / members)
    for t in range(1, members):
        for i in range(members):
            to = (i + t) % members
            data[to, to] += messages[i, to]
    sums = [data[i, i].copy() for i in range(members)]
    for t in range(1, members):
        net.step([(i, (i + t) % members, nbytes / members) for i in range(members)])
        for i in range(members):
            data[(i + t) % members, i] = sums[i]


BETWEEN = {"ring": all_reduce, "two-phase": two_phase, "all-gather": all_gather}


def hierarchical(
    nodes: int,
    gpus: int,
    between: tuple[float, float],
    inside: tuple[float, float],
    nbytes: float,
    setting: str,
    message: float,
) -> tuple[float, np.ndarray]:
    """Sum one number per share over all GPUs, and return the time of the collective.

    Rings sum inside each node; between nodes, the GPUs of equal index exchange their shares,
    `message` bytes for all shares together, at the same time and over one link per node.
    """
    # Axes: node, GPU, share inside the node, share between nodes.
    random = np.random.default_rng(nodes * 100 + gpus)
    data = random.integers(0, 1000, (nodes, gpus, gpus, nodes))
    expected = data.sum((0, 1))
    time = 0.0
    for node in range(nodes):
        net = Network(gpus, *inside)
        reduce_scatter(net, data[node], nbytes)
    time += net.time
    # Each GPU has a part of the link's bandwidth, because all GPUs send all the time.
    for gpu in range(gpus):
        net = Network(nodes, between[0] / gpus, between[1])
        share = (gpu + 1) % gpus
        mine = data[:, gpu, share].copy()
        BETWEEN[setting](net, mine, message / gpus)
        data[:, gpu, share] = mine
    time += net.time
    for node in range(nodes):
        net = Network(gpus, *inside)
        gather_shares(net, data[node], nbytes)
    time += net.time
    assert (data == expected).all()
    return time, data
