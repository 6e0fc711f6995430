"""The thread pool. It cuts large inputs into segments; results never depend on the cuts.

An interrupt can come between any two statements of the main thread. It would leave a lock taken
that Python code handles, such as that of a `threading.Condition`. So the calling thread and the
others share only lists and queues that are written in C.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np

from gcodec.errors import ParameterError
from gcodec.runtime import Array
from gcodec.runtime.arithmetic import standardize
from gcodec.runtime.device import device_of

SEGMENT = 1 << 19  # elements
_CONVERTED = 1 << 17  # elements of a segment that is converted; longer ones leave the cache
_PER_THREAD = 4  # segments per thread, at least, because threads may differ in speed
_THRESHOLD = 1 << 21  # elements of the smallest input that is worth the wait for threads

_T = TypeVar("_T")
_threads: list[threading.Thread] = []
_calls: SimpleQueue[_Segments[Any]] = SimpleQueue()  # calls that wait for help


def thread_count() -> int:
    """Return ``GCODEC_NUM_THREADS``, or else the number of processors for this process."""
    text = os.environ.get("GCODEC_NUM_THREADS")
    if text is None:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    is_number = text.isascii() and text.isdigit() and len(text) <= 9
    if not is_number or not 1 <= int(text) <= 1024:
        raise ParameterError.of("GCODEC_NUM_THREADS", text, "an integer from 1 to 1024")
    return int(text)


def run(task: Callable[[int, int], _T], n: int, unit: int = 1, beside: Array = None) -> list[_T]:
    """Call ``task(start, stop)`` for segments that cover ``range(n)``, and wait for all calls.

    With one thread, or below about two million elements, the calling thread makes a single call.

    Parameters
    ----------
    task : callable
        Processes elements `start` to `stop - 1`.
    n : int
        Number of elements.
    unit : int
        Segments start at multiples of this number of elements.
    beside : array, optional
        Input of the task. For an array on a device, the calling thread makes a single call. For a
        `convert.ConvertedArray`, segments are shorter, even with one thread, because each segment
        is converted in memory of its own.

    Returns
    -------
    list
        Results of the calls in the order of the segments.
    """
    length = _segment_length(n, unit, beside)
    if length >= n:
        return [task(0, n)]
    if is_one(n):
        return [task(start, min(start + length, n)) for start in range(0, n, length)]
    return _Segments(task, n, length).run()


def _segment_length(n: int, unit: int, beside: Array) -> int:
    """Return the length of the segments of `run`, n or more if there is only one."""
    if n <= _CONVERTED and n < _THRESHOLD:  # one segment, wherever the input lies
        return n
    short = getattr(beside, "is_converted", False)
    if (is_one(n) and not short) or device_of(beside) is not None:
        return n
    length = -(-n // (_PER_THREAD * thread_count() * SEGMENT)) * SEGMENT
    if short:
        length = _CONVERTED
    return max(length // unit, 1) * unit


def run_added(
    task: Callable[[int, int], np.ndarray], n: int, unit: int = 1, beside: Array = None
) -> np.ndarray:
    """Return the sum of the arrays of integers that ``task(start, stop)`` returns; see `run`.

    Each array is added when its task ends, so the memory is one array for each thread.
    """
    if _segment_length(n, unit, beside) >= n:
        return task(0, n)
    total: list[np.ndarray] = []
    lock = threading.Lock()

    def add(start: int, stop: int) -> None:
        part = task(start, stop)
        with lock:
            if total:
                total[0] += part
            else:
                total.append(part)

    run(add, n, unit, beside)
    return total[0]


def run_in_order(
    task: Callable[[int, int], _T], consume: Callable[[int, _T], None], n: int, length: int
) -> None:
    """Call ``consume(start, task(start, stop))`` for segments of `length` elements, in order.

    Tasks run on several threads; see `run`. A result is consumed as soon as all preceding ones
    have been, so the memory is a few results for each thread.
    """
    pending: dict[int, _T] = {}
    lock, following = threading.Lock(), 0

    def run_task(index: int, _: int) -> None:
        nonlocal following
        start = index * length
        result = task(start, min(start + length, n))
        with lock:
            pending[index] = result
            del result
            while following in pending:
                consume(following * length, pending.pop(following))
                following += 1

    if is_one(n):
        for start in range(0, n, length):
            consume(start, task(start, min(start + length, n)))
    else:
        run_each(run_task, -(-n // length))


def run_each(task: Callable[[int, int], _T], count: int) -> list[_T]:
    """Call ``task(i, i + 1)`` for each i below `count`, on several threads; return the results."""
    if thread_count() == 1 or count < 2:
        return [task(i, i + 1) for i in range(count)]
    return _Segments(task, count, 1).run()


def is_one(n: int) -> bool:
    """Return whether `run` makes a single call for n elements on the host."""
    return n < _THRESHOLD or thread_count() == 1


class _Segments(Generic[_T]):
    """Segments of one call of `run`, which the calling thread and the pool's threads take in turn.

    After an error, no thread takes another segment. All segments preceding a failed one have been
    taken, so the first error does not depend on the threads.
    """

    def __init__(self, task: Callable[[int, int], _T], n: int, length: int) -> None:
        self._task, self._n, self._length = task, n, length
        self._pending = deque(range(0, n, length))
        self._results: dict[int, _T] = {}
        self._errors: dict[int, BaseException] = {}
        # Threads of the pool that have begun to help, and those of them that have ended.
        self._begun, self._ended = list[None](), list[None]()
        self._ends: SimpleQueue[None] = SimpleQueue()  # gets an item for each of `_ended`

    def run(self) -> list[_T]:
        """Process all segments; return the results in order, or raise the first error."""
        try:
            _ask_for_help(self, min(thread_count(), len(self._pending)) - 1)
            self._work()
        except BaseException as error:  # an interrupt between two tasks
            self._errors[-1] = error
        self._await_helpers()
        results, self._results = self._results, {}
        del self._task  # a thread that is yet to begin keeps the call, but none of its arrays
        if self._errors:
            first = self._errors[min(self._errors)]
            self._errors.clear()
            try:
                raise first
            finally:
                del first  # break the cycle of the error and this frame, which holds arrays
        return [results[start] for start in sorted(results)]

    def _await_helpers(self) -> None:
        """Wait until no other thread works; an interrupt does not end the wait."""
        try:
            self._pending.clear()  # a thread that begins to help from now on finds nothing
            while len(self._ended) < len(self._begun):
                self._ends.get()
        except BaseException as error:
            self._errors.setdefault(-1, error)
            self._await_helpers()

    def help(self) -> None:
        """Process segments in a thread of the pool, unless the call is over."""
        self._begun.append(None)  # before it takes a segment
        self._work()
        self._ended.append(None)
        self._ends.put(None)

    def _work(self) -> None:
        while self._pending and not self._errors:
            try:
                start = self._pending.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self._results[start] = self._task(start, min(start + self._length, self._n))
            except BaseException as error:
                self._errors[start] = error


def _ask_for_help(call: _Segments[Any], count: int) -> None:
    """Let as many threads help a call, or fewer if the system allows no more."""
    # No thread starts while the interpreter ends, nor beyond a limit of the system.
    with contextlib.suppress(RuntimeError):
        while len(_threads) < count:
            name = f"gcodec-{len(_threads)}"
            thread = threading.Thread(target=_serve, args=(_calls,), name=name, daemon=True)
            thread.start()
            _threads.append(thread)
    for _ in range(min(count, len(_threads))):
        _calls.put(call)


def _serve(calls: SimpleQueue[_Segments[Any]]) -> None:
    """Help one call after another, until the process ends."""
    standardize()
    while True:
        calls.get().help()


def _forget() -> None:
    """Drop the threads in a forked child, which has none of them."""
    global _threads, _calls
    _threads, _calls = [], SimpleQueue()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
