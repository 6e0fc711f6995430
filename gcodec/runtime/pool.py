"""The thread pool: large inputs are cut into fixed segments; the bits never depend on it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from gcodec.errors import ParameterError
from gcodec.runtime.device import device_of

SEGMENT = 1 << 19  # elements
_CONVERTED = 1 << 17  # elements of the shortest segment whose conversion pays for its call
_IN_CONVERSION = 16  # all threads together convert this fraction of the elements at once: 1/16
_EACH = 4  # segments of each thread at least, as others may be slower; else as few as can be
_THRESHOLD = 1 << 20  # elements from which threads pay for their start

_T = TypeVar("_T")
_pool: tuple[int, ThreadPoolExecutor] | None = None


def thread_count() -> int:
    """Threads in use: ``GCODEC_NUM_THREADS``, else the processors this process may run on."""
    text = os.environ.get("GCODEC_NUM_THREADS")
    if text is None:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise ParameterError.of("GCODEC_NUM_THREADS", text, "an integer from 1 to 1024")
    return int(text)


def run(task: Callable[[int, int], _T], n: int, unit: int = 1, beside: Any = None) -> list[_T]:
    """Call ``task(start, stop)`` for segments that cover ``range(n)``, and wait for all of them.

    Segments start at multiples of `SEGMENT`, or of what is not more and a multiple of `unit`
    elements; there are as many as keep all threads busy. With one thread, or below about a million
    elements, there is one call in the calling thread; as where tasks work on `beside`, an array on
    a device, which has threads enough. Where `beside` is a `convert.ConvertedArray`, segments are
    shorter, whatever the number of threads, as each is converted in memory of its own. Returned is
    what the calls returned, in the order of the segments.
    """
    short = getattr(beside, "is_converted", False) and n > _CONVERTED
    if device_of(beside) is not None or (is_one(n) and not short):
        return [task(0, n)]
    segments = -(-n // (_EACH * thread_count() * SEGMENT)) * SEGMENT
    if short:
        most = n // (_IN_CONVERSION * thread_count()) // _CONVERTED * _CONVERTED
        segments = min(max(most, _CONVERTED), SEGMENT)
    length = max(segments // unit, 1) * unit
    if is_one(n):
        return [task(start, min(start + length, n)) for start in range(0, n, length)]
    return _Segments(task, n, length).run()


def is_one(n: int) -> bool:
    """Tell whether `run` makes one call for n elements on the host."""
    return n < _THRESHOLD or thread_count() == 1


class _Segments(Generic[_T]):
    """Segments of one call, which the calling thread and those of the pool take in turn.

    After an error no more are taken. All before one that fails were, so it does not depend on the
    threads which is the first that does.
    """

    def __init__(self, task: Callable[[int, int], _T], n: int, length: int) -> None:
        self._task, self._n, self._length = task, n, length
        self._left = deque(range(0, n, length))
        self._found: dict[int, _T] = {}
        self._failed: dict[int, BaseException] = {}

    def run(self) -> list[_T]:
        """Do all; return what the task returned, in order, or raise the first error."""
        helpers = min(thread_count(), len(self._left)) - 1
        others = [_executor().submit(self._work) for _ in range(helpers)]
        try:
            self._work()
        except BaseException as error:  # an interrupt, between two tasks
            self._failed[-1] = error
        wait([other for other in others if not other.cancel()])
        if self._failed:
            first = self._failed[min(self._failed)]
            self._failed.clear()
            try:
                raise first
            finally:
                del first  # it refers to this frame, which would keep all that its callers hold
        return [self._found[start] for start in sorted(self._found)]

    def _work(self) -> None:
        while self._left and not self._failed:
            try:
                start = self._left.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self._found[start] = self._task(start, min(start + self._length, self._n))
            except BaseException as error:
                self._failed[start] = error


def _executor() -> ThreadPoolExecutor:
    global _pool
    count = thread_count()
    if _pool is None or _pool[0] != count:
        # An executor that is replaced finishes its tasks and its idle threads end with it.
        _pool = (count, ThreadPoolExecutor(count, thread_name_prefix="gcodec"))
    return _pool[1]


def _forget() -> None:
    """In a forked child, drop the pool: its threads do not exist there."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
