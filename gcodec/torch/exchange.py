"""Means of a bucket over the members of groups: gathered, in two phases, or inside nodes first.

An exchange replaces the values of a bucket's parts by their means, with the same bits on every
member. A member that cannot encode, or that receives a damaged message, sends the reason in place
of its next message, so all members fail together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from gcodec.arrays.source import inspect
from gcodec.errors import FormatError, GcodecError
from gcodec.policy import Policy
from gcodec.runtime import Array
from gcodec.runtime.memory import empty_beside
from gcodec.torch.agreement import Refused, first_reason, opened, sealed
from gcodec.torch.communicator import TorchCommunicator
from gcodec.torch.messages import BucketCoder, Part, consecutive
from gcodec.training.collectives import share_of

# A first message is padded to its bound, as `TorchCommunicator.all_gather` describes, unless the
# bound exceeds both this share of the dense bytes and this number of bytes.
_MAX_HEAD, _SMALL_NBYTES = 1 / 2, 1024
# Last value of the row that a member of `InsideFirst` sends to its node: whether it has the mean,
# was refused one, as the members in all nodes know, or has alone received a damaged message.
_HAS_MEAN, _REFUSED, _DAMAGED = range(3)


@dataclass
class Traffic:
    """Totals of the exchanges of one member.

    Attributes
    ----------
    message_nbytes : int
        Bytes of the messages that this member has written for others, each counted once.
    sent_nbytes, received_nbytes : int
        Bytes that went to other members, and that came from them, except inside a node.
    inside_nbytes : int
        Bytes that went to other members of the node.
    encode_seconds, decode_seconds : float
        Wall time of encoding, and of decoding and averaging.
    """

    message_nbytes: int = 0
    sent_nbytes: int = 0
    received_nbytes: int = 0
    inside_nbytes: int = 0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0

    @contextmanager
    def encoding(self) -> Iterator[None]:
        """Count the time of the block as encoding."""
        start = time.perf_counter()
        yield
        self.encode_seconds += time.perf_counter() - start

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Count the time of the block as decoding."""
        start = time.perf_counter()
        yield
        self.decode_seconds += time.perf_counter() - start


def shares_of(
    parts: Sequence[Part], size: int, policy: Policy, *, prefixed: bool = False
) -> list[list[Part]]:
    """Cut a bucket into the shares that `size` members average.

    Parameters
    ----------
    parts : sequence of Part
        Parts with contiguous values; the shares are views of them.
    size : int
    policy : Policy
        Policy that picks the codec of each share, unless the part is dense.
    prefixed : bool
        Whether share i of NAME is called ``i/NAME``.
    """
    shares: list[list[Part]] = [[] for _ in range(size)]
    for index, share in enumerate(shares):
        for name, whole, codec in parts:
            values = share_of(whole, index, size)
            if codec is not None:
                codec = policy.codec(name, values.shape, "float32")
            share.append(Part(f"{index}/{name}" if prefixed else name, values, codec))
    return shares


def average_shares(
    communicator: TorchCommunicator,
    coder: BucketCoder,
    shares: Sequence[Sequence[Part]],
    step: int,
    traffic: Traffic,
    *,
    reason: str | None,
    slot: str | None = None,
) -> None:
    """Send share i to member i, and replace this member's own share by the mean of all.

    Parameters
    ----------
    communicator : TorchCommunicator
    coder : BucketCoder
    shares : sequence of sequence of Part
        Share of each member.
    step : int
    traffic : Traffic
    reason : str or None
        Reason why this member cannot take part.
    slot : str, optional
        See `TorchCommunicator.all_to_all`.

    Raises
    ------
    Refused
        If a member cannot take part; every member raises.
    FormatError
        If a message is damaged: only this member raises. Or if the members have loaded states of
        different steps; see `opened`.
    """

    def write() -> list[bytes]:
        if reason is not None:
            raise Refused(reason)
        return coder.encode_shares(shares, step)

    with traffic.encoding():
        own_rank = communicator.ranks[communicator.rank]
        messages = sealed(write, communicator.size, own_rank, coder.take_loaded())
    head = _head_nbytes(communicator, slot, coder, shares)
    received = communicator.all_to_all(messages, head, slot=slot)
    own_nbytes = len(messages[communicator.rank])
    sent_nbytes = sum(map(len, messages)) - own_nbytes
    traffic.message_nbytes += sent_nbytes
    traffic.sent_nbytes += sent_nbytes
    traffic.received_nbytes += sum(map(len, received)) - own_nbytes
    with traffic.decoding():
        coder.average(shares[communicator.rank], opened(received), communicator.ranks)


def gather_shares(
    communicator: TorchCommunicator,
    coder: BucketCoder,
    shares: Sequence[Sequence[Part]],
    step: int,
    traffic: Traffic,
    *,
    error: Exception | None = None,
    slot: str | None = None,
) -> None:
    """Send this member's own share to all members, and replace all shares by those received.

    Parameters
    ----------
    communicator : TorchCommunicator
    coder : BucketCoder
    shares : sequence of sequence of Part
        Shares of all members; that of this member is the one to send.
    step : int
    traffic : Traffic
    error : ParameterError, FormatError or Refused, optional
        Error that prevents this member from taking part.
    slot : str, optional
        See `TorchCommunicator.all_gather`.

    Raises
    ------
    Refused, FormatError
        See `average_shares`.
    """

    def write() -> list[bytes]:
        if error is not None:
            raise error
        return [coder.encode(shares[communicator.rank], step)]

    gathered = _gather(communicator, coder, write, shares, traffic, slot)
    with traffic.decoding():
        for rank, parts, content in zip(communicator.ranks, shares, opened(gathered), strict=True):
            coder.average(parts, [content], [rank])


def _gather(
    communicator: TorchCommunicator,
    coder: BucketCoder,
    write: Callable[[], Sequence[bytes]],
    buckets: Sequence[Sequence[Part]],
    traffic: Traffic,
    slot: str | None,
) -> list[bytes]:
    """Send one message to all members, and return the sealed messages of all of them."""
    with traffic.encoding():
        own_rank = communicator.ranks[communicator.rank]
        [message] = sealed(write, 1, own_rank, coder.take_loaded())
    head = _head_nbytes(communicator, slot, coder, buckets)
    gathered = communicator.all_gather(message, head, slot=slot)
    traffic.message_nbytes += len(message)
    traffic.sent_nbytes += (len(gathered) - 1) * len(message)
    traffic.received_nbytes += sum(map(len, gathered)) - len(message)
    return gathered


def _head_nbytes(
    communicator: TorchCommunicator,
    slot: str | None,
    coder: BucketCoder,
    buckets: Sequence[Sequence[Part]],
) -> int:
    """Return a bound on the length of sealed messages, or 0 if none is useful or needed."""
    if slot is None or communicator.knows(slot):
        return 0
    bounds = [coder.max_nbytes(parts) for parts in buckets]
    dense = max(4 * sum(part.values.size for part in parts) for parts in buckets)
    bound = max(math.inf if bound is None else bound for bound in bounds)
    return 1 + int(bound) if bound <= max(_MAX_HEAD * dense, _SMALL_NBYTES) else 0


class Exchange(Protocol):
    """Mean of a bucket over the members of a group."""

    def average(self, parts: Sequence[Part], step: int, traffic: Traffic) -> None:
        """Replace the values of all parts by their means.

        Raises
        ------
        Refused, FormatError
            See `average_shares`.
        """

    def close(self) -> None:
        """Destroy the groups, so that members that wait fail soon."""


class Gathered:
    """Exchange in which every member sends its message to all members.

    Parameters
    ----------
    communicator : TorchCommunicator
    coder : BucketCoder
        Encoder of this member's gradients.
    """

    def __init__(self, communicator: TorchCommunicator, coder: BucketCoder) -> None:
        self._communicator, self._coder = communicator, coder

    def average(self, parts: Sequence[Part], step: int, traffic: Traffic) -> None:
        """See `Exchange.average`."""
        communicator, coder, slot = self._communicator, self._coder, parts[0].name
        gathered = _gather(
            communicator, coder, lambda: [coder.encode(parts, step)], [parts], traffic, slot
        )
        with traffic.decoding():
            coder.average(parts, opened(gathered), communicator.ranks)

    def close(self) -> None:
        """See `Exchange.close`."""
        self._communicator.close()


class TwoPhase:
    """Exchange in which each member averages one share, and sends the mean to all members.

    Parameters
    ----------
    communicator : TorchCommunicator
    worker, server : BucketCoder
        Encoders of this member's gradients, as shares, and of the means that it computes.
    first, second : Policy
        Policies of the gradients and of the means.
    """

    def __init__(
        self,
        communicator: TorchCommunicator,
        worker: BucketCoder,
        server: BucketCoder,
        first: Policy,
        second: Policy,
    ) -> None:
        self._communicator, self._worker, self._server = communicator, worker, server
        self._first, self._second = first, second

    def average(
        self, parts: Sequence[Part], step: int, traffic: Traffic, *, reason: str | None = None
    ) -> None:
        """See `Exchange.average`, and for `reason` `average_shares`."""
        communicator, slot = self._communicator, parts[0].name
        shares = shares_of(parts, communicator.size, self._first, prefixed=True)
        means = shares_of(parts, communicator.size, self._second)
        error = None
        try:
            average_shares(
                communicator,
                self._worker,
                shares,
                step,
                traffic,
                reason=reason,
                slot=f"{slot}, shares",
            )
        except (Refused, FormatError) as caught:
            error = caught
        gather_shares(
            communicator,
            self._server,
            means,
            step,
            traffic,
            error=error,
            slot=slot,
        )

    def close(self) -> None:
        """See `Exchange.close`."""
        self._communicator.close()


class InsideFirst:
    """Exchange that averages inside each node without compression, and then between nodes.

    Each member of a node averages one share of the bucket over its node, then over the nodes with
    the members that have the same share there, and sends the result to its node.

    Parameters
    ----------
    inside : TorchCommunicator
        Group of this node.
    between : Exchange
        Exchange with the members of other nodes that have the same share.
    policy : Policy
        Policy of the shares.
    """

    def __init__(self, inside: TorchCommunicator, between: Exchange, policy: Policy) -> None:
        self._inside, self._between, self._policy = inside, between, policy

    def average(self, parts: Sequence[Part], step: int, traffic: Traffic) -> None:
        """See `Exchange.average`."""
        size, rank = self._inside.size, self._inside.rank
        shares = shares_of(parts, size, self._policy)
        longest = max(sum(part.values.size for part in share) for share in shares)
        rows = empty_beside(size * (longest + 1), np.float32, parts[0].values)
        rows = rows.reshape(size, longest + 1)
        rows[...] = 0
        for share, row in zip(shares, rows, strict=True):
            for part, place in zip(share, consecutive(share, row), strict=True):
                place.values[...] = part.values
        received = self._inside.swap_rows(torch.as_tensor(rows))
        for row in received[1:]:  # torch adds subnormals on a device, too, where CuPy drops them
            received[0] += row
        received[0] *= 1 / size
        mean = _beside(received, rows)[0]
        error: GcodecError | None = None
        mean[longest] = _HAS_MEAN
        try:
            self._between.average(consecutive(shares[rank], mean), step, traffic)
        except (Refused, FormatError) as caught:
            error = caught
            mean[longest] = _REFUSED if isinstance(error, Refused) else _DAMAGED
        rows = _beside(self._inside.gather_rows(torch.as_tensor(mean)), rows)
        traffic.inside_nbytes += 2 * (size - 1) * mean.nbytes
        worst = int(rows[:, longest].max())
        if worst != _HAS_MEAN:
            is_damaged = worst == _DAMAGED
            where = f", on rank {self._inside.ranks[rank]}" if is_damaged and error else ""
            reason = first_reason(self._inside, f"{error or ''}{where}")
            # The other nodes do not know of damage; a `Refused` is known to all members.
            kind = GcodecError if is_damaged else Refused
            raise error or kind(reason)
        for share, row in zip(shares, rows, strict=True):
            for part, place in zip(share, consecutive(share, row), strict=True):
                part.values[...] = place.values

    def close(self) -> None:
        """See `Exchange.close`."""
        try:
            self._inside.close()
        finally:
            self._between.close()


def _beside(tensor: torch.Tensor, array: Array) -> Array:
    """Return a tensor as an array of the library of another array, without a copy."""
    if type(array) is np.ndarray:
        return tensor.numpy()
    resident = inspect(tensor, "rows").resident
    assert resident is not None  # the array is on this device too
    return resident
