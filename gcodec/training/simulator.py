"""Simulator: the workers of a training run as threads of one process, and the bytes they send."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_integer

_MOST_WORKERS = 1024

_T = TypeVar("_T")


class Simulator:
    """Workers that are threads of this process, and a network that counts.

    Each collective ends when all have come to it, and what it returns depends on ranks alone: so
    a run has the same results, and sends the same bytes, however the threads take turns. One runs
    at a time, until it waits for others: threads that fight for the interpreter take longer.

    Parameters
    ----------
    size : int
        Workers, 1 to 1024.

    Attributes
    ----------
    sent : dict of str to list of int
        Bytes that each rank has sent so far, by collective. A message that goes to many counts
        for each that is not its sender; `all_reduce` counts what a ring sends: each rank twice
        all shares of the array but one.

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> import gcodec, numpy as np
    >>> from gcodec.training import Simulator, all_gather_mean
    >>> def worker(communicator, gradient):
    ...     frame = gcodec.encode(gradient, "topk:k=1")
    ...     return all_gather_mean(communicator, [frame])[0]
    >>> simulator = Simulator(2)
    >>> simulator.run(worker, [np.array([4.0, 1], np.float32), np.array([1.0, -2], np.float32)])
    [array([ 2., -1.], dtype=float32), array([ 2., -1.], dtype=float32)]
    >>> simulator.sent
    {'all_gather': [28, 28]}
    """

    def __init__(self, size: int) -> None:
        allowed = f"an integer from 1 to {_MOST_WORKERS}"
        self.size = check_integer("size", size, 1, _MOST_WORKERS, allowed)
        self.sent: dict[str, list[int]] = {}

    def run(self, worker: Callable[..., _T], *arguments: Sequence[Any]) -> list[_T]:
        """Run a function as each worker, all at once.

        Parameters
        ----------
        worker : callable
            Gets a `Communicator`, and of each of `arguments` the item of its rank.
        *arguments : sequence
            Of as many items as there are workers.

        Returns
        -------
        list
            What each returned, in the order of ranks.

        Raises
        ------
        ParameterError
            If workers wait for others that never come.
        Exception
            What a worker raised; the others then end where they next communicate. If several
            did, that of the lowest rank.
        """
        for place, items in enumerate(arguments):
            if len(items) != self.size:
                name = f"arguments[{place}]"
                raise ParameterError.of(name, f"{len(items)} items", f"of {self.size} items")
        meeting = _Meeting(self.size, self.sent)
        results: list[Any] = [None] * self.size

        def live(rank: int) -> None:
            try:
                given = (items[rank] for items in arguments)
                with meeting.turn:
                    results[rank] = worker(_Loopback(rank, meeting), *given)
                meeting.leave(rank)
            except _Ended:
                pass
            except BaseException as error:
                meeting.fail(rank, error)

        threads = [
            threading.Thread(target=live, args=(rank,), daemon=True, name=f"worker {rank}")
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # someone stops the program
            meeting.fail(0, error)
            raise
        if meeting.errors:
            raise meeting.errors[min(meeting.errors)]
        return results

    @property
    def total(self) -> int:
        """Bytes that all ranks have sent, in all collectives."""
        return sum(map(sum, self.sent.values()))


class _Ended(BaseException):
    """Another worker failed; no method of training catches this."""


class _Meeting:
    """Where threads wait for each other."""

    def __init__(self, size: int, sent: dict[str, list[int]]) -> None:
        self.size, self.sent = size, sent
        self.errors: dict[int, BaseException] = {}  # by rank
        self.turn = threading.Lock()  # of the worker that runs
        self._changed = threading.Condition()
        self._waits: dict[int, tuple[str, Callable[[], bool]]] = {}  # for what, and until when
        self._left: set[int] = set()
        self._given: dict[int, tuple[str, Any]] = {}  # of the collective that is going on
        self._met: list[Any] = []  # of the last one
        self._round = 0
        self._mail: dict[tuple[int, int], deque[bytes]] = {}  # by sender and receiver

    def count(self, collective: str, rank: int, nbytes: int) -> None:
        with self._changed:
            self.sent.setdefault(collective, [0] * self.size)[rank] += nbytes

    def gather(self, collective: str, rank: int, item: _T) -> list[_T]:
        """Return the items of all, in the order of ranks."""
        with self._changed:
            round_ = self._round
            self._given[rank] = collective, item
            if len(self._given) == self.size:
                names = {name for name, _ in self._given.values()}
                if len(names) > 1:
                    self._stop(f"one calls {' and another '.join(sorted(names))}")
                else:
                    self._met = [self._given[rank][1] for rank in range(self.size)]
                    self._given = {}
                    self._round += 1
                    self._changed.notify_all()
            self._wait(collective, rank, lambda: self._round > round_)
            # No other can be complete before this rank has come to it.
            return self._met

    def exchange(self, rank: int, to: int, message: bytes) -> bytes:
        with self._changed:
            self._mail.setdefault((rank, to), deque()).append(message)
            self._changed.notify_all()
            box = self._mail.setdefault((to, rank), deque())
            self._wait(f"exchange with rank {to}", rank, lambda: bool(box))
            return box.popleft()

    def leave(self, rank: int) -> None:
        with self._changed:
            self._left.add(rank)
            self._check_progress()

    def fail(self, rank: int, error: BaseException) -> None:
        with self._changed:
            self.errors[rank] = error
            self._changed.notify_all()

    def _wait(self, what: str, rank: int, until: Callable[[], bool]) -> None:
        if until():
            return
        self._waits[rank] = what, until
        self._check_progress()
        self.turn.release()
        try:
            self._changed.wait_for(lambda: bool(self.errors) or until())
        finally:
            # Who has the turn may be waiting for what this one holds.
            self._changed.release()
            self.turn.acquire()
            self._changed.acquire()
        del self._waits[rank]
        if self.errors and not until():  # who has what it came for goes on, so all runs are alike
            raise _Ended

    def _check_progress(self) -> None:
        """End all if each waits for what no one is left to do."""
        if self.errors or len(self._waits) + len(self._left) < self.size or not self._waits:
            return
        if not any(until() for _, until in self._waits.values()):
            told = [f"rank {rank} waits in {self._waits[rank][0]}" for rank in sorted(self._waits)]
            told += [f"rank {rank} has returned" for rank in sorted(self._left)]
            self._stop(", ".join(told))

    def _stop(self, why: str) -> None:
        error = ParameterError(f"worker: {why}: all must call the same collectives in one order")
        self.errors.setdefault(0, error)
        self._changed.notify_all()


class _Loopback:
    """The `Communicator` of one thread."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self.size = rank, meeting.size
        self._meeting = meeting

    def all_gather(self, message: bytes) -> list[bytes]:
        message = bytes(message)
        self._meeting.count("all_gather", self.rank, (self.size - 1) * len(message))
        return list(self._meeting.gather("all_gather", self.rank, message))

    def all_to_all(self, messages: Sequence[bytes]) -> list[bytes]:
        if len(messages) != self.size:
            raise ParameterError.of("messages", f"{len(messages)} of them", f"{self.size}")
        own = [bytes(message) for message in messages]
        nbytes = sum(map(len, own)) - len(own[self.rank])
        self._meeting.count("all_to_all", self.rank, nbytes)
        return [of[self.rank] for of in self._meeting.gather("all_to_all", self.rank, own)]

    def all_reduce(self, values: np.ndarray) -> None:
        if values.dtype != np.float32:
            raise ParameterError.of("values.dtype", str(values.dtype), "float32")
        shares = [values.size * (rank + 1) // self.size for rank in range(self.size)]
        of_share = np.diff([0, *shares]) * values.itemsize
        # In a ring, this rank does not pass on the share that it ends up summing, nor, when sums
        # go round, the one that it is the last to get.
        kept = of_share[(self.rank + 1) % self.size] + of_share[(self.rank + 2) % self.size]
        self._meeting.count("all_reduce", self.rank, 2 * values.nbytes - int(kept))
        first, *others = self._meeting.gather("all_reduce", self.rank, values.copy())
        if any(other.shape != first.shape for other in others):
            raise ParameterError("values: their shapes differ from rank to rank")
        total = first.copy()
        for other in others:
            total += other
        values[...] = total

    def exchange(self, to: int, message: bytes) -> bytes:
        if not 0 <= to < self.size or to == self.rank:
            raise ParameterError.of("to", to, f"a rank below {self.size}, not {self.rank} itself")
        message = bytes(message)
        self._meeting.count("exchange", self.rank, len(message))
        return self._meeting.exchange(self.rank, to, message)

    def broadcast(self, message: bytes, root: int = 0) -> bytes:
        if not 0 <= root < self.size:
            raise ParameterError.of("root", root, f"a rank below {self.size}")
        message = bytes(message) if self.rank == root else b""
        self._meeting.count("broadcast", self.rank, (self.size - 1) * len(message))
        # Another root is another collective.
        return self._meeting.gather(f"broadcast from rank {root}", self.rank, message)[root]
