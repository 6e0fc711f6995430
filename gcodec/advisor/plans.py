"""A cluster, the work of a step, the ways to add up gradients, and the choice among them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from gcodec.advisor import links
from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_between, check_flag, check_integer, check_type

Level = Literal["inside", "between"]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Nodes and GPUs that average their gradients.

    Parameters
    ----------
    nodes : int
        Number of nodes.
    gpus : int
        Number of GPUs of each node.
    between : Link, optional
        Link of a node to the other nodes, which its GPUs share; required for several nodes.
    inside : Link, optional
        Link of a GPU to the other GPUs of its node; required for several GPUs.

    Raises
    ------
    ParameterError
        If an argument is out of range, or a required link is missing.

    Examples
    --------
    >>> from gcodec.advisor import Cluster, Link
    >>> cluster = Cluster(64, 8, between=Link(12.5e9), inside=Link(600e9))
    >>> cluster.levels, cluster.group("between")[0]
    (('inside', 'between'), 64)
    """

    nodes: int = 1
    gpus: int = 1
    between: links.Link | None = None
    inside: links.Link | None = None

    def __post_init__(self) -> None:
        for members, name in (("nodes", "between"), ("gpus", "inside")):
            count = links.check_members(members, getattr(self, members))
            link = getattr(self, name)
            if not isinstance(link, (links.Link, type(None))) or (link is None and count > 1):
                raise ParameterError.of(name, link, f"a Link, for {count} {members}")

    def group(self, level: Level) -> tuple[int, links.Link | None]:
        """Return the number of members at a level, and their link."""
        return (self.gpus, self.inside) if level == "inside" else (self.nodes, self.between)

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels with more than one member."""
        both: tuple[Level, ...] = ("inside", "between")
        return tuple(level for level in both if self.group(level)[0] > 1)


@dataclasses.dataclass(frozen=True)
class Work:
    """Work of one training step.

    Parameters
    ----------
    values : int
        Number of values of the gradient, at least 1. Each GPU has one gradient.
    compute : float
        Seconds of a forward and backward pass.
    bits : float
        Bits of an uncompressed value: 32 for float32, 16 for float16 and bfloat16.
    overlap : float
        Fraction of the computation, 0 to 1, during which communication may run.
    encode, decode : float
        Values that a GPU encodes or decodes per second with schemes that have no speeds of their
        own; infinity if that takes no time. The GPU computes nothing else meanwhile.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> from gcodec.advisor import Work
    >>> Work(values=10**9, compute=0.1, bits=16).overlap
    1.0
    """

    values: int
    compute: float
    bits: float = 32.0
    overlap: float = 1.0
    encode: float = math.inf
    decode: float = math.inf

    def __post_init__(self) -> None:
        check_integer("values", self.values, 1, 2**63 - 1, "an integer from 1 to 2**63 - 1")
        links.check_seconds("compute", self.compute)
        check_between("bits", self.bits, 1e-9, 64, "a number of bits above 0, up to 64")
        check_between("overlap", self.overlap, 0, 1, "a share from 0 to 1")
        for name in ("encode", "decode"):
            _check_rate(name, getattr(self, name))


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The properties of a codec that determine its costs.

    Parameters
    ----------
    name : str
        Name of the codec in the advice.
    bits : float
        Bits of its messages per value.
    error : float, optional
        ‖x − x̂‖²/‖x‖² of a message, or None if it is unknown.
    converges : bool
        Whether training with the codec converges; `law_of` helps to find out. Other schemes are
        not advised.
    encode, decode : float, optional
        Values that a GPU encodes or decodes per second. Default: those of `Work`.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> from gcodec.advisor import Scheme
    >>> Scheme("ecsq:bits=1", 1.0, error=0.15).converges
    True
    """

    name: str
    bits: float
    error: float | None = None
    converges: bool = True
    encode: float | None = None
    decode: float | None = None

    def __post_init__(self) -> None:
        check_type("name", self.name, str)
        check_between("bits", self.bits, 0, 1e6, "a number of bits from 0 to 1e6")
        check_flag("converges", self.converges)
        if self.error is not None:
            check_between("error", self.error, 0, math.inf, "a number, at least 0, or None")
        for name in ("encode", "decode"):
            if getattr(self, name) is not None:
                _check_rate(name, getattr(self, name))

    def coding_rates(self, work: Work) -> tuple[float, float]:
        """Return the values that a GPU encodes and decodes per second."""
        encode = work.encode if self.encode is None else self.encode
        return encode, work.decode if self.decode is None else self.decode

    def coding_seconds(self, work: Work, share: float = 1.0) -> tuple[float, float]:
        """Return the seconds in which a GPU encodes and decodes a share of a gradient."""
        encode, decode = self.coding_rates(work)
        return share * work.values / encode, share * work.values / decode

    def pays_below(self, work: Work) -> float:
        """Return the `break_even` of two workers in bytes per second.

        Each worker has a link of its own, and encodes a whole gradient.
        """
        dense_nbytes, nbytes = work.values * work.bits / 8, work.values * self.bits / 8
        return links.break_even(dense_nbytes, nbytes, *self.coding_seconds(work))


def _check_rate(name: str, value: object) -> None:
    check_between(name, value, 1, math.inf, "a number of values per second, at least 1")


_LARGEST = sys.float_info.max
_ANY_SCHEME = Scheme("", 0)
_MESSAGE_SIZES: dict[links.Collective, Callable[[float, int, links.Link], float | None]] = {
    "two-phase": links.two_phase_within,
    "all-gather": links.all_gather_within,
}


class Way(NamedTuple):
    """One way to add up gradients at one level: a collective and a codec.

    Attributes
    ----------
    level : str
        "inside" or "between".
    collective : str
        "ring", "all-gather" or "two-phase".
    scheme : Scheme or None
        Codec of the messages, or None for uncompressed gradients.
    time : float
        Seconds of communication.
    coding : float
        Seconds that one GPU spends on encoding and decoding.

    Examples
    --------
    >>> from gcodec.advisor import Cluster, Link, Scheme, Work, ways
    >>> cluster = Cluster(64, 8, between=Link(12.5e9), inside=Link(600e9))
    >>> work = Work(values=10**9, compute=0.1, bits=16)
    >>> listed = ways(cluster, work, "between", [Scheme("4 bits", 4, error=0.01)])
    >>> [(way.how, round(way.time, 4)) for way in listed]
    [('ring', 0.315), ('all-gather 4 bits', 2.52), ('two-phase 4 bits', 0.0788)]
    """

    level: Level
    collective: links.Collective
    scheme: Scheme | None
    time: float
    coding: float = 0.0

    @property
    def how(self) -> str:
        """Names of the collective and of the codec, if there is one."""
        return f"{self.collective} {self.scheme.name}" if self.scheme else self.collective

    @property
    def error(self) -> float | None:
        """Error of the messages; a two-phase collective encodes twice. None if unknown."""
        if self.scheme is None:
            return 0.0
        if self.scheme.error is None:
            return None
        return self.scheme.error * (2 if self.collective == "two-phase" else 1)


class Plan(NamedTuple):
    """One way for each level, and the time of a step.

    Attributes
    ----------
    ways : tuple of Way
        A way for each level, "inside" first.
    communication, coding : float
        Seconds of communication, and of encoding and decoding.
    step : float
        Seconds of a step whose communication begins after the computation.
    hidden : float
        Seconds of a step whose communication overlaps the computation as far as allowed.

    Examples
    --------
    >>> from gcodec.advisor import Cluster, Link, Work, dense_plan
    >>> cluster = Cluster(64, 8, between=Link(12.5e9), inside=Link(600e9))
    >>> work = Work(values=10**9, compute=0.1, bits=16)
    >>> plan = dense_plan(cluster, work)
    >>> f"{plan.communication:.3f} s, step {plan.step:.3f} s, overlapped {plan.hidden:.3f} s"
    '0.321 s, step 0.421 s, overlapped 0.321 s'
    """

    ways: tuple[Way, ...]
    communication: float
    coding: float
    step: float
    hidden: float

    @property
    def error(self) -> float | None:
        """Sum of the errors of all messages, or None if one of them is unknown."""
        errors = [way.error for way in self.ways if way.error is not None]
        return sum(errors) if len(errors) == len(self.ways) else None


class Balance(NamedTuple):
    """Bits per value at which communication takes as long as computation.

    All other levels are uncompressed.

    Attributes
    ----------
    level, collective : str
        Level and collective of the compressed messages; see `Way`.
    bits : float or None
        Bits per value, or None if latency and the other level alone take longer.

    Examples
    --------
    >>> from gcodec.advisor import Cluster, Link, Work, balance
    >>> cluster = Cluster(64, 8, between=Link(12.5e9), inside=Link(600e9))
    >>> work = Work(values=10**9, compute=0.1, bits=16)
    >>> last = balance(cluster, work)[-1]
    >>> f"{last.level}: {last.collective} of {last.bits:.2f} bits"
    'between: all-gather of 0.15 bits'
    """

    level: Level
    collective: links.Collective
    bits: float | None


class Advice(NamedTuple):
    """Result of `advise`.

    Attributes
    ----------
    dense : Plan
        Plan without compression.
    best : Plan
        Recommended plan.
    ways : tuple of Way
        All ways that were considered.
    balances : tuple of Balance
        Balances of all levels; see `balance`.

    Examples
    --------
    >>> from gcodec.advisor import Cluster, Link, Scheme, Work, advise
    >>> cluster = Cluster(64, 8, between=Link(12.5e9), inside=Link(600e9))
    >>> work = Work(values=10**9, compute=0.1, bits=16)
    >>> advice = advise(cluster, work, [Scheme("4 bits", 4, error=0.01)])
    >>> advice.best.ways[1].how, len(advice.ways)
    ('two-phase 4 bits', 5)
    """

    dense: Plan
    best: Plan
    ways: tuple[Way, ...]
    balances: tuple[Balance, ...]


def ways(cluster: Cluster, work: Work, level: Level, schemes: Sequence[Scheme]) -> list[Way]:
    """List the ways to add up gradients at one level.

    The uncompressed ring comes first. Members gather whole messages only between nodes, or if
    there is only one node: inside one of several nodes, each GPU needs only its own share before
    the nodes exchange theirs.

    Parameters
    ----------
    cluster : Cluster
        Nodes, GPUs and links.
    work : Work
        Work of one step.
    level : {"inside", "between"}
        Level in `cluster.levels`.
    schemes : sequence of Scheme
        Available codecs.

    Returns
    -------
    list of Way

    Raises
    ------
    ParameterError
        If the cluster has only one member at the level.

    Examples
    --------
    >>> from gcodec.advisor import Cluster, Link, Scheme, Work, ways
    >>> cluster = Cluster(64, 8, between=Link(12.5e9), inside=Link(600e9))
    >>> work = Work(values=10**9, compute=0.1, bits=16)
    >>> [way.how for way in ways(cluster, work, "between", [Scheme("4 bits", 4)])]
    ['ring', 'all-gather 4 bits', 'two-phase 4 bits']
    """
    _check_arguments(cluster, work)
    if not isinstance(level, str) or level not in cluster.levels:
        raise ParameterError.of("level", level, f"one of {', '.join(cluster.levels) or 'none'}")
    members, link = _group(cluster, level)
    dense_time = links.ring_all_reduce(work.values * work.bits / 8, members, link)
    check_type("schemes", schemes, Sequence)
    listed = [Way(level, "ring", None, dense_time)]
    times: dict[links.Collective, Callable[[float, int, links.Link], float]] = {
        "two-phase": links.two_phase
    }
    if level == "between" or cluster.nodes == 1:
        times = {"all-gather": links.ring_all_gather, **times}
    for scheme in schemes:
        check_type("schemes", scheme, Scheme)
        seconds = scheme.coding_seconds(work, _share(cluster, level))
        for collective, time in times.items():
            coding = links.coding_time(collective, members, *seconds)
            nbytes = work.values * scheme.bits / 8
            listed.append(Way(level, collective, scheme, time(nbytes, members, link), coding))
    return listed


def plan(work: Work, chosen: Sequence[Way]) -> Plan:
    """Combine one way for each level into a plan.

    Parameters
    ----------
    work : Work
        Work of one step.
    chosen : sequence of Way
        A way for each level.

    Returns
    -------
    Plan

    Examples
    --------
    >>> from gcodec.advisor import Cluster, Link, Scheme, Work, plan, ways
    >>> cluster = Cluster(64, 8, between=Link(12.5e9), inside=Link(600e9))
    >>> work = Work(values=10**9, compute=0.1, bits=16)
    >>> inside = ways(cluster, work, "inside", [])[0]
    >>> between = ways(cluster, work, "between", [Scheme("4 bits", 4)])[-1]
    >>> round(plan(work, [inside, between]).step, 3)
    0.185
    """
    check_type("work", work, Work)
    check_type("chosen", chosen, Sequence)
    for way in chosen:
        check_type("chosen", way, Way)
    communication = sum(way.time for way in chosen)
    coding = sum(way.coding for way in chosen)
    busy = work.compute + coding
    exposed = max(0.0, communication - work.overlap * work.compute)
    return Plan(tuple(chosen), communication, coding, busy + communication, busy + exposed)


def dense_plan(cluster: Cluster, work: Work) -> Plan:
    """Return the plan without compression.

    Examples
    --------
    >>> from gcodec.advisor import Cluster, Link, Work, dense_plan
    >>> cluster = Cluster(64, 8, between=Link(12.5e9), inside=Link(600e9))
    >>> work = Work(values=10**9, compute=0.1, bits=16)
    >>> [way.how for way in dense_plan(cluster, work).ways]
    ['ring', 'ring']
    """
    _check_arguments(cluster, work)
    return plan(work, [ways(cluster, work, level, ())[0] for level in cluster.levels])


def balance(cluster: Cluster, work: Work) -> list[Balance]:
    """Return the bits per value at which communication takes as long as computation.

    Parameters
    ----------
    cluster : Cluster
        Nodes, GPUs and links.
    work : Work
        Work of one step.

    Returns
    -------
    list of Balance
        A balance for each level and each collective that messages can use there. If its bits
        exceed `work.bits`, compression is unnecessary.

    Examples
    --------
    >>> from gcodec.advisor import Cluster, Link, Work, balance
    >>> cluster = Cluster(64, 8, between=Link(12.5e9), inside=Link(600e9))
    >>> work = Work(values=10**9, compute=0.1, bits=16)
    >>> balances = balance(cluster, work)[1:]
    >>> [(b.level, b.collective, round(b.bits or 0, 2)) for b in balances]
    [('between', 'two-phase', 4.78), ('between', 'all-gather', 0.15)]
    """
    dense = dense_plan(cluster, work)
    balances = []
    for level, _, _, time, _ in dense.ways:
        members, link = _group(cluster, level)
        available = work.compute - (dense.communication - time)
        collectives = {way.collective for way in ways(cluster, work, level, [_ANY_SCHEME])}
        for collective, size_within in _MESSAGE_SIZES.items():
            if collective in collectives:
                nbytes = size_within(available, members, link) if available >= 0 else None
                bits = None if nbytes is None else 8 * nbytes / work.values
                balances.append(Balance(level, collective, bits))
    return balances


def advise(
    cluster: Cluster, work: Work, schemes: Sequence[Scheme], tolerance: float = 0.05
) -> Advice:
    """Recommend a collective and a codec for each level of a cluster.

    The candidates are all plans whose step with overlap takes at most 1 + tolerance times as long
    as the fastest plan's. Of these, the function recommends the plan with the smallest error, and
    among equal errors the fastest. It therefore recommends no unnecessary compression. It never
    recommends a codec at a level where a GPU's share of the link is as fast as
    `Scheme.pays_below`, or faster.

    Parameters
    ----------
    cluster : Cluster
        Nodes, GPUs and links.
    work : Work
        Work of one step.
    schemes : sequence of Scheme
        Available codecs. Schemes with an unknown error, and schemes that do not converge, are not
        recommended.
    tolerance : float
        Relative tolerance on the time of a step, at least 0.

    Returns
    -------
    Advice

    Raises
    ------
    ParameterError
        If `tolerance` is out of range.

    Examples
    --------
    >>> from gcodec.advisor import Cluster, Link, Scheme, Work, advise
    >>> cluster = Cluster(64, 8, between=Link(12.5e9), inside=Link(600e9))
    >>> work = Work(values=10**9, compute=0.1, bits=16)
    >>> schemes = [Scheme("4 bits", 4, error=0.01), Scheme("1 bit", 1, error=0.4)]
    >>> [way.how for way in advise(cluster, work, schemes).best.ways]
    ['ring', 'two-phase 4 bits']
    """
    tolerance = check_between("tolerance", tolerance, 0, _LARGEST, "a finite number, at least 0")
    _check_arguments(cluster, work)
    options = [ways(cluster, work, level, schemes) for level in cluster.levels]
    useful = [[way for way in level if _is_useful(cluster, work, way)] for level in options]
    plans = [plan(work, chosen) for chosen in itertools.product(*useful)]
    best = least_error(plans, tolerance)
    considered = tuple(itertools.chain.from_iterable(options))
    return Advice(dense_plan(cluster, work), best, considered, tuple(balance(cluster, work)))


def least_error(plans: Sequence[Plan], tolerance: float = 0.05) -> Plan:
    """Return the plan with the least error among those that are nearly as fast as the fastest.

    Parameters
    ----------
    plans : sequence of Plan
        Plans whose errors are known.
    tolerance : float
        See `advise`.
    """
    bound = (1 + tolerance) * min(candidate.hidden for candidate in plans)
    fast = [candidate for candidate in plans if candidate.hidden <= bound]
    return min(fast, key=lambda p: (p.error, p.hidden, p.step))


def _check_arguments(cluster: Cluster, work: Work) -> None:
    check_type("cluster", cluster, Cluster)
    check_type("work", work, Work)


def _is_useful(cluster: Cluster, work: Work, way: Way) -> bool:
    """Return whether a way may be recommended."""
    if way.scheme is None:
        return True
    if way.scheme.error is None or not way.scheme.converges:
        return False
    _, link = _group(cluster, way.level)
    return link.bandwidth * _share(cluster, way.level) < way.scheme.pays_below(work)


def _share(cluster: Cluster, level: Level) -> float:
    """Return a GPU's share of a gradient and of its link: between nodes, GPUs divide both."""
    return 1.0 if level == "inside" else 1 / cluster.gpus


def _group(cluster: Cluster, level: Level) -> tuple[int, links.Link]:
    members, link = cluster.group(level)
    assert link is not None  # `Cluster` requires it for several members
    return members, link
