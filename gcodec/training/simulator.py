"""Simulator: run all workers as threads of one process, and count the bytes that they send."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from gcodec.errors import ParameterError
from gcodec.wire.kinds import check_integer

_MAX_WORKERS = 1024

_T = TypeVar("_T")


class Simulator:
    """Workers that run as threads of this process, connected by a network that counts bytes.

    A collective ends when all workers have called it, and its result depends on the ranks alone.
    A run therefore returns the same results and sends the same bytes in every schedule of the
    threads. Only one worker runs at a time, until it waits for others, because threads that
    compete for the interpreter take longer.

    The communicators of the workers also have a method ``group(ranks)``. It returns the
    communicator of the group of those ranks, which all of them must name in the same order; its
    bytes count as well.

    Parameters
    ----------
    size : int
        Number of workers, 1 to 1024.
    inside : int
        Number of workers of each node, a divisor of `size`: ranks 0 to ``inside - 1`` share a
        node, and so on.

    Attributes
    ----------
    sent : dict of str to list of int
        Bytes that each rank has sent so far, by collective. A message to several ranks counts
        once for each receiver other than its sender. `all_reduce` counts the bytes of a ring: a
        rank sends each share of the array but one, twice.
    levels : dict of str to list of int
        Bytes that each rank has put on its link so far: "inside" to ranks of its node, "between"
        to other nodes. Messages of `all_gather` and shares of `all_reduce` travel in a ring, in
        the order of ranks, so each rank also passes on those of others; all other messages
        travel directly. The sums over ranks and levels equal those of `sent`.

    Raises
    ------
    ParameterError
        If `size` or `inside` is out of range.

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

    def __init__(self, size: int, *, inside: int = 1) -> None:
        allowed = f"an integer from 1 to {_MAX_WORKERS}"
        self.size = check_integer("size", size, 1, _MAX_WORKERS, allowed)
        self.inside = check_integer("inside", inside, 1, self.size, "a divisor of size")
        if self.size % self.inside:
            raise ParameterError.of("inside", inside, f"a divisor of {self.size}")
        self.sent: dict[str, list[int]] = {}
        self.levels = {level: [0] * self.size for level in ("inside", "between")}

    def run(self, worker: Callable[..., _T], *arguments: Sequence[object]) -> list[_T]:
        """Run a function once as each worker, concurrently.

        Parameters
        ----------
        worker : callable
            Function that receives a `Communicator`, then item `rank` of each of `arguments`.
        *arguments : sequence
            Sequences with one item for each worker.

        Returns
        -------
        list
            Results of the workers, by rank.

        Raises
        ------
        ParameterError
            If workers wait for each other forever.
        Exception
            The exception of a worker, of the lowest rank if several raised. All other workers
            stop at their next collective.
        """
        for index, items in enumerate(arguments):
            if len(items) != self.size:
                name = f"arguments[{index}]"
                raise ParameterError.of(name, f"{len(items)} items", f"of {self.size} items")
        meeting = _Meeting(self)
        everyone = tuple(range(self.size))
        results: list[Any] = [None] * self.size

        def run_worker(rank: int) -> None:
            try:
                with meeting.turn:
                    communicator = _ThreadCommunicator(rank, everyone, meeting)
                    results[rank] = worker(communicator, *(items[rank] for items in arguments))
                meeting.leave(rank)
            except _Stopped:
                pass
            except BaseException as error:
                meeting.fail(rank, error)

        threads = [
            threading.Thread(target=run_worker, args=(rank,), daemon=True, name=f"worker {rank}")
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # such as KeyboardInterrupt
            meeting.fail(0, error)
            raise
        if meeting.errors:
            raise meeting.errors[min(meeting.errors)]
        return results

    @property
    def total(self) -> int:
        """Number of bytes that all ranks have sent in all collectives."""
        return sum(map(sum, self.sent.values()))


class _Stopped(BaseException):
    """Another worker failed. No training method catches this exception."""


class _Group:
    """The collective that the members of a group are about to complete."""

    def __init__(self, lock: threading.RLock) -> None:
        self.changed = threading.Condition(lock)
        self.items: dict[int, tuple[str, object]] = {}  # by rank
        self.result: object = None  # of the last collective
        self.round = 0


class _Meeting:
    """The point at which the threads of all workers wait for each other."""

    def __init__(self, simulator: Simulator) -> None:
        self.size, self.errors = simulator.size, dict[int, BaseException]()  # by rank
        self.turn = threading.Lock()  # held by the worker that runs
        self._sent, self._levels = simulator.sent, simulator.levels
        self._inside = simulator.inside
        self._lock = threading.RLock()
        self._mailed = threading.Condition(self._lock)
        self._groups: dict[tuple[int, ...], _Group] = {}  # by ranks
        self._waiting: dict[int, tuple[str, Callable[[], bool]]] = {}  # collective, and its end
        self._returned: set[int] = set()
        self._mail: dict[tuple[int, int], deque[bytes]] = {}  # by sender and receiver

    def count(self, collective: str, rank: int, nbytes: int) -> None:
        with self._lock:
            self._sent.setdefault(collective, [0] * self.size)[rank] += nbytes

    def pass_on(self, rank: int, to: int, nbytes: int) -> None:
        """Count bytes that a rank puts on its link to another rank."""
        level = "inside" if rank // self._inside == to // self._inside else "between"
        with self._lock:
            self._levels[level][rank] += nbytes

    def gather(
        self,
        ranks: tuple[int, ...],
        collective: str,
        rank: int,
        item: object,
        combine: Callable[[list[object]], object],
    ) -> Any:
        """Combine the items of all members, in the order of ranks, and return the result."""
        with self._lock:
            group = self._groups.setdefault(ranks, _Group(self._lock))
            current = group.round
            group.items[rank] = collective, item
            if len(group.items) == len(ranks):
                names = {name for name, _ in group.items.values()}
                if len(names) > 1:
                    self._stop(f"one calls {' and another '.join(sorted(names))}")
                else:
                    group.result = combine([group.items[rank][1] for rank in ranks])
                    group.items = {}
                    group.round += 1
                    group.changed.notify_all()
            self._wait(collective, rank, lambda: group.round > current, group.changed)
            # The next collective cannot complete before this rank has called it.
            return group.result

    def exchange(self, rank: int, to: int, message: bytes) -> bytes:
        with self._lock:
            self._mail.setdefault((rank, to), deque()).append(message)
            self._mailed.notify_all()
            box = self._mail.setdefault((to, rank), deque())
            self._wait(f"exchange with rank {to}", rank, lambda: bool(box), self._mailed)
            return box.popleft()

    def leave(self, rank: int) -> None:
        with self._lock:
            self._returned.add(rank)
            self._check_progress()

    def fail(self, rank: int, error: BaseException) -> None:
        with self._lock:
            self.errors[rank] = error
            self._wake_all()

    def _wake_all(self) -> None:
        for condition in (self._mailed, *(group.changed for group in self._groups.values())):
            condition.notify_all()

    def _wait(
        self, collective: str, rank: int, is_done: Callable[[], bool], changed: threading.Condition
    ) -> None:
        if is_done():
            return
        self._waiting[rank] = collective, is_done
        self._check_progress()
        self.turn.release()
        try:
            changed.wait_for(lambda: bool(self.errors) or is_done())
        finally:
            # The worker that has the turn may wait for the lock that this thread holds.
            self._lock.release()
            self.turn.acquire()
            self._lock.acquire()
        del self._waiting[rank]
        # A worker whose collective is complete continues, so that all runs are the same.
        if self.errors and not is_done():
            raise _Stopped

    def _check_progress(self) -> None:
        """Stop all workers if none of them can ever continue."""
        if len(self._waiting) + len(self._returned) < self.size:
            return
        if self._waiting and not any(is_done() for _, is_done in self._waiting.values()):
            states = [
                f"rank {rank} waits in {self._waiting[rank][0]}" for rank in sorted(self._waiting)
            ]
            states += [f"rank {rank} has returned" for rank in sorted(self._returned)]
            self._stop(", ".join(states))

    def _stop(self, reason: str) -> None:
        error = ParameterError(
            f"worker: {reason}: all must call the same collectives in the same order"
        )
        self.errors.setdefault(0, error)
        self._wake_all()


class _ThreadCommunicator:
    """The `Communicator` of one thread in a group of workers.

    Attributes
    ----------
    rank, size : int
        Rank of the worker in the group, and number of members.
    ranks : tuple of int
        Ranks of the members among all workers.
    """

    def __init__(self, own: int, ranks: tuple[int, ...], meeting: _Meeting) -> None:
        self.rank, self.size, self.ranks = ranks.index(own), len(ranks), ranks
        self._own, self._next = own, ranks[(self.rank + 1) % self.size]
        self._meeting = meeting

    def group(self, ranks: Sequence[int]) -> _ThreadCommunicator:
        """Return the communicator of a group that contains this worker."""
        if self._own not in ranks:
            raise ParameterError.of("ranks", list(ranks), f"ranks with {self._own} among them")
        return _ThreadCommunicator(self._own, tuple(ranks), self._meeting)

    def all_gather(self, message: bytes) -> list[bytes]:
        message = bytes(message)
        self._meeting.count("all_gather", self._own, (self.size - 1) * len(message))
        gathered = list(self._gather("all_gather", message))
        passed = sum(map(len, gathered)) - len(gathered[(self.rank + 1) % self.size])
        self._meeting.pass_on(self._own, self._next, passed)
        return gathered

    def all_to_all(self, messages: Sequence[bytes]) -> list[bytes]:
        if len(messages) != self.size:
            raise ParameterError.of("messages", len(messages), f"{self.size}, one for each rank")
        own = [bytes(message) for message in messages]
        nbytes = sum(map(len, own)) - len(own[self.rank])
        self._meeting.count("all_to_all", self._own, nbytes)
        self._send_directly(map(len, own))
        gathered = self._gather("all_to_all", own)
        return [messages[self.rank] for messages in gathered]

    def all_reduce(self, values: np.ndarray) -> None:
        if values.dtype != np.float32:
            raise ParameterError.of("values.dtype", str(values.dtype), "float32")
        ends = [values.size * (rank + 1) // self.size for rank in range(self.size)]
        share_nbytes = np.diff([0, *ends]) * values.itemsize
        # In a ring, this rank does not pass on the share whose sum it completes, nor, while the
        # sums circulate, the last share that it receives.
        unsent = share_nbytes[(self.rank + 1) % self.size]
        unsent += share_nbytes[(self.rank + 2) % self.size]
        nbytes = 2 * values.nbytes - int(unsent)
        self._meeting.count("all_reduce", self._own, nbytes)
        self._meeting.pass_on(self._own, self._next, nbytes)
        total = self._gather("all_reduce", values, _sum)
        if total is None:
            raise ParameterError("values: their shapes differ from rank to rank")
        values[...] = total

    def exchange(self, to: int, message: bytes) -> bytes:
        if not 0 <= to < self.size or to == self.rank:
            raise ParameterError.of("to", to, f"a rank below {self.size}, not {self.rank} itself")
        message, partner = bytes(message), self.ranks[to]
        self._meeting.count("exchange", self._own, len(message))
        self._meeting.pass_on(self._own, partner, len(message))
        return self._meeting.exchange(self._own, partner, message)

    def broadcast(self, message: bytes, root: int = 0) -> bytes:
        if not 0 <= root < self.size:
            raise ParameterError.of("root", root, f"a rank below {self.size}")
        message = bytes(message) if self.rank == root else b""
        self._meeting.count("broadcast", self._own, (self.size - 1) * len(message))
        self._send_directly([len(message)] * self.size)
        # The name contains the root, because ranks that name different roots do not match.
        return bytes(self._gather(f"broadcast from rank {root}", message)[root])

    def _gather(
        self, collective: str, item: object, combine: Callable[[list[Any]], object] = list
    ) -> Any:
        return self._meeting.gather(self.ranks, collective, self._own, item, combine)

    def _send_directly(self, lengths: Iterable[int]) -> None:
        """Count messages of the given lengths, one to each member."""
        for to, nbytes in zip(self.ranks, lengths, strict=True):
            if to != self._own:
                self._meeting.pass_on(self._own, to, nbytes)


def _sum(addends: list[np.ndarray]) -> np.ndarray | None:
    """Return the sum in the order of ranks, or None if the shapes differ."""
    total = addends[0].copy()
    for addend in addends[1:]:
        if addend.shape != total.shape:
            return None
        total += addend
    return total
