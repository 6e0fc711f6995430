"""Simulator: run all workers as threads of one process, and count the bytes that they send."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
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

    Parameters
    ----------
    size : int
        Number of workers, 1 to 1024.

    Attributes
    ----------
    sent : dict of str to list of int
        Bytes that each rank has sent so far, by collective. A message to several ranks counts
        once for each receiver other than its sender. `all_reduce` counts the bytes of a ring: a
        rank sends each share of the array but one, twice.

    Raises
    ------
    ParameterError
        If `size` is out of range.

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
        allowed = f"an integer from 1 to {_MAX_WORKERS}"
        self.size = check_integer("size", size, 1, _MAX_WORKERS, allowed)
        self.sent: dict[str, list[int]] = {}

    def run(self, worker: Callable[..., _T], *arguments: Sequence[Any]) -> list[_T]:
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
        meeting = _Meeting(self.size, self.sent)
        results: list[Any] = [None] * self.size

        def run_worker(rank: int) -> None:
            try:
                with meeting.turn:
                    communicator = _ThreadCommunicator(rank, meeting)
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


class _Meeting:
    """The point at which the threads of all workers wait for each other."""

    def __init__(self, size: int, sent: dict[str, list[int]]) -> None:
        self.size, self.sent = size, sent
        self.errors: dict[int, BaseException] = {}  # by rank
        self.turn = threading.Lock()  # held by the worker that runs
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[str, Callable[[], bool]]] = {}  # collective, and its end
        self._returned: set[int] = set()
        self._items: dict[int, tuple[str, Any]] = {}  # of the current collective, by rank
        self._gathered: list[Any] = []  # items of the last collective
        self._round = 0
        self._mail: dict[tuple[int, int], deque[bytes]] = {}  # by sender and receiver

    def count(self, collective: str, rank: int, nbytes: int) -> None:
        with self._changed:
            self.sent.setdefault(collective, [0] * self.size)[rank] += nbytes

    def gather(self, collective: str, rank: int, item: _T) -> list[_T]:
        """Return the items of all workers, by rank."""
        with self._changed:
            current = self._round
            self._items[rank] = collective, item
            if len(self._items) == self.size:
                names = {name for name, _ in self._items.values()}
                if len(names) > 1:
                    self._stop(f"one calls {' and another '.join(sorted(names))}")
                else:
                    self._gathered = [self._items[rank][1] for rank in range(self.size)]
                    self._items = {}
                    self._round += 1
                    self._changed.notify_all()
            self._wait(collective, rank, lambda: self._round > current)
            # The next collective cannot complete before this rank has called it.
            return self._gathered

    def exchange(self, rank: int, to: int, message: bytes) -> bytes:
        with self._changed:
            self._mail.setdefault((rank, to), deque()).append(message)
            self._changed.notify_all()
            box = self._mail.setdefault((to, rank), deque())
            self._wait(f"exchange with rank {to}", rank, lambda: bool(box))
            return box.popleft()

    def leave(self, rank: int) -> None:
        with self._changed:
            self._returned.add(rank)
            self._check_progress()

    def fail(self, rank: int, error: BaseException) -> None:
        with self._changed:
            self.errors[rank] = error
            self._changed.notify_all()

    def _wait(self, collective: str, rank: int, is_done: Callable[[], bool]) -> None:
        if is_done():
            return
        self._waiting[rank] = collective, is_done
        self._check_progress()
        self.turn.release()
        try:
            self._changed.wait_for(lambda: bool(self.errors) or is_done())
        finally:
            # The worker that has the turn may wait for the lock that this thread holds.
            self._changed.release()
            self.turn.acquire()
            self._changed.acquire()
        del self._waiting[rank]
        # A worker whose collective is complete continues, so that all runs are the same.
        if self.errors and not is_done():
            raise _Stopped

    def _check_progress(self) -> None:
        """Stop all workers if none of them can ever continue."""
        if self.errors or len(self._waiting) + len(self._returned) < self.size:
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
        self._changed.notify_all()


class _ThreadCommunicator:
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
            raise ParameterError.of("messages", len(messages), f"{self.size}, one for each rank")
        own = [bytes(message) for message in messages]
        nbytes = sum(map(len, own)) - len(own[self.rank])
        self._meeting.count("all_to_all", self.rank, nbytes)
        gathered = self._meeting.gather("all_to_all", self.rank, own)
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
        self._meeting.count("all_reduce", self.rank, 2 * values.nbytes - int(unsent))
        addends = self._meeting.gather("all_reduce", self.rank, values.copy())
        if any(addend.shape != values.shape for addend in addends):
            raise ParameterError("values: their shapes differ from rank to rank")
        total = addends[0].copy()
        for addend in addends[1:]:
            total += addend
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
        # The name contains the root, because ranks that name different roots do not match.
        return self._meeting.gather(f"broadcast from rank {root}", self.rank, message)[root]
