"""Time that collectives take on a link: rings, and messages that must reach all members.

A member sends and receives at the same time, each at the bandwidth of its link, and each message
waits for the latency. A step of a ring therefore takes latency + bytes / bandwidth. These are the
costs of Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", 2005. The time for additions and copies is not counted.

Members cannot add up the messages of a codec on the way. Either all members gather all messages
(`ring_all_gather`), or each member receives its share of every message, adds up the shares, and
sends the sum as another message (`two_phase`). Messages to all members that differ start at the
same time, so `all_to_all` waits for the latency once, as gloo and NCCL do.

`break_even` is the one definition of the link speed below which compression pays: reports,
``gcodec bench``, ``gcodec advise`` and the hook of DistributedDataParallel pass it their
measurements.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Literal, get_args

from gcodec.wire.kinds import Choice, check_between, check_integer, check_positive, check_type

_LARGEST = sys.float_info.max
_MAX_MEMBERS = 2**31 - 1

Collective = Literal["ring", "all-gather", "two-phase"]
_ANY_COLLECTIVE, _OF_MESSAGES = Choice(*get_args(Collective)), Choice("all-gather", "two-phase")


@dataclasses.dataclass(frozen=True)
class Link:
    """Connection of each member of a group with all other members.

    Parameters
    ----------
    bandwidth : float
        Bandwidth of one member in bytes per second in each direction; above 0.
    latency : float
        Latency of a message in seconds.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> from gcodec.advisor import Link
    >>> Link(bandwidth=100e9 / 8, latency=20e-6)  # 100 Gbit/s
    Link(bandwidth=12500000000.0, latency=2e-05)
    """

    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        allowed = "a finite number of bytes per second, above 0"
        bandwidth = check_positive("bandwidth", self.bandwidth, allowed, finite=True)
        object.__setattr__(self, "bandwidth", bandwidth)
        object.__setattr__(self, "latency", check_seconds("latency", self.latency))


def check_seconds(name: str, value: object) -> float:
    """Return a time in seconds, or raise `ParameterError`."""
    return check_between(name, value, 0, _LARGEST, "a finite number of seconds, at least 0")


def check_members(name: str, value: object) -> int:
    """Return the size of a group, or raise `ParameterError`."""
    return check_integer(name, value, 1, _MAX_MEMBERS, "an integer from 1 to 2**31 - 1")


def _check_several(members: object) -> int:
    return check_integer("members", members, 2, _MAX_MEMBERS, "2 or more, an integer below 2**31")


def ring_reduce_scatter(nbytes: float, members: int, link: Link) -> float:
    """Return the time until each member has the sum of one share: members − 1 steps of a share.

    Gathering the shares takes the same time.

    Parameters
    ----------
    nbytes : float
        Number of bytes of one member.
    members : int
        Number of members.
    link : Link
        Link of each member.

    Returns
    -------
    float
        Time in seconds; 0 for a single member.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> ring_reduce_scatter(8e9, 8, Link(bandwidth=1e9))
    7.0
    """
    nbytes, members = _checked(nbytes, members)
    return _time(members - 1, nbytes / members, link)


def ring_all_reduce(nbytes: float, members: int, link: Link) -> float:
    """Return the time of a sum in a ring: 2·(members − 1) steps of a share.

    See `ring_reduce_scatter` for the parameters.

    Examples
    --------
    >>> 1e3 * ring_all_reduce(2e9, 64, Link(12.5e9))  # 2 GB over 64 nodes with 100 Gbit/s
    315.0
    """
    nbytes, members = _checked(nbytes, members)
    return _time(2 * (members - 1), nbytes / members, link)


def ring_all_gather(nbytes: float, members: int, link: Link) -> float:
    """Return the time until all members have all messages: members − 1 steps of one message.

    Parameters
    ----------
    nbytes : float
        Number of bytes of one member's message.
    members : int
        Number of members.
    link : Link
        Link of each member.

    Returns
    -------
    float
        Time in seconds; 0 for a single member.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> ring_all_gather(0.6e9, 64, Link(12.5e9))  # 3/10 of the above: 9.6 times as long
    3.024
    """
    nbytes, members = _checked(nbytes, members)
    return _time(members - 1, nbytes, link)


def all_to_all(nbytes: float, members: int, link: Link) -> float:
    """Return the time until each member has its share of every message: one latency, all bytes.

    See `ring_reduce_scatter` for the parameters.

    Examples
    --------
    >>> all_to_all(8e9, 8, Link(bandwidth=1e9, latency=0.5))
    7.5
    """
    nbytes, members = _checked(nbytes, members)
    return _time(1, nbytes * (members - 1) / members, link) if members > 1 else 0.0


def two_phase(nbytes: float, members: int, link: Link) -> float:
    """Return the time until members have sent shares, added them up, and sent the sums.

    The sums are messages of the same size, so as many bytes move as in `ring_all_reduce`. The
    shares are sent by `all_to_all`, and the sums in a ring: members latencies in all.

    Examples
    --------
    >>> two_phase(0.6e9, 64, Link(12.5e9))
    0.0945
    >>> two_phase(0, 64, Link(12.5e9, latency=0.5))
    32.0
    """
    gathered = ring_reduce_scatter(nbytes, members, link)
    return all_to_all(nbytes, members, link) + gathered


def all_gather_limit(nbytes: float, members: int, link: Link) -> float:
    """Return the message size whose `ring_all_gather` takes as long as an uncompressed ring.

    The size is a fraction 2/members of `nbytes`, plus the bytes that the link sends during the
    latency that gathering saves.

    Parameters
    ----------
    nbytes : float
        Number of uncompressed bytes of one member.
    members : int
        Number of members.
    link : Link
        Link of each member.

    Returns
    -------
    float
        Size in bytes. Gathering larger messages is slower than no compression.

    Examples
    --------
    >>> all_gather_limit(2e9, 64, Link(12.5e9)) / 2e9
    0.03125
    """
    nbytes, members = _checked(nbytes, members)
    check_type("link", link, Link)
    return 2 * nbytes / members + link.latency * link.bandwidth


def two_phase_within(time: float, members: int, link: Link) -> float | None:
    """Return the message size for which `two_phase` takes this time.

    Parameters
    ----------
    time : float
        Time in seconds.
    members : int
        Number of members, at least 2.
    link : Link
        Link of each member.

    Returns
    -------
    float or None
        Size in bytes, or None if latency alone takes longer.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> from gcodec.advisor import Link, two_phase_within
    >>> two_phase_within(0.0945, 64, Link(12.5e9))
    600000000.0
    """
    members = _check_several(members)
    return _nbytes_within(time, members, 2 * (members - 1) / members, link)


def all_gather_within(time: float, members: int, link: Link) -> float | None:
    """Return the size for which `ring_all_gather` takes this time; see `two_phase_within`.

    Examples
    --------
    >>> from gcodec.advisor import Link, all_gather_within
    >>> all_gather_within(3.024, 64, Link(12.5e9))
    600000000.0
    """
    members = _check_several(members)
    return _nbytes_within(time, members - 1, members - 1, link)


def coding_time(collective: Collective, members: int, encode: float, decode: float) -> float:
    """Return the seconds that one member spends on encoding and decoding.

    Parameters
    ----------
    collective : {"ring", "all-gather", "two-phase"}
        After an all-gather, each member decodes all messages, its own included. In two phases, it
        encodes its message and the sum of its share, and decodes the shares of all members and
        then all sums. A ring of uncompressed gradients needs no coding.
    members : int
        Number of members.
    encode, decode : float
        Seconds for encoding and decoding one whole gradient.

    Returns
    -------
    float

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> coding_time("all-gather", 4, encode=1.0, decode=0.5)
    3.0
    """
    _ANY_COLLECTIVE.check("collective", collective)
    members = check_members("members", members)
    encode, decode = check_seconds("encode", encode), check_seconds("decode", decode)
    if collective == "ring":
        return 0.0
    if collective == "all-gather":
        return encode + members * decode
    return encode * (1 + 1 / members) + 2 * decode


def break_even(
    dense_nbytes: float,
    nbytes: float,
    encode: float,
    decode: float,
    members: int = 2,
    collective: Collective = "all-gather",
) -> float:
    """Return the bandwidth below which a collective of messages is faster than a dense ring.

    Nothing overlaps: each member encodes its gradient, gathers the messages, and decodes all of
    them; or it does the work of two phases, see `coding_time`. By default, two workers exchange
    gradients. Latency is not counted.

    Parameters
    ----------
    dense_nbytes, nbytes : float
        Bytes of an uncompressed gradient, and of its message.
    encode, decode : float
        Seconds for encoding a gradient, and for decoding one message.
    members : int
        Number of members, at least 2.
    collective : {"all-gather", "two-phase"}
        Collective of the messages.

    Returns
    -------
    float
        Bandwidth of each member in bytes per second; 0 if the messages are too long for any link,
        and infinity if coding takes no time.

    Raises
    ------
    ParameterError
        If an argument is out of range.

    Examples
    --------
    >>> break_even(4e9, 1e9, encode=1.0, decode=0.5)  # 3 GB less in 2 seconds
    1500000000.0
    """
    dense_nbytes = _check_nbytes("dense_nbytes", dense_nbytes)
    nbytes, members = _check_nbytes("nbytes", nbytes), _check_several(members)
    _OF_MESSAGES.check("collective", collective)
    sent = nbytes if collective == "all-gather" else 2 * nbytes / members
    saved = (members - 1) * (2 * dense_nbytes / members - sent)
    seconds = coding_time(collective, members, encode, decode)
    if saved <= 0:
        return 0.0
    return saved / seconds if seconds else math.inf


def _nbytes_within(time: float, latencies: int, messages: float, link: Link) -> float | None:
    """Return the message size for which some latencies and messages take this time."""
    time = check_seconds("time", time)
    check_type("link", link, Link)
    transfer = time - latencies * link.latency
    return None if transfer < 0 else transfer * link.bandwidth / messages


def _check_nbytes(name: str, value: object) -> float:
    return check_between(name, value, 0, _LARGEST, "a finite number of bytes, at least 0")


def _checked(nbytes: float, members: int) -> tuple[float, int]:
    return _check_nbytes("nbytes", nbytes), check_members("members", members)


def _time(steps: int, nbytes: float, link: Link) -> float:
    check_type("link", link, Link)
    return steps * (link.latency + nbytes / link.bandwidth) if steps else 0.0
