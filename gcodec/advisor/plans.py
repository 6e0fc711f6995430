"""Ways to add up gradients at each level of a cluster, how long they take, and which to choose."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from gcodec.advisor.cluster import Cluster, Level, Scheme, Work
from gcodec.advisor.links import (
    Link,
    all_gather_within,
    ring_all_gather,
    ring_all_reduce,
    two_phase,
    two_phase_within,
)
from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_between

Collective = Literal["ring", "all-gather", "two-phase"]

_LARGEST = sys.float_info.max
_SOME = Scheme("", 0)
_WITHIN: dict[Collective, Callable[[float, int, Link], float | None]] = {
    "two-phase": two_phase_within,
    "all-gather": all_gather_within,
}


class Way(NamedTuple):
    """How gradients are added up at one level.

    Attributes
    ----------
    level : str
        "inside" or "between".
    collective : str
        "ring", "all-gather" or "two-phase".
    scheme : Scheme or None
        None where nothing is compressed.
    time : float
        Seconds of communication.
    coding : float
        Seconds of encoding and decoding, of one GPU.
    """

    level: Level
    collective: Collective
    scheme: Scheme | None
    time: float
    coding: float = 0.0

    @property
    def how(self) -> str:
        """Its collective and codec."""
        return " ".join([self.collective, *([self.scheme.name] if self.scheme else [])])

    @property
    def error(self) -> float | None:
        """Error of its messages, of which those of two-phase follow one another."""
        if self.scheme is None:
            return 0.0
        if self.scheme.error is None:
            return None
        return self.scheme.error * (2 if self.collective == "two-phase" else 1)


class Plan(NamedTuple):
    """How gradients are added up at all levels, and how long a step takes.

    Attributes
    ----------
    ways : tuple of Way
        One for each level, "inside" first.
    communication, coding : float
        Seconds.
    step : float
        Seconds of a step whose communication begins when all is computed.
    hidden : float
        Seconds of a step whose communication runs beside the computation, as far as it may.
    """

    ways: tuple[Way, ...]
    communication: float
    coding: float
    step: float
    hidden: float

    @property
    def error(self) -> float | None:
        """Sum of the errors of all messages that follow one another."""
        errors = [way.error for way in self.ways]
        known = [error for error in errors if error is not None]
        return sum(known) if len(known) == len(errors) else None


class Balance(NamedTuple):
    """How many bits per value take as long as the computation, all other levels being dense.

    Attributes
    ----------
    level, collective : str
    bits : float or None
        None where latency and the other level alone take longer.
    """

    level: Level
    collective: Collective
    bits: float | None


class Advice(NamedTuple):
    """What to do.

    Attributes
    ----------
    dense : Plan
        Nothing compressed.
    best : Plan
        The advice.
    ways : tuple of Way
        All that were looked at.
    balances : tuple of Balance
        For each level.
    """

    dense: Plan
    best: Plan
    ways: tuple[Way, ...]
    balances: tuple[Balance, ...]


def ways(cluster: Cluster, work: Work, level: Level, schemes: Sequence[Scheme]) -> list[Way]:
    """List the ways to add up gradients at one level.

    The ring comes first. Messages are gathered by all members only between nodes, or where there
    is only one node: else each GPU needs no more than its own share before the nodes exchange
    theirs.

    Parameters
    ----------
    cluster : Cluster
    work : Work
    level : {"inside", "between"}
        One of `cluster.levels`.
    schemes : sequence of Scheme

    Returns
    -------
    list of Way

    Raises
    ------
    ParameterError
    """
    if level not in cluster.levels:
        raise ParameterError.of("level", level, f"one of {', '.join(cluster.levels) or 'none'}")
    members, link = _group(cluster, level)
    found = [Way(level, "ring", None, ring_all_reduce(_nbytes(work, work.bits), members, link))]
    # What one GPU has to encode: a share, where the others of its node have theirs.
    values = work.values if level == "inside" else work.values / cluster.gpus
    for scheme in schemes:
        nbytes = _nbytes(work, scheme.bits)
        if level == "between" or cluster.nodes == 1:
            coding = values / work.encode + members * values / work.decode
            time = ring_all_gather(nbytes, members, link)
            found.append(Way(level, "all-gather", scheme, time, coding))
        coding = values * (1 + 1 / members) / work.encode + 2 * values / work.decode
        time = two_phase(nbytes, members, link)
        found.append(Way(level, "two-phase", scheme, time, coding))
    return found


def plan(work: Work, chosen: Sequence[Way]) -> Plan:
    """Add up the times of one way for each level.

    Parameters
    ----------
    work : Work
    chosen : sequence of Way

    Returns
    -------
    Plan
    """
    communication = sum(way.time for way in chosen)
    coding = sum(way.coding for way in chosen)
    busy = work.compute + coding
    left = max(0.0, communication - work.overlap * work.compute)
    return Plan(tuple(chosen), communication, coding, busy + communication, busy + left)


def dense_plan(cluster: Cluster, work: Work) -> Plan:
    """Return the plan in which nothing is compressed."""
    return plan(work, [ways(cluster, work, level, ())[0] for level in cluster.levels])


def balance(cluster: Cluster, work: Work) -> list[Balance]:
    """Tell at how many bits per value communication takes as long as computation.

    Parameters
    ----------
    cluster : Cluster
    work : Work

    Returns
    -------
    list of Balance
        For each level and each collective that messages may take there. More bits than
        `work.bits` mean that nothing need be compressed.
    """
    dense = dense_plan(cluster, work)
    found = []
    for own in dense.ways:
        members, link = _group(cluster, own.level)
        left = work.compute - (dense.communication - own.time)
        collectives = {way.collective for way in ways(cluster, work, own.level, [_SOME])}
        for collective, within in _WITHIN.items():
            if collective in collectives:
                nbytes = within(left, members, link) if left >= 0 else None
                bits = None if nbytes is None else 8 * nbytes / work.values
                found.append(Balance(own.level, collective, bits))
    return found


def advise(
    cluster: Cluster, work: Work, schemes: Sequence[Scheme], tolerance: float = 0.05
) -> Advice:
    """Choose a way for each level.

    Of all plans whose step with overlap is at most 1 + tolerance times that of the fastest, the
    one of the least error is taken; of those, the fastest. So nothing is compressed that need not
    be.

    Parameters
    ----------
    cluster : Cluster
    work : Work
    schemes : sequence of Scheme
        Those whose error is not known, or that do not converge, are not advised.
    tolerance : float
        From 0 on.

    Returns
    -------
    Advice

    Raises
    ------
    ParameterError
    """
    tolerance = check_between("tolerance", tolerance, 0, _LARGEST, "a finite number from 0 on")
    options = [ways(cluster, work, level, schemes) for level in cluster.levels]
    useful = [
        [w for w in level if w.error is not None and (w.scheme is None or w.scheme.converges)]
        for level in options
    ]
    plans = [plan(work, chosen) for chosen in itertools.product(*useful)]
    bound = (1 + tolerance) * min(candidate.hidden for candidate in plans)
    fast = [candidate for candidate in plans if candidate.hidden <= bound]
    best = min(fast, key=lambda p: (p.error, p.hidden, p.step))
    dense = dense_plan(cluster, work)
    looked_at = tuple(itertools.chain.from_iterable(options))
    return Advice(dense, best, looked_at, tuple(balance(cluster, work)))


def _group(cluster: Cluster, level: Level) -> tuple[int, Link]:
    members, link = cluster.group(level)
    assert link is not None  # as `Cluster` has checked, for several members
    return members, link


def _nbytes(work: Work, bits: float) -> float:
    return work.values * bits / 8
