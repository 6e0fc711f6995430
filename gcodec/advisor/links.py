"""What collectives cost on a link: rings, and messages that have to reach everybody.

A member sends and receives at the same time, each at the bandwidth of its link, and a message
that follows another waits for the latency. So a step of a ring takes latency + bytes / bandwidth,
and the costs are those of Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", 2005. Adding up and copying are not counted.

Messages of a codec cannot be added up on the way. They are either gathered by everybody, so that
each member receives those of all others (`ring_all_gather`), or each member gets only a share of
every message, adds up, and sends the sum of its share as another message (`two_phase`).
"""

from __future__ import annotations

import dataclasses
import sys

from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_between, check_integer

_LEAST, _LARGEST = 5e-324, sys.float_info.max
_MOST_MEMBERS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Link:
    """What connects the members of a group, each with the others.

    Parameters
    ----------
    bandwidth : float
        Of one member, in bytes a second in each direction; above 0.
    latency : float
        Of a message, in seconds.

    Raises
    ------
    ParameterError
    """

    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        allowed = "a finite number of bytes a second above 0"
        bandwidth = check_between("bandwidth", self.bandwidth, _LEAST, _LARGEST, allowed)
        latency = seconds("latency", self.latency)
        object.__setattr__(self, "bandwidth", bandwidth)
        object.__setattr__(self, "latency", latency)


def seconds(name: str, value: object) -> float:
    """Return a time in seconds, or raise `ParameterError`."""
    return check_between(name, value, 0, _LARGEST, "a finite number of seconds from 0 on")


def members_of(name: str, value: object) -> int:
    """Return the size of a group, or raise `ParameterError`."""
    return check_integer(name, value, 1, _MOST_MEMBERS, "an integer from 1 to 2**31 - 1")


def ring_reduce_scatter(nbytes: float, members: int, link: Link) -> float:
    """Time after which each member has the sum of one share: members − 1 steps of a share each.

    Also that of gathering shares again, and of giving each member its share of every message.

    Parameters
    ----------
    nbytes : float
        Of what one member has.
    members : int
    link : Link

    Returns
    -------
    float
        In seconds; 0 for a single member.

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> ring_reduce_scatter(8e9, 8, Link(bandwidth=1e9))
    7.0
    """
    nbytes, members = _checked(nbytes, members)
    return _steps(members - 1, nbytes / members, link)


def ring_all_reduce(nbytes: float, members: int, link: Link) -> float:
    """Time of a sum in a ring, 2·(members − 1) steps of a share; see `ring_reduce_scatter`.

    Examples
    --------
    >>> 1e3 * ring_all_reduce(2e9, 64, Link(12.5e9))  # 2 GB over 64 nodes with 100 Gbit/s
    315.0
    """
    nbytes, members = _checked(nbytes, members)
    return _steps(2 * (members - 1), nbytes / members, link)


def ring_all_gather(nbytes: float, members: int, link: Link) -> float:
    """Time after which everybody has the whole message of everybody: members − 1 steps of one.

    Parameters
    ----------
    nbytes : float
        Of one member's message.
    members : int
    link : Link

    Returns
    -------
    float
        In seconds; 0 for a single member.

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> ring_all_gather(0.6e9, 64, Link(12.5e9))  # 3/10 of the above: 9.6 times as long
    3.024
    """
    nbytes, members = _checked(nbytes, members)
    return _steps(members - 1, nbytes, link)


def two_phase(nbytes: float, members: int, link: Link) -> float:
    """Time of a sum of messages of which each member gets a share, adds up, and sends the sum.

    The sums are messages of the same size: as many bytes move as in a ring, `ring_all_reduce`.

    Examples
    --------
    >>> two_phase(0.6e9, 64, Link(12.5e9))
    0.0945
    """
    return ring_all_reduce(nbytes, members, link)


def all_gather_limit(nbytes: float, members: int, link: Link) -> float:
    """Size of messages that are gathered in the time in which a ring adds up `nbytes`.

    That is a share of 2/members, and what is sent in the latency that gathering saves.

    Parameters
    ----------
    nbytes : float
        Of what one member has.
    members : int
    link : Link

    Returns
    -------
    float
        In bytes. Gathering larger ones is slower than not compressing at all.

    Examples
    --------
    >>> all_gather_limit(2e9, 64, Link(12.5e9)) / 2e9
    0.03125
    """
    nbytes, members = _checked(nbytes, members)
    return 2 * nbytes / members + link.latency * link.bandwidth


def two_phase_within(time: float, members: int, link: Link) -> float | None:
    """Size of messages for which `two_phase` takes this time.

    Parameters
    ----------
    time : float
        In seconds.
    members : int
        More than one.
    link : Link

    Returns
    -------
    float or None
        In bytes; None where latency alone takes longer.

    Raises
    ------
    ParameterError
    """
    share = _within(time, 2, members, link)
    return None if share is None else share * members


def all_gather_within(time: float, members: int, link: Link) -> float | None:
    """Size of messages for which `ring_all_gather` takes this time; see `two_phase_within`."""
    return _within(time, 1, members, link)


def _within(time: float, rounds: int, members: int, link: Link) -> float | None:
    time = seconds("time", time)
    if members_of("members", members) == 1:
        raise ParameterError.of("members", members, "2 or more")
    left = time / (rounds * (members - 1)) - link.latency
    return None if left < 0 else left * link.bandwidth


def _checked(nbytes: float, members: int) -> tuple[float, int]:
    allowed = "a finite number of bytes from 0 on"
    return check_between("nbytes", nbytes, 0, _LARGEST, allowed), members_of("members", members)


def _steps(count: int, nbytes: float, link: Link) -> float:
    return count * (link.latency + nbytes / link.bandwidth) if count else 0.0
