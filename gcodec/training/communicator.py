"""Communicator: the operations that a training method needs to reach the other workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Communicator(Protocol):
    """One member of a group, connected to all other members.

    All members call the same methods in the same order. Messages are bytes, mostly frames; their
    lengths may differ between members, and a message may be empty.

    Attributes
    ----------
    rank : int
        Rank of this member, 0 to size - 1.
    size : int
        Number of members.

    Examples
    --------
    >>> from gcodec.training import Simulator
    >>> def worker(communicator, message):
    ...     return communicator.all_gather(message)
    >>> Simulator(2).run(worker, [b"from rank 0", b"from rank 1"])
    [[b'from rank 0', b'from rank 1'], [b'from rank 0', b'from rank 1']]
    """

    rank: int
    size: int

    def all_gather(self, message: bytes) -> list[bytes]:
        """Send one message to all members; return the messages of all members by rank."""

    def all_to_all(self, messages: Sequence[bytes]) -> list[bytes]:
        """Send message i to rank i; return the messages sent to this member, by rank."""

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace a float32 array by its sum over all members, with the same bits on each."""

    def exchange(self, to: int, message: bytes) -> bytes:
        """Swap messages with one member, which must call this method too."""

    def broadcast(self, message: bytes, root: int = 0) -> bytes:
        """Return the message of rank `root`; the messages of all other ranks are ignored."""
