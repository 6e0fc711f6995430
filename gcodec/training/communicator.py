"""Communicator: what a method of training asks of the wires between its workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Communicator(Protocol):
    """The members of a group, of which this is one.

    All members call the same methods in the same order. Messages are bytes, mostly frames, and
    their sizes may differ from member to member; none is too short to be sent.

    Attributes
    ----------
    rank : int
        Of this member, 0 to size - 1.
    size : int
        Members.
    """

    rank: int
    size: int

    def all_gather(self, message: bytes) -> list[bytes]:
        """Send one message to all; return those of all, this one's too, in the order of ranks."""
        ...

    def all_to_all(self, messages: Sequence[bytes]) -> list[bytes]:
        """Send message i to rank i; return what all sent to this one, in the order of ranks."""
        ...

    def all_reduce(self, values: np.ndarray) -> None:
        """Replace a float32 array by the sum of those of all: the same bits on every rank."""
        ...

    def exchange(self, to: int, message: bytes) -> bytes:
        """Send a message to one member, which calls this as well; return the message of it."""
        ...

    def broadcast(self, message: bytes, root: int = 0) -> bytes:
        """Return the message of `root`; that of the others is not looked at."""
        ...
